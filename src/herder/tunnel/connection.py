"""A stream as asyncio knows connections: raw `send` and `receive`, a Transport, or a reader and a writer."""

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
    """What a dial returns. Use either `send` and `receive`, or one of the other forms, once."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._wake_reader: asyncio.Future[None] | None = None
        self._wake_writer: asyncio.Future[None] | None = None
        stream.observer = self

    async def receive(self) -> Buffer:
        """The next piece as it came, without copying it; empty at the end. A failed dial or stream is a StreamError."""
        while True:
            if chunk := self._stream.take():
                return chunk
            if self._stream.at_end:
                self._stream.raise_error()
                return b""
            self._wake_reader = self._loop.create_future()
            await self._wake_reader

    async def send(self, data: Buffer) -> None:
        """Returns when there is room for more. The data must not be changed afterwards."""
        if self._stream.send(data):
            return
        self._wake_writer = self._loop.create_future()
        await self._wake_writer
        if not self._stream.open:
            self._stream.raise_error()
            raise StreamError("the stream is closed")

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
        """The transport of a TLS client inside the tunnel, its handshake done. It fails with an OSError."""
        shaken = self._loop.create_future()
        layer = sslproto.SSLProtocol(
            self._loop, protocol, context, shaken, server_side=False, server_hostname=server_hostname
        )
        self.transport(layer)
        try:
            await shaken
        except BaseException:
            self.abort("the TLS handshake failed")
            raise
        return cast(asyncio.Transport, layer._app_transport)

    def streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader = asyncio.StreamReader(loop=self._loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self._loop)
        return reader, asyncio.StreamWriter(self.transport(protocol), protocol, reader, self._loop)

    # --- news of the stream ---------------------------------------------------------------------------------------

    def received(self) -> None:
        _wake(self._wake_reader)

    def writable(self) -> None:
        _wake(self._wake_writer)

    def ended(self) -> None:
        _wake(self._wake_writer)


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


class StreamTransport(asyncio.Transport):
    """Carries any asyncio protocol, TLS included."""

    _start_tls_compatible = True  # asyncio's own mark for transports that may be wrapped

    def __init__(self, stream: Stream, protocol: asyncio.BaseProtocol) -> None:
        super().__init__({"peername": (stream.address, 0), "tunnel_stream": stream})
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._reading = True
        self._closing = False
        self._lost = False
        self._told_to_pause = False

    def start(self) -> None:
        self._stream.observer = self
        self._protocol.connection_made(self)
        self._loop.call_soon(self.received)

    # --- what protocols ask of a transport ------------------------------------------------------------------------

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
        owned = data if isinstance(data, bytes) else bytes(data)  # the writer may change its buffer afterwards
        if not self._stream.send(owned) and not self._told_to_pause:
            self._told_to_pause = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return False  # the protocol closes both directions at once

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The session's own limits hold."""

    def get_write_buffer_size(self) -> int:
        return self._stream.queued

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._stream.close()
            self._lose(None)

    def abort(self) -> None:
        self._force_close(None)

    def _force_close(self, error: Exception | None) -> None:
        """Under this name asyncio's TLS asks for it, when it has failed."""
        self._closing = True
        self._stream.abort("the connection was aborted")
        self._lose(error)

    # --- news of the stream ---------------------------------------------------------------------------------------

    def received(self) -> None:
        while self._reading and not self._closing:
            chunk = self._stream.take()
            if not chunk:
                break
            try:
                self._hand_over(chunk)
            except Exception as error:
                self._loop.call_exception_handler({"message": "a protocol failed on tunnel data", "exception": error})
                self.abort()
        if self._stream.at_end and self._reading and not self._closing:
            self._finish()

    def writable(self) -> None:
        if self._told_to_pause:
            self._told_to_pause = False
            self._protocol.resume_writing()

    def ended(self) -> None:
        self.writable()

    def _hand_over(self, chunk: Buffer) -> None:
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
            self._lose(ConnectionResetError(str(error)))
        else:
            if isinstance(self._protocol, asyncio.Protocol | asyncio.BufferedProtocol):
                self._protocol.eof_received()
            self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self._loop.call_soon(self._protocol.connection_lost, error)
