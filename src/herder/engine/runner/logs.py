"""Reading what containers said: whole, the end of it, since a time, or followed while it grows."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

_POLL = 0.1
_CHUNK = 64 * 1024


@dataclass(frozen=True, slots=True)
class LogOptions:
    follow: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    since: datetime | None = None
    limit_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Line:
    time: bytes
    text: bytes  # with its line break where it has one


async def read(path: Path, options: LogOptions, *, ended: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Chunks of text; when following, until the container has ended and all it said is sent."""
    left = options.limit_bytes
    async with aclosing(_chunks(path, options, ended)) as chunks:
        async for chunk in chunks:
            if left is not None:
                chunk = chunk[:left]
                left -= len(chunk)
            if chunk:
                yield chunk
            if left == 0:
                return


async def _chunks(path: Path, options: LogOptions, ended: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
    current = _Growing(path)
    try:
        # Tens of megabytes, perhaps: not on the loop that also serves and renews leases.
        chosen = await asyncio.to_thread(_said_so_far, path, current, options)
        for chunk in _rendered(chosen, options):
            yield chunk
        while options.follow:
            over = ended()  # asked before the last look, so that nothing said in between is missed
            fresh = current.lines()
            for chunk in _rendered(fresh, options):
                yield chunk
            if over and not fresh:
                return
            if not fresh:
                await asyncio.sleep(_POLL)
    finally:
        current.close()


class _Growing:
    """A log file that is appended to, and renamed away when it is full."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held = b""
        self._file = -1
        self._open()

    def lines(self) -> list[Line]:
        """What came since the last call."""
        found: list[Line] = []
        while True:
            data = os.read(self._file, _CHUNK) if self._file >= 0 else b""
            if data:
                *whole, self._held = (self._held + data).split(b"\n")
                found += [parsed(line) for line in whole]
            elif not self._reopened():
                return found

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _reopened(self) -> bool:
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return False
        if self._file >= 0 and os.fstat(self._file).st_ino == there.st_ino:
            return False
        self.close()
        self._open()
        return self._file >= 0

    def _open(self) -> None:
        try:
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._file = -1


def parsed(record: bytes) -> Line:
    """One record: time, stream, F for a full line or P for a part, text."""
    time, _, rest = record.partition(b" ")
    _, _, rest = rest.partition(b" ")
    tag, _, text = rest.partition(b" ")
    return Line(time, text if tag.startswith(b"P") else text + b"\n")


def tail_text(path: Path, *, lines: int, limit: int) -> str:
    """The last lines of a log, for a termination message."""
    growing = _Growing(path)
    try:
        text = b"".join(line.text for line in deque(growing.lines(), lines))
    finally:
        growing.close()
    return text[-limit:].decode(errors="replace")


def _said_so_far(path: Path, current: _Growing, options: LogOptions) -> list[Line] | deque[Line]:
    chosen = _since([*_older_lines(path), *current.lines()], options.since)
    return chosen if options.tail_lines is None else deque(chosen, options.tail_lines)


def _older_lines(path: Path) -> Iterator[Line]:
    rotated = sorted(
        (int(entry.suffix[1:]), entry) for entry in path.parent.glob(f"{path.name}.*") if entry.suffix[1:].isdigit()
    )
    for _, file in reversed(rotated):
        for record in file.read_bytes().splitlines():
            yield parsed(record)


def _since(lines: list[Line], since: datetime | None) -> list[Line]:
    if since is None:
        return lines
    # The times are written alike, so that their order is that of their text; the fraction decides within a second.
    first = since.strftime("%Y-%m-%dT%H:%M:%S.%f").encode()
    return [line for line in lines if line.time >= first]


def _rendered(lines: list[Line] | deque[Line], options: LogOptions) -> Iterator[bytes]:
    held: list[bytes] = []
    size = 0
    for line in lines:
        text = line.time + b" " + line.text if options.timestamps else line.text
        held.append(text)
        size += len(text)
        if size >= _CHUNK:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)
