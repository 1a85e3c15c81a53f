"""Downstream clusters: one connection each, what is observed of them, and how long they have been silent.

An observation without a freshness is kept by a watch for as long as some decision asks for it; one with a freshness
is listed when older. Each cluster has its own tasks and its own time limits, so one that does not answer costs the
others nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime

from herder.engine.client.client import Client
from herder.engine.meta.errors import ServiceUnavailable, StatusError
from herder.engine.runtime.cache import Cache, Key
from herder.engine.runtime.decision import Observe
from herder.engine.runtime.informer import Informer
from herder.engine.runtime.tasks import Tasks
from herder.engine.runtime.view import Observed, Unreachable

Connect = Callable[[str], Awaitable[Client]]
"""Opens a connection to a cluster by name: from its kubeconfig Secret, directly or through a tunnel."""

REQUEST_SECONDS = 10.0
RETRY_SECONDS = 10.0


@dataclass(slots=True)
class _Observation:
    wish: Observe
    askers: dict[object, Callable[[], None]] = field(default_factory=dict)
    informer: Informer | None = None
    task: asyncio.Task[None] | None = None
    listed: Observed | None = None
    failed: Unreachable | None = None


class Remotes:
    def __init__(self, connect: Connect, *, clock: Callable[[], datetime], tasks: Tasks) -> None:
        self._connect = connect
        self._clock = clock
        self._tasks = tasks
        self._clients: dict[str, Client] = {}
        self._observations: dict[Observe, _Observation] = {}

    def client(self, cluster: str) -> Client:
        """The connection made by an observation; writing to a cluster that nobody has reached is refused."""
        if cluster not in self._clients:
            raise ServiceUnavailable(f"cluster {cluster} is not connected")
        return self._clients[cluster]

    def ask(self, wishes: tuple[Observe, ...], asker: object, wake: Callable[[], None]) -> None:
        """These are what `asker` needs from now on, in place of what it needed before."""
        for wish, observation in list(self._observations.items()):
            if asker in observation.askers and wish not in wishes:
                del observation.askers[asker]
                if not observation.askers:
                    self._end(wish)
        for wish in wishes:
            observation = self._observations.setdefault(wish, _Observation(wish))
            observation.askers[asker] = wake
            if observation.task is None or (observation.task.done() and not self._fresh(observation)):
                observation.task = self._tasks.spawn(self._look(observation), name=f"observe {wish.cluster}")

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
        """The cluster is gone, or its credentials changed: the next observation connects anew."""
        for wish in [wish for wish in self._observations if wish.cluster == cluster]:
            self._end(wish)
        client = self._clients.pop(cluster, None)
        if client is not None:
            await client.close()

    async def close(self) -> None:
        for cluster in list(self._clients):
            await self.disconnect(cluster)

    def _end(self, wish: Observe) -> None:
        observation = self._observations.pop(wish)
        if observation.task is not None:
            observation.task.cancel()

    def _fresh(self, observation: _Observation) -> bool:
        wish, listed = observation.wish, observation.listed
        if listed is None or wish.freshness is None:
            return False
        return (self._clock() - listed.as_of).total_seconds() < wish.freshness

    async def _look(self, observation: _Observation) -> None:
        wish = observation.wish
        while True:
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    client = await self._connected(wish.cluster)
                    if wish.freshness is not None:
                        await self._list(observation, client)
                        return
                await self._watch(observation, client)
            except (StatusError, OSError, TimeoutError) as error:
                self._unreachable(observation, str(error) or "no answer in time")
                await asyncio.sleep(RETRY_SECONDS)

    async def _connected(self, cluster: str) -> Client:
        if cluster not in self._clients:
            client = await self._connect(cluster)
            if cluster in self._clients:  # another observation was quicker
                await client.close()
            else:
                self._clients[cluster] = client
        return self._clients[cluster]

    async def _list(self, observation: _Observation, client: Client) -> None:
        wish = observation.wish
        page = await client.list_all(
            wish.kind.resource, namespace=wish.namespace, labels=wish.labels, fields=wish.fields
        )
        observation.listed, observation.failed = Observed(tuple(page.items), self._clock()), None
        self._wake(observation)

    async def _watch(self, observation: _Observation, client: Client) -> None:
        """Follow until the informer has been unable to read for one retry period."""
        wish = observation.wish
        informer = Informer(
            client,
            Cache(wish.kind),
            lambda _change: self._wake(observation),
            namespace=wish.namespace,
            labels=wish.labels,
            fields=wish.fields,
        )
        observation.informer = informer
        task = asyncio.ensure_future(informer.run())
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                await informer.synced.wait()
            observation.failed = None
            self._wake(observation)
            while not task.done():
                await asyncio.wait([task], timeout=RETRY_SECONDS)
                if informer.failure:
                    self._unreachable(observation, informer.failure)
                elif observation.failed is not None:
                    observation.failed = None
                    self._wake(observation)
        except TimeoutError as error:
            raise ServiceUnavailable(informer.failure or "no answer in time") from error
        finally:
            task.cancel()

    def _unreachable(self, observation: _Observation, reason: str) -> None:
        since = observation.failed.since if observation.failed else self._clock()
        news = observation.failed is None
        observation.failed = Unreachable(reason, since)
        if news:
            self._wake(observation)

    def _wake(self, observation: _Observation) -> None:
        for wake in list(observation.askers.values()):
            wake()


Asker = tuple[str, Key]
"""Who asks: a controller and the key it decided on."""
