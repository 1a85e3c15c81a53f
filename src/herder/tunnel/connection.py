"""Asyncio adapters for a stream: raw `send` and `receive`, a Transport, or a reader and a writer."""

from __future__ import annotations

import asyncio
import logging
import ssl
from asyncio import sslproto
from typing import Any, cast

from herder.tunnel.errors import StreamError
from herder.tunnel.stream import Buffer, Stream

log = logging.getLogger(__name__)


class TunnelConnection:
    """Result of a dial. Use either `send` and `receive`, or one of the other forms once."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._wake_reader: asyncio.Future[None] | None = None
        self._wake_writer: asyncio.Future[None] | None = None
        stream.observer = self

    async def receive(self) -> Buffer:
        """Return the next chunk without copying; empty at the end. A failed dial or stream raises StreamError."""
        while True:
            if chunk := self._stream.take():
                return chunk
            if self._stream.at_end:
                self._stream.raise_error()
                return b""
            self._wake_reader = self._loop.create_future()
            await self._wake_reader

    async def send(self, data: Buffer) -> None:
        """Send data; return when there is room for more. The data must not be modified afterwards."""
        if self._stream.send(data):
            return
        self._wake_writer = self._loop.create_future()
        await self._wake_writer
        if not self._stream.open:
            self._stream.raise_error()
            raise StreamError("stream is closed")

    def close(self) -> None:
        self._stream.close()

    def abort(self, reason: str) -> None:
        self._stream.abort(reason)

    def transport(self, protocol: asyncio.BaseProtocol) -> StreamTransport:
        transport = StreamTransport(self._stream, protocol)
        transport.start()
        return transport

    async def tls(
        self, protocol: asyncio.BaseProtocol, context: ssl.SSLContext, server_hostname: str
    ) -> asyncio.Transport:
        """Start TLS as a client inside the tunnel and return the transport. Fails with an OSError."""
        handshake = self._loop.create_future()
        layer = sslproto.SSLProtocol(
            self._loop, protocol, context, handshake, server_side=False, server_hostname=server_hostname
        )
        self.transport(layer)
        try:
            await handshake
        except BaseException:
            self.abort("TLS handshake failed")
            raise
        return cast(asyncio.Transport, layer._app_transport)

    def streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader = asyncio.StreamReader(loop=self._loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self._loop)
        return reader, asyncio.StreamWriter(self.transport(protocol), protocol, reader, self._loop)

    # --- stream callbacks -----------------------------------------------------------------------------------------

    def received(self) -> None:
        _wake(self._wake_reader)

    def writable(self) -> None:
        _wake(self._wake_writer)

    def ended(self) -> None:
        _wake(self._wake_writer)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


class StreamTransport(asyncio.Transport):
    """asyncio transport over a stream, for any protocol including TLS."""

    _start_tls_compatible = True  # asyncio's marker for transports that support start_tls

    def __init__(self, stream: Stream, protocol: asyncio.BaseProtocol) -> None:
        super().__init__({"peername": (stream.address, 0), "tunnel_stream": stream})
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._reading = True
        self._closing = False
        self._lost = False
        self._write_paused = False

    def start(self) -> None:
        self._stream.observer = self
        self._protocol.connection_made(self)
        self._loop.call_soon(self.received)

    # --- Transport API --------------------------------------------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._loop.call_soon(self.received)

    def write(self, data: Buffer) -> None:
        if self._closing or not self._stream.open:
            return
        owned = data if isinstance(data, bytes) else bytes(data)  # the writer may reuse its buffer
        if not self._stream.send(owned) and not self._write_paused:
            self._write_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return False  # the tunnel protocol closes both directions at once

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignored: the limits of the session apply."""

    def get_write_buffer_size(self) -> int:
        return self._stream.queued

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._stream.close()
            self._schedule_connection_lost(None)

    def abort(self) -> None:
        self._force_close(None)

    def _force_close(self, error: Exception | None) -> None:
        """Abort; asyncio's TLS implementation calls this method when it fails."""
        self._closing = True
        self._stream.abort("connection aborted")
        self._schedule_connection_lost(error)

    # --- stream callbacks -----------------------------------------------------------------------------------------

    def received(self) -> None:
        while self._reading and not self._closing:
            chunk = self._stream.take()
            if not chunk:
                break
            try:
                self._deliver(chunk)
            except Exception as error:
                self._loop.call_exception_handler({"message": "protocol failed on tunnel data", "exception": error})
                self.abort()
        if self._stream.at_end and self._reading and not self._closing:
            self._finish()

    def writable(self) -> None:
        if self._write_paused:
            self._write_paused = False
            self._protocol.resume_writing()

    def ended(self) -> None:
        self.writable()

    def _deliver(self, chunk: Buffer) -> None:
        protocol = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            rest = memoryview(chunk)
            while rest:
                buffer = memoryview(protocol.get_buffer(len(rest)))
                count = min(len(buffer), len(rest))
                buffer[:count] = rest[:count]
                protocol.buffer_updated(count)
                rest = rest[count:]
        elif isinstance(protocol, asyncio.Protocol):
            protocol.data_received(bytes(chunk))

    def _finish(self) -> None:
        self._closing = True
        try:
            self._stream.raise_error()
        except StreamError as error:
            self._schedule_connection_lost(ConnectionResetError(str(error)))
        else:
            if isinstance(self._protocol, asyncio.Protocol | asyncio.BufferedProtocol):
                self._protocol.eof_received()
            self._schedule_connection_lost(None)

    def _schedule_connection_lost(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self._loop.call_soon(self._protocol.connection_lost, error)
