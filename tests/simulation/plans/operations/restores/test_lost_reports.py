"""A restore that completes on its leader, whose line to the manager is cut: the manager learns it after the deadline.

The operation has failed by then, and the other servers have started with the old data. The leader must not serve what
it has restored: there would be two clusters.
"""

from __future__ import annotations

import asyncio

import pytest

from herder.api.rke import names, operations
from herder.api.rke.node.plan_secret import IN_PROGRESS
from herder.sim.nodes import SimulatedNode
from tests.simulation.plans.operations.operated_cluster import ALL_VERSIONS, HOUR, OperatedCluster, run
from tests.simulation.plans.operations.restores.test_outages import check_restored, request_restore, until_in
from tests.simulation.plans.operations.restores.test_restores import servers_of
from tests.simulation.plans.operations.test_rotations import plans

RESTORE_SECONDS = 10 * 60.0
LONGER_THAN_THE_PHASE, LONGER_THAN_THE_OPERATION = 32 * 60.0, 2 * HOUR


async def cut_leader(cluster: OperatedCluster) -> SimulatedNode:
    """Cut the line of the leader when its agent has begun the restore."""
    await until_in(cluster, operations.RESTORE_PHASE)
    started = operations.Run.of(await cluster.control_plane())
    assert started is not None

    async def has_begun() -> bool:
        leader = next(plan for plan in plans(cluster) if plan.labels[names.MACHINE_NAME] == started.leader)
        is_restore = operations.RESTORE_SNAPSHOT in operations.task_instructions(leader.plan)
        return is_restore and leader.state == IN_PROGRESS

    await cluster.simulation.sim.world.until(has_begun, within=HOUR)
    (leader,) = (node for node in cluster.servers if cluster.simulation.machine_of(node) == started.leader)
    leader.line.cut()
    return leader


@pytest.mark.parametrize("seconds", [LONGER_THAN_THE_PHASE, LONGER_THAN_THE_OPERATION])
@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_a_restore_that_is_reported_too_late_is_undone(version: str, seconds: float) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        await request_restore(cluster)
        leader = await cut_leader(cluster)
        await asyncio.sleep(seconds)
        assert cluster.simulation.invariants.judge.restored_from is not None, "the restore has completed"
        leader.line.heal()
        await until_in(cluster, "Failed")
        failed = operations.Run.of(await cluster.control_plane())
        assert failed is not None
        assert failed.message.startswith("phase Restore: not finished within 30 minutes")
        await cluster.simulation.until_settled()
        assert (await cluster.has("before"), await cluster.has("after")) == (True, True)
        assert all(node.running for node in cluster.simulation.nodes)
        cluster.simulation.check()

    run(version, scenario, servers=servers_of(version))


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_a_restored_server_that_restarts_serves_nothing_before_it_is_committed(version: str) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        await request_restore(cluster)
        leader = await cut_leader(cluster)
        await asyncio.sleep(RESTORE_SECONDS)
        assert cluster.simulation.invariants.judge.restored_from is not None, "the restore has completed"
        leader.power_off()
        leader.boot()
        await asyncio.sleep(RESTORE_SECONDS)
        assert not leader.running
        leader.line.heal()
        await until_in(cluster, "Finished", "Failed")
        await cluster.simulation.until_settled()
        assert await cluster.has("before")
        assert all(node.running for node in cluster.simulation.nodes)
        cluster.simulation.check()

    run(version, scenario, servers=servers_of(version))


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_a_restore_is_repeated_after_one_that_was_reported_too_late(version: str) -> None:
    """With other servers, the leader counts as lost until it has undone its restore."""

    async def scenario(cluster: OperatedCluster) -> None:
        name = await request_restore(cluster)
        leader = await cut_leader(cluster)
        await until_in(cluster, "Failed")
        leader.line.heal()
        if len(cluster.servers) > 1:
            refused = await cluster.run(operations.RESTORE, generation=2, name=name)
            assert "are not reachable; delete them first" in refused.message
            assert await cluster.has("after")
        again = await cluster.run(operations.RESTORE, generation=3, name=name)
        assert again.phase == "Finished", again.message
        await check_restored(cluster)

    run(version, scenario, servers=servers_of(version))
