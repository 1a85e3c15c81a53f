"""A restore brings back bindings of its time. Until the manager has deleted those that were revoked since, members of
the cluster cannot use it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import NAMESPACE
from herder.api.management.crds import CRDS as MANAGEMENT_CRDS
from herder.api.rke.crds import CRDS
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.rke.operations import RESTORE, SNAPSHOT
from herder.app.install import install_kinds
from herder.engine.client.client import Client
from herder.engine.meta.kinds import Object
from herder.gateway.agents.clusters import NEVER, Clusters
from tests.support.builders import new_manifest
from tests.support.kube import Authority
from tests.unit.engine.runtime.envtest import environment
from tests.unit.gateway.proxy.proxy_gateway import ALICE, Gateway
from tests.unit.gateway.proxy.recorder import Recorder, StaticTokens

CLUSTER, NOW = "c-m-restored", datetime(2026, 1, 1, tzinfo=UTC)


def operation(kind: str, phase: str, *finished: str, age: float = 0) -> Object:
    return {
        "id": "one",
        "kind": kind,
        "phase": phase,
        "startedAt": timestamp(NOW - timedelta(hours=1)),
        "phaseStartedAt": timestamp(NOW - timedelta(seconds=age)),
        "timings": dict.fromkeys(finished, 1),
    }


BEFORE, STOPPED = ("Started", "Snapshot"), ("Started", "Snapshot", "Shutdown")
CASES: dict[str, tuple[Object, datetime | None]] = {
    "checked": (operation(RESTORE, "Started"), None),
    "stopping": (operation(RESTORE, "Shutdown", *BEFORE), None),
    "restored": (operation(RESTORE, "Restore", *STOPPED), NEVER),
    "restarted an hour ago": (operation(RESTORE, "InitialRestartCluster", *STOPPED, age=3600), NEVER),
    "just finished": (operation(RESTORE, "Finished", *STOPPED), NOW),
    "just failed": (operation(RESTORE, "Failed", *STOPPED), NOW),
    "finished": (operation(RESTORE, "Finished", *STOPPED, age=60), NOW - timedelta(seconds=60)),
    "refused": (operation(RESTORE, "Failed"), None),
    "another operation": (operation(SNAPSHOT, "Restore", *STOPPED), None),
}


def ended(kind: str, age: float, *finished: str) -> Object:
    """An entry of the history."""
    entry = {**operation(kind, "Finished", *finished), "endedAt": timestamp(NOW - timedelta(seconds=age))}
    entry.pop("phaseStartedAt")
    return entry


NEXT = operation(SNAPSHOT, "Started")
LATER_RUNS: dict[str, tuple[Object, list[Object], float | None]] = {
    "restore, then a snapshot": (NEXT, [ended(RESTORE, 1, *STOPPED)], 1),
    "restore, then another restore": (operation(RESTORE, "Started"), [ended(RESTORE, 1, *STOPPED)], 1),
    "restore, then two snapshots": (NEXT, [ended(RESTORE, 2, *STOPPED), ended(SNAPSHOT, 1, "Started")], 2),
    "restore some time ago": (NEXT, [ended(RESTORE, 3600, *STOPPED)], 3600),
    "restore that replaced nothing": (NEXT, [ended(RESTORE, 1, *BEFORE)], None),
    "two snapshots": (NEXT, [ended(SNAPSHOT, 1, *STOPPED)], None),
}
"""The operation in progress, those that have ended, and how many seconds ago the last restore ended."""


async def create_control_plane(client: Client, cluster: str, status: Object) -> None:
    spec = {"clusterName": "x", "kubernetesVersion": "v1.33.5+k3s1", "managementClusterName": cluster}
    plane = new_manifest(CONTROL_PLANE, cluster, "fleet-default", spec=spec)
    await client.create(CONTROL_PLANE.resource, plane, namespace="fleet-default")
    patch = {"status": status}
    await client.patch(CONTROL_PLANE.resource, cluster, patch, namespace="fleet-default", subresource="status")


async def test_an_operation_after_the_restore_does_not_open_the_cluster() -> None:
    async with environment() as env:
        await install_kinds(env.outside, [*CRDS, *MANAGEMENT_CRDS])
        await env.outside.create(NAMESPACE.resource, new_manifest(NAMESPACE, "fleet-default"))
        for number, (status, history, _) in enumerate(LATER_RUNS.values()):
            fields = {"operation": status, "operationHistory": history}
            await create_control_plane(env.outside, f"{CLUSTER}-{number}", fields)
        clusters = Clusters(env.outside)
        running = asyncio.ensure_future(clusters.run())
        try:
            await clusters.ready()
            found = {name: clusters.last_restore(f"{CLUSTER}-{number}") for number, name in enumerate(LATER_RUNS)}
            ages = {name: age for name, (_, _, age) in LATER_RUNS.items()}
            assert found == {name: None if age is None else NOW - timedelta(seconds=age) for name, age in ages.items()}
        finally:
            running.cancel()


async def test_a_restore_counts_once_it_has_replaced_data() -> None:
    async with environment() as env:
        await install_kinds(env.outside, [*CRDS, *MANAGEMENT_CRDS])
        await env.outside.create(NAMESPACE.resource, new_manifest(NAMESPACE, "fleet-default"))
        for number, (status, _) in enumerate(CASES.values()):
            await create_control_plane(env.outside, f"{CLUSTER}-{number}", {"operation": status})
        clusters = Clusters(env.outside)
        running = asyncio.ensure_future(clusters.run())
        try:
            await clusters.ready()
            found = {name: clusters.last_restore(f"{CLUSTER}-{number}") for number, name in enumerate(CASES)}
            assert found == {name: expected for name, (_, expected) in CASES.items()}
            assert clusters.last_restore("c-m-imported") is None
        finally:
            running.cancel()


async def test_the_gateway_is_ready_without_control_planes() -> None:
    async with environment() as env:
        await install_kinds(env.outside, MANAGEMENT_CRDS)
        clusters = Clusters(env.outside)
        running = asyncio.ensure_future(clusters.run())
        try:
            async with asyncio.timeout(10):
                await clusters.ready()
            assert clusters.last_restore(CLUSTER) is None
        finally:
            running.cancel()


@pytest.mark.parametrize("upgrade", [False, True])
async def test_a_member_cannot_use_a_cluster_that_is_restored(
    tmp_path_factory: pytest.TempPathFactory, upgrade: bool
) -> None:
    recorder = await Recorder(CLUSTER, Authority(tmp_path_factory.mktemp("downstream"))).start()
    gateway = await Gateway({CLUSTER: recorder.target()}, tokens=StaticTokens()).start()
    gateway.restored.add(ALICE.name)
    try:
        head = [f"GET /k8s/clusters/{CLUSTER}/api/v1/secrets HTTP/1.1", "Host: x", "Authorization: Bearer token-alice"]
        head += ["Connection: Upgrade", "Upgrade: websocket"] if upgrade else []
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write("\r\n".join([*head, "", ""]).encode())
        assert b" 503 " in await reader.readline()
        writer.close()
        assert not recorder.received
    finally:
        await gateway.stop()
        await recorder.stop()


async def test_a_request_that_began_before_the_restore_does_not_reach_the_cluster(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A client can send the body a minute after the head. Meanwhile, a snapshot can bring back its former rights."""
    recorder = await Recorder(CLUSTER, Authority(tmp_path_factory.mktemp("downstream"))).start()
    gateway = await Gateway({CLUSTER: recorder.target()}, tokens=StaticTokens()).start()
    try:
        path = f"/k8s/clusters/{CLUSTER}/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
        head = [f"POST {path} HTTP/1.1", "Host: x", "Authorization: Bearer token-alice", "Content-Length: 2"]
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write("\r\n".join([*head, "", "{"]).encode())
        await asyncio.wait_for(gateway.admitted.wait(), 10)
        gateway.restored.add(ALICE.name)
        writer.write(b"}")
        assert b" 503 " in await reader.readline()
        writer.close()
        assert not recorder.received
    finally:
        await gateway.stop()
        await recorder.stop()


async def test_a_request_reaches_only_the_server_that_was_checked(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Another agent may register while a client sends its body. Its cluster is the one that is checked then."""
    recorders = [await Recorder(CLUSTER, Authority(tmp_path_factory.mktemp("downstream"))).start() for _ in range(2)]
    former, current = recorders
    gateway = await Gateway({CLUSTER: former.target()}, tokens=StaticTokens()).start()
    try:
        path = f"/k8s/clusters/{CLUSTER}/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
        head = [f"POST {path} HTTP/1.1", "Host: x", "Authorization: Bearer token-alice", "Content-Length: 2"]
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write("\r\n".join([*head, "", "{"]).encode())
        await asyncio.wait_for(gateway.admitted.wait(), 10)
        gateway.targets[CLUSTER] = current.target()
        writer.write(b"}")
        assert b" 503 " in await reader.readline()
        writer.close()
        assert not former.received
        assert not current.received
    finally:
        await gateway.stop()
        for recorder in recorders:
            await recorder.stop()
