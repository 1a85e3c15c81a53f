"""A minimal HTTP client that sends exactly the given bytes, as no library would."""

from __future__ import annotations

import asyncio
import re
import ssl
import zlib
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from herder.engine.client.kubeconfig import RestConfig
from herder.engine.client.tls import tls_context

TIMEOUT = 30.0
"""Seconds within which every request must be answered, even on a busy machine."""

_WATCHES = re.compile(r"[?&]watch\b|/watch/")
_MAX_HEAD = 1 << 20


@dataclass(frozen=True)
class Input:
    """One request. `about` names the class that disagreements are counted under."""

    about: str
    method: str
    url: str
    body: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()

    def raw(self, host: str) -> bytes:
        lines = [f"{self.method} {self.url} HTTP/1.1"]
        named = {name.lower() for name, _ in self.headers}
        if "host" not in named:
            lines.append(f"Host: {host}")
        if "accept" not in named:
            lines.append("Accept: application/json")
        if self.body is not None and not named & {"content-length", "transfer-encoding"}:
            lines.append(f"Content-Length: {len(self.body)}")
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + (self.body or b"")


@dataclass
class Reply:
    code: int
    headers: dict[str, str]
    body: bytes = b""


class NoResponse(Exception):
    """The connection ended, or the timeout expired, before a response arrived."""


@dataclass
class Wire:
    """One persistent connection, reopened if the server closed it."""

    connection: RestConfig
    _reader: asyncio.StreamReader | None = None
    _writer: asyncio.StreamWriter | None = None
    _context: ssl.SSLContext | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.connection.server)
        self.host, self.port = str(parts.hostname), int(parts.port or 443)
        self._context = tls_context(self.connection)

    async def send(self, request: Input) -> Reply:
        """The response; of a started watch, only its head."""
        reused = self._writer is not None
        try:
            return await self._send(request)
        except (NoResponse, OSError):
            await self.close()
            if not reused:
                raise
        return await self._send(request)  # the server may have closed an idle connection

    async def _send(self, request: Input) -> Reply:
        try:
            async with asyncio.timeout(TIMEOUT):
                reader, writer = await self._connected()
                writer.write(request.raw(f"{self.host}:{self.port}"))
                reply, ended = await read_reply(
                    reader, head_only=request.method == "HEAD", stream_only=bool(_WATCHES.search(request.url))
                )
        except TimeoutError as error:
            await self.close()
            raise NoResponse(f"no response within {TIMEOUT} s") from error
        if ended:
            await self.close()
        return reply

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await self.open()
        return self._reader, self._writer

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A separate connection for the caller."""
        return await asyncio.open_connection(self.host, self.port, ssl=self._context, limit=_MAX_HEAD)

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None


async def read_reply(
    reader: asyncio.StreamReader, *, head_only: bool = False, stream_only: bool = False
) -> tuple[Reply, bool]:
    """The response, and whether the connection cannot be reused."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise NoResponse(repr(error)) from error
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1"):
        raise NoResponse(f"not HTTP: {first!r}")
    reply = Reply(int(rest[:3]), {})
    for line in lines:
        name, _, value = line.partition(":")
        if name:
            reply.headers[name.strip().lower()] = value.strip()
    ended = reply.headers.get("connection", "").lower() == "close" or version == "HTTP/1.0"
    if head_only or reply.code in (101, 204, 304):
        return reply, ended
    if reply.code == 100:
        return await read_reply(reader, head_only=head_only, stream_only=stream_only)
    chunked = reply.headers.get("transfer-encoding", "") == "chunked"
    if stream_only and reply.code == 200 and chunked:
        return reply, True
    try:
        if chunked:
            reply.body = await _chunks(reader)
        elif "content-length" in reply.headers:
            reply.body = await reader.readexactly(int(reply.headers["content-length"]))
        else:
            reply.body, ended = await reader.read(), True
    except asyncio.IncompleteReadError as error:
        raise NoResponse(repr(error)) from error
    if reply.headers.get("content-encoding") == "gzip":
        reply.body = zlib.decompress(reply.body, 31)
    return reply, ended


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while True:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        body += (await reader.readexactly(size + 2))[:size]
        if not size:
            return body
