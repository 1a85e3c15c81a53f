"""The HTTPS front: listens, and serves one ApiServer over HTTP/1.1 with optional client certificates.

Bodies are bounded before they are read, streams are written as they come, and a stop ends watches first, so that
connections close by themselves.
"""

from __future__ import annotations

import asyncio
import ssl

from herder.engine.apiserver.front import limits
from herder.engine.apiserver.front.connection import Connection, Upgrade
from herder.engine.apiserver.front.writing import Dates
from herder.engine.apiserver.pipeline import ApiServer
from herder.engine.client.wire import Request, Response

_GRACE_SECONDS = 5.0
_BUFFER_BYTES = 256 << 10
_HANDSHAKE_SECONDS = 30.0
_SHUTDOWN_SECONDS = 5.0


class HttpFront:
    """Serves one ApiServer on one address."""

    def __init__(self, server: ApiServer, *, upgrade: Upgrade | None = None) -> None:
        self._server = server
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
        self.dates = Dates(self._server.parts.clock, loop.time)
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

    async def stop(self) -> None:
        """Stop accepting; let requests finish for a while. The API server's own stop ends the watches."""
        self.stopping = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._listening is not None:
            self._listening.close()
        for connection in list(self.connections):
            connection.wind_down()
        if self.connections:
            self._empty = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._empty], timeout=_GRACE_SECONDS)
        for connection in list(self.connections):
            connection.abort()

    async def handle(self, request: Request) -> Response:
        return await self._server.handle(request)

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
