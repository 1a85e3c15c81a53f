"""Client side of a stream: dial the requested address and copy data in both directions."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import cast

from herder.tunnel.errors import TunnelError
from herder.tunnel.limits import KIB
from herder.tunnel.stream import Stream

log = logging.getLogger(__name__)

_WRITE_HIGH = 256 * KIB


async def dial(stream: Stream, seconds: float) -> None:
    """Connect the stream to its address; report errors to the peer in Go's wording."""
    try:
        async with asyncio.timeout(seconds):
            await _connect(stream)
    except TimeoutError:
        stream.abort(f"dial {stream.proto} {stream.address}: i/o timeout")
    except OSError as error:
        stream.abort(f"dial {stream.proto} {stream.address}: {_error_message(error)}")
    except TunnelError as error:
        stream.abort(str(error))


async def _connect(stream: Stream) -> None:
    loop = asyncio.get_running_loop()
    if stream.proto in ("tcp", "tcp4", "tcp6"):
        host, colon, port = stream.address.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535:
            raise TunnelError(f"dial {stream.proto} {stream.address}: address is not host:port")
        await loop.create_connection(lambda: Pipe(stream), host.removeprefix("[").removesuffix("]"), int(port))
    elif stream.proto == "unix":
        await loop.create_unix_connection(lambda: Pipe(stream), stream.address)
    else:
        raise TunnelError(f"dial {stream.proto}: unknown network {stream.proto}")


def _error_message(error: OSError) -> str:
    if error.errno and error.errno > 0 and not isinstance(error, ConnectionError) and error.strerror:
        return error.strerror.lower()
    if error.errno and error.errno > 0:
        return f"connect: {os.strerror(error.errno).lower()}"
    return str(error).lower()


class Pipe(asyncio.Protocol):
    """Protocol of the dialed socket and observer of the stream: back-pressure applies in both directions."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._transport = cast(asyncio.Transport, None)
        self._blocked = False

    # --- socket callbacks -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH)
        self._stream.observer = self
        self.received()

    def data_received(self, data: bytes) -> None:
        if not self._stream.open:
            return
        if not self._stream.send(data):
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        self._stream.close()
        return False

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        self.received()

    def connection_lost(self, error: Exception | None) -> None:
        self._stream.close()

    # --- stream callbacks -----------------------------------------------------------------------------------------

    def received(self) -> None:
        while not self._blocked and (chunk := self._stream.take()):
            self._transport.write(chunk)
        if self._stream.at_end:
            self._transport.close()

    def writable(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def ended(self) -> None:
        """Do nothing: `received` follows and closes the socket once everything is written."""
