"""Bytes into requests. Limits are kept while reading, so that nothing too large is ever held.

A request whose body takes more than one read is handed out before its body: the handler decides whether to read it.

The parser knows the common methods only. Any other word is a method too, which the handler refuses in its own words;
so it is taken out of the request line before parsing and put back after.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Callable
from typing import Any

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from herder.engine.client.wire import Query
from herder.engine.front.limits import FRAMING_BYTES, HEAD_BYTES, HEADERS, TARGET_BYTES
from herder.engine.front.targets import origin_form, read_target
from herder.engine.meta.errors import BadRequest, RequestEntityTooLarge, StatusError

_METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"})
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,64}")
_STANDS_IN = b"PUT"
_LONGEST_METHOD = 64
_EMPTY_LINE_BYTES = 64

_NAMES = {
    name.encode(): name.lower()
    for lower in (
        "Accept", "Accept-Encoding", "Authorization", "Connection", "Content-Encoding", "Content-Length",
        "Content-Type", "Expect", "Host", "Transfer-Encoding", "Upgrade", "User-Agent",
    )
    for name in (lower, lower.lower())
}  # fmt: skip
"""Spellings of the headers that almost every request has."""

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


class BodyBuffer:
    """A body that arrives after its head: what was received of it, and whether that is all."""

    __slots__ = ("complete", "content", "encoding", "error", "length", "limit", "waiter", "wanted")

    def __init__(self, encoding: str, length: int | None, limit: int) -> None:
        self.content = bytearray()
        self.encoding = encoding
        self.length = length  # None: chunked
        self.limit = limit
        self.complete = False
        self.error: StatusError | None = None
        self.wanted = False  # the handler asked for it; until then little of it is received
        self.waiter: asyncio.Future[None] | None = None

    @property
    def unread(self) -> int:
        """Bytes that nobody asked for yet."""
        return 0 if self.wanted else len(self.content)

    def end(self, error: StatusError | None = None) -> None:
        if not self.complete and self.error is None:
            self.complete, self.error = error is None, error
            if error is not None:
                self.content = bytearray()
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def result(self) -> bytes:
        """The body as it was before compression. Raises StatusError."""
        if self.error is not None:
            raise self.error
        content = bytes(self.content)
        return inflated(content, self.encoding, self.limit) if self.encoding and content else content


class Parsed(msgspec.Struct, gc=False):
    """One request as it was read, or the reason why it could not be."""

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
    pending: BodyBuffer | None = None  # instead of a body: one that is incomplete, or compressed
    size: int = 0  # bytes that it takes while it waits


def refused(error: StatusError) -> Parsed:
    return Parsed("GET", "/", Query(), {}, b"", False, "1.1", refusal=error)


class RequestParser:
    """Fed with bytes; hands out requests in order: with their body, or before it where it takes more than one read."""

    def __init__(self, completed: Callable[[Parsed], None], *, body_bytes: int, holds_upgrades: bool) -> None:
        self._completed = completed
        self._body_limit = body_bytes
        self._holds_upgrades = holds_upgrades
        self.undecided = False
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
        self._framing = 0  # bytes since the last content: chunk sizes, extensions, trailers
        self.pending: BodyBuffer | None = None  # a body on its way, of a request that was handed out

    @property
    def idle(self) -> bool:
        """Between two messages: nothing of the next one was seen."""
        return not self.in_message and not self._held

    @property
    def over(self) -> bool:
        """No more requests come from this connection."""
        return self._over

    @property
    def expects_continue(self) -> bool:
        """The client waits for leave to send the body that is pending."""
        return self.pending is not None and not self._body_size and "expect" in self._headers

    @property
    def unread(self) -> int:
        """Bytes held for nobody yet: behind an undecided upgrade, or of a body that its handler did not ask for."""
        return len(self._held) + (self.pending.unread if self.pending is not None else 0)

    @property
    def held(self) -> int:
        """All bytes held."""
        return len(self._held) + len(self.pending.content if self.pending is not None else self._body)

    def feed(self, data: memoryview | bytes) -> None:
        if self._over:
            return
        if self.undecided:
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
            self._announce()

    def end(self) -> bytes:
        """No more requests from here. What is left unread belongs to who takes the connection over."""
        self._over = True
        rest, self._held = bytes(self._held), bytearray()
        if self.pending is not None:
            self.pending.end(BadRequest("the connection ended before the body of the request did"))
        return rest

    def close(self) -> None:
        """After `end`: refer to nobody any more."""
        self._completed = _ignore
        self._parser = None

    def _with_known_method(self, data: memoryview | bytes) -> memoryview | bytes:
        if self._held:
            data, self._held = bytes(self._held) + bytes(data), bytearray()
        start = bytes(data[: _LONGEST_METHOD + 1])
        method, space, _ = start.partition(b" ")
        if space and method in _METHODS:
            return data
        if start[:1] in b"\r\n":  # an empty line before a request is allowed
            self._lines += 1
            stripped = bytes(data).lstrip(b"\r\n")
            if len(data) - len(stripped) > _EMPTY_LINE_BYTES or self._lines > _EMPTY_LINE_BYTES:
                self._refuse(BadRequest("malformed HTTP request: empty lines without a request"))
                return b""
            return self._with_known_method(stripped) if stripped else b""
        if space and _TOKEN.fullmatch(method):
            self._method = method
            return _STANDS_IN + bytes(data[len(method) :])
        if not space and len(start) <= _LONGEST_METHOD and b"\n" not in start:
            self._held = bytearray(data)
            return b""
        self._refuse(BadRequest("malformed HTTP request"))
        return b""

    def _upgraded(self, rest: bytes) -> None:
        """The last request handed out asks for an upgrade: what follows it is held until that is decided."""
        if self._holds_upgrades:
            self.undecided = True
        if rest:
            self.feed(rest)

    def not_upgraded(self) -> None:
        """HTTP goes on after a request that asked for something else."""
        self.undecided = False
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
            self._completed(refused(error))

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
            return  # a trailer: nobody here wants one
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
            # Joined once at the end of the head: joining each of a thousand to a long one would copy that every time.
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
            self._completed(parsed)

    def _announce(self) -> None:
        """Hand out a request whose body is still on its way."""
        declared = self._headers.get("content-length")
        length = int(declared) if declared is not None else None
        pending = BodyBuffer(self._headers.get("content-encoding", "").lower(), length, self._body_limit)
        parsed = self._parsed(self._parser.should_keep_alive())
        if parsed is None:
            return
        pending.content, self._body = self._body, bytearray()
        parsed.body, parsed.pending = b"", pending
        self.pending = pending
        self._completed(parsed)

    def _parsed(self, keep_alive: bool) -> Parsed | None:
        """The request as far as it was received; None where it was refused."""
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
            # Inflated when the handler asks for it: only then is it known who sent it.
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
    """For requests of a connection that is closed."""


def _malformed(error: HttpParserError) -> StatusError:
    return BadRequest(f"malformed HTTP request: {error}")


def _head_too_large() -> StatusError:
    return StatusError("Request Header Fields Too Large", code=431, reason="RequestHeaderFieldsTooLarge")


def too_large(limit: int) -> RequestEntityTooLarge:
    return RequestEntityTooLarge(f"Request entity too large: limit is {limit}")


def inflated(body: bytes, encoding: str, limit: int) -> bytes:
    """The body as it was before compression, never more than the limit of it."""
    if encoding not in ("gzip", "deflate"):
        return body
    inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        plain = inflate.decompress(body, limit + 1)
    except zlib.error as error:
        raise BadRequest(f"the body of the request could not be read: {error}") from None
    if len(plain) > limit:
        raise too_large(limit)
    if not inflate.eof:
        raise BadRequest("the body of the request could not be read: it ends too early")
    return plain
