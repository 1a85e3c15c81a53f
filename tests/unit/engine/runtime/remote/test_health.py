"""Connections to downstream clusters are opened, probed, renewed and closed without delaying other clusters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from random import Random

import pytest

from herder.engine.client.client import Client
from herder.engine.control.cache import Key
from herder.engine.control.tasks import Tasks
from herder.engine.meta.errors import ServiceUnavailable
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Apply, Connect, Decision
from herder.engine.runtime.manager import Manager
from herder.engine.runtime.remote import Remotes
from herder.engine.runtime.view import ConnectionStatus, Observed, Unreachable, View
from herder.engine.wire import Request, Response
from herder.sim import loop as virtual
from tests.unit.engine.runtime.envtest import CONFIG_MAP, START, new_object, now, until
from tests.unit.engine.runtime.remote.remote_cluster import (
    NODE,
    NODES,
    WATCHED,
    RemoteCluster,
    RemoteWire,
    focused,
    run,
    seconds_since,
)

CONNECT = Connect("far", credential="1")


def connection_status(cluster: RemoteCluster) -> ConnectionStatus:
    found = cluster.remotes.connection("far")
    assert found is not None
    return found


# --- connecting -------------------------------------------------------------------------------------------------


def test_a_subscriber_is_woken_once_when_the_cluster_connects() -> None:
    async def work(cluster: RemoteCluster) -> None:
        assert cluster.remotes.connection("far") is None
        cluster.ask(CONNECT)
        assert connection_status(cluster) == ConnectionStatus(START)
        assert not connection_status(cluster).healthy
        await asyncio.sleep(1)
        assert connection_status(cluster).healthy
        assert cluster.woken["me"] == 1
        assert cluster.remotes.client("far").field_manager == "far"

    run(work)


def test_a_starting_cluster_is_connected_soon_after_it_is_up() -> None:
    async def work(cluster: RemoteCluster) -> None:
        cluster.refuses = OSError("connection refused")
        cluster.ask(CONNECT)
        await asyncio.sleep(5)
        assert not connection_status(cluster).healthy
        cluster.refuses = None
        await asyncio.sleep(3)
        assert connection_status(cluster).healthy

    run(work)


@pytest.mark.parametrize("refusal", [ServiceUnavailable("no route"), OSError("no route"), ValueError("no route")])
def test_an_unreachable_cluster_is_reported_with_reason_and_start_time(refusal: Exception) -> None:
    async def work(cluster: RemoteCluster) -> None:
        cluster.refuses = refusal
        cluster.ask(WATCHED, CONNECT)
        cluster.ask(WATCHED, subscriber="another")
        await asyncio.sleep(45)
        seen = cluster.remotes.observed(WATCHED)
        assert isinstance(seen, Unreachable)
        assert seen.reason == connection_status(cluster).reason == "no route"
        assert seconds_since(seen.since) == 45
        assert cluster.woken["another"] == 1, "told once"
        with pytest.raises(ServiceUnavailable, match="cluster far is not connected: no route"):
            cluster.remotes.client("far")
        cluster.refuses = None
        await cluster.create("a")
        await asyncio.sleep(20)
        assert cluster.names() == ["a"]
        assert cluster.woken["another"] == 2

    run(work)


def test_late_credentials_are_tried_immediately() -> None:
    async def work(cluster: RemoteCluster) -> None:
        cluster.refuses = ServiceUnavailable("there is no such Secret")
        cluster.ask(WATCHED, subscriber="another")
        cluster.ask(Connect("far"))
        await asyncio.sleep(1)
        cluster.refuses = None
        cluster.ask(CONNECT)
        await asyncio.sleep(1)
        assert connection_status(cluster).healthy

    run(work)


# --- health probes ----------------------------------------------------------------------------------------------


def test_an_idle_cluster_is_probed_and_an_active_one_is_not() -> None:
    async def work(cluster: RemoteCluster) -> None:
        cluster.ask(CONNECT, NODES)
        await asyncio.sleep(95)
        [wire] = cluster.wires
        silent = wire.probes
        assert silent == 1 + 9, "one to begin with, and one for each ten seconds"
        for number in range(20):
            await cluster.create_node(f"n{number}")
            await asyncio.sleep(5)
        assert wire.probes - silent <= 1
        last_contact = connection_status(cluster).last_contact
        assert last_contact is not None
        assert seconds_since(last_contact) <= 10
        assert cluster.woken["me"] == 2 + 20, "no probe wakes anybody"

    run(work)


@pytest.mark.parametrize(
    ("inject_fault", "reason", "seconds"),
    [
        (lambda wire: setattr(wire, "hung", True), "response timed out", 56),
        (lambda wire: setattr(wire, "down", True), "the line is dead", 51),
        (lambda wire: setattr(wire, "status", 503), "server responded with HTTP 503", 51),
    ],
    ids=["hangs", "refuses", "answers for a server that is gone"],
)
def test_a_cluster_is_unreachable_after_five_failed_probes(
    inject_fault: Callable[[RemoteWire], None], reason: str, seconds: int
) -> None:
    async def work(cluster: RemoteCluster) -> None:
        await cluster.create_node("a", "x")
        cluster.ask(CONNECT)
        cluster.ask(focused("x"), subscriber="machine")
        await asyncio.sleep(1)
        cluster.woken.clear()
        inject_fault(cluster.wires[0])
        cluster.prepare = inject_fault
        await asyncio.sleep(seconds - 3)
        assert connection_status(cluster).healthy
        assert cluster.names(focused("x")) == ["a"], "what was seen stands until then"
        await asyncio.sleep(3)
        assert not connection_status(cluster).healthy
        assert connection_status(cluster).reason == reason
        assert connection_status(cluster).last_contact == START, "the time of the last answer"
        seen = cluster.remotes.observed(focused("x"))
        assert seen == Unreachable(reason, START)
        assert cluster.woken == {"me": 1, "machine": 1}
        assert cluster.closed[0] == cluster.wires[0]
        with pytest.raises(ServiceUnavailable, match="is not connected"):
            cluster.remotes.client("far")
        await asyncio.sleep(300)
        assert cluster.woken == {"me": 1, "machine": 1}, "told once, however often it is tried"
        assert 10 <= len(cluster.wires) <= 16, "ever more slowly"
        cluster.prepare = lambda _wire: None
        await asyncio.sleep(36)
        assert connection_status(cluster).healthy
        assert cluster.names(focused("x")) == ["a"]
        assert cluster.woken == {"me": 2, "machine": 2}

    run(work)


def test_a_successful_probe_resets_the_failure_count() -> None:
    async def work(cluster: RemoteCluster) -> None:
        cluster.ask(CONNECT)
        await asyncio.sleep(1)
        [wire] = cluster.wires
        for _ in range(10):
            wire.down = True
            await asyncio.sleep(30)
            wire.down = False
            await asyncio.sleep(15)
        assert cluster.wires == [wire]
        assert cluster.woken["me"] == 1

    run(work)


# --- credentials ------------------------------------------------------------------------------------------------


def test_changed_credentials_reconnect_and_move_the_observations() -> None:
    async def work(cluster: RemoteCluster) -> None:
        await cluster.create_node("a", "x")
        await cluster.create_node("b", "y")
        for provider in ("x", "y"):
            cluster.ask(focused(provider), subscriber=provider)
        cluster.ask(CONNECT)
        await asyncio.sleep(1)
        cluster.ask(CONNECT)
        await asyncio.sleep(1)
        assert len(cluster.wires) == 1, "the same credentials, the same connection"
        cluster.woken.clear()
        cluster.ask(Connect("far", credential="2"))
        await asyncio.sleep(0)
        assert cluster.names(focused("x")) == ["a"], "seen before, and not known to be otherwise"
        await asyncio.sleep(1)
        [old, new] = cluster.wires
        assert cluster.closed == [old]
        assert not cluster.woken, "nothing has changed"
        await cluster.change_node("a", spec={"providerID": "x"}, metadata={"labels": {"new": "1"}})
        await cluster.there.outside.delete(NODE.resource, "b")
        await asyncio.sleep(1)
        assert cluster.woken == {"y": 1}
        assert new.reads("nodes") == ["stream"]
        assert old.reads("nodes") == ["stream"]

    run(work)


def test_changes_during_a_reconnect_wake_the_subscriber() -> None:
    async def work(cluster: RemoteCluster) -> None:
        await cluster.create_node("a", "x")
        for provider in ("x", "y"):
            cluster.ask(focused(provider), subscriber=provider)
        cluster.ask(CONNECT)
        await asyncio.sleep(1)
        cluster.woken.clear()
        cluster.prepare = lambda _wire: setattr(cluster.wires[0], "hung", True)
        cluster.wires[0].hung = True
        await cluster.create_node("b", "y")
        cluster.ask(Connect("far", credential="2"))
        await asyncio.sleep(1)
        assert cluster.woken == {"y": 1}
        assert cluster.names(focused("y")) == ["b"]

    run(work)


def test_a_subscriber_with_old_credentials_does_not_restore_them() -> None:
    async def work(cluster: RemoteCluster) -> None:
        cluster.ask(CONNECT, subscriber="old")
        cluster.ask(Connect("far", credential="2"), subscriber="new")
        await asyncio.sleep(1)
        connections = len(cluster.wires)
        for _ in range(3):
            cluster.ask(CONNECT, subscriber="old")
            cluster.ask(Connect("far", credential="2"), subscriber="new")
            await asyncio.sleep(1)
        assert len(cluster.wires) == connections

    run(work)


def test_the_first_credentials_for_an_open_connection_do_not_reconnect() -> None:
    async def work(cluster: RemoteCluster) -> None:
        cluster.ask(NODES, subscriber="machine")
        await asyncio.sleep(1)
        cluster.ask(CONNECT)
        await asyncio.sleep(1)
        assert len(cluster.wires) == 1
        cluster.ask(Connect("far", credential="2"))
        await asyncio.sleep(1)
        assert len(cluster.wires) == 2

    run(work)


def test_rejected_credentials_are_reloaded_immediately() -> None:
    async def work(cluster: RemoteCluster) -> None:
        cluster.ask(CONNECT)
        await asyncio.sleep(100)
        cluster.wires[0].status = 401
        await asyncio.sleep(11)
        assert len(cluster.wires) == 2
        assert connection_status(cluster).healthy
        assert cluster.woken["me"] == 1

    run(work)


def test_rejected_credentials_are_retried_every_30_seconds() -> None:
    def refuse_watches(wire: RemoteWire) -> None:
        def intercept(request: Request) -> Request | Response:
            return Response(401, body=b"who are you") if request.is_streaming else request

        wire.intercept = intercept

    async def work(cluster: RemoteCluster) -> None:
        cluster.prepare = refuse_watches
        cluster.ask(CONNECT, NODES)
        await asyncio.sleep(310)
        assert 10 <= len(cluster.wires) <= 12
        seen = cluster.remotes.observed(NODES)
        assert isinstance(seen, Unreachable)
        assert seen.reason == "credentials rejected by the cluster"

    run(work)


def test_a_cluster_that_responds_forbidden_is_healthy() -> None:
    async def work(cluster: RemoteCluster) -> None:
        cluster.prepare = lambda wire: setattr(wire, "status", 403)
        cluster.ask(CONNECT)
        await asyncio.sleep(120)
        assert connection_status(cluster).healthy

    run(work)


# --- isolation --------------------------------------------------------------------------------------------------


def test_requests_to_one_cluster_are_limited_and_time_out() -> None:
    async def work(cluster: RemoteCluster) -> None:
        cluster.ask(CONNECT)
        await asyncio.sleep(1)
        [wire] = cluster.wires
        wire.hung = True
        client = cluster.remotes.client("far")
        before = len(wire.requests)
        start = now()
        attempts = [client.create(CONFIG_MAP.resource, new_object(f"c{n}"), namespace="default") for n in range(50)]
        failures = await asyncio.gather(*attempts, return_exceptions=True)
        assert {str(failure) for failure in failures} == {"cluster far: response timed out"}
        assert seconds_since(start) == 10
        assert len([request for request in wire.requests[before:] if request[0] == "POST"]) == 8

    run(work)


def test_a_hung_cluster_does_not_delay_the_others() -> None:
    async def work(cluster: RemoteCluster) -> None:
        hung = Hung()
        tasks = Tasks()

        async def connect(name: str) -> Client:
            return await cluster._connect(name) if name == "far" else Client(hung)

        remotes = Remotes(connect, clock=now, tasks=tasks)
        woken: list[tuple[str, datetime]] = []
        for number in range(50):
            name = f"hung-{number}"
            remotes.subscribe((Connect(name),), name, lambda name=name: woken.append((name, now())))  # type: ignore[misc]
        remotes.subscribe((Connect("far"), WATCHED), "far", lambda: woken.append(("far", now())))
        await asyncio.sleep(1)
        assert isinstance(remotes.observed(WATCHED), Observed)
        assert set(woken) == {("far", START)}
        await asyncio.sleep(9)
        assert {name for name, at in woken if at == START + timedelta(seconds=5)} == {f"hung-{n}" for n in range(50)}
        await tasks.stop()

    run(work)


class Hung:
    """A transport to a server that accepts and never answers."""

    async def send(self, request: Request) -> Response:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async def close(self) -> None:
        """Nothing was opened."""


def test_a_hung_connector_times_out() -> None:
    async def connect(_cluster: str) -> Client:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async def work() -> None:
        tasks = Tasks()
        remotes = Remotes(connect, clock=now, tasks=tasks)
        remotes.subscribe((Connect("far"),), "me", lambda: None)
        await asyncio.sleep(11)
        found = remotes.connection("far")
        assert found is not None
        assert found.reason == "response timed out"
        await tasks.stop()

    virtual.run(work())


def test_a_hung_cluster_does_not_occupy_all_workers() -> None:
    def cluster_of(obj: Object) -> str:
        return str((obj.get("data") or {}).get("cluster", ""))

    def copy_to_cluster(view: View) -> Decision:
        target = cluster_of(view.get(CONFIG_MAP, view.name) or {})
        if not target:
            return DONE
        copy_map = new_object(f"{view.name}-told")
        connected = view.connection(target)
        writes = (Apply(CONFIG_MAP, copy_map, "told", target=target),) if connected and connected.healthy else ()
        return Decision(writes=writes, observe=(Connect(target),))

    async def work(cluster: RemoteCluster) -> None:
        wires_by_cluster: dict[str, RemoteWire] = {}

        async def connect(name: str) -> Client:
            client = await cluster._connect(name)
            wires_by_cluster[name] = cluster.wires[-1]
            return client

        copier = Controller("marker", CONFIG_MAP, copy_to_cluster, workers=4, cluster_of=cluster_of)
        manager = Manager(
            cluster.there.client,
            [copier],
            clock=now,
            entropy=Random(1).randbytes,
            connect=connect,
            strict=True,
        )
        running = asyncio.ensure_future(manager.run())
        for name in ("stuck", "fine"):
            await cluster.there.create(f"{name}-first", data={"cluster": name})
        await asyncio.sleep(1)
        wires_by_cluster["stuck"].hung = True
        for number in range(20):
            await cluster.there.create(f"stuck-{number}", data={"cluster": "stuck"})
        await asyncio.sleep(1)
        start = now()
        for number in range(20):
            await cluster.there.create(f"fine-{number}", data={"cluster": "fine"})
        found = manager.caches[CONFIG_MAP]
        await until(lambda: all(Key("default", f"fine-{number}-told") in found for number in range(20)))
        assert seconds_since(start) < 1
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run(work)
