"""Copy bytes in both directions after a protocol upgrade: exec, attach, port-forward.

Each side is read only as fast as the other accepts data. There is no half-close: when one side closes, so does the
other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from herder.gateway.proxy.upstream.channel import Channel
from herder.tunnel.errors import TunnelError

log = logging.getLogger(__name__)

_WAITING_BYTES = 64 << 10  # buffered for the cluster before the client is paused; a user may have many idle streams
_DRAIN_SECONDS = 5.0  # to deliver data that the client sent before it closed


class Pump(asyncio.Protocol):
    """Joins the client connection with a channel to the cluster."""

    def __init__(self, channel: Channel, first: bytes, on_close: Callable[[Pump], None]) -> None:
        """`first` is data the cluster has already sent; `on_close` is called at the end."""
        self._channel = channel
        self._first = first
        self._on_close = on_close
        self._transport = cast(asyncio.Transport, None)
        self._buffer = bytearray()  # from the client, for the cluster
        self._sending = 0  # bytes not yet accepted by the cluster
        self._data_ready = asyncio.Event()  # data is buffered, or the client closed
        self._writable = asyncio.Event()
        self._writable.set()
        self._client_closed = asyncio.Event()  # the client closed
        self._running: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._running = asyncio.get_running_loop().create_task(self._run())

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._data_ready.set()
        if len(self._buffer) + self._sending > _WAITING_BYTES:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        self._end()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        self._client_closed.set()
        self._data_ready.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def end(self) -> None:
        if self._running is not None:
            self._running.cancel()

    async def stop(self) -> None:
        self.end()
        if self._running is not None:
            await asyncio.wait([self._running])

    async def _run(self) -> None:
        to_cluster = asyncio.ensure_future(self._to_cluster())
        to_caller = asyncio.ensure_future(self._to_caller())
        closed = asyncio.ensure_future(self._client_closed.wait())
        try:
            await asyncio.wait([to_cluster, to_caller, closed], return_when=asyncio.FIRST_COMPLETED)
            if closed.done():
                await asyncio.wait([to_cluster], timeout=_DRAIN_SECONDS)
        finally:
            for part in (to_cluster, to_caller, closed):
                part.cancel()
            await asyncio.gather(to_cluster, to_caller, closed, return_exceptions=True)
            self._channel.close()
            self._transport.close()
            self._on_close(self)

    async def _to_cluster(self) -> None:
        try:
            while not self._client_closed.is_set() or self._buffer:
                await self._data_ready.wait()
                self._data_ready.clear()
                data, self._buffer = bytes(self._buffer), bytearray()
                self._sending = len(data)
                if data:
                    await self._channel.send(data)
                self._sending = 0
                if not self._client_closed.is_set() and len(self._buffer) <= _WAITING_BYTES:
                    self._transport.resume_reading()
        except (OSError, TunnelError) as error:
            log.debug("an upgraded connection ended: %s", error)

    async def _to_caller(self) -> None:
        try:
            data = self._first or await self._channel.receive()
            while data:
                self._transport.write(data)
                await self._writable.wait()
                data = await self._channel.receive()
        except (OSError, TunnelError) as error:
            log.debug("an upgraded connection ended: %s", error)
