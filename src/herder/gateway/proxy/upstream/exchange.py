"""HTTP/1.1 client exchange: one request on a channel and its response, at most one read ahead."""

from __future__ import annotations

from collections import deque
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from herder.gateway.proxy.rewrite import Headers, Outgoing
from herder.gateway.proxy.upstream.channel import Channel
from herder.tunnel.errors import TunnelError

_HEAD_BYTES = 256 << 10
_SWITCHING_PROTOCOLS = 101
_BODILESS = frozenset({204, 304})


class InvalidResponse(ConnectionError):
    """The response is malformed or truncated."""


class Exchange:
    """`ask`, then `more` until it returns None. After a 101 the channel is handed over, `upgraded_data` first."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.status = 0
        self.headers: Headers = []
        self.response_started = False  # the response has started: the request must not be repeated
        self.upgraded_data = b""
        self._parser: Any = HttpResponseParser(self)
        self._chunks: deque[bytes] = deque()
        self._bodiless = False
        self._in_body = False
        self._complete = False
        self._keeps_alive = False
        self._unparsed = 0  # bytes since the last body chunk; the parser buffers headers

    @property
    def reusable(self) -> bool:
        """Whether nothing of this exchange is left on the channel."""
        return self._complete and self._keeps_alive and not self._bodiless

    @property
    def length(self) -> int | None:
        """Body length if known in advance."""
        if self.status in _BODILESS:
            return 0
        return next((int(value) for name, value in self.headers if name == "content-length"), None)

    async def ask(self, outgoing: Outgoing) -> None:
        """Return when the response head has arrived."""
        self._bodiless = outgoing.method == "HEAD"
        refused = await self._send(outgoing)
        while not self._in_body:
            try:
                await self._read()
            except (OSError, TunnelError) as error:
                raise (refused or error) from None

    async def _send(self, outgoing: Outgoing) -> Exception | None:
        """A server may respond before it has read the request, and stop reading: its response counts."""
        try:
            await self.channel.send(outgoing.head() + outgoing.body)
        except (OSError, TunnelError) as error:
            return error
        return None

    async def more(self) -> bytes | None:
        """Next chunk of the body; None at the end."""
        while not self._chunks:
            if self._complete or self._bodiless:
                return None
            await self._read()
        return self._chunks.popleft()

    async def _read(self) -> None:
        data = await self.channel.receive()
        if not data:
            self._ended()
            return
        self.response_started = True
        self._unparsed += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self.upgraded_data = bytes(data[upgrade.args[0] :])
        except HttpParserError as error:
            raise InvalidResponse(f"invalid HTTP response: {error}") from None
        if self._unparsed > _HEAD_BYTES:
            what = "a chunk or the trailer" if self._in_body else "the head"
            raise InvalidResponse(f"{what} of the response is longer than {_HEAD_BYTES} bytes")

    def _ended(self) -> None:
        names = {name for name, _ in self.headers}
        if not self._in_body or names & {"content-length", "transfer-encoding"}:
            raise InvalidResponse("the connection closed before the end of the response")
        self._complete = True  # Without a length the end of the connection ends the body.

    # --- parser callbacks -------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # Trailers are ignored.
            self.headers.append((name.decode("latin-1").lower(), value.decode("utf-8", "replace")))

    def on_headers_complete(self) -> None:
        status = int(self._parser.get_status_code())
        if status < 200 and status != _SWITCHING_PROTOCOLS:
            self.headers.clear()  # an interim response
            return
        self.status = status
        self._in_body = True
        self._keeps_alive = bool(self._parser.should_keep_alive())

    def on_body(self, chunk: bytes) -> None:
        self._unparsed = 0
        if not self._bodiless:
            self._chunks.append(chunk)

    def on_message_complete(self) -> None:
        if self.status:
            self._complete = True
