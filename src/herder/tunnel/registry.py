"""The sessions of a server, by the key of their client; dialling through them."""

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


class Upgrading(Protocol):
    """A connection whose request asked for an upgrade: `take` answers it and hands the connection over."""

    def take(self, protocol: asyncio.BaseProtocol, answer: bytes = b"") -> asyncio.Transport: ...


Changed = Callable[[str, bool], None]
"""Told of a client's key when its first session comes (True) and when its last one is gone (False)."""


@dataclass
class Counters:
    """For metrics; all but `sessions` and what is buffered only ever grow."""

    sessions: int = 0
    sessions_opened: int = 0
    sessions_replaced: int = 0
    failed_dials: int = 0  # without a session
    traffic: Traffic = field(default_factory=Traffic)


class Registry:
    def __init__(self, limits: Limits = DEFAULT, sessions_per_key: int = SESSIONS_PER_KEY) -> None:
        self.limits = limits
        self._sessions_per_key = sessions_per_key
        self._clients: dict[str, list[Link]] = {}  # the newest last
        self._peers: dict[str, list[Link]] = {}
        self._listeners: list[Changed] = []
        self.counters = Counters()

    # --- sessions -------------------------------------------------------------------------------------------------

    def accept(self, key: str, headers: Mapping[str, str], upgrading: Upgrading, *, peering: bool = False) -> Link:
        """A session of `key` from this request: its sender is known, and `websocket.upgrade_problem` has found none.
        `peering`: the sender is another server, which has clients of its own."""
        link = Link(
            Role.SERVER,
            key,
            over=lambda gone: self._remove(key, gone, peering),
            limits=self.limits,
            peering=peering,
            peer_has_one_flag=not websocket.has_two_flags(headers),
            traffic=self.counters.traffic,
        )
        upgrading.take(link, websocket.switching_protocols(headers))
        self._add(key, link, peering)
        return link

    def disconnect(self, key: str, reason: str) -> None:
        """End all sessions of a client, as when its right to connect is gone."""
        for link in list(self._clients.get(key, ())):
            link.close(reason)

    def close(self) -> None:
        for links in [*self._clients.values(), *self._peers.values()]:
            for link in list(links):
                link.close("the server is shutting down")

    def listen(self, changed: Changed) -> Callable[[], None]:
        """What is returned ends it."""
        self._listeners.append(changed)
        return lambda: self._listeners.remove(changed)

    def _add(self, key: str, link: Link, peering: bool) -> None:
        if link.done.done():
            return  # it was gone before it began
        links = (self._peers if peering else self._clients).setdefault(key, [])
        links.append(link)
        self.counters.sessions += 1
        self.counters.sessions_opened += 1
        if len(links) == 1 and not peering:
            self._notify(key, True)
        alive = [each for each in links if each.alive]
        if len(alive) > self._sessions_per_key:
            self.counters.sessions_replaced += 1
            alive[0].close(f"client {key} has opened more than {self._sessions_per_key} sessions; the oldest has to go")
        if len(links) > 2 * self._sessions_per_key:  # closed already: these wait for their client's goodbye
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
                self._notify(key, False)

    def _notify(self, key: str, present: bool) -> None:
        for listener in list(self._listeners):
            listener(key, present)

    # --- dialling -------------------------------------------------------------------------------------------------

    def clients(self) -> list[str]:
        return list(self._clients)

    def sessions(self, key: str) -> list[Link]:
        return [link for link in self._clients.get(key, ()) if link.alive]

    def has(self, key: str) -> bool:
        return next(self._routes(key), None) is not None

    def peer_with(self, key: str) -> str:
        """A peer that has a session of the client, or ""."""
        for peer, links in self._peers.items():
            if any(link.alive and key in link.session.remote_clients for link in links):
                return peer
        return ""

    def dial(self, key: str, proto: str, address: str) -> TunnelConnection:
        """Through the newest session of the client, else through a peer that has one. There is no acknowledgement: the
        connection can be used at once, and a dial that fails shows as a StreamError when it is read."""
        for link, prefix in self._routes(key):
            return TunnelConnection(link.session.connect(prefix + proto, address))
        raise self._no_session(key)

    def dial_own(self, key: str, proto: str, address: str) -> Stream:
        """Not through peers: they ask for those who are here."""
        for link in reversed(self.sessions(key)):
            return link.session.connect(proto, address)
        raise self._no_session(key)

    def _no_session(self, key: str) -> NoSession:
        self.counters.failed_dials += 1
        return NoSession(key)

    async def dial_when_connected(self, key: str, proto: str, address: str, seconds: float) -> TunnelConnection:
        """As `dial`, but give a client that is just reconnecting so much time to come back."""
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
        came = asyncio.Event()

        def changed(whose: str, present: bool) -> None:
            if whose == key and present:
                came.set()

        stop = self.listen(changed)
        try:
            async with asyncio.timeout(seconds):
                await came.wait()
        except TimeoutError:
            pass  # the dial says it better
        finally:
            stop()
