"""Bytes to and from a cluster's API: through whatever was dialled, and through TLS on top of it.

A channel is read only when somebody wants more, so what is not wanted yet stays with its sender. TLS is done here and
not by the event loop, whose own needs a socket: a tunnel has none.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Protocol

Buffer = bytes | bytearray | memoryview

READ_BYTES = 256 << 10
_RECORD_BYTES = 16 << 10  # of TLS: no read gives more than one, and room for more would be made each time
_WRITE_BYTES = 64 << 10


class Channel(Protocol):
    async def receive(self) -> Buffer:
        """What comes next; empty at the end. One reader at a time; safe to cancel."""
        ...

    async def send(self, data: Buffer) -> None:
        """Returns when there is room for more. One writer at a time."""
        ...

    def close(self) -> None: ...


Dial = Callable[[str, str], Awaitable[Channel]]
"""Opens a channel: the cluster, and "host:port" as seen from there. The connections of a tunnel's registry are such."""


class TcpChannel:
    """A connection without a tunnel."""

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
    def __init__(self, below: Channel, context: ssl.SSLContext, server_name: str) -> None:
        self._below = below
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self._sending = False

    async def shake_hands(self) -> None:
        """Raises ssl.SSLError where the other side is not who it must be."""
        try:
            while not self._shaken():
                await self._flush()
                await self._fill()
        finally:
            await self._flush()  # also the alert that tells the other side why

    def _shaken(self) -> bool:
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
                await self._flush()  # a change of keys is answered
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
        self._below.close()

    async def _fill(self) -> None:
        data = await self._below.receive()
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    async def _flush(self) -> None:
        """The reader must never wait for a writer that waits for room: who sends already also sends what came since."""
        if self._sending:
            return
        self._sending = True
        try:
            while self._outgoing.pending:
                await self._below.send(self._outgoing.read())
        finally:
            self._sending = False
