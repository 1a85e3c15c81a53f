"""Sink that writes a pushed stream directly to its connection, without a task in between."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from herder.engine.front import framing, limits

if TYPE_CHECKING:
    from herder.engine.front.connection import Connection


class ConnectionSink:
    """Implements `engine.wire.Sink` for a connection."""

    def __init__(self, connection: Connection, *, chunked: bool) -> None:
        self._connection = connection
        self._chunked = chunked
        self._frame = framing.shared_chunk if chunked else bytes

    @property
    def congested(self) -> bool:
        return self._connection.congested

    def write(self, content: bytes) -> None:
        if content:
            self._connection.write(self._frame(content))

    async def send(self, content: bytes) -> None:
        if len(content) > limits.WRITE_BYTES:
            await self._connection.write_long_chunk(content, chunked=self._chunked)
            return
        if content:
            self._connection.write(framing.chunk(content) if self._chunked else content)
        if self._connection.congested:
            await self._connection.drained()
        if len(content) > limits.SLICE_BYTES:
            await asyncio.sleep(0)
