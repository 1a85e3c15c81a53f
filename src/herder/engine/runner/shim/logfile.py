"""Container log file in CRI format: time, stream, full or partial tag, text."""

from __future__ import annotations

import os
import time

PARTIAL_BYTES = 16 * 1024


class LogFile:
    """Log with rotation: `path` is the newest file, `path.1`, `path.2` and so on are older."""

    def __init__(self, path: str, *, limit: int, keep: int) -> None:
        self.path = path
        self.limit = limit
        self.keep = keep
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = os.fstat(self._file).st_size
        self._partial: dict[str, bytes] = {}

    def write(self, stream: str, data: bytes) -> None:
        *lines, partial = (self._partial.get(stream, b"") + data).split(b"\n")
        for line in lines:
            self._write_record(stream, b"F", line)
        while len(partial) >= PARTIAL_BYTES:
            self._write_record(stream, b"P", partial[:PARTIAL_BYTES])
            partial = partial[PARTIAL_BYTES:]
        self._partial[stream] = partial

    def close(self) -> None:
        """Write unterminated output as a partial line, and close the file."""
        for stream, partial in self._partial.items():
            if partial:
                self._write_record(stream, b"P", partial)
        os.close(self._file)

    def _write_record(self, stream: str, tag: bytes, text: bytes) -> None:
        record = b"%s %s %s %s\n" % (_timestamp(), stream.encode(), tag, text)
        if self._size and self._size + len(record) > self.limit:
            self._rotate()
        while record:
            written = os.write(self._file, record)
            self._size += written
            record = record[written:]

    def _rotate(self) -> None:
        os.close(self._file)
        for number in range(self.keep - 1, 0, -1):
            older = self.path if number == 1 else f"{self.path}.{number - 1}"
            if os.path.exists(older):
                os.replace(older, f"{self.path}.{number}")
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        self._size = 0


def _timestamp() -> bytes:
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{nanoseconds:09d}Z".encode()
