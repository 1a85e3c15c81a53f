"""Response heads and chunked transfer encoding."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus

from herder.engine.wire import Response

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_status_lines = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
_names = {
    name.lower(): name
    for name in ("Audit-Id", "Cache-Control", "Content-Type", "Content-Encoding", "Content-Length", "Retry-After")
}


class Dates:
    """Date header, formatted once per second. `seconds` is monotonic; `clock` returns the time."""

    def __init__(self, clock: Callable[[], datetime], seconds: Callable[[], float]) -> None:
        self._clock = clock
        self._seconds = seconds
        self._tick = -1
        self._line = ""

    def line(self) -> str:
        tick = int(self._seconds())
        if tick != self._tick:
            self._tick = tick
            now = self._clock().astimezone(UTC)
            day, month = _DAYS[now.weekday()], _MONTHS[now.month - 1]
            self._line = f"Date: {day}, {now.day:02} {month} {now.year:04} {now:%H:%M:%S} GMT\r\n"
        return self._line


def head(response: Response, date: str, *, length: int | None, chunked: bool, keep_alive: bool) -> bytes:
    """Return status line and headers. Without a length, chunking or the end of the connection delimits the body."""
    lines = [_status_lines.get(response.status) or f"HTTP/1.1 {response.status} \r\n"]
    for name, value in response.headers.items():
        if "\n" not in value and "\r" not in value:
            lines.append(f"{_names.get(name) or name.title()}: {value}\r\n")
    for text in response.warnings:
        lines.append(f"Warning: 299 - {_quoted(text)}\r\n")
    lines.append(date)
    if chunked:
        lines.append("Transfer-Encoding: chunked\r\n")
    elif length is not None:
        lines.append(f"Content-Length: {length}\r\n")
    lines.append("\r\n" if keep_alive else "Connection: close\r\n\r\n")
    return "".join(lines).encode("utf-8", "replace")


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


class _SharedChunk:
    """Encodes a chunk once if consecutive connections send the same bytes."""

    def __init__(self) -> None:
        self._content = b""
        self._chunk = b""

    def __call__(self, content: bytes) -> bytes:
        if content is not self._content:
            self._content, self._chunk = content, chunk(content)
        return self._chunk


shared_chunk = _SharedChunk()


def _quoted(text: str) -> str:
    """Return a quoted-string (RFC 7230) without unprintable characters."""
    printable = "".join(character for character in text if character.isprintable())
    return '"' + printable.replace("\\", "\\\\").replace('"', '\\"') + '"'
