"""All downstream clusters that somebody asks for: who asks, for what, and what each of them has to say."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from herder.engine.client.client import Client
from herder.engine.control.tasks import Tasks
from herder.engine.meta.errors import ServiceUnavailable
from herder.engine.runtime.decision import Connect, Observe
from herder.engine.runtime.remote.connection import ClusterConnection, Connector
from herder.engine.runtime.remote.observation import Observation, Wake, observation
from herder.engine.runtime.view import Connection, Observed, Unreachable


class Remotes:
    def __init__(self, connect: Connector, *, clock: Callable[[], datetime], tasks: Tasks) -> None:
        self._connect = connect
        self._clock = clock
        self._tasks = tasks
        self._remotes: dict[str, _Remote] = {}
        self._wishes: dict[Hashable, tuple[Observe | Connect, ...]] = {}

    def ask(self, wishes: tuple[Observe | Connect, ...], asker: Hashable, wake: Wake) -> None:
        """These are what `asker` needs from now on, in place of what it needed before."""
        wishes = tuple(dict.fromkeys(wishes))  # the parts of one decision may need the same
        for wish in wishes:
            _check(wish)
        before = self._wishes.pop(asker, ())
        if wishes:
            self._wishes[asker] = wishes
        for wish in wishes:
            self._remote(wish.cluster).add(wish, asker, wake)
        for wish in before:
            if wish not in wishes:
                self._remotes[wish.cluster].discard(wish, asker)
        for cluster in dict.fromkeys(wish.cluster for wish in before):
            if self._remotes[cluster].unasked:
                self._remotes.pop(cluster).stop()

    def observed(self, wish: Observe) -> Observed | Unreachable | None:
        remote = self._remotes.get(wish.cluster)
        return remote.seen(wish) if remote else None

    def connection(self, cluster: str) -> Connection | None:
        remote = self._remotes.get(cluster)
        return remote.link.state if remote else None

    def client(self, cluster: str) -> Client:
        """For writes, while some decision asks for the cluster and it answers; at once, no write waits for that."""
        remote = self._remotes.get(cluster)
        if remote is None or remote.link.client is None:
            why = remote.link.reason if remote else ""
            raise ServiceUnavailable(f"cluster {cluster} is not connected" + (f": {why}" if why else ""))
        return remote.link.client

    def _remote(self, cluster: str) -> _Remote:
        remote = self._remotes.get(cluster)
        if remote is None:
            remote = self._remotes[cluster] = _Remote(cluster, self._connect, clock=self._clock, tasks=self._tasks)
        return remote


RemotePerformer = Callable[[Remotes, Mapping[str, Any]], Awaitable[Any]]
"""Performs an effect on downstream clusters, through the connections that decisions ask for."""


class _Remote:
    """One cluster: its link, what is observed through it, and who wants to know how it is."""

    def __init__(self, cluster: str, connect: Connector, *, clock: Callable[[], datetime], tasks: Tasks) -> None:
        self._clock = clock
        self._tasks = tasks
        self._observations: dict[Observe, Observation] = {}
        self._connecting: dict[Hashable, tuple[Connect, Wake]] = {}
        self.link = ClusterConnection(
            cluster, connect, clock=clock, opened=self._look, dropped=self._look_away, on_edge=self._report_health
        )
        self.link.start(tasks)

    @property
    def unasked(self) -> bool:
        return not self._observations and not self._connecting

    def add(self, wish: Observe | Connect, asker: Hashable, wake: Wake) -> None:
        if isinstance(wish, Connect):
            # Only who brings something new is listened to: others may repeat what they read long ago.
            known = self._connecting.get(asker)
            self._connecting[asker] = (wish, wake)
            if wish.credential and (known is None or known[0] != wish):
                self.link.use(wish.credential)
            return
        shared = _shared(wish)
        seen = self._observations.get(shared)
        if seen is None:
            seen = self._observations[shared] = observation(shared, clock=self._clock, tasks=self._tasks)
            if self.link.client is not None:
                seen.start(self.link.client)
        seen.add(wish.focus, asker, wake)

    def discard(self, wish: Observe | Connect, asker: Hashable) -> None:
        if isinstance(wish, Connect):
            if asker in self._connecting and self._connecting[asker][0] == wish:
                del self._connecting[asker]
            return
        shared = _shared(wish)
        seen = self._observations[shared]
        seen.discard(wish.focus, asker)
        if seen.unasked:
            self._observations.pop(shared).stop()

    def seen(self, wish: Observe) -> Observed | Unreachable | None:
        if self.link.reason:
            return Unreachable(self.link.reason, self.link.heard or self.link.since)
        seen = self._observations.get(_shared(wish))
        return seen.seen(wish.focus, self.link.heard) if seen else None

    def stop(self) -> None:
        self.link.stop()
        for seen in self._observations.values():
            seen.stop()

    # --- what the link tells ------------------------------------------------------------------------------------

    def _look(self, client: Client) -> None:
        for seen in self._observations.values():
            seen.start(client)

    def _look_away(self) -> None:
        for seen in self._observations.values():
            seen.stop()

    def _report_health(self) -> None:
        if self.link.reason:
            for seen in self._observations.values():
                seen.lose()
                seen.wake_all()
        for _, wake in list(self._connecting.values()):
            wake()


def _shared(wish: Observe) -> Observe:
    """The one observation that serves this wish, whatever its focus."""
    return wish if wish.focus is None else replace(wish, focus=None)


def _check(wish: Observe | Connect) -> None:
    if isinstance(wish, Observe) and wish.focus is not None:
        index = wish.focus[0]
        if wish.projection is None or index not in wish.projection.indexes:
            raise LookupError(f"the wish for {wish.kind} focuses on '{index}', which its projection does not index")
