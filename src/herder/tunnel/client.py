"""Tunnel client: connect to a server, reconnect with back-off, and dial what the server requests."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import random
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

from herder.tunnel import pipe, websocket
from herder.tunnel.errors import Rejected, TunnelError
from herder.tunnel.limits import DEFAULT, KIB, Limits
from herder.tunnel.link import Link
from herder.tunnel.server import hand_over, parse_head
from herder.tunnel.session import Authorize, Role, Traffic
from herder.tunnel.stream import Stream

log = logging.getLogger(__name__)

_RESPONSE_BYTES = 32 * KIB

Dial = Callable[[Stream], Awaitable[None]]


@dataclass(frozen=True)
class Backoff:
    """Exponential back-off with jitter."""

    first: float = 1.0
    max_delay: float = 30.0
    reset_after: float = 60.0  # a tunnel that was up this long resets the back-off

    def delay(self, failures: int, chance: float) -> float:
        """Return the delay; `chance` is a random number in [0, 1)."""
        ceiling = min(self.max_delay, self.first * (1 << min(failures - 1, 30)))
        return ceiling * (0.5 + chance / 2)


@dataclass(frozen=True)
class Target:
    """Server to connect to."""

    url: str  # ws:// or wss://
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # contain the token
    context: ssl.SSLContext | None = None  # required for wss

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("ws", "wss") or not parts.hostname:
            raise ValueError(f"tunnel URL {self.url!r}: must be wss://host[:port]/path")
        if parts.scheme == "wss" and self.context is None:
            raise ValueError("wss:// tunnel needs a TLS context")


class TunnelClient:
    """Keeps one tunnel session open."""

    def __init__(
        self,
        target: Callable[[], Target],
        authorize: Authorize,
        *,
        connected: Callable[[Link], None] | None = None,
        dial: Dial | None = None,
        limits: Limits = DEFAULT,
        backoff: Backoff | None = None,
    ) -> None:
        """Create a client.

        `target` is called before each attempt, because credentials may have changed. `authorize` decides what may be
        dialed.
        """
        self._target = target
        self._authorize = authorize
        self._connected = connected
        self._dial = dial or (lambda stream: pipe.dial(stream, limits.dial))
        self._limits = limits
        self._backoff = backoff or Backoff()
        self._dials: set[asyncio.Task[None]] = set()
        self.traffic = Traffic()
        self.link: Link | None = None
        self.attempts = 0

    async def run(self) -> None:
        """Connect, and reconnect whenever the session ends, until cancelled."""
        failures = 0
        try:
            while True:
                started = asyncio.get_running_loop().time()
                reason = await self._run_once()
                lasted = asyncio.get_running_loop().time() - started
                failures = 1 if lasted >= self._backoff.reset_after else failures + 1
                delay = self._backoff.delay(failures, random.random())  # noqa: S311 - jitter only
                log.warning("tunnel is down: %s; reconnecting in %.1f s", reason, delay)
                await asyncio.sleep(delay)
        finally:
            self.stop()

    async def _run_once(self) -> str:
        self.attempts += 1
        try:
            link = await self.connect()
        except (OSError, TunnelError, ValueError) as error:
            return str(error) or type(error).__name__
        await link.done
        return link.reason

    async def connect(self) -> Link:
        """Open one session and return it."""
        target = self._target()
        try:
            async with asyncio.timeout(self._limits.client_handshake):
                transport, headers, rest = await _handshake(target)
        except TimeoutError:
            raise TunnelError(
                f"tunnel {target.url}: handshake timed out after {self._limits.client_handshake:.0f} s"
            ) from None
        link = Link(
            Role.CLIENT,
            "client",
            opened=self._opened,
            authorize=self._authorize,
            limits=self._limits,
            peer_shares_pause_flag=not websocket.has_per_direction_flow(headers),
            traffic=self.traffic,
        )
        hand_over(transport, link, rest)
        if transport.is_closing():
            link.connection_lost(None)  # the handshake protocol got the callback, the session would wait for it
        else:
            transport.resume_reading()
        self.link = link
        log.info("tunnel to %s is up", target.url)
        if self._connected is not None:
            self._connected(link)
        return link

    def _opened(self, stream: Stream) -> None:
        task = asyncio.get_running_loop().create_task(self._dial_stream(stream))
        stream.observer = _PendingDial(task)
        self._dials.add(task)
        task.add_done_callback(self._dials.discard)

    async def _dial_stream(self, stream: Stream) -> None:
        try:
            await self._dial(stream)
        except asyncio.CancelledError:
            stream.abort("dial was canceled")  # no effect if the peer closed the stream
        except Exception:
            log.exception("dial %s %s failed", stream.proto, stream.address)
            stream.abort("dial failed")

    def stop(self) -> None:
        for task in self._dials:
            task.cancel()
        if self.link is not None:
            self.link.close("client is shutting down")


class _PendingDial:
    """Observer of a stream until its socket is connected."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def received(self) -> None: ...

    def writable(self) -> None: ...

    def ended(self) -> None:
        self._task.cancel()


async def _handshake(target: Target) -> tuple[asyncio.Transport, dict[str, str], bytes]:
    parts = urlsplit(target.url)
    assert parts.hostname is not None
    secure = parts.scheme == "wss"
    port = parts.port or (443 if secure else 80)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    key = base64.b64encode(os.urandom(16)).decode()
    request = websocket.request(parts.netloc.rpartition("@")[2], path, target.headers, key)
    loop = asyncio.get_running_loop()
    transport, answer = await loop.create_connection(
        lambda: _HandshakeResponse(loop), parts.hostname, port, ssl=target.context if secure else None
    )
    try:
        transport.write(request)
        head, rest = await answer.complete
        first, headers = parse_head(head)
        status = first.split(" ")[1:2]
        websocket.check_response(int(status[0]) if status and status[0].isdecimal() else 0, headers, rest, key)
    except BaseException:
        transport.abort()
        raise
    return transport, headers, rest


class _HandshakeResponse(asyncio.Protocol):
    """Collects the response to the handshake: its head, and bytes that follow."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.complete: asyncio.Future[tuple[bytes, bytes]] = loop.create_future()
        self._received = b""
        self._transport = cast(asyncio.Transport, None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, rest = self._received.partition(b"\r\n\r\n")
        if self.complete.done():
            return
        if found:
            self._transport.pause_reading()  # until the session takes over
            self.complete.set_result((head, rest))
        elif len(self._received) > _RESPONSE_BYTES:
            self.complete.set_exception(Rejected(0, "response is not HTTP"))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.complete.done():
            self.complete.set_exception(error or ConnectionResetError("server closed the connection"))
