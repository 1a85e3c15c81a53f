"""Terminal output: lines, and progress bars that update in place."""

from __future__ import annotations

import re
import sys
from typing import TextIO

from herder.engine.meta.printable import printable

WIDTH = 30
_PROGRESS = re.compile(r"(?P<what>.*): (?P<percent>100|[0-9]{1,2})% ?(?P<doing>.*)")


def progress_line(what: str, percent: int, doing: str) -> str:
    """Format progress as a line, which `Screen` shows as a bar."""
    return f"{what}: {percent}% {doing}".rstrip()


class Screen:
    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._unfinished = False  # the cursor is behind a bar

    def show(self, line: str) -> None:
        """Print a line; control characters are removed, because lines also come from scripts on machines."""
        stream, line = self._stream or sys.stdout, printable(line)
        match = _PROGRESS.fullmatch(line)
        if match is None or not stream.isatty():
            print("\n" * self._unfinished + line, file=stream, flush=True)
            self._unfinished = False
            return
        percent = int(match["percent"])
        print(f"\r\x1b[K{match['what']}: {bar(percent)} {percent:3}% {match['doing']}", end="", file=stream, flush=True)
        self._unfinished = percent < 100
        if percent == 100:
            print(file=stream, flush=True)


def bar(percent: int) -> str:
    done = percent * WIDTH // 100
    return f"[{'█' * done}{'·' * (WIDTH - done)}]"
