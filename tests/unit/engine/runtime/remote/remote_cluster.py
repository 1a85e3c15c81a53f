"""A downstream cluster, the transports to it, and the observations that one manager has of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

from herder.engine.apiserver.inprocess import InProcess
from herder.engine.client.client import Client
from herder.engine.control.tasks import Tasks
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Connect, Observe, Projection
from herder.engine.runtime.remote import Remotes
from herder.engine.runtime.view import Observed
from herder.engine.wire import Request, Response
from herder.sim import loop as virtual
from tests.unit.engine.runtime.envtest import ADMIN, CONFIG_MAP, Environment, Wire, environment, now

NODE = Kind("", "v1", "Node", "nodes", namespaced=False)
WATCHED = Observe("far", CONFIG_MAP, namespace="default", labels="own=1")
LISTED = replace(WATCHED, freshness=30.0)


def _record(node: Object) -> Object:
    return {"metadata": {"name": node["metadata"]["name"]}, "provider": node["spec"].get("providerID", "")}


def _by_provider(record: Object) -> Iterable[str]:
    return (record["provider"],) if record.get("provider") else ()


RECORD = Projection("record", _record, {"provider": _by_provider})
NODES = Observe("far", NODE, projection=RECORD)


def node(name: str, provider: str = "") -> Object:
    spec = {"providerID": provider} if provider else {}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec}


def focused(provider: str) -> Observe:
    return replace(NODES, focus=("provider", provider))


class RemoteWire(Wire):
    """A transport that can also hang, or be answered by something that is not an API server."""

    hung = False
    status = 0  # HTTP status of every response, unless 0

    async def send(self, request: Request) -> Response:
        if self.hung:
            self.requests.append((request.method, request.path, request.query))
            await asyncio.get_running_loop().create_future()
        if self.status:
            self.requests.append((request.method, request.path, request.query))
            return Response(self.status, body=b"not now")
        response = await super().send(request)
        if response.stream is not None:
            response = replace(response, stream=self._silenceable(response.stream))
        return response

    async def _silenceable(self, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in stream:
            while self.hung:
                await asyncio.sleep(1)
            yield chunk

    @property
    def probes(self) -> int:
        return sum(1 for _, path, _ in self.requests if path == "/")


class RemoteCluster:
    def __init__(self, there: Environment) -> None:
        self.there = there
        self.wires: list[RemoteWire] = []
        self.closed: list[RemoteWire] = []
        self.refuses: Exception | None = None
        self.prepare: Callable[[RemoteWire], None] = lambda _wire: None
        self.woken: Counter[Hashable] = Counter()
        self.tasks = Tasks()
        self.remotes = Remotes(self._connect, clock=now, tasks=self.tasks)

    async def _connect(self, cluster: str) -> Client:
        if self.refuses is not None:
            raise self.refuses
        wire = RemoteWire(InProcess(self.there.server, ADMIN))
        self.prepare(wire)
        self.wires.append(wire)
        client = Client(wire, field_manager="far")

        async def close() -> None:
            self.closed.append(wire)

        wire.close = close  # type: ignore[method-assign]
        return client

    def ask(self, *subscriptions: Observe | Connect, subscriber: Hashable = "me") -> None:
        def wake() -> None:
            self.woken[subscriber] += 1

        self.remotes.subscribe(subscriptions, subscriber, wake)

    def names(self, subscription: Observe = WATCHED) -> list[str]:
        seen = self.remotes.observed(subscription)
        return [obj["metadata"]["name"] for obj in seen.objects] if isinstance(seen, Observed) else []

    async def create(self, name: str) -> None:
        await self.there.create(name, metadata={"labels": {"own": "1"}})

    async def create_node(self, name: str, provider: str = "") -> None:
        await self.there.outside.create(NODE.resource, node(name, provider))

    async def change_node(self, name: str, **fields: Any) -> None:
        await self.there.outside.patch(NODE.resource, name, fields)


@asynccontextmanager
async def remote_cluster() -> AsyncIterator[RemoteCluster]:
    async with environment() as there:
        remote = RemoteCluster(there)
        try:
            yield remote
        finally:
            await remote.tasks.stop()


def run(work: Callable[[RemoteCluster], Any]) -> Any:
    """Run a scenario against a remote cluster on virtual time."""

    async def within() -> Any:
        async with remote_cluster() as cluster:
            return await work(cluster)

    return virtual.run(within())


def seconds_since(moment: datetime) -> float:
    return (now() - moment).total_seconds()
