"""The HTTPS front: listens, and lets one handler answer over HTTP/1.1. Who may connect is up to the TLS context.

Bodies are bounded before they are read, and streams are written as they come.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from herder.engine.client.wire import Request, Response
from herder.engine.front import limits
from herder.engine.front.connection import Connection, Upgrade
from herder.engine.front.writing import Dates

_GRACE_SECONDS = 5.0
_BUFFER_BYTES = 256 << 10
_HANDSHAKE_SECONDS = 30.0
_SHUTDOWN_SECONDS = 5.0


class Handler(Protocol):
    """What answers requests. It turns its own errors into responses; a client that goes cancels it."""

    async def handle(self, request: Request) -> Response: ...


class HttpFront:
    """Serves one handler on one address."""

    def __init__(
        self, handler: Handler, *, clock: Callable[[], datetime], body_bytes: int, upgrade: Upgrade | None = None
    ) -> None:
        self._handler = handler
        self._clock = clock
        self.body_bytes = body_bytes
        self.upgrade = upgrade
        self.buffer = memoryview(bytearray(_BUFFER_BYTES))
        self.connections: set[Connection] = set()
        self.stopping = False
        self.dates: Dates
        self._listening: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty: asyncio.Future[None] | None = None

    async def listen(self, host: str, port: int, context: ssl.SSLContext | None) -> tuple[str, int]:
        loop = asyncio.get_running_loop()
        self.dates = Dates(self._clock, loop.time)
        self._listening = await loop.create_server(
            lambda: Connection(self, loop),
            host,
            port,
            ssl=context,
            backlog=1024,
            reuse_address=True,
            ssl_handshake_timeout=_HANDSHAKE_SECONDS if context is not None else None,
            ssl_shutdown_timeout=_SHUTDOWN_SECONDS if context is not None else None,
        )
        self._sweep(loop)
        address = self._listening.sockets[0].getsockname()
        return str(address[0]), int(address[1])

    async def stop(self, grace: float = _GRACE_SECONDS) -> None:
        """Stop accepting; let requests finish for so many seconds. Endless streams are the handler's to end."""
        self.stopping = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._listening is not None:
            self._listening.close()
        for connection in list(self.connections):
            connection.wind_down()
        if self.connections:
            self._empty = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._empty], timeout=grace)
        for connection in list(self.connections):
            connection.abort()

    async def handle(self, request: Request) -> Response:
        return await self._handler.handle(request)

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if self._empty is not None and not self.connections and not self._empty.done():
            self._empty.set_result(None)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """One timer for all connections: a timer for each would cost more than most requests."""
        now = loop.time()
        for connection in list(self.connections):
            connection.check(now)
        self._sweeper = loop.call_later(limits.SWEEP_SECONDS, self._sweep, loop)
