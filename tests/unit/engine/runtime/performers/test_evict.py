"""Evictions in downstream clusters return every outcome as a value."""

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
from tests.unit.engine.runtime.envtest import CONFIG_MAP, new_object, now, until
from tests.unit.engine.runtime.remote.remote_cluster import RemoteCluster, run

PODS = GroupVersionResource("", "v1", "pods")
BUDGETS = GroupVersionResource("policy", "v1", "poddisruptionbudgets")


async def create_running_pod(cluster: RemoteCluster, name: str = "web-1") -> Object:
    client = cluster.there.outside
    spec = {"containers": [{"name": "c", "image": "i"}], "nodeName": "n", "terminationGracePeriodSeconds": 0}
    meta = {"name": name, "namespace": "default", "labels": {"app": "web"}}
    pod = await client.create(
        PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, namespace="default"
    )
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await client.patch(PODS, name, {"status": status}, namespace="default", subresource="status")
    return pod


async def create_budget(cluster: RemoteCluster, **status: int) -> None:
    client = cluster.there.outside
    meta = {"name": "web", "namespace": "default"}
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}
    pdb: Object = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta, "spec": spec}
    await client.create(BUDGETS, pdb, namespace="default")
    reported = {"observedGeneration": 1, "expectedPods": 1, **status}
    await client.patch(BUDGETS, "web", {"status": reported}, namespace="default", subresource="status")


async def evict_pod(cluster: RemoteCluster, **arguments: Any) -> Object:
    cluster.ask(Connect("far"))
    await asyncio.sleep(1)
    return await evict(cluster.remotes, {"cluster": "far", "namespace": "default", "name": "web-1", **arguments})


def test_a_pod_without_a_budget_is_evicted() -> None:
    async def work(cluster: RemoteCluster) -> None:
        pod = await create_running_pod(cluster)
        answer = await evict_pod(cluster, uid=pod["metadata"]["uid"], grace_seconds=0)
        assert answer == {"outcome": "evicted", "message": "", "causes": []}
        with pytest.raises(NotFound):
            await cluster.there.outside.get(PODS, "web-1", namespace="default")

    run(work)


def test_a_missing_pod_is_gone() -> None:
    async def work(cluster: RemoteCluster) -> None:
        answer = await evict_pod(cluster, uid="old", grace_seconds=None)
        assert (answer["outcome"], answer["causes"]) == ("gone", [])

    run(work)


def test_a_recreated_pod_with_another_uid_is_not_evicted() -> None:
    async def work(cluster: RemoteCluster) -> None:
        await create_running_pod(cluster)
        assert (await evict_pod(cluster, uid="of-its-predecessor"))["outcome"] == "gone"
        pod = await cluster.there.outside.get(PODS, "web-1", namespace="default")
        assert "deletionTimestamp" not in pod["metadata"]

    run(work)


def test_a_blocking_disruption_budget_is_reported() -> None:
    async def work(cluster: RemoteCluster) -> None:
        await create_running_pod(cluster)
        await create_budget(cluster, currentHealthy=1, desiredHealthy=1, disruptionsAllowed=0)
        assert await evict_pod(cluster) == {
            "outcome": "blocked",
            "message": "Cannot evict pod as it would violate the pod's disruption budget.",
            "causes": ["The disruption budget web needs 1 healthy pods and has 1 currently"],
        }

    run(work)


TERMINATING: Object = {"causes": [{"reason": "NamespaceTerminating", "message": "namespace x is being terminated"}]}


@pytest.mark.parametrize(
    ("refusal", "expected"),
    [
        (StatusError("no", code=403, reason="Forbidden"), "no"),
        (
            StatusError("is being terminated", code=403, reason="Forbidden", details=TERMINATING),
            "Cannot evict pod from",
        ),
        (StatusError("This pod has more than one PodDisruptionBudget", code=500, reason=""), "more than one"),
    ],
)
def test_every_other_refusal_is_reported_with_the_servers_message(refusal: StatusError, expected: str) -> None:
    def refuse(request: Request) -> Request | Response:
        return Response(refusal.code, body=encode(refusal.to_status())) if request.method == "POST" else request

    async def work(cluster: RemoteCluster) -> None:
        cluster.prepare = lambda wire: setattr(wire, "intercept", refuse)
        answer = await evict_pod(cluster)
        assert answer["outcome"] == "failed"
        assert expected in answer["message"]

    run(work)


def test_an_unresponsive_cluster_fails_after_the_timeout() -> None:
    async def work(cluster: RemoteCluster) -> None:
        cluster.ask(Connect("far"))
        await asyncio.sleep(1)
        cluster.wires[0].hung = True
        answer = await evict_pod(cluster)
        assert answer["outcome"] == "failed"
        assert "response timed out" in answer["message"]
        cluster.ask()
        answer = await evict(cluster.remotes, {"cluster": "far", "namespace": "default", "name": "web-1"})
        assert answer == {"outcome": "failed", "message": "cluster far is not connected", "causes": []}

    run(work)


def test_a_manager_evicts_through_the_connections_that_decisions_request() -> None:
    def reconcile(view: View) -> Decision:
        connected = view.connection("far")
        if view.name != "drain" or connected is None or not connected.healthy:
            return Decision(observe=(Connect("far"),))
        arguments = {"cluster": "far", "namespace": "default", "name": "web-1"}
        effect = Effect("evict", ("uid", "1"), arguments, "drained")
        result = view.result(effect.key)
        report = new_object("told", data=result.value if result else {})
        report["data"].pop("causes", None)
        return Decision(writes=(Apply(CONFIG_MAP, report, "told"),), effects=(effect,), observe=(Connect("far"),))

    async def work(cluster: RemoteCluster) -> None:
        await create_running_pod(cluster)
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
