"""A worker reports what it likes: it neither stops the operations of its cluster nor makes those of servers fail."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from herder.api.rke import names, operations
from herder.api.rke.distributions import Release
from herder.sim import loop
from tests.support.builders import new_condition
from tests.unit.controllers.planner.operations.test_operations import ENDS, Agents, create, run
from tests.unit.controllers.planner.operations.test_restore import SERVERS, Witness, create_snapshot
from tests.unit.controllers.planner.operations.test_restored_versions import (
    create_upgraded,
    releases,
    request,
    set_version,
    until_ended,
)
from tests.unit.controllers.planner.simulated_cluster import VERSION, SimulatedCluster

UNHEALTHY = {"probe_statuses": '{"x":{"healthy":false}}'}
UNFINISHED = {"plan_state": "in-progress"}
FAILING = {"plan_state": "failed"}
OF_SERVERS: dict[str, dict[str, Any]] = {
    operations.SNAPSHOT: {"generation": 1},
    operations.ENCRYPTION_KEYS: {"generation": 1},
    operations.RESTORE: {"generation": 1, "name": "before"},
}


async def repeat(cluster: SimulatedCluster, worker: str, report: dict[str, str]) -> None:
    while True:
        await cluster.report(worker, **report)
        await asyncio.sleep(5)


async def run_beside(worker: str, report: dict[str, str], kind: str, request: dict[str, Any]) -> dict[str, Any]:
    """Run an operation while a worker repeats its report; returns `status.operation`."""
    async with SimulatedCluster(answer=Agents()) as cluster:
        await create(cluster)
        await create_snapshot(cluster)
        hostile = asyncio.ensure_future(repeat(cluster, worker, report))
        try:
            return await run(cluster, kind, request, ready=False)
        finally:
            hostile.cancel()


@pytest.mark.parametrize("report", [UNFINISHED, UNHEALTHY], ids=["unfinished", "unhealthy"])
@pytest.mark.parametrize("kind", OF_SERVERS)
def test_operations_of_servers_do_not_wait_for_a_worker(kind: str, report: dict[str, str]) -> None:
    status = loop.run(run_beside("worker-0", report, kind, OF_SERVERS[kind]))
    assert (kind, status["operation"]["phase"]) in {*ENDS, (operations.RESTORE, "Finished")}, status["operation"]


@pytest.mark.parametrize("report", [UNFINISHED, UNHEALTHY, FAILING], ids=["unfinished", "unhealthy", "failing"])
@pytest.mark.parametrize("worker", ["worker-0", "worker-1"])
def test_a_rotation_of_certificates_continues_without_a_worker(worker: str, report: dict[str, str]) -> None:
    """The guard counts it as down, and refuses the restart of the other worker, until it is skipped."""
    status = loop.run(run_beside(worker, report, operations.CERTIFICATES, {"generation": 1}))
    assert status["operation"]["phase"] == "Finished", status["operation"]
    assert status["operation"].get("skipped", [worker]) == [worker], "a failing worker may do its task between reports"


async def never_finish(cluster: SimulatedCluster, worker: str) -> None:
    """Begin each task, and do not end it."""
    while True:
        if (await cluster.plan(worker)).annotations.get(names.PLAN_TASK):
            await cluster.report(worker, **UNFINISHED)
        await asyncio.sleep(5)


def rotate_beside(workers: tuple[str, ...], lost_since: str = "") -> operations.Run:
    """Rotate certificates while workers do not finish. Kubelets report since when their Nodes are not ready."""

    async def scenario() -> operations.Run:
        async with SimulatedCluster(answer=Agents()) as cluster:
            await create(cluster)
            if lost_since:
                lost = new_condition("NodeReady", "False", "NodeNotReady", since=lost_since)
                await cluster.report_conditions(workers[0], lost)
            cluster.silent = lambda plan: plan.labels[names.MACHINE_NAME] in workers
            hostile = [asyncio.ensure_future(never_finish(cluster, each)) for each in workers]
            try:
                await run(cluster, operations.CERTIFICATES, {"generation": 1}, ready=False)
            finally:
                for each in hostile:
                    each.cancel()
            found = operations.Run.of(await cluster.control_plane())
            assert found is not None
            return found

    return loop.run(scenario())


def test_several_workers_do_not_make_a_rotation_of_certificates_fail() -> None:
    """Each is skipped after half an hour. The phase must not end before its other machines had their time."""
    ended = rotate_beside(("worker-0", "worker-1"))
    assert (ended.phase, list(ended.skipped)) == ("Finished", ["worker-0", "worker-1"]), ended.message


def test_a_worker_does_not_choose_how_long_a_rotation_waits_for_its_node() -> None:
    ended = rotate_beside(("worker-0",), "2999-01-01T00:00:00Z")
    assert (ended.phase, list(ended.skipped)) == ("Finished", ["worker-0"]), ended.message


AUTHORITIES = b"certificate authorities " + b"a" * 64 + b"\n"


@pytest.mark.parametrize(
    ("version", "report"),
    [
        ("v1.20.0+k3s1", {}),
        ("v1.99.0+k3s1", {}),
        ("none", {"local_plan_revision": "9999", "local_applied_checksum": "abc"}),
    ],
    ids=["old", "new", "none"],
)
@pytest.mark.parametrize("kind", [operations.CERTIFICATES, operations.AUTHORITIES, operations.RESTORE])
def test_an_operation_continues_without_a_worker_that_reports_a_false_version(
    kind: str, version: str, report: dict[str, str]
) -> None:
    """Guards refuse its plans, so that it never gets its task."""
    requests: dict[str, Any] = {
        operations.CERTIFICATES: {operations.CERTIFICATES: {"generation": 1}},
        operations.AUTHORITIES: {operations.CERTIFICATES: {"generation": 1, "caCertificates": True}},
        operations.RESTORE: {operations.RESTORE: OF_SERVERS[operations.RESTORE]},
    }

    async def lie(cluster: SimulatedCluster) -> None:
        while True:
            await cluster.report_kubelet("worker-0", version)
            await cluster.report("worker-0", **report)
            await asyncio.sleep(5)

    async def scenario() -> operations.Run:
        async with SimulatedCluster(answer=Agents()) as cluster:
            await create(cluster)
            await create_snapshot(cluster)
            cluster.outputs = dict.fromkeys((operations.ROTATE_AUTHORITIES, operations.REPORT_AUTHORITIES), AUTHORITIES)

            async def has_ended() -> bool:
                found = operations.Run.of(await cluster.control_plane())
                return found is not None and found.kind == kind and not found.is_active

            hostile = asyncio.ensure_future(lie(cluster))
            try:
                await asyncio.sleep(20)
                await cluster.edit(**requests[kind])
                await cluster.world.until(has_ended, within=3 * 3600.0)
            finally:
                hostile.cancel()
            ended = operations.Run.of(await cluster.control_plane())
            assert ended is not None
            return ended

    ended = loop.run(scenario())
    assert (ended.kind, ended.phase) == (kind, "Finished"), ended.message
    assert "worker-1" not in ended.skipped


@pytest.mark.parametrize("report", [UNFINISHED, UNHEALTHY, FAILING], ids=["unfinished", "unhealthy", "failing"])
def test_a_worker_neither_fails_the_restore_of_a_version_nor_keeps_deleted_nodes(report: dict[str, str]) -> None:
    """Without the clean-up, Nodes of machines that were deleted since the snapshot would be back."""

    async def scenario() -> None:
        witness = Witness()
        async with SimulatedCluster(answer=witness) as cluster:
            await create_upgraded(cluster)
            hostile = asyncio.ensure_future(repeat(cluster, "worker-0", report))
            try:
                await set_version(cluster, VERSION, etcdSnapshotRestore=request("kubernetesVersion"))
                ended = await until_ended(cluster)
            finally:
                hostile.cancel()
            assert ended.phase == "Finished", ended.message
            assert len(witness.positions(operations.DELETE_NODES)) == 1
            assert await releases(cluster, (*SERVERS, "worker-1")) == {Release(1, 33, 4)}

    loop.run(scenario())
