"""HTTP/1.1 request parser with limits enforced while reading, so that nothing too large is ever buffered.

A request whose body spans several reads is delivered before its body; the handler decides whether to read it.

The underlying parser accepts only common methods. Any other token is a valid method too, and the handler rejects it
with its own message. So the token is replaced before parsing and restored afterwards.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Callable
from typing import Any

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from herder.engine.front.limits import FRAMING_BYTES, HEAD_BYTES, HEADERS, TARGET_BYTES
from herder.engine.front.targets import origin_form, read_target
from herder.engine.meta.errors import BadRequest, RequestEntityTooLarge, StatusError
from herder.engine.wire import Query

_METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"})
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,64}")
_PLACEHOLDER_METHOD = b"PUT"
_MAX_METHOD_BYTES = 64
_EMPTY_LINE_BYTES = 64

_NAMES = {
    name.encode(): name.lower()
    for lower in (
        "Accept", "Accept-Encoding", "Authorization", "Connection", "Content-Encoding", "Content-Length",
        "Content-Type", "Expect", "Host", "Transfer-Encoding", "Upgrade", "User-Agent",
    )
    for name in (lower, lower.lower())
}  # fmt: skip
"""Common spellings of frequent header names."""

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


class BodyBuffer:
    """A request body that arrives after its head."""

    __slots__ = ("complete", "content", "encoding", "error", "length", "limit", "requested", "waiter")

    def __init__(self, encoding: str, length: int | None, limit: int) -> None:
        self.content = bytearray()
        self.encoding = encoding
        self.length = length  # None: chunked
        self.limit = limit
        self.complete = False
        self.error: StatusError | None = None
        self.requested = False  # the handler asked for the body; until then only a little is buffered
        self.waiter: asyncio.Future[None] | None = None

    @property
    def unread(self) -> int:
        """Buffered bytes that the handler has not requested."""
        return 0 if self.requested else len(self.content)

    def end(self, error: StatusError | None = None) -> None:
        if not self.complete and self.error is None:
            self.complete, self.error = error is None, error
            if error is not None:
                self.content = bytearray()
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def result(self) -> bytes:
        """Return the decompressed body. Raises StatusError."""
        if self.error is not None:
            raise self.error
        content = bytes(self.content)
        return decompress_body(content, self.encoding, self.limit) if self.encoding and content else content


class Parsed(msgspec.Struct, gc=False):
    """A parsed request, or the error that rejects it."""

    method: str
    path: str
    query: Query
    headers: dict[str, str]
    body: bytes
    keep_alive: bool
    version: str
    upgrade: bool = False
    target: str = ""
    refusal: StatusError | None = None
    pending: BodyBuffer | None = None  # instead of `body`, if incomplete or compressed
    size: int = 0  # bytes that it occupies while queued


def rejected_request(error: StatusError) -> Parsed:
    return Parsed("GET", "/", Query(), {}, b"", False, "1.1", refusal=error)


class RequestParser:
    """Incremental parser: delivers requests in order, with the body, or before it if the body spans several reads."""

    def __init__(self, on_request: Callable[[Parsed], None], *, body_bytes: int, accepts_upgrades: bool) -> None:
        self._on_request = on_request
        self._body_limit = body_bytes
        self._accepts_upgrades = accepts_upgrades
        self.upgrade_pending = False
        self._parser: Any = HttpRequestParser(self)
        self._held = bytearray()
        self._over = False
        self._clear()

    def _clear(self) -> None:
        self.in_message = False
        self.in_body = False
        self._method = b""
        self._target = b""
        self._headers: dict[str, str] = {}
        self._repeated: dict[str, list[str]] = {}
        self._lines = 0
        self._head_size = 0
        self._body = bytearray()
        self._body_size = 0
        self._framing = 0  # framing bytes since the last content: chunk sizes, extensions, trailers
        self.pending: BodyBuffer | None = None  # incomplete body of a delivered request

    @property
    def idle(self) -> bool:
        """Whether no byte of the next request was received."""
        return not self.in_message and not self._held

    @property
    def over(self) -> bool:
        """Whether no more requests come from this connection."""
        return self._over

    @property
    def expects_continue(self) -> bool:
        """Whether the client waits for 100 Continue before it sends the pending body."""
        return self.pending is not None and not self._body_size and "expect" in self._headers

    @property
    def unread(self) -> int:
        """Buffered bytes that nothing consumes yet: after a pending upgrade, or of a body that was not requested."""
        return len(self._held) + (self.pending.unread if self.pending is not None else 0)

    @property
    def held(self) -> int:
        """All buffered bytes."""
        return len(self._held) + len(self.pending.content if self.pending is not None else self._body)

    def feed(self, data: memoryview | bytes) -> None:
        if self._over:
            return
        if self.upgrade_pending:
            self._held += data
            return
        if not self.in_message:
            data = self._with_known_method(data)
            if not data:
                return
        if self.in_body:
            self._framing += len(data)
        else:
            self._head_size += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._upgraded(bytes(data[upgrade.args[0] :]))
        except HttpParserError as error:
            self._refuse(_malformed(error))
        if self._over or not self.in_message:
            return
        if not self.in_body:
            if self._head_size > HEAD_BYTES:
                self._refuse(_head_too_large())
        elif self._framing > FRAMING_BYTES:
            self._refuse(BadRequest("malformed HTTP request: too many bytes of chunk framing or trailers"))
        elif self.pending is None:
            self._deliver_head()

    def end(self) -> bytes:
        """Stop parsing and return the unparsed bytes, which belong to the protocol that takes over the connection."""
        self._over = True
        rest, self._held = bytes(self._held), bytearray()
        if self.pending is not None:
            self.pending.end(BadRequest("connection closed before the end of the request body"))
        return rest

    def close(self) -> None:
        """Drop all references, after `end`."""
        self._on_request = _ignore
        self._parser = None

    def _with_known_method(self, data: memoryview | bytes) -> memoryview | bytes:
        if self._held:
            data, self._held = bytes(self._held) + bytes(data), bytearray()
        start = bytes(data[: _MAX_METHOD_BYTES + 1])
        method, space, _ = start.partition(b" ")
        if space and method in _METHODS:
            return data
        if start[:1] in b"\r\n":  # RFC 9112 allows empty lines before a request
            self._lines += 1
            stripped = bytes(data).lstrip(b"\r\n")
            if len(data) - len(stripped) > _EMPTY_LINE_BYTES or self._lines > _EMPTY_LINE_BYTES:
                self._refuse(BadRequest("malformed HTTP request: empty lines without a request"))
                return b""
            return self._with_known_method(stripped) if stripped else b""
        if space and _TOKEN.fullmatch(method):
            self._method = method
            return _PLACEHOLDER_METHOD + bytes(data[len(method) :])
        if not space and len(start) <= _MAX_METHOD_BYTES and b"\n" not in start:
            self._held = bytearray(data)
            return b""
        self._refuse(BadRequest("malformed HTTP request"))
        return b""

    def _upgraded(self, rest: bytes) -> None:
        """Buffer what follows an upgrade request until the handler has decided."""
        if self._accepts_upgrades:
            self.upgrade_pending = True
        if rest:
            self.feed(rest)

    def decline_upgrade(self) -> None:
        """Continue with HTTP after an upgrade request that was not accepted."""
        self.upgrade_pending = False
        rest, self._held = bytes(self._held), bytearray()
        if rest:
            self.feed(rest)

    def _refuse(self, error: StatusError) -> None:
        if self._over:
            return
        self._over = True
        if self.pending is not None:
            self.pending.end(error)
        else:
            self._on_request(rejected_request(error))

    # --- called by the parser ---------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.in_message = True
        self._lines = 0

    def on_url(self, piece: bytes) -> None:
        self._target += piece
        if len(self._target) > TARGET_BYTES:
            self._refuse(StatusError("Request-URI Too Long", code=414, reason="RequestURITooLong"))

    def on_header(self, raw_name: bytes, raw_value: bytes) -> None:
        if self._over or self.in_body:
            return  # trailers are ignored
        self._lines += 1
        if self._lines > HEADERS:
            self._refuse(_head_too_large())
            return
        name = _NAMES.get(raw_name) or raw_name.decode("latin-1").lower()
        try:
            value = raw_value.decode()
        except UnicodeDecodeError:
            value = raw_value.decode("latin-1")
        if name in self._headers:
            # Joined once at the end of the head: joining incrementally would be quadratic.
            self._repeated.setdefault(name, [self._headers[name]]).append(value)
        else:
            self._headers[name] = value

    def on_headers_complete(self) -> None:
        self.in_body = True
        if self._over:
            return
        headers = self._headers
        for name, values in self._repeated.items():
            headers[name] = ", ".join(values)
        if "host" not in headers and self._parser.get_http_version() != "1.0":
            self._refuse(BadRequest("missing required Host header"))
        elif headers.get("transfer-encoding", "chunked").lower() != "chunked":
            self._refuse(StatusError("unsupported transfer encoding", code=501, reason="NotImplemented"))
        elif int(headers.get("content-length", 0)) > self._body_limit:
            self._refuse(too_large(self._body_limit))
        elif "expect" in headers and headers["expect"].lower() != "100-continue":
            self._refuse(StatusError("Expectation Failed", code=417, reason="ExpectationFailed"))

    def on_body(self, piece: bytes) -> None:
        if self._over:
            return
        self._body_size += len(piece)
        self._framing = 0
        if self._body_size > self._body_limit:
            self._refuse(too_large(self._body_limit))
        elif self.pending is not None:
            self.pending.content += piece
        else:
            self._body += piece

    def on_message_complete(self) -> None:
        if self._over:
            return
        keep_alive = self._parser.should_keep_alive()
        pending, parsed = self.pending, None
        if pending is None and (parsed := self._parsed(keep_alive)) is None:
            return
        self._clear()
        if not keep_alive:
            self._over = True
        if pending is not None:
            pending.end()
        elif parsed is not None:
            self._on_request(parsed)

    def _deliver_head(self) -> None:
        """Deliver a request whose body is incomplete."""
        declared = self._headers.get("content-length")
        length = int(declared) if declared is not None else None
        pending = BodyBuffer(self._headers.get("content-encoding", "").lower(), length, self._body_limit)
        parsed = self._parsed(self._parser.should_keep_alive())
        if parsed is None:
            return
        pending.content, self._body = self._body, bytearray()
        parsed.body, parsed.pending = b"", pending
        self.pending = pending
        self._on_request(parsed)

    def _parsed(self, keep_alive: bool) -> Parsed | None:
        """Return the request as received so far; None if it was rejected."""
        parser = self._parser
        try:
            target = origin_form(self._target)
            path, query = read_target(target)
        except StatusError as error:
            self._refuse(error)
            return None
        pending = None
        body = bytes(self._body)
        if body and "content-encoding" in self._headers:
            # Decompressed when the handler asks for it, after authentication.
            pending = BodyBuffer(self._headers["content-encoding"].lower(), len(body), self._body_limit)
            pending.content, pending.complete, body = self._body, True, b""
        return Parsed(
            (self._method or parser.get_method()).decode("ascii"),
            path,
            query,
            self._headers,
            body,
            keep_alive,
            parser.get_http_version(),
            parser.should_upgrade(),
            target.decode("latin-1"),
            pending=pending,
            size=self._head_size + self._body_size,
        )


def _ignore(_parsed: Parsed) -> None:
    """Ignore requests of a closed connection."""


def _malformed(error: HttpParserError) -> StatusError:
    return BadRequest(f"malformed HTTP request: {error}")


def _head_too_large() -> StatusError:
    return StatusError("Request Header Fields Too Large", code=431, reason="RequestHeaderFieldsTooLarge")


def too_large(limit: int) -> RequestEntityTooLarge:
    return RequestEntityTooLarge(f"Request entity too large: limit is {limit}")


def decompress_body(body: bytes, encoding: str, limit: int) -> bytes:
    """Return the decompressed body; raise if it exceeds the limit."""
    if encoding not in ("gzip", "deflate"):
        return body
    decompressor = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        plain = decompressor.decompress(body, limit + 1)
    except zlib.error as error:
        raise BadRequest(f"request body: decompression failed: {error}") from None
    if len(plain) > limit:
        raise too_large(limit)
    if not decompressor.eof:
        raise BadRequest("request body: compressed data is truncated")
    return plain
