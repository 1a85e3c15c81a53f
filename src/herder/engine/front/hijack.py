"""Connection hijacking: hand a connection over to another protocol after an upgrade."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Hijack:
    """Passed to the upgrade handler with its request. Unless `take` is called, the request is handled normally."""

    def __init__(self, transport: asyncio.Transport, end: Callable[[], bytes], detach: Callable[[], None]) -> None:
        self._transport = transport
        self._end = end
        self._detach = detach
        self.taken = False

    def take(self, protocol: asyncio.BaseProtocol, response: bytes = b"") -> asyncio.Transport:
        """Send `response` (the 101) and give `protocol` the connection, including bytes received after the request
        head."""
        self.taken = True
        transport = self._transport
        rest = self._end()
        self._detach()
        transport.resume_reading()  # reading is paused if the client sent a lot before the decision
        if response:
            transport.write(response)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if rest:
            _deliver(protocol, rest)
        return transport


def _deliver(protocol: asyncio.BaseProtocol, rest: bytes) -> None:
    if isinstance(protocol, asyncio.BufferedProtocol):
        while rest:
            buffer = memoryview(protocol.get_buffer(len(rest)))
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            protocol.buffer_updated(count)
            rest = rest[count:]
    elif isinstance(protocol, asyncio.Protocol):
        protocol.data_received(rest)
