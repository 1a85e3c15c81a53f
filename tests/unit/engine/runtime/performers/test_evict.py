"""Evictions in downstream clusters: whatever comes of one is a value."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from herder.engine.control.cache import Key, encode
from herder.engine.meta.errors import NotFound, StatusError
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import Apply, Connect, Decision, Effect
from herder.engine.runtime.manager import Manager
from herder.engine.runtime.performers.evict import evict
from herder.engine.runtime.view import View
from herder.engine.wire import Request, Response
from tests.unit.engine.runtime.far import Far, run
from tests.unit.engine.runtime.world import CONFIG_MAP, now, thing, until

PODS = GroupVersionResource("", "v1", "pods")
BUDGETS = GroupVersionResource("policy", "v1", "poddisruptionbudgets")


async def running_pod(cluster: Far, name: str = "web-1") -> Object:
    client = cluster.there.outside
    spec = {"containers": [{"name": "c", "image": "i"}], "nodeName": "n", "terminationGracePeriodSeconds": 0}
    meta = {"name": name, "namespace": "default", "labels": {"app": "web"}}
    pod = await client.create(
        PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, namespace="default"
    )
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await client.patch(PODS, name, {"status": status}, namespace="default", subresource="status")
    return pod


async def budget(cluster: Far, **status: int) -> None:
    client = cluster.there.outside
    meta = {"name": "web", "namespace": "default"}
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}
    made: Object = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta, "spec": spec}
    await client.create(BUDGETS, made, namespace="default")
    known = {"observedGeneration": 1, "expectedPods": 1, **status}
    await client.patch(BUDGETS, "web", {"status": known}, namespace="default", subresource="status")


async def eviction(cluster: Far, **arguments: Any) -> Object:
    cluster.ask(Connect("far"))
    await asyncio.sleep(1)
    return await evict(cluster.remotes, {"cluster": "far", "namespace": "default", "name": "web-1", **arguments})


def test_a_pod_that_may_go_goes() -> None:
    async def work(cluster: Far) -> None:
        pod = await running_pod(cluster)
        answer = await eviction(cluster, uid=pod["metadata"]["uid"], grace_seconds=0)
        assert answer == {"outcome": "evicted", "message": "", "causes": []}
        with pytest.raises(NotFound):
            await cluster.there.outside.get(PODS, "web-1", namespace="default")

    run(work)


def test_a_pod_that_is_not_there_is_gone() -> None:
    async def work(cluster: Far) -> None:
        answer = await eviction(cluster, uid="old", grace_seconds=None)
        assert (answer["outcome"], answer["causes"]) == ("gone", [])

    run(work)


def test_another_pod_of_the_same_name_is_spared() -> None:
    async def work(cluster: Far) -> None:
        await running_pod(cluster)
        assert (await eviction(cluster, uid="of-its-predecessor"))["outcome"] == "gone"
        pod = await cluster.there.outside.get(PODS, "web-1", namespace="default")
        assert "deletionTimestamp" not in pod["metadata"]

    run(work)


def test_a_budget_that_holds_a_pod_back_is_named() -> None:
    async def work(cluster: Far) -> None:
        await running_pod(cluster)
        await budget(cluster, currentHealthy=1, desiredHealthy=1, disruptionsAllowed=0)
        assert await eviction(cluster) == {
            "outcome": "blocked",
            "message": "Cannot evict pod as it would violate the pod's disruption budget.",
            "causes": ["The disruption budget web needs 1 healthy pods and has 1 currently"],
        }

    run(work)


TERMINATING: Object = {"causes": [{"reason": "NamespaceTerminating", "message": "namespace x is being terminated"}]}


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (StatusError("no", code=403, reason="Forbidden"), "no"),
        (
            StatusError("is being terminated", code=403, reason="Forbidden", details=TERMINATING),
            "Cannot evict pod from",
        ),
        (StatusError("This pod has more than one PodDisruptionBudget", code=500, reason=""), "more than one"),
    ],
)
def test_every_other_refusal_is_told_in_the_servers_words(refusal: StatusError, told: str) -> None:
    def refuse(request: Request) -> Request | Response:
        return Response(refusal.code, body=encode(refusal.to_status())) if request.method == "POST" else request

    async def work(cluster: Far) -> None:
        cluster.prepare = lambda wire: setattr(wire, "bend", refuse)
        answer = await eviction(cluster)
        assert answer["outcome"] == "failed"
        assert told in answer["message"]

    run(work)


def test_a_cluster_that_does_not_answer_is_a_failure_in_time() -> None:
    async def work(cluster: Far) -> None:
        cluster.ask(Connect("far"))
        await asyncio.sleep(1)
        cluster.wires[0].hung = True
        answer = await eviction(cluster)
        assert answer["outcome"] == "failed"
        assert "response timed out" in answer["message"]
        cluster.ask()
        answer = await evict(cluster.remotes, {"cluster": "far", "namespace": "default", "name": "web-1"})
        assert answer == {"outcome": "failed", "message": "cluster far is not connected", "causes": []}

    run(work)


def test_a_manager_performs_evictions_through_the_connections_that_decisions_ask_for() -> None:
    def reconcile(view: View) -> Decision:
        connected = view.connection("far")
        if view.name != "drain" or connected is None or not connected.healthy:
            return Decision(observe=(Connect("far"),))
        arguments = {"cluster": "far", "namespace": "default", "name": "web-1"}
        effect = Effect("evict", ("uid", "1"), arguments, "drained")
        result = view.result(effect.key)
        told = thing("told", data=result.value if result else {})
        told["data"].pop("causes", None)
        return Decision(writes=(Apply(CONFIG_MAP, told, "told"),), effects=(effect,), observe=(Connect("far"),))

    async def work(cluster: Far) -> None:
        await running_pod(cluster)
        manager = Manager(
            cluster.there.client,
            [Controller("drainer", CONFIG_MAP, reconcile)],
            clock=now,
            entropy=Random(1).randbytes,
            connect=cluster._connect,
            remote_performers={"evict": evict},
        )
        task = asyncio.ensure_future(manager.run())
        await cluster.there.create("drain")
        found = manager.caches[CONFIG_MAP].get
        await until(lambda: (found(Key("default", "told")) or {}).get("data") == {"outcome": "evicted", "message": ""})
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert cluster.closed == cluster.wires, "its connections end with it"

    run(work)
