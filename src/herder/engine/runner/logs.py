"""Container log reader: all lines, the tail, since a time, or followed while the container runs."""

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
    """PodLogOptions that the kubelet supports."""

    follow: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    since: datetime | None = None
    limit_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One log line."""

    time: bytes
    text: bytes  # including the newline, if any


async def read(path: Path, options: LogOptions, *, ended: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield chunks of text; with `follow`, until the container has ended and all output was sent."""
    remaining = options.limit_bytes
    async with aclosing(_chunks(path, options, ended)) as chunks:
        async for chunk in chunks:
            if remaining is not None:
                chunk = chunk[:remaining]
                remaining -= len(chunk)
            if chunk:
                yield chunk
            if remaining == 0:
                return


async def _chunks(path: Path, options: LogOptions, ended: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
    current = _LogTail(path)
    try:
        # Logs can be tens of megabytes: read them off the event loop, which also renews the Lease.
        chosen = await asyncio.to_thread(_existing_lines, path, current, options)
        for chunk in _chunked(chosen, options):
            yield chunk
        while options.follow:
            has_ended = ended()  # checked before the last read, so that no output in between is missed
            new_lines = current.lines()
            for chunk in _chunked(new_lines, options):
                yield chunk
            if has_ended and not new_lines:
                return
            if not new_lines:
                await asyncio.sleep(_POLL)
    finally:
        current.close()


class _LogTail:
    """Reads a log file that grows and is rotated."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held = b""
        self._file = -1
        self._open()

    def lines(self) -> list[Line]:
        """Return the lines written since the last call."""
        found: list[Line] = []
        while True:
            data = os.read(self._file, _CHUNK) if self._file >= 0 else b""
            if data:
                *complete, self._held = (self._held + data).split(b"\n")
                found += [parse_record(line) for line in complete]
            elif not self._reopen():
                return found

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _reopen(self) -> bool:
        try:
            current_file = os.stat(self._path)
        except FileNotFoundError:
            return False
        if self._file >= 0 and os.fstat(self._file).st_ino == current_file.st_ino:
            return False
        self.close()
        self._open()
        return self._file >= 0

    def _open(self) -> None:
        try:
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._file = -1


def parse_record(record: bytes) -> Line:
    """Parse a CRI log record: time, stream, F (full line) or P (partial), text."""
    time, _, rest = record.partition(b" ")
    _, _, rest = rest.partition(b" ")
    tag, _, text = rest.partition(b" ")
    return Line(time, text if tag.startswith(b"P") else text + b"\n")


def tail_text(path: Path, *, lines: int, limit: int) -> str:
    """Return the last lines of a log, for a termination message."""
    tail = _LogTail(path)
    try:
        text = b"".join(line.text for line in deque(tail.lines(), lines))
    finally:
        tail.close()
    return text[-limit:].decode(errors="replace")


def _existing_lines(path: Path, current: _LogTail, options: LogOptions) -> list[Line] | deque[Line]:
    chosen = _since([*_older_lines(path), *current.lines()], options.since)
    return chosen if options.tail_lines is None else deque(chosen, options.tail_lines)


def _older_lines(path: Path) -> Iterator[Line]:
    rotated = sorted(
        (int(entry.suffix[1:]), entry) for entry in path.parent.glob(f"{path.name}.*") if entry.suffix[1:].isdigit()
    )
    for _, file in reversed(rotated):
        for record in file.read_bytes().splitlines():
            yield parse_record(record)


def _since(lines: list[Line], since: datetime | None) -> list[Line]:
    if since is None:
        return lines
    # All timestamps have the same format, so that they compare as text.
    first = since.strftime("%Y-%m-%dT%H:%M:%S.%f").encode()
    return [line for line in lines if line.time >= first]


def _chunked(lines: list[Line] | deque[Line], options: LogOptions) -> Iterator[bytes]:
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
