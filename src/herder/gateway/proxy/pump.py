"""Raw bytes both ways once a connection has changed its protocol: exec, attach, port-forward, whatever comes.

Each side is read only as fast as the other takes it. There is no half of an end: when one side goes, so does the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from herder.gateway.proxy.channels import Channel
from herder.tunnel.errors import TunnelError

log = logging.getLogger(__name__)

_WAITING_BYTES = 64 << 10  # held for a cluster before its caller has to wait: a user may have many that take nothing
_LAST_WORDS_SECONDS = 5.0  # to pass on what a caller said before it went


class Pump(asyncio.Protocol):
    """The caller's connection, joined with a channel to the cluster."""

    def __init__(self, channel: Channel, first: bytes, over: Callable[[Pump], None]) -> None:
        """`first`: what the cluster has sent already. `over` is told of the end."""
        self._channel = channel
        self._first = first
        self._tell_over = over
        self._transport = cast(asyncio.Transport, None)
        self._waiting = bytearray()  # from the caller, for the cluster
        self._sending = 0  # bytes that the cluster has not taken yet
        self._something = asyncio.Event()  # waits, or nothing more will
        self._writable = asyncio.Event()
        self._writable.set()
        self._gone = asyncio.Event()  # the caller is
        self._running: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._running = asyncio.get_running_loop().create_task(self._run())

    def data_received(self, data: bytes) -> None:
        self._waiting += data
        self._something.set()
        if len(self._waiting) + self._sending > _WAITING_BYTES:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        self._end()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        self._gone.set()
        self._something.set()

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
        gone = asyncio.ensure_future(self._gone.wait())
        try:
            await asyncio.wait([to_cluster, to_caller, gone], return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                await asyncio.wait([to_cluster], timeout=_LAST_WORDS_SECONDS)
        finally:
            for part in (to_cluster, to_caller, gone):
                part.cancel()
            await asyncio.gather(to_cluster, to_caller, gone, return_exceptions=True)
            self._channel.close()
            self._transport.close()
            self._tell_over(self)

    async def _to_cluster(self) -> None:
        try:
            while not self._gone.is_set() or self._waiting:
                await self._something.wait()
                self._something.clear()
                data, self._waiting = bytes(self._waiting), bytearray()
                self._sending = len(data)
                if data:
                    await self._channel.send(data)
                self._sending = 0
                if not self._gone.is_set() and len(self._waiting) <= _WAITING_BYTES:
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


class Farewell(asyncio.Protocol):
    """The caller's connection after the last answer on it: nothing more is read."""
