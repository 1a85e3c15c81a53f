"""Where a pushing stream writes: straight into its connection, with no task in between."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from herder.engine.front import limits, writing

if TYPE_CHECKING:
    from herder.engine.front.connection import Connection


class ConnectionSink:
    def __init__(self, connection: Connection, *, chunked: bool) -> None:
        self._connection = connection
        self._chunked = chunked
        self._framed = writing.shared_chunk if chunked else bytes

    @property
    def congested(self) -> bool:
        return self._connection.congested

    def write(self, content: bytes) -> None:
        if content:
            self._connection.write(self._framed(content))

    async def send(self, content: bytes) -> None:
        if len(content) > limits.WRITE_BYTES:
            await self._connection.write_long_chunk(content, chunked=self._chunked)
            return
        if content:
            self._connection.write(writing.chunk(content) if self._chunked else content)
        if self._connection.congested:
            await self._connection.drained()
        if len(content) > limits.SLICE_BYTES:
            await asyncio.sleep(0)
