"""Where a pushing stream writes: straight into its connection, with no task in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from herder.engine.front import writing

if TYPE_CHECKING:
    from herder.engine.front.connection import Connection


class ConnectionSink:
    def __init__(self, connection: Connection, write: Callable[[bytes], None], *, chunked: bool) -> None:
        self._connection = connection
        self._write = write
        self._framed = writing.shared_chunk if chunked else bytes

    @property
    def congested(self) -> bool:
        return self._connection.congested

    def write(self, content: bytes) -> None:
        if content:
            self._write(self._framed(content))

    async def drained(self) -> None:
        await self._connection.drained()
