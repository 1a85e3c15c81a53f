"""The client: dials out to a server, keeps the tunnel up for as long as it runs, and dials what the server asks for."""

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

_ANSWER_BYTES = 32 * KIB

Dial = Callable[[Stream], Awaitable[None]]


@dataclass(frozen=True)
class Backoff:
    """How long to wait after a failure: ever longer, and never all at the same moment."""

    first: float = 1.0
    most: float = 30.0
    settled: float = 60.0  # a tunnel that stood so long begins anew

    def delay(self, failures: int, chance: float) -> float:
        """`chance` is in [0, 1)."""
        longest = min(self.most, self.first * (1 << min(failures - 1, 30)))
        return longest * (0.5 + chance / 2)


@dataclass(frozen=True)
class Target:
    url: str  # ws:// or wss://
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # they hold the token
    context: ssl.SSLContext | None = None  # who may be the server, for wss

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("ws", "wss") or not parts.hostname:
            raise ValueError(f"the tunnel's URL must be wss://host[:port]/path, not {self.url!r}")
        if parts.scheme == "wss" and self.context is None:
            raise ValueError("a wss:// tunnel needs a TLS context that says whom to trust")


class TunnelClient:
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
        """`target` is asked before each attempt: credentials may have changed. `authorize` says what may be dialled."""
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
        """Connect, and again whenever the tunnel is gone, until cancelled."""
        failures = 0
        try:
            while True:
                began = asyncio.get_running_loop().time()
                why = await self._once()
                stood = asyncio.get_running_loop().time() - began
                failures = 1 if stood >= self._backoff.settled else failures + 1
                delay = self._backoff.delay(failures, random.random())  # noqa: S311 - jitter is no secret
                log.warning("the tunnel is down: %s; trying again in %.1f s", why, delay)
                await asyncio.sleep(delay)
        finally:
            self.stop()

    async def _once(self) -> str:
        self.attempts += 1
        try:
            link = await self.connect()
        except (OSError, TunnelError, ValueError) as error:
            return str(error) or type(error).__name__
        await link.done
        return link.reason

    async def connect(self) -> Link:
        """One session, up when this returns."""
        target = self._target()
        try:
            async with asyncio.timeout(self._limits.client_handshake):
                transport, headers, rest = await _handshake(target)
        except TimeoutError:
            raise TunnelError(f"no answer from {target.url} within {self._limits.client_handshake:.0f} s") from None
        link = Link(
            Role.CLIENT,
            "client",
            opened=self._opened,
            authorize=self._authorize,
            limits=self._limits,
            peer_has_one_flag=not websocket.has_two_flags(headers),
            traffic=self.traffic,
        )
        hand_over(transport, link, rest)
        if transport.is_closing():
            link.connection_lost(None)  # it was told to the handshake, if at all: the session would wait for it
        else:
            transport.resume_reading()
        self.link = link
        log.info("the tunnel to %s is up", target.url)
        if self._connected is not None:
            self._connected(link)
        return link

    def _opened(self, stream: Stream) -> None:
        task = asyncio.get_running_loop().create_task(self._dialled(stream))
        stream.observer = _Dialling(task)
        self._dials.add(task)
        task.add_done_callback(self._dials.discard)

    async def _dialled(self, stream: Stream) -> None:
        try:
            await self._dial(stream)
        except asyncio.CancelledError:
            stream.abort("the dial was given up")  # unless the peer did so, who has closed the stream then
        except Exception:
            log.exception("dialling %s %s failed", stream.proto, stream.address)
            stream.abort("the dial failed")

    def stop(self) -> None:
        for task in self._dials:
            task.cancel()
        if self.link is not None:
            self.link.close("the client is shutting down")


class _Dialling:
    """Looks after a stream until its socket is connected."""

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
    asked = websocket.request(parts.netloc.rpartition("@")[2], path, target.headers, key)
    loop = asyncio.get_running_loop()
    transport, answer = await loop.create_connection(
        lambda: _Answer(loop), parts.hostname, port, ssl=target.context if secure else None
    )
    try:
        transport.write(asked)
        head, rest = await answer.complete
        first, headers = parse_head(head)
        status = first.split(" ")[1:2]
        websocket.check_response(int(status[0]) if status and status[0].isdecimal() else 0, headers, rest, key)
    except BaseException:
        transport.abort()
        raise
    return transport, headers, rest


class _Answer(asyncio.Protocol):
    """Collects the answer to the handshake: its head, and what came with it."""

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
            self._transport.pause_reading()  # until the session has the connection
            self.complete.set_result((head, rest))
        elif len(self._received) > _ANSWER_BYTES:
            self.complete.set_exception(Rejected(0, "its answer is no HTTP"))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.complete.done():
            self.complete.set_exception(error or ConnectionResetError("the server closed the connection"))
