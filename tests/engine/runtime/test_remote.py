"""Downstream clusters: observed through any connection, and a value, never an exception, when they do not answer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from herder.engine.apiserver.inprocess import InProcess
from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.meta.errors import ServiceUnavailable
from herder.engine.runtime.cache import Key
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Apply, Decision, Observe
from herder.engine.runtime.manager import Manager
from herder.engine.runtime.remote import Remotes
from herder.engine.runtime.tasks import Tasks
from herder.engine.runtime.view import Observed, Unreachable, View
from herder.sim import loop as virtual
from tests.engine.client.test_http import Tunnel
from tests.engine.runtime.world import ADMIN, CONFIG_MAP, Wire, World, now, thing, until, world
from tests.support.api import Api
from tests.support.engines import Engine

WATCHED = Observe("far", CONFIG_MAP, namespace="default", labels="own=1")
LISTED = replace(WATCHED, freshness=30.0)


class Far:
    """A cluster far away, and one manager's view of it."""

    def __init__(self, there: World) -> None:
        self.there = there
        self.connections: list[Wire] = []
        self.refuses: Exception | None = None
        self.woken = 0
        self.tasks = Tasks()
        self.remotes = Remotes(self._connect, clock=now, tasks=self.tasks)

    async def _connect(self, cluster: str) -> Client:
        if self.refuses is not None:
            raise self.refuses
        self.connections.append(Wire(InProcess(self.there.server, ADMIN)))
        return Client(self.connections[-1], field_manager="far")

    def ask(self, *wishes: Observe, asker: str = "me") -> None:
        self.remotes.ask(wishes, asker, self._wake)

    def _wake(self) -> None:
        self.woken += 1

    def names(self, wish: Observe = WATCHED) -> list[str]:
        seen = self.remotes.observed(wish)
        return [obj["metadata"]["name"] for obj in seen.objects] if isinstance(seen, Observed) else []

    async def create(self, name: str) -> None:
        await self.there.create(name, metadata={"labels": {"own": "1"}})


@asynccontextmanager
async def far() -> AsyncIterator[Far]:
    async with world() as there:
        made = Far(there)
        try:
            yield made
        finally:
            await made.tasks.stop()
            await made.remotes.close()


def run(work: Callable[[Far], Any]) -> Any:
    async def within() -> Any:
        async with far() as cluster:
            return await work(cluster)

    return virtual.run(within())


def test_what_is_watched_follows_and_wakes_who_asked() -> None:
    async def work(cluster: Far) -> None:
        assert cluster.remotes.observed(WATCHED) is None, "nobody has looked yet"
        await cluster.create("a")
        cluster.ask(WATCHED)
        await asyncio.sleep(1)
        assert cluster.names() == ["a"]
        before = cluster.woken
        await cluster.create("b")
        await asyncio.sleep(1)
        assert cluster.names() == ["a", "b"]
        assert cluster.woken > before
        cluster.ask()
        assert cluster.remotes.observed(WATCHED) is None, "what nobody asks for is not kept"

    run(work)


def test_one_connection_and_one_watch_serve_all_who_ask() -> None:
    async def work(cluster: Far) -> None:
        for asker in ("one", "two", "three"):
            cluster.ask(WATCHED, asker=asker)
        cluster.ask(WATCHED, replace(WATCHED, namespace="kube-system"), asker="four")
        await asyncio.sleep(1)
        assert len(cluster.connections) == 1
        assert cluster.connections[0].reads("configmaps") == ["stream", "stream"]
        cluster.ask(asker="one")
        assert cluster.remotes.observed(WATCHED) is not None

    run(work)


def test_what_is_listed_is_listed_again_only_when_it_is_too_old() -> None:
    async def work(cluster: Far) -> None:
        await cluster.create("a")
        for _ in range(3):
            cluster.ask(LISTED)
            await asyncio.sleep(5)
        assert cluster.names(LISTED) == ["a"]
        assert cluster.connections[0].reads("configmaps") == ["list"]
        await asyncio.sleep(30)
        cluster.ask(LISTED)
        await asyncio.sleep(1)
        assert cluster.connections[0].reads("configmaps") == ["list", "list"]

    run(work)


@pytest.mark.parametrize("refusal", [ServiceUnavailable("no route"), OSError("no route"), ValueError("no route")])
def test_a_cluster_that_cannot_be_reached_is_a_value_since_when(refusal: Exception) -> None:
    async def work(cluster: Far) -> None:
        cluster.refuses = refusal
        cluster.ask(WATCHED)
        await asyncio.sleep(25)
        seen = cluster.remotes.observed(WATCHED)
        assert isinstance(seen, Unreachable)
        assert seen.reason == "no route"
        assert (now() - seen.since).total_seconds() > 20
        assert cluster.woken == 1, "told once"
        with pytest.raises(ServiceUnavailable, match="cluster far is not connected"):
            cluster.remotes.client("far")
        cluster.refuses = None
        await cluster.create("a")
        await asyncio.sleep(11)
        assert cluster.names() == ["a"]

    run(work)


def test_a_short_silence_is_told_at_once_and_ends_with_the_connection_kept() -> None:
    async def work(cluster: Far) -> None:
        await cluster.create("a")
        cluster.ask(WATCHED)
        await asyncio.sleep(1)
        [wire] = cluster.connections
        wire.down = True
        wire.cut()
        await asyncio.sleep(1)
        assert isinstance(cluster.remotes.observed(WATCHED), Unreachable)
        wire.down = False
        await asyncio.sleep(3)
        assert cluster.names() == ["a"]
        assert cluster.connections == [wire]
        assert wire.reads("configmaps").count("stream") == 1

    run(work)


def test_a_connection_that_stays_broken_is_made_anew() -> None:
    async def work(cluster: Far) -> None:
        await cluster.create("a")
        cluster.ask(WATCHED)
        await asyncio.sleep(1)
        cluster.connections[0].down = True
        cluster.connections[0].cut()
        await asyncio.sleep(45)
        assert cluster.names() == ["a"]
        assert len(cluster.connections) == 2

    run(work)


def test_a_disconnected_cluster_wakes_who_asked_so_that_they_ask_again() -> None:
    async def work(cluster: Far) -> None:
        cluster.ask(WATCHED)
        await asyncio.sleep(1)
        before = cluster.woken
        await cluster.remotes.disconnect("far")
        assert cluster.woken == before + 1
        assert cluster.remotes.observed(WATCHED) is None
        cluster.ask(WATCHED)
        await asyncio.sleep(1)
        assert isinstance(cluster.remotes.observed(WATCHED), Observed)
        assert len(cluster.connections) == 2

    run(work)


async def test_a_manager_observes_and_writes_through_a_tunnel(api: Api, engine: Engine) -> None:
    """The management cluster is in this process; the far one is either engine, by a name that only a tunnel knows."""
    tunnel = Tunnel(engine.connection)
    wish = Observe("far", CONFIG_MAP, namespace=api.namespace, labels="own=1")

    async def connect(cluster: str) -> Client:
        connection = replace(engine.connection, server=f"https://{cluster}.invalid:6443", tls_server_name="localhost")
        return Client(HttpTransport(connection, dialer=tunnel))

    def reconcile(view: View) -> Decision:
        if view.name != "a":
            return DONE
        seen = view.observed(wish)
        if not isinstance(seen, Observed):
            return Decision(observe=(wish,))
        names = [obj["metadata"]["name"] for obj in seen.objects]
        near = thing("seen", data={"names": ",".join(names)})
        told = thing("answer", metadata={"namespace": api.namespace}, data={"count": str(len(names))})
        writes = (Apply(CONFIG_MAP, near, "told here"), Apply(CONFIG_MAP, told, "told there", target="far"))
        return Decision(writes=writes, observe=(wish,))

    async with world() as here:
        clock: Callable[[], datetime] = lambda: datetime.now(UTC)  # noqa: E731
        controller = Controller("far", CONFIG_MAP, reconcile)
        manager = Manager(here.client, [controller], clock=clock, entropy=os.urandom, connect=connect)
        task = asyncio.ensure_future(manager.run())
        await here.create("a")
        await api.create("configmaps", {"metadata": {"name": "b", "labels": {"own": "1"}}})
        found = manager.caches[CONFIG_MAP].get
        await until(lambda: (found(Key("default", "seen")) or {}).get("data") == {"names": "b"})
        await api.create("configmaps", {"metadata": {"name": "c", "labels": {"own": "1"}}})
        await until(lambda: (found(Key("default", "seen")) or {}).get("data") == {"names": "b,c"})
        await api.until_object(api.at("configmaps", "answer"), lambda obj: obj["data"] == {"count": "2"})
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await tunnel.close()
    assert {host for host, _ in tunnel.dialled} == {"far.invalid"}
