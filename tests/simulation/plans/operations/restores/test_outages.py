"""Operations during an outage of the manager that is longer than a phase may take, and during short ones of a cluster.

While the manager is down, or does not drive the operation, machines finish the task that they have, and get no other
one. This time is not the time of the phase. What fails during a short outage of a cluster is repeated when that has
ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from herder.api.capi.kinds import CLUSTER
from herder.api.capi.names import PAUSED
from herder.api.management.dropped_operations import DROPPED, dropped_status
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.observe_only import OBSERVE_ONLY
from herder.api.rke import names, operations
from herder.api.rke.kinds import BEACON, CONTROL_PLANE, ETCD_SNAPSHOT
from herder.engine.meta.kinds import Kind, Object
from herder.sim.nodes import SimulatedNode
from herder.sim.provisioned import NAME, WORKSPACE
from tests.simulation.plans.operations.operated_cluster import ALL_VERSIONS, HOUR, OperatedCluster, run
from tests.simulation.plans.operations.restores.test_restores import servers_of

SUSPENSION = 75 * 60.0  # longer than any phase may take
OUTAGE, OUTAGE_OF_API, OUTAGE_OF_SERVER = 40 * 60.0, 8 * 60.0, 40.0
"""The scripts of tasks wait two minutes for an API server."""
PHASES = ("Started", "Snapshot", "Shutdown", "Restore", "InitialRestartCluster", "PostRestoreNodeCleanup")


def _annotation(name: str) -> tuple[Object, Object]:
    """Patches that set and remove it."""
    set_to, removed = ({"metadata": {"annotations": {name: value}}} for value in ("test", None))
    return set_to, removed


async def request_restore(cluster: OperatedCluster) -> str:
    """Save a snapshot between two writes, and request its restore."""
    cluster.simulation.invariants.machines_are_stable = True
    await cluster.write("before")
    saved = await cluster.run(operations.SNAPSHOT)
    assert saved.phase == "Finished", saved.message
    await cluster.write("after")
    name = str((await cluster.simulation.sim.all(ETCD_SNAPSHOT))[-1]["metadata"]["name"])
    await cluster.simulation.sim.edit({"rkeConfig": {operations.RESTORE: {"generation": 1, "name": name}}})
    return name


async def until_in(cluster: OperatedCluster, *phases: str) -> None:
    async def is_reached() -> bool:
        found = operations.Run.of(await cluster.control_plane())
        return found is not None and found.kind == operations.RESTORE and found.phase in phases

    await cluster.simulation.sim.world.until(is_reached, within=4 * HOUR)


async def check_restored(cluster: OperatedCluster) -> None:
    assert (await cluster.has("before"), await cluster.has("after")) == (True, False)
    assert all(node.running for node in cluster.simulation.nodes)
    assert cluster.simulation.invariants.judge.missing_after_restore(cluster.simulation.sim.downstream.freeze()) == []
    cluster.simulation.check()


async def check_finished(cluster: OperatedCluster) -> operations.Run:
    """Wait for the end of the restore, which must succeed."""
    await until_in(cluster, "Finished", "Failed")
    ended = operations.Run.of(await cluster.control_plane())
    assert ended is not None
    assert ended.phase == "Finished", ended.message
    await cluster.simulation.until_settled()
    await check_restored(cluster)
    return ended


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_a_restore_survives_an_outage_of_the_manager(version: str, phase: str) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        await request_restore(cluster)
        await until_in(cluster, phase)
        cluster.simulation.sim.world.crash(OUTAGE)
        await asyncio.sleep(OUTAGE)
        await check_finished(cluster)

    run(version, scenario, servers=servers_of(version))


SUSPENSIONS: Mapping[str, tuple[Kind, str, Object, Object]] = {
    "pause of the Cluster": (CLUSTER, "", {"spec": {"paused": True}}, {"spec": {"paused": False}}),
    "paused annotation": (CONTROL_PLANE, "", *_annotation(PAUSED)),
    "observe-only": (CLUSTER, "", *_annotation(OBSERVE_ONLY)),
    "foreign Beacon": (BEACON, "status", {"status": {"owner": "other"}}, {"status": {"owner": names.PLANNER}}),
}
"""What keeps the planner from driving an operation: the object, its subresource, the patch that begins it, and the one
that ends it."""


async def suspend(cluster: OperatedCluster, cause: str, seconds: float) -> None:
    kind, subresource, begin, end = SUSPENSIONS[cause]
    api = cluster.simulation.sim.world.client
    where = {"namespace": WORKSPACE, "subresource": subresource}
    await api.patch(kind.resource, NAME, begin, **where)
    await asyncio.sleep(seconds / 2)
    suspended = operations.active_run(await cluster.control_plane())
    assert suspended is not None
    assert suspended.suspended_at is not None
    await asyncio.sleep(seconds / 2)
    await api.patch(kind.resource, NAME, end, **where)


async def check_resumed(cluster: OperatedCluster) -> operations.Run:
    ended = await check_finished(cluster)
    assert sum(ended.timings.values()) < SUSPENSION
    return ended


@pytest.mark.parametrize("cause", SUSPENSIONS)
def test_a_suspension_is_not_the_time_of_a_phase(cause: str) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        await request_restore(cluster)
        await until_in(cluster, "InitialRestartCluster")
        await suspend(cluster, cause, SUSPENSION)
        await check_resumed(cluster)

    run("v1.34.1+k3s1", scenario)


@pytest.mark.parametrize("phase", ["Shutdown", "Restore", "InitialRestartCluster"])
@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_a_restore_survives_a_pause_of_the_cluster(version: str, phase: str) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        await request_restore(cluster)
        await until_in(cluster, phase)
        await suspend(cluster, "pause of the Cluster", SUSPENSION)
        await check_resumed(cluster)

    run(version, scenario, servers=servers_of(version))


def test_operations_from_before_a_backup_are_dropped() -> None:
    """One in progress, and one that waits."""

    async def scenario(cluster: OperatedCluster) -> None:
        name = await request_restore(cluster)
        await until_in(cluster, "Started")
        sim, (_, _, begin, end) = cluster.simulation.sim, SUSPENSIONS["observe-only"]
        await sim.patch(CLUSTER, NAME, begin)
        await sim.edit({"rkeConfig": {operations.CERTIFICATES: {"generation": 1}}})
        await asyncio.sleep(SUSPENSION)
        found = await cluster.control_plane()
        changes = dropped_status(await sim.get(PROVISIONING_CLUSTER), found, sim.world.now())
        where = {"namespace": WORKSPACE, "subresource": "status"}
        await sim.world.client.patch(CONTROL_PLANE.resource, NAME, {"status": changes}, **where)
        await sim.patch(CLUSTER, NAME, end)
        await cluster.simulation.until_settled()
        ended = operations.Run.of(await cluster.control_plane())
        assert ended is not None
        assert (ended.kind, ended.phase, ended.message) == (operations.RESTORE, "Failed", DROPPED)
        assert (await cluster.has("before"), await cluster.has("after")) == (True, True)
        again = await cluster.run(operations.RESTORE, generation=2, name=name)
        assert again.phase == "Finished", again.message
        await check_restored(cluster)

    run("v1.34.1+k3s1", scenario)


def test_an_attempt_that_a_pause_delays_has_its_whole_time() -> None:
    """Also if the manager does not run when the cluster is paused, and the deadline passes."""

    async def scenario(cluster: OperatedCluster) -> None:
        await request_restore(cluster)
        await until_in(cluster, "InitialRestartCluster")
        kind, _, begin, end = SUSPENSIONS["pause of the Cluster"]
        cluster.simulation.sim.world.crash(OUTAGE)
        await cluster.simulation.sim.patch(kind, NAME, begin)
        await asyncio.sleep(OUTAGE + SUSPENSION)
        await cluster.simulation.sim.patch(kind, NAME, end)
        await check_resumed(cluster)

    run("v1.34.1+k3s1", scenario)


def _followers(cluster: OperatedCluster, leader: str) -> list[SimulatedNode]:
    return [node for node in cluster.servers if cluster.simulation.machine_of(node) != leader]


@pytest.mark.parametrize("version", ALL_VERSIONS[:3])
def test_a_server_that_does_not_answer_keeps_no_other_one_down(version: str) -> None:
    """And the restore can be requested again when it answers, although it looks lost until then."""

    async def scenario(cluster: OperatedCluster) -> None:
        name = await request_restore(cluster)
        await until_in(cluster, "Restore")
        started = operations.Run.of(await cluster.control_plane())
        assert started is not None
        silent, other = _followers(cluster, started.leader)
        silent.line.cut()
        await until_in(cluster, "Finished", "Failed")
        failed = await cluster.control_plane()
        assert failed["status"]["operation"]["phase"] == "Failed"
        machine = cluster.simulation.machine_of(silent)
        assert machine in failed["status"]["operation"]["message"]
        assert failed["status"]["unjoinedServers"] == [machine]
        assert other.running
        assert not silent.running
        silent.line.heal()
        again = await cluster.run(operations.RESTORE, generation=2, name=name)
        assert again.phase == "Finished", again.message
        await check_restored(cluster)

    run(version, scenario)


def serve_again(cluster: OperatedCluster, seconds: float) -> None:
    """The API server of the cluster is not available for so long."""
    downstream = cluster.simulation.sim.downstream
    downstream.stop_api()
    asyncio.get_running_loop().call_later(seconds, downstream.start_api)


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_nodes_are_cleaned_up_after_an_outage_of_the_api_server(version: str) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        await request_restore(cluster)
        await until_in(cluster, "PostRestoreNodeCleanup")
        serve_again(cluster, OUTAGE_OF_API)
        await check_finished(cluster)

    run(version, scenario, servers=servers_of(version))


def test_a_scheduled_snapshot_is_repeated_after_an_outage_of_the_server() -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        await cluster.simulation.sim.edit({"rkeConfig": {"etcd": {"snapshotScheduleCron": "0 * * * *"}}})
        (server,) = cluster.servers

        async def is_started() -> bool:
            found = operations.active_run(await cluster.control_plane())
            return found is not None and found.kind == operations.SCHEDULED_SNAPSHOT

        await cluster.simulation.sim.world.until(is_started, within=2 * HOUR)
        server.service.stop(by_plan=False)
        asyncio.get_running_loop().call_later(OUTAGE_OF_SERVER, server.service.start)

        async def has_ended() -> bool:
            return operations.active_run(await cluster.control_plane()) is None

        await cluster.simulation.sim.world.until(has_ended, within=HOUR)
        ended = operations.Run.of(await cluster.control_plane())
        assert ended is not None
        assert (ended.kind, ended.phase) == (operations.SCHEDULED_SNAPSHOT, "Finished"), ended.message

    run("v1.34.1+herder1", scenario, servers=1)
