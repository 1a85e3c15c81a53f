"""HTTPS listener: accept connections and serve one handler over HTTP/1.1.

The TLS context decides about client certificates. Bodies are read when the handler requests them, streams are written
as they are produced, and every buffer is bounded.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from herder.engine.front import limits
from herder.engine.front.connection import Connection, Upgrade
from herder.engine.front.flow import FlowControl, Holder
from herder.engine.front.framing import Dates
from herder.engine.front.retained import over_limit, retained_bytes
from herder.engine.memory import return_freed_memory
from herder.engine.wire import Request, Response

log = logging.getLogger(__name__)

_GRACE_SECONDS = 5.0
_BACKLOG = 1024
_ACCEPT_PAUSE_SECONDS = 0.5
_HANDSHAKE_SECONDS = 30.0
_SHUTDOWN_SECONDS = 5.0


class Handler(Protocol):
    """Serves requests and turns its own errors into responses. It is cancelled when the client disconnects."""

    async def handle(self, request: Request) -> Response: ...


class Load(NamedTuple):
    """What a listener serves at one moment."""

    connections: int  # handshakes included
    in_flight: int  # requests, without long-running ones
    long_running: int
    waiting: int  # requests in the queues of users


class HttpFront:
    """Serves one handler on one address.

    A handler with the attribute `receives_body` calls `Request.admit` and `Request.receive_body` itself, after it has
    authenticated and authorized the client. For other handlers the body is read first, within the limits of the
    client's address.
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
        self._max_connections = self._limits.possible_connections()
        self.handler_receives_body = bool(getattr(handler, "receives_body", False))
        self.body_bytes = body_bytes
        self.upgrade = upgrade
        self.flow = FlowControl(self._limits)
        self.buffer = memoryview(bytearray(limits.READ_BYTES))
        self.connections: set[Connection] = set()
        self.stopping = False
        self.dates: Dates
        self._by_source: dict[str, int] = {}  # connections without an authenticated request, including handshakes
        self._by_holder: dict[Holder, int] = {}
        self._opened = 0
        self._closed = 0  # since the last malloc_trim
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._handshakes: set[asyncio.Task[None]] = set()
        self._timeout_timer: asyncio.TimerHandle | None = None
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
        self._check_timeouts(loop)
        address = listener.getsockname()
        return str(address[0]), int(address[1])

    async def stop(self, grace: float = _GRACE_SECONDS) -> None:
        """Stop accepting connections and let requests finish within the grace period. The handler must end its
        streams."""
        self.stopping = True
        if self._timeout_timer is not None:
            self._timeout_timer.cancel()
        await self._stop_accepting()
        for connection in list(self.connections):
            connection.begin_shutdown()
        if self.connections:
            self._empty = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._empty], timeout=grace)
        for connection in list(self.connections):
            connection.abort()

    # --- connections --------------------------------------------------------------------------------------------

    async def _accept(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        """Accept connections; close those over a limit before they cost a TLS handshake."""
        loop = asyncio.get_running_loop()
        while not self.stopping:
            try:
                accepted, address = await loop.sock_accept(listener)
            except OSError as error:  # out of file descriptors, or the client disconnected
                log.warning("connection not accepted: %s", error)
                await asyncio.sleep(_ACCEPT_PAUSE_SECONDS)
                continue
            source = str(address[0])
            if self.stopping or self._opened >= self._max_connections or not self._has_room(source):
                accepted.close()
            else:
                self._opened += 1
                self._by_source[source] = self._by_source.get(source, 0) + 1
                task = loop.create_task(self._connect(loop, accepted, source, context))
                self._handshakes.add(task)
                task.add_done_callback(self._handshakes.discard)
            await asyncio.sleep(0)  # let other tasks run during a flood of connections

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
        except OSError as error:  # includes TLS errors: scanners, and clients that do not trust the CA
            log.debug("connection refused: %s", error)
            accepted.close()
        finally:
            if not connection.was_connected:
                self._drop(None, source)

    async def _stop_accepting(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            # A connection that was just accepted would be lost with the tasks, and its socket would stay open.
            await asyncio.sleep(0)
        tasks = [*self._handshakes, *((self._accepting,) if self._accepting is not None else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def identified(self, connection: Connection, holder: Holder) -> bool:
        """Count the connection for this user instead of its address."""
        count = self._by_holder.get(holder, 0)
        if count >= self._limits.connections_per_user:
            return False
        self._uncount(connection.holder, connection.remote)
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
        self._uncount(holder, source)

    def _uncount(self, holder: Holder | None, source: str) -> None:
        if holder is None:
            _decrement(self._by_source, source)
        else:
            _decrement(self._by_holder, holder)

    def load(self) -> Load:
        """Return what costs nothing to count, for metrics."""
        in_flight, long_running = self.flow.in_flight, self.flow.long_running
        waiting = in_flight.waiting + long_running.waiting
        return Load(self._opened, in_flight.used, long_running.used, waiting)

    def usage(self) -> dict[str, Any]:
        """Return current resource usage, for tests."""
        retained = retained_bytes(self.connections)
        held: Counter[Holder] = Counter()
        for connection in self.connections:
            held[connection.reader] += connection.held_bytes
        return {
            "connections": self._opened,
            "anonymous_connections": sum(self._by_source.values()),
            "held_bytes": held.total(),
            "largest_user_bytes": max(held.values(), default=0),
            "largest_connection_bytes": max((connection.held_bytes for connection in self.connections), default=0),
            "in_flight": self.flow.in_flight.usage(),
            "long_running": self.flow.long_running.usage(),
            "body_bytes": self.flow.body_bytes.usage(),
            "retained_bytes": {"total": sum(retained.values()), "largest_user": max(retained.values(), default=0)},
            "limits": asdict(self._limits),
        }

    def limit_retained(self, now: float) -> None:
        """Abort responses that keep too much in memory."""
        for connection in list(over_limit(self.connections, self._limits, now)):
            log.warning("response aborted: the responses to %s keep too much in memory", connection.reader[0])
            connection.abort()

    async def handle(self, request: Request) -> Response:
        return await self._handler.handle(request)

    def _check_timeouts(self, loop: asyncio.AbstractEventLoop) -> None:
        """Check all connections with one timer: a timer per connection would cost more than most requests."""
        now = loop.time()
        for connection in list(self.connections):
            connection.check(now)
        self.limit_retained(now)
        if self._closed >= limits.TRIM_CONNECTIONS:
            self._closed = 0
            loop.run_in_executor(None, return_freed_memory)
        self._timeout_timer = loop.call_later(limits.SWEEP_SECONDS, self._check_timeouts, loop)


def _keep_alive(socket_: socket.socket) -> None:
    """Enable TCP keepalive, to detect clients that vanish during a silent watch."""
    socket_.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        socket_.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, limits.KEEPALIVE_SECONDS)


def _decrement(counts: dict[Any, int], key: Any) -> None:
    remaining = counts.get(key, 0) - 1
    if remaining > 0:
        counts[key] = remaining
    else:
        counts.pop(key, None)
