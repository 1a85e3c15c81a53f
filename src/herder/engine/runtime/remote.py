"""Downstream clusters: one connection each, what is observed of them, and how long they have been silent.

An observation without a freshness is kept by a watch for as long as some decision asks for it; one with a freshness
is listed when older. Each cluster has its own tasks and its own time limits, so one that does not answer costs the
others nothing. A connection that stays broken is made anew, since addresses and credentials change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from datetime import datetime

from herder.engine.client.client import Client
from herder.engine.logs import get_logger
from herder.engine.meta.errors import ServiceUnavailable
from herder.engine.runtime.cache import Cache
from herder.engine.runtime.decision import Observe
from herder.engine.runtime.informer import Informer
from herder.engine.runtime.tasks import Tasks
from herder.engine.runtime.view import Observed, Unreachable

log = get_logger(__name__)

Connect = Callable[[str], Awaitable[Client]]
"""Opens a connection to a cluster by name: from its kubeconfig Secret, directly or through a tunnel."""

REQUEST_SECONDS = 10.0
RETRY_SECONDS = 10.0


@dataclass(slots=True, eq=False)
class _Observation:
    wish: Observe
    askers: dict[Hashable, Callable[[], None]] = field(default_factory=dict)
    informer: Informer | None = None
    task: asyncio.Task[None] | None = None
    listed: Observed | None = None
    failed: Unreachable | None = None

    def wake(self) -> None:
        for wake in list(self.askers.values()):
            wake()


class Remotes:
    def __init__(self, connect: Connect, *, clock: Callable[[], datetime], tasks: Tasks) -> None:
        self._connect = connect
        self._clock = clock
        self._tasks = tasks
        self._clients: dict[str, Client] = {}
        self._observations: dict[Observe, _Observation] = {}
        self._wishes: dict[Hashable, tuple[Observe, ...]] = {}

    def client(self, cluster: str) -> Client:
        """The connection made by an observation; writing to a cluster that nobody has reached is refused."""
        if cluster not in self._clients:
            raise ServiceUnavailable(f"cluster {cluster} is not connected")
        return self._clients[cluster]

    def ask(self, wishes: tuple[Observe, ...], asker: Hashable, wake: Callable[[], None]) -> None:
        """These are what `asker` needs from now on, in place of what it needed before."""
        for wish in self._wishes.pop(asker, ()):
            if wish not in wishes:
                self._unask(wish, asker)
        if wishes:
            self._wishes[asker] = wishes
        for wish in wishes:
            observation = self._observations.setdefault(wish, _Observation(wish))
            observation.askers[asker] = wake
            if observation.task is None or (observation.task.done() and not self._fresh(observation)):
                observation.task = self._tasks.spawn(self._look(observation), name=f"observe {wish.cluster}")

    def _unask(self, wish: Observe, asker: Hashable) -> None:
        observation = self._observations.get(wish)
        if observation is not None:
            observation.askers.pop(asker, None)
            if not observation.askers:
                self._end(wish)

    def observed(self, wish: Observe) -> Observed | Unreachable | None:
        observation = self._observations.get(wish)
        if observation is None:
            return None
        if observation.failed is not None:
            return observation.failed
        if observation.informer is not None and observation.informer.synced.is_set():
            return Observed(tuple(observation.informer.cache.select()), self._clock())
        return observation.listed

    async def disconnect(self, cluster: str) -> None:
        """The cluster is gone, or its credentials changed: who still asks connects anew."""
        for wish in [wish for wish in self._observations if wish.cluster == cluster]:
            self._end(wish).wake()
        client = self._clients.pop(cluster, None)
        if client is not None:
            await client.close()

    async def close(self) -> None:
        for cluster in list(self._clients):
            await self.disconnect(cluster)

    def _end(self, wish: Observe) -> _Observation:
        observation = self._observations.pop(wish)
        if observation.task is not None:
            observation.task.cancel()
        return observation

    def _fresh(self, observation: _Observation) -> bool:
        wish, listed = observation.wish, observation.listed
        if listed is None or wish.freshness is None:
            return False
        return (self._clock() - listed.as_of).total_seconds() < wish.freshness

    # --- one observation's task ---------------------------------------------------------------------------------

    async def _look(self, observation: _Observation) -> None:
        wish = observation.wish
        while True:
            client: Client | None = None
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    client = await self._connected(wish.cluster)
                    if wish.freshness is not None:
                        await self._list(observation, client)
                        return
                await self._watch(observation, client)
            except Exception as error:
                # Whatever it is (a dialer's own errors too), it is this cluster's trouble, and told as such.
                self._ill(observation, str(error) or "no answer in time")
                if client is not None:
                    await self._drop(wish.cluster, client)
                await asyncio.sleep(RETRY_SECONDS)

    async def _connected(self, cluster: str) -> Client:
        if cluster not in self._clients:
            client = await self._connect(cluster)
            if cluster in self._clients:  # another observation was quicker
                await client.close()
            else:
                self._clients[cluster] = client
        return self._clients[cluster]

    async def _drop(self, cluster: str, client: Client) -> None:
        """This connection does not work: whoever comes next makes a new one."""
        if self._clients.get(cluster) is client:
            del self._clients[cluster]
            await client.close()

    async def _list(self, observation: _Observation, client: Client) -> None:
        wish = observation.wish
        page = await client.list_all(
            wish.kind.resource, namespace=wish.namespace, labels=wish.labels, fields=wish.fields
        )
        observation.listed, observation.failed = Observed(tuple(page.items), self._clock()), None
        observation.wake()

    async def _watch(self, observation: _Observation, client: Client) -> None:
        """Follow until the cluster has not answered for one retry period."""
        wish = observation.wish
        informer = Informer(
            client,
            Cache(wish.kind),
            lambda _change: observation.wake(),
            namespace=wish.namespace,
            labels=wish.labels,
            fields=wish.fields,
            on_health=lambda failure: self._heard(observation, failure),
        )
        following = self._tasks.spawn(informer.run(), name=f"follow {wish.cluster} {wish.kind}")
        try:
            await self._first_sync(informer)
            observation.informer, observation.failed = informer, None
            observation.wake()
            ill_before = False
            while True:
                await asyncio.sleep(RETRY_SECONDS)
                if informer.failure and ill_before:
                    raise ServiceUnavailable(informer.failure)
                ill_before = bool(informer.failure)
        finally:
            following.cancel()

    async def _first_sync(self, informer: Informer) -> None:
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                await informer.synced.wait()
        except TimeoutError:
            raise ServiceUnavailable(informer.failure or "no answer in time") from None

    # --- what is told -------------------------------------------------------------------------------------------

    def _heard(self, observation: _Observation, failure: str) -> None:
        if failure:
            self._ill(observation, failure)
        elif observation.failed is not None:
            observation.failed = None
            observation.wake()

    def _ill(self, observation: _Observation, reason: str) -> None:
        news = observation.failed is None
        since = observation.failed.since if observation.failed else self._clock()
        observation.failed = Unreachable(reason, since)
        if news:
            log.warning("cluster unreachable", cluster=observation.wish.cluster, error=reason)
            observation.wake()
