"""Observations of downstream clusters are shared, projected and focused; an unreachable cluster is a value."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from herder.engine.apiserver.inprocess import InProcess
from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.control.cache import Key
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Apply, Connect, Decision, Observe, Projection
from herder.engine.runtime.manager import Manager
from herder.engine.runtime.view import Observed, Unreachable, View
from herder.engine.wire import Request, Response
from tests.support.api import Api
from tests.support.engines import Engine
from tests.unit.engine.client.test_http import Tunnel
from tests.unit.engine.runtime.envtest import ADMIN, CONFIG_MAP, environment, new_object, until
from tests.unit.engine.runtime.remote.remote_cluster import (
    LISTED,
    NODE,
    NODES,
    WATCHED,
    RemoteCluster,
    RemoteWire,
    focused,
    run,
)


def test_watched_objects_are_updated_and_wake_the_subscriber() -> None:
    async def work(cluster: RemoteCluster) -> None:
        assert cluster.remotes.observed(WATCHED) is None, "nobody has looked yet"
        await cluster.create("a")
        cluster.ask(WATCHED)
        await asyncio.sleep(1)
        assert cluster.names() == ["a"]
        before = cluster.woken["me"]
        await cluster.create("b")
        await asyncio.sleep(1)
        assert cluster.names() == ["a", "b"]
        assert cluster.woken["me"] == before + 1
        cluster.ask()
        assert cluster.remotes.observed(WATCHED) is None, "what nobody asks for is not kept"

    run(work)


def test_subscribers_share_one_connection_and_one_watch() -> None:
    async def work(cluster: RemoteCluster) -> None:
        for subscriber in ("one", "two", "three"):
            cluster.ask(WATCHED, subscriber=subscriber)
        cluster.ask(WATCHED, replace(WATCHED, namespace="kube-system"), subscriber="four")
        await asyncio.sleep(1)
        [wire] = cluster.wires
        assert wire.reads("configmaps") == ["stream", "stream"]
        cluster.ask(subscriber="one")
        assert cluster.remotes.observed(WATCHED) is not None

    run(work)


def test_duplicate_subscriptions_in_one_decision_count_once() -> None:
    async def work(cluster: RemoteCluster) -> None:
        cluster.ask(WATCHED, WATCHED)
        await asyncio.sleep(1)
        cluster.ask()
        assert cluster.remotes.observed(WATCHED) is None

    run(work)


def test_a_cluster_without_subscribers_is_disconnected() -> None:
    async def work(cluster: RemoteCluster) -> None:
        cluster.ask(WATCHED)
        cluster.ask(Connect("far"), subscriber="another")
        await asyncio.sleep(1)
        cluster.ask()
        await asyncio.sleep(1)
        assert cluster.closed == []
        cluster.ask(subscriber="another")
        await asyncio.sleep(120)
        assert cluster.closed == cluster.wires
        assert cluster.remotes.connection("far") is None
        assert cluster.wires[0].probes == 1, "only the one that began the connection"

    run(work)


# --- focus ------------------------------------------------------------------------------------------------------


def test_a_change_wakes_only_subscribers_with_a_matching_focus() -> None:
    async def work(cluster: RemoteCluster) -> None:
        for number in range(1000):
            await cluster.create_node(f"node-{number}", f"cloud://{number}")
            cluster.ask(focused(f"cloud://{number}"), subscriber=number)
        cluster.ask(NODES, subscriber="all")
        await asyncio.sleep(1)
        [wire] = cluster.wires
        assert wire.reads("nodes") == ["stream"]
        cluster.woken.clear()
        await cluster.there.outside.delete(NODE.resource, "node-7")
        await asyncio.sleep(1)
        assert cluster.woken == {7: 1, "all": 1}
        assert cluster.names(focused("cloud://7")) == []
        assert cluster.names(focused("cloud://8")) == ["node-8"]
        assert len(cluster.names(NODES)) == 999

    run(work)


def test_a_changed_index_value_wakes_subscribers_of_the_old_and_the_new_value() -> None:
    async def work(cluster: RemoteCluster) -> None:
        await cluster.create_node("a")
        for subscriber in ("x", "y"):
            cluster.ask(focused(subscriber), subscriber=subscriber)
        cluster.ask(focused("x"), focused("y"), subscriber="both")
        await asyncio.sleep(1)
        cluster.woken.clear()
        await cluster.change_node("a", spec={"providerID": "x"})
        await asyncio.sleep(1)
        assert cluster.woken == {"x": 1, "both": 1}
        assert cluster.names(focused("x")) == ["a"]
        await cluster.there.outside.delete(NODE.resource, "a")
        await cluster.create_node("a", "y")
        await asyncio.sleep(1)
        assert (cluster.names(focused("x")), cluster.names(focused("y"))) == ([], ["a"])
        assert set(cluster.woken) == {"x", "y", "both"}

    run(work)


def test_a_change_outside_the_projection_wakes_no_subscriber() -> None:
    async def work(cluster: RemoteCluster) -> None:
        await cluster.create_node("a", "x")
        cluster.ask(NODES)
        await asyncio.sleep(1)
        cluster.woken.clear()
        await cluster.change_node("a", metadata={"labels": {"beat": "1"}})
        await asyncio.sleep(1)
        assert cluster.woken["me"] == 0

    run(work)


@pytest.mark.parametrize("subscription", [NODES, replace(NODES, freshness=10.0)], ids=["watched", "listed"])
def test_only_the_projected_record_is_cached(subscription: Observe) -> None:
    async def work(cluster: RemoteCluster) -> None:
        await cluster.create_node("a", "x")
        cluster.ask(subscription)
        await asyncio.sleep(1)
        seen = cluster.remotes.observed(subscription)
        assert isinstance(seen, Observed)
        [record] = seen.objects
        assert set(record) == {"metadata", "provider"}
        assert set(record["metadata"]) == {"name", "uid", "resourceVersion"}
        assert cluster.names(replace(subscription, focus=("provider", "x"))) == ["a"]
        assert cluster.names(replace(subscription, focus=("provider", "y"))) == []

    run(work)


def test_without_a_projection_everything_but_managed_fields_is_cached() -> None:
    async def work(cluster: RemoteCluster) -> None:
        await cluster.create("a")
        cluster.ask(WATCHED)
        await asyncio.sleep(1)
        seen = cluster.remotes.observed(WATCHED)
        assert isinstance(seen, Observed)
        assert seen.objects[0]["metadata"]["labels"] == {"own": "1"}
        assert "managedFields" not in seen.objects[0]["metadata"]

    run(work)


def test_a_failing_projection_of_one_object_does_not_hide_others() -> None:
    def failing_projection(node: dict[str, object]) -> dict[str, object]:
        if node["metadata"]["name"] == "odd":  # type: ignore[index]
            raise ValueError("odd")
        return {"good": True}

    async def work(cluster: RemoteCluster) -> None:
        subscription = Observe("far", NODE, projection=Projection("picky", failing_projection))
        await cluster.create_node("even")
        await cluster.create_node("odd")
        cluster.ask(subscription)
        await asyncio.sleep(1)
        assert cluster.names(subscription) == ["even", "odd"]

    run(work)


@pytest.mark.parametrize(
    "subscription", [replace(WATCHED, focus=("provider", "x")), replace(NODES, focus=("zone", "x"))]
)
def test_a_focus_on_an_undeclared_index_raises_with_its_name(subscription: Observe) -> None:
    async def work(cluster: RemoteCluster) -> None:
        with pytest.raises(LookupError, match=f"focuses on '{subscription.focus and subscription.focus[0]}'"):
            cluster.ask(subscription)

    run(work)


# --- lists on demand --------------------------------------------------------------------------------------------


def test_a_list_is_repeated_only_when_it_is_older_than_its_freshness() -> None:
    async def work(cluster: RemoteCluster) -> None:
        await cluster.create("a")
        for _ in range(3):
            cluster.ask(LISTED)
            await asyncio.sleep(5)
        assert cluster.names(LISTED) == ["a"]
        assert cluster.wires[0].reads("configmaps") == ["list"]
        await asyncio.sleep(30)
        cluster.ask(LISTED)
        await asyncio.sleep(1)
        assert cluster.wires[0].reads("configmaps") == ["list", "list"]
        assert cluster.woken["me"] == 2, "once for each list"

    run(work)


def test_a_failed_list_is_reported_and_retried() -> None:
    def deny_lists(request: Request) -> Request | Response:
        return Response(403, body=b"no") if request.path.endswith("configmaps") else request

    async def work(cluster: RemoteCluster) -> None:
        await cluster.create("a")
        cluster.ask(Connect("far"), subscriber="another")
        await asyncio.sleep(1)
        [wire] = cluster.wires
        wire.intercept = deny_lists
        cluster.ask(LISTED)
        await asyncio.sleep(1)
        assert isinstance(cluster.remotes.observed(LISTED), Unreachable)
        assert cluster.remotes.connection("far").healthy, "it answers, if only to refuse"  # type: ignore[union-attr]
        wire.intercept = lambda request: request
        await asyncio.sleep(11)
        assert cluster.names(LISTED) == ["a"]

    run(work)


# --- watches that fail while the cluster answers ----------------------------------------------------------------


@pytest.mark.parametrize("streams", [True, False], ids=["streaming list", "pages"])
def test_a_watch_that_ends_in_time_is_resumed(streams: bool) -> None:
    def refuse_streaming_lists(request: Request) -> Request | Response:
        is_refused = "sendInitialEvents" in request.query and not streams
        return Response(400, body=b'{"kind": "Status", "code": 400, "reason": "BadRequest"}') if is_refused else request

    def prepare(wire: RemoteWire) -> None:
        wire.intercept = refuse_streaming_lists

    async def work(cluster: RemoteCluster) -> None:
        cluster.prepare = prepare
        await cluster.create("a")
        cluster.ask(WATCHED)
        await asyncio.sleep(2000)
        [wire] = cluster.wires
        await cluster.create("b")
        await asyncio.sleep(5)
        assert cluster.names() == ["a", "b"]
        reads = wire.reads("configmaps")
        assert (reads.count("stream"), reads.count("list")) == (1, 0 if streams else 1), "resumed, not begun anew"
        assert 2 <= reads.count("watch") < 10

    run(work)


@pytest.mark.parametrize("seconds", [0, 3], ids=["no failed attempt", "an outage"])
@pytest.mark.parametrize("revisions", [0, 50], ids=["of the past", "assigned anew"])
def test_a_cluster_is_listed_again_after_an_interruption(revisions: int, seconds: int) -> None:
    """A snapshot of etcd may have been restored. API servers do not report that, and revisions go back."""

    async def work(cluster: RemoteCluster) -> None:
        for number in range(20):
            await cluster.create(f"new-{number:02}")
        cluster.ask(WATCHED)
        await asyncio.sleep(1)
        [wire] = cluster.wires
        cluster.woken.clear()
        async with environment() as restored:
            await restored.create("old", metadata={"labels": {"own": "1"}})
            for number in range(revisions):
                await restored.create(f"other-{number}")
            wire.inner, wire.down = InProcess(restored.server, ADMIN), bool(seconds)
            wire.cut()
            await asyncio.sleep(seconds)
            assert len(cluster.names()) == 20, "objects are kept meanwhile"
            wire.down = False
            await asyncio.sleep(60)
            assert cluster.names() == ["old"]
            assert cluster.woken["me"] > 0
            await restored.create("young", metadata={"labels": {"own": "1"}})
            await asyncio.sleep(1)
            assert cluster.names() == ["old", "young"]
            cluster.ask()

    run(work)


@pytest.mark.parametrize("before", [True, False], ids=["after it was seen", "before it was seen"])
def test_a_forbidden_watch_of_a_healthy_cluster_is_reported(before: bool) -> None:
    def deny_watches(request: Request) -> Request | Response:
        return Response(403, body=b"no") if request.is_streaming else request

    async def work(cluster: RemoteCluster) -> None:
        cluster.ask(Connect("far"), subscriber="another")
        if before:
            cluster.ask(WATCHED)
        await asyncio.sleep(1)
        [wire] = cluster.wires
        wire.intercept = deny_watches
        wire.cut()
        cluster.ask(WATCHED)
        await asyncio.sleep(1)
        assert isinstance(cluster.remotes.observed(WATCHED), Observed if before else Unreachable)
        await asyncio.sleep(100)
        seen = cluster.remotes.observed(WATCHED)
        assert isinstance(seen, Unreachable)
        assert seen.reason == "no"
        wire.intercept = lambda request: request
        await asyncio.sleep(60)
        assert isinstance(cluster.remotes.observed(WATCHED), Observed)

    run(work)


# --- through a manager ------------------------------------------------------------------------------------------


async def test_a_manager_observes_and_writes_through_a_tunnel(api: Api, engine: Engine) -> None:
    """The management cluster runs in this process; the remote engine has a name that only a tunnel resolves."""
    tunnel = Tunnel(engine.connection)
    subscription = Observe("far", CONFIG_MAP, namespace=api.namespace, labels="own=1")

    async def connect(cluster: str) -> Client:
        connection = replace(engine.connection, server=f"https://{cluster}.invalid:6443", tls_server_name="localhost")
        return Client(HttpTransport(connection, dialer=tunnel))

    def reconcile(view: View) -> Decision:
        if view.name != "a":
            return DONE
        seen = view.observed(subscription)
        if not isinstance(seen, Observed):
            return Decision(observe=(subscription,))
        names = [obj["metadata"]["name"] for obj in seen.objects]
        near = new_object("seen", data={"names": ",".join(names)})
        count_map = new_object("answer", metadata={"namespace": api.namespace}, data={"count": str(len(names))})
        writes = (Apply(CONFIG_MAP, near, "told here"), Apply(CONFIG_MAP, count_map, "told there", target="far"))
        return Decision(writes=writes, observe=(subscription,))

    async with environment() as env:
        clock: Callable[[], datetime] = lambda: datetime.now(UTC)  # noqa: E731
        controller = Controller("far", CONFIG_MAP, reconcile)
        manager = Manager(env.client, [controller], clock=clock, entropy=os.urandom, connect=connect)
        task = asyncio.ensure_future(manager.run())
        await env.create("a")
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
