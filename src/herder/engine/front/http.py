"""The HTTPS front: listens, and lets one handler answer over HTTP/1.1. Who may connect is up to the TLS context.

Bodies are read when the handler asks for them, streams are written as they come, and every buffer has a limit.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import Any, Protocol

from herder.engine.client.wire import Request, Response
from herder.engine.front import limits
from herder.engine.front.connection import Connection, Upgrade
from herder.engine.front.flow import FlowControl, Holder
from herder.engine.front.writing import Dates
from herder.engine.memory import return_freed_memory

log = logging.getLogger(__name__)

_GRACE_SECONDS = 5.0
_BACKLOG = 1024
_ACCEPT_PAUSE_SECONDS = 0.5
_HANDSHAKE_SECONDS = 30.0
_SHUTDOWN_SECONDS = 5.0


class Handler(Protocol):
    """What answers requests. It turns its own errors into responses; a client that goes cancels it."""

    async def handle(self, request: Request) -> Response: ...


class HttpFront:
    """Serves one handler on one address.

    A handler with the attribute `receives_body` calls `Request.admit` and `Request.receive_body` itself, once it has
    authenticated and authorized the sender. For any other the body is read first, within the limits of its address.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        clock: Callable[[], datetime],
        body_bytes: int,
        upgrade: Upgrade | None = None,
        limit: limits.Limits | None = None,
    ) -> None:
        self._handler = handler
        self._clock = clock
        self._limits = limit or limits.Limits()
        self._most_connections = self._limits.possible_connections()
        self.handler_receives_body = bool(getattr(handler, "receives_body", False))
        self.body_bytes = body_bytes
        self.upgrade = upgrade
        self.flow = FlowControl(self._limits)
        self.buffer = memoryview(bytearray(limits.READ_BYTES))
        self.connections: set[Connection] = set()
        self.stopping = False
        self.dates: Dates
        self._by_source: dict[str, int] = {}  # connections without an authenticated request, handshakes included
        self._by_holder: dict[Holder, int] = {}
        self._opened = 0
        self._closed = 0  # since freed memory was last returned to the machine
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._handshakes: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty: asyncio.Future[None] | None = None

    async def listen(self, host: str, port: int, context: ssl.SSLContext | None) -> tuple[str, int]:
        loop = asyncio.get_running_loop()
        self.dates = Dates(self._clock, loop.time)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        addresses = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        found = next((address for address in addresses if address[0] == family), addresses[0])
        listener = socket.create_server(found[4][:2], family=found[0], backlog=_BACKLOG)
        listener.setblocking(False)
        self._listener = listener
        self._accepting = loop.create_task(self._accept(listener, context))
        self._sweep(loop)
        address = listener.getsockname()
        return str(address[0]), int(address[1])

    async def stop(self, grace: float = _GRACE_SECONDS) -> None:
        """Stop accepting; let requests finish for so many seconds. Endless streams are the handler's to end."""
        self.stopping = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._stop_accepting()
        for connection in list(self.connections):
            connection.wind_down()
        if self.connections:
            self._empty = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._empty], timeout=grace)
        for connection in list(self.connections):
            connection.abort()

    # --- connections --------------------------------------------------------------------------------------------

    async def _accept(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        """Connections over a limit are closed before they cost a TLS handshake."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listener)
            except OSError as error:  # no file descriptors left, or a client that gave up already
                log.warning("connection not accepted: %s", error)
                await asyncio.sleep(_ACCEPT_PAUSE_SECONDS)
                continue
            source = str(address[0])
            if self._opened >= self._most_connections or not self._has_room(source):
                accepted.close()
            else:
                self._opened += 1
                self._by_source[source] = self._by_source.get(source, 0) + 1
                task = loop.create_task(self._connect(loop, accepted, source, context))
                self._handshakes.add(task)
                task.add_done_callback(self._handshakes.discard)
            await asyncio.sleep(0)  # a flood of connections leaves turns to others

    def _has_room(self, source: str) -> bool:
        return self._by_source.get(source, 0) < self._limits.anonymous_connections_per_source

    async def _connect(
        self, loop: asyncio.AbstractEventLoop, accepted: socket.socket, source: str, context: ssl.SSLContext | None
    ) -> None:
        connection = Connection(self, loop)
        secured = context is not None
        try:
            _keep_alive(accepted)
            await loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=context,
                ssl_handshake_timeout=_HANDSHAKE_SECONDS if secured else None,
                ssl_shutdown_timeout=_SHUTDOWN_SECONDS if secured else None,
            )
        except OSError as error:  # of TLS as well: scanners, and clients that do not trust us
            log.debug("connection refused: %s", error)
            accepted.close()
        finally:
            if not connection.was_made:
                self._drop(None, source)

    async def _stop_accepting(self) -> None:
        tasks = [*self._handshakes, *((self._accepting,) if self._accepting is not None else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()

    def identified(self, connection: Connection, holder: Holder) -> bool:
        """The connection counts for this user from now on, and no longer for its address."""
        count = self._by_holder.get(holder, 0)
        if count >= self._limits.connections_per_user:
            return False
        self._count_out(connection.holder, connection.remote)
        self._by_holder[holder] = count + 1
        connection.holder = holder
        return True

    def forget(self, connection: Connection) -> None:
        if connection in self.connections:
            self.connections.discard(connection)
            self._drop(connection.holder, connection.remote)
        if self._empty is not None and not self.connections and not self._empty.done():
            self._empty.set_result(None)

    def _drop(self, holder: Holder | None, source: str) -> None:
        self._opened -= 1
        self._closed += 1
        self._count_out(holder, source)

    def _count_out(self, holder: Holder | None, source: str) -> None:
        if holder is None:
            _decrement(self._by_source, source)
        else:
            _decrement(self._by_holder, holder)

    def usage(self) -> dict[str, Any]:
        """What clients take at this moment, for metrics and tests."""
        return {
            "connections": self._opened,
            "anonymous_connections": sum(self._by_source.values()),
            "held_bytes": sum(connection.held_bytes for connection in self.connections),
            "largest_connection_bytes": max((connection.held_bytes for connection in self.connections), default=0),
            "in_flight": self.flow.in_flight.usage(),
            "long_running": self.flow.long_running.usage(),
            "body_bytes": self.flow.body_bytes.usage(),
            "limits": asdict(self._limits),
        }

    async def handle(self, request: Request) -> Response:
        return await self._handler.handle(request)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """One timer for all connections: a timer for each would cost more than most requests."""
        now = loop.time()
        for connection in list(self.connections):
            connection.check(now)
        if self._closed >= limits.TRIM_CONNECTIONS:
            self._closed = 0
            loop.run_in_executor(None, return_freed_memory)
        self._sweeper = loop.call_later(limits.SWEEP_SECONDS, self._sweep, loop)


def _keep_alive(connected: socket.socket) -> None:
    """Clients that disappear without a word are noticed, also where nothing is sent to them for hours."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, limits.KEEPALIVE_SECONDS)


def _decrement(counts: dict[Any, int], key: Any) -> None:
    left = counts.get(key, 0) - 1
    if left > 0:
        counts[key] = left
    else:
        counts.pop(key, None)
