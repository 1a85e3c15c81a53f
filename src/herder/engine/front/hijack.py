"""How a handler makes a connection its own: after an upgrade, HTTP is over and the bytes are somebody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Hijack:
    """Given to the upgrade handler with its request. Without `take`, the request goes the usual way."""

    def __init__(self, transport: asyncio.Transport, end: Callable[[], bytes], leave: Callable[[], None]) -> None:
        self._transport = transport
        self._end = end
        self._leave = leave
        self.taken = False

    def take(self, protocol: asyncio.BaseProtocol, answer: bytes = b"") -> asyncio.Transport:
        """Send `answer` (the 101), then let `protocol` have the connection and all that was received after the head."""
        self.taken = True
        transport = self._transport
        rest = self._end()
        self._leave()
        transport.resume_reading()  # it was paused if the client sent much before this was decided
        if answer:
            transport.write(answer)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if rest:
            _hand_on(protocol, rest)
        return transport


def _hand_on(protocol: asyncio.BaseProtocol, rest: bytes) -> None:
    if isinstance(protocol, asyncio.BufferedProtocol):
        while rest:
            buffer = memoryview(protocol.get_buffer(len(rest)))
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            protocol.buffer_updated(count)
            rest = rest[count:]
    elif isinstance(protocol, asyncio.Protocol):
        protocol.data_received(rest)
