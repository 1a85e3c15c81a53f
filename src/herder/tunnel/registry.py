"""Sessions of a server by client key, and dialing through them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from herder.tunnel import websocket
from herder.tunnel.connection import TunnelConnection
from herder.tunnel.errors import NoSession
from herder.tunnel.limits import DEFAULT, Limits
from herder.tunnel.link import Link
from herder.tunnel.session import Role, Traffic
from herder.tunnel.stream import Stream

log = logging.getLogger(__name__)

SESSIONS_PER_KEY = 16
MAX_LOST = 4096
"""Disconnected clients that are remembered, to count reconnects."""


class UpgradeRequest(Protocol):
    """A request for a protocol upgrade: `take` sends the response and hands over the connection."""

    def take(self, protocol: asyncio.BaseProtocol, answer: bytes = b"") -> asyncio.Transport: ...


PresenceListener = Callable[[str, bool], None]
"""Called with a client key when its first session opens (True) and when its last one closes (False)."""


@dataclass
class Counters:
    """Metrics; all except `sessions` and buffered bytes are monotonic."""

    sessions: int = 0
    sessions_opened: int = 0
    sessions_replaced: int = 0
    disconnects: int = 0  # the last session of a client ended
    reconnects: int = 0  # a client opened a session after that
    failed_dials: int = 0  # without a session
    traffic: Traffic = field(default_factory=Traffic)


class Registry:
    """All sessions of clients and peers."""

    def __init__(self, limits: Limits = DEFAULT, sessions_per_key: int = SESSIONS_PER_KEY) -> None:
        self.limits = limits
        self._sessions_per_key = sessions_per_key
        self._clients: dict[str, list[Link]] = {}  # newest last
        self._peers: dict[str, list[Link]] = {}
        self._lost: dict[str, None] = {}  # clients whose last session ended, oldest first
        self._listeners: list[PresenceListener] = []
        self.counters = Counters()

    # --- sessions -------------------------------------------------------------------------------------------------

    def accept(self, key: str, headers: Mapping[str, str], upgrade: UpgradeRequest, *, peering: bool = False) -> Link:
        """Open a session for `key`. The client is authenticated, and `websocket.upgrade_problem` found no error.

        `peering` means that the client is another server with clients of its own.
        """
        link = Link(
            Role.SERVER,
            key,
            on_closed=lambda closed_link: self._remove(key, closed_link, peering),
            limits=self.limits,
            peering=peering,
            peer_shares_pause_flag=not websocket.has_per_direction_flow(headers),
            traffic=self.counters.traffic,
        )
        upgrade.take(link, websocket.switching_protocols(headers))
        self._add(key, link, peering)
        return link

    def disconnect(self, key: str, reason: str) -> None:
        """Close all sessions of a client, for example because its permission was revoked."""
        for link in list(self._clients.get(key, ())):
            link.close(reason)

    def close(self) -> None:
        for links in [*self._clients.values(), *self._peers.values()]:
            for link in list(links):
                link.close("server is shutting down")

    def listen(self, changed: PresenceListener) -> Callable[[], None]:
        """Register a presence listener; the returned function unregisters it."""
        self._listeners.append(changed)
        return lambda: self._listeners.remove(changed)

    def _add(self, key: str, link: Link, peering: bool) -> None:
        if link.done.done():
            return  # closed before it was registered
        links = (self._peers if peering else self._clients).setdefault(key, [])
        links.append(link)
        self.counters.sessions += 1
        self.counters.sessions_opened += 1
        if len(links) == 1 and not peering:
            self.counters.reconnects += key in self._lost
            self._lost.pop(key, None)
            self._notify(key, True)
        alive = [each for each in links if each.alive]
        if len(alive) > self._sessions_per_key:
            self.counters.sessions_replaced += 1
            alive[0].close(f"client {key}: more than {self._sessions_per_key} sessions; closing the oldest")
        if len(links) > 2 * self._sessions_per_key:  # already closing: they wait for the client's close frame
            links[0].abort()

    def _remove(self, key: str, link: Link, peering: bool) -> None:
        table = self._peers if peering else self._clients
        links = table.get(key, [])
        if link not in links:
            return
        links.remove(link)
        self.counters.sessions -= 1
        log.info("tunnel session of %s ended: %s", key, link.reason)
        if not links:
            del table[key]
            if not peering:
                self._record_loss(key)
                self._notify(key, False)

    def _record_loss(self, key: str) -> None:
        self.counters.disconnects += 1
        self._lost[key] = None
        if len(self._lost) > MAX_LOST:
            del self._lost[next(iter(self._lost))]

    def _notify(self, key: str, present: bool) -> None:
        for listener in list(self._listeners):
            listener(key, present)

    # --- dial -----------------------------------------------------------------------------------------------------

    def clients(self) -> list[str]:
        return list(self._clients)

    def peers(self) -> list[str]:
        return list(self._peers)

    def sessions(self, key: str) -> list[Link]:
        return [link for link in self._clients.get(key, ()) if link.alive]

    def has(self, key: str) -> bool:
        return next(self._routes(key), None) is not None

    def peer_with(self, key: str) -> str:
        """Return a peer that has a session of the client, or an empty string."""
        for peer, links in self._peers.items():
            if any(link.alive and key in link.session.remote_clients for link in links):
                return peer
        return ""

    def dial(self, key: str, proto: str, address: str) -> TunnelConnection:
        """Dial through the newest session of the client, else through a peer that has one.

        There is no acknowledgement: the connection is usable immediately, and a failed dial raises StreamError on read.
        """
        for link, prefix in self._routes(key):
            return TunnelConnection(link.session.connect(prefix + proto, address))
        raise self._no_session(key)

    def dial_local(self, key: str, proto: str, address: str) -> Stream:
        """Dial without using peers, for requests of peers."""
        for link in reversed(self.sessions(key)):
            return link.session.connect(proto, address)
        raise self._no_session(key)

    def _no_session(self, key: str) -> NoSession:
        self.counters.failed_dials += 1
        return NoSession(key)

    async def dial_when_connected(self, key: str, proto: str, address: str, seconds: float) -> TunnelConnection:
        """Dial, but wait up to `seconds` for a client that is reconnecting."""
        if not self.has(key):
            await self._wait_for(key, seconds)
        return self.dial(key, proto, address)

    def _routes(self, key: str) -> Iterator[tuple[Link, str]]:
        for link in reversed(self.sessions(key)):
            yield link, ""
        for links in self._peers.values():
            for link in reversed(links):
                if link.alive and key in link.session.remote_clients:
                    yield link, f"{key}::"

    async def _wait_for(self, key: str, seconds: float) -> None:
        connected = asyncio.Event()

        def changed(client_key: str, present: bool) -> None:
            if client_key == key and present:
                connected.set()

        stop = self.listen(changed)
        try:
            async with asyncio.timeout(seconds):
                await connected.wait()
        except TimeoutError:
            pass  # the dial raises NoSession
        finally:
            stop()
