"""Bytes into requests. Limits are kept while reading, so that nothing too large is ever held.

The parser knows the common methods only. Any other word is a method too, which the handler refuses in its own words;
so it is taken out of the request line before parsing and put back after.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from typing import Any

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from herder.engine.client.wire import Query
from herder.engine.front.limits import HEAD_BYTES, HEADERS, TARGET_BYTES
from herder.engine.front.targets import origin_form, read_target
from herder.engine.meta.errors import BadRequest, RequestEntityTooLarge, StatusError

_METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"})
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,64}")
_STANDS_IN = b"PUT"
_LONGEST_METHOD = 64

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


def refused(error: StatusError) -> Parsed:
    return Parsed("GET", "/", Query(), {}, b"", False, "1.1", refusal=error)


class RequestParser:
    """Fed with bytes; hands out requests in order, and says when a client waits for leave to send its body."""

    def __init__(
        self,
        completed: Callable[[Parsed], None],
        expects: Callable[[], None],
        *,
        body_bytes: int,
        holds_upgrades: bool,
    ) -> None:
        self._completed = completed
        self._expects = expects
        self._body_limit = body_bytes
        self._holds_upgrades = holds_upgrades
        self._undecided = False
        self._parser: Any = HttpRequestParser(self)
        self._held = b""
        self._over = False
        self._clear()

    def _clear(self) -> None:
        self.in_message = False
        self.in_body = False
        self._method = b""
        self._target = b""
        self._headers: dict[str, str] = {}
        self._head_size = 0
        self._body: list[bytes] = []
        self._body_size = 0

    @property
    def idle(self) -> bool:
        """Between two messages: nothing of the next one was seen."""
        return not self.in_message and not self._held

    def feed(self, data: memoryview | bytes) -> None:
        if self._over:
            return
        if self._undecided:
            self._held += data
            return
        if not self.in_message:
            data = self._with_known_method(data)
            if not data:
                return
        if not self.in_body:
            self._head_size += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._upgraded(bytes(data[upgrade.args[0] :]))
        except HttpParserError as error:
            self._refuse(_malformed(error))
        if self._head_size > HEAD_BYTES and self.in_message and not self.in_body:
            self._refuse(_head_too_large())

    def end(self) -> bytes:
        """No more requests from here. What is left unread belongs to who takes the connection over."""
        self._over = True
        rest, self._held = self._held, b""
        return rest

    def _with_known_method(self, data: memoryview | bytes) -> memoryview | bytes:
        if self._held:
            data, self._held = self._held + bytes(data), b""
        start = bytes(data[: _LONGEST_METHOD + 1])
        method, space, _ = start.partition(b" ")
        if space and method in _METHODS:
            return data
        if start[:1] in b"\r\n":  # an empty line before a request is allowed
            stripped = bytes(data).lstrip(b"\r\n")
            return self._with_known_method(stripped) if stripped else b""
        if space and _TOKEN.fullmatch(method):
            self._method = method
            return _STANDS_IN + bytes(data[len(method) :])
        if not space and len(start) <= _LONGEST_METHOD and b"\n" not in start:
            self._held = bytes(data)
            return b""
        self._refuse(BadRequest("malformed HTTP request"))
        return b""

    def _upgraded(self, rest: bytes) -> None:
        """The last request handed out asks for an upgrade: what follows it is held until that is decided."""
        if self._holds_upgrades:
            self._undecided = True
        if rest:
            self.feed(rest)

    def not_upgraded(self) -> None:
        """HTTP goes on after a request that asked for something else."""
        self._undecided = False
        rest, self._held = self._held, b""
        if rest:
            self.feed(rest)

    def _refuse(self, error: StatusError) -> None:
        if not self._over:
            self._over = True
            self._completed(refused(error))

    # --- called by the parser ---------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.in_message = True

    def on_url(self, piece: bytes) -> None:
        self._target += piece
        if len(self._target) > TARGET_BYTES:
            self._refuse(StatusError("Request-URI Too Long", code=414, reason="RequestURITooLong"))

    def on_header(self, raw_name: bytes, raw_value: bytes) -> None:
        if self.in_body:
            return  # a trailer: nobody here wants one
        name = _NAMES.get(raw_name) or raw_name.decode("latin-1").lower()
        try:
            value = raw_value.decode()
        except UnicodeDecodeError:
            value = raw_value.decode("latin-1")
        headers = self._headers
        if name in headers:
            value = f"{headers[name]}, {value}"
        elif len(headers) >= HEADERS:
            self._refuse(_head_too_large())
            return
        headers[name] = value

    def on_headers_complete(self) -> None:
        self.in_body = True
        if self._over:
            return
        headers = self._headers
        if "host" not in headers and self._parser.get_http_version() != "1.0":
            self._refuse(BadRequest("missing required Host header"))
        elif headers.get("transfer-encoding", "chunked").lower() != "chunked":
            self._refuse(StatusError("unsupported transfer encoding", code=501, reason="NotImplemented"))
        elif int(headers.get("content-length", 0)) > self._body_limit:
            self._refuse(_too_large(self._body_limit))
        elif "expect" in headers:
            if headers["expect"].lower() == "100-continue":
                self._expects()
            else:
                self._refuse(StatusError("Expectation Failed", code=417, reason="ExpectationFailed"))

    def on_body(self, piece: bytes) -> None:
        self._body_size += len(piece)
        if self._body_size > self._body_limit:
            self._body.clear()
            self._refuse(_too_large(self._body_limit))
        elif not self._over:
            self._body.append(piece)

    def on_message_complete(self) -> None:
        if self._over:
            return
        parser = self._parser
        try:
            target = origin_form(self._target)
            path, query = read_target(target)
            body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            encoding = self._headers.get("content-encoding")
            if encoding is not None and body:
                body = _inflated(body, encoding.lower(), self._body_limit)
        except StatusError as error:
            self._refuse(error)
            return
        keep_alive = parser.should_keep_alive()
        parsed = Parsed(
            (self._method or parser.get_method()).decode("ascii"),
            path,
            query,
            self._headers,
            body,
            keep_alive,
            parser.get_http_version(),
            parser.should_upgrade(),
            target.decode("latin-1"),
        )
        self._clear()
        if not keep_alive:
            self._over = True
        self._completed(parsed)


def _malformed(error: HttpParserError) -> StatusError:
    return BadRequest(f"malformed HTTP request: {error}")


def _head_too_large() -> StatusError:
    return StatusError("Request Header Fields Too Large", code=431, reason="RequestHeaderFieldsTooLarge")


def _too_large(limit: int) -> RequestEntityTooLarge:
    return RequestEntityTooLarge(f"Request entity too large: limit is {limit}")


def _inflated(body: bytes, encoding: str, limit: int) -> bytes:
    """The body as it was before compression, never more than the limit of it."""
    if encoding not in ("gzip", "deflate"):
        return body
    inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        plain = inflate.decompress(body, limit + 1)
    except zlib.error as error:
        raise BadRequest(f"the body of the request could not be read: {error}") from None
    if len(plain) > limit:
        raise _too_large(limit)
    if not inflate.eof:
        raise BadRequest("the body of the request could not be read: it ends too early")
    return plain
