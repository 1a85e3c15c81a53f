"""Byte channels to a cluster's API: whatever was dialed, with TLS on top.

A channel is read on demand, so that backpressure reaches the sender. TLS runs here because asyncio's needs a socket,
which a tunnel does not have.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Protocol

Buffer = bytes | bytearray | memoryview

READ_BYTES = 256 << 10
_RECORD_BYTES = 16 << 10  # TLS record size; no read returns more
_WRITE_BYTES = 64 << 10


class Channel(Protocol):
    """A bidirectional byte stream."""

    async def receive(self) -> Buffer:
        """Next data; empty at the end. One reader at a time; safe to cancel."""
        ...

    async def send(self, data: Buffer) -> None:
        """Return when there is room for more. One writer at a time."""
        ...

    def close(self) -> None: ...


Dial = Callable[[str, str], Awaitable[Channel]]
"""Opens a channel to "host:port" as seen from the cluster."""


class TcpChannel:
    """A plain TCP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self) -> Buffer:
        return await self._reader.read(READ_BYTES)

    async def send(self, data: Buffer) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def close(self) -> None:
        self._writer.close()


async def dial_tcp(_cluster: str, address: str) -> Channel:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host.removeprefix("[").removesuffix("]"), int(port))
    return TcpChannel(reader, writer)


class TlsChannel:
    """TLS over another channel."""

    def __init__(self, transport: Channel, context: ssl.SSLContext, server_name: str) -> None:
        self._transport = transport
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self._sending = False

    async def handshake(self) -> None:
        """Raises ssl.SSLError if the peer's certificate is not trusted."""
        try:
            while not self._handshake_done():
                await self._flush()
                await self._fill()
        finally:
            await self._flush()  # including the alert

    def _handshake_done(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    async def receive(self) -> Buffer:
        while True:
            try:
                return self._tls.read(_RECORD_BYTES)
            except ssl.SSLWantReadError:
                await self._flush()  # answer a key update
                await self._fill()
            except ssl.SSLZeroReturnError:
                return b""
            except ssl.SSLError as error:
                raise ConnectionResetError(f"TLS: {error.reason or 'the connection broke off'}") from error

    async def send(self, data: Buffer) -> None:
        view = memoryview(data)
        while view:
            self._tls.write(view[:_WRITE_BYTES])
            view = view[_WRITE_BYTES:]
            await self._flush()

    def close(self) -> None:
        self._transport.close()

    async def _fill(self) -> None:
        data = await self._transport.receive()
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    async def _flush(self) -> None:
        """The reader must never wait for a blocked writer: an active sender sends what was added meanwhile."""
        if self._sending:
            return
        self._sending = True
        try:
            while self._outgoing.pending:
                await self._transport.send(self._outgoing.read())
        finally:
            self._sending = False
