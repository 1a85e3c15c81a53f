"""HTTP/1.1 as a client: one request on a channel, and its answer piece by piece, never more than one read ahead."""

from __future__ import annotations

from collections import deque
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from herder.gateway.proxy.channels import Channel
from herder.gateway.proxy.rebuilding import Headers, Outgoing
from herder.tunnel.errors import TunnelError

_HEAD_BYTES = 256 << 10
_SWITCHING_PROTOCOLS = 101
_BODILESS = frozenset({204, 304})


class BrokenAnswer(ConnectionError):
    """What came is no answer, or ends before its end."""


class Exchange:
    """`ask`, then `more` until it returns None. After a 101 the channel is somebody else's, `rest` first."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.status = 0
        self.headers: Headers = []
        self.begun = False  # the answer has: asking again would ask twice
        self.rest = b""
        self._parser: Any = HttpResponseParser(self)
        self._pieces: deque[bytes] = deque()
        self._bodiless = False
        self._in_body = False
        self._complete = False
        self._keeps_alive = False
        self._between = 0  # bytes since the last piece of the body: the parser holds a header until it ends

    @property
    def reusable(self) -> bool:
        """Nothing of this exchange is left on the channel."""
        return self._complete and self._keeps_alive and not self._bodiless

    @property
    def length(self) -> int | None:
        """Of the body, where it is known beforehand."""
        if self.status in _BODILESS:
            return 0
        return next((int(value) for name, value in self.headers if name == "content-length"), None)

    async def ask(self, outgoing: Outgoing) -> None:
        """Returns when the head of the answer is there."""
        self._bodiless = outgoing.method == "HEAD"
        refused = await self._send(outgoing)
        while not self._in_body:
            try:
                await self._read()
            except (OSError, TunnelError) as error:
                raise (refused or error) from None

    async def _send(self, outgoing: Outgoing) -> Exception | None:
        """A server may answer before it has read everything, and then read no more: its answer is what counts."""
        try:
            await self.channel.send(outgoing.head() + outgoing.body)
        except (OSError, TunnelError) as error:
            return error
        return None

    async def more(self) -> bytes | None:
        """The next piece of the body; None at its end."""
        while not self._pieces:
            if self._complete or self._bodiless:
                return None
            await self._read()
        return self._pieces.popleft()

    async def _read(self) -> None:
        data = await self.channel.receive()
        if not data:
            self._ended()
            return
        self.begun = True
        self._between += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self.rest = bytes(data[upgrade.args[0] :])
        except HttpParserError as error:
            raise BrokenAnswer(f"the answer is not HTTP: {error}") from None
        if self._between > _HEAD_BYTES:
            what = "a chunk or the trailer" if self._in_body else "the head"
            raise BrokenAnswer(f"{what} of the answer is longer than {_HEAD_BYTES} bytes")

    def _ended(self) -> None:
        names = {name for name, _ in self.headers}
        if not self._in_body or names & {"content-length", "transfer-encoding"}:
            raise BrokenAnswer("the connection ended before the answer did")
        self._complete = True  # the end of the connection is the end of such a body

    # --- called by the parser -----------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # else a trailer: nobody here wants one
            self.headers.append((name.decode("latin-1").lower(), value.decode("utf-8", "replace")))

    def on_headers_complete(self) -> None:
        status = int(self._parser.get_status_code())
        if status < 200 and status != _SWITCHING_PROTOCOLS:
            self.headers.clear()  # not the answer yet
            return
        self.status = status
        self._in_body = True
        self._keeps_alive = bool(self._parser.should_keep_alive())

    def on_body(self, piece: bytes) -> None:
        self._between = 0
        if not self._bodiless:
            self._pieces.append(piece)

    def on_message_complete(self) -> None:
        if self.status:
            self._complete = True
