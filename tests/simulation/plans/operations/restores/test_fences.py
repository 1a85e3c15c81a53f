"""Servers that a restore has stopped, and that restart before the restore tells them which data the cluster has.

Two of three members are a quorum of the old cluster: if both started, it would serve beside the restored one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from herder.api.rke import operations
from herder.sim.nodes import SimulatedNode
from tests.simulation.plans.operations.operated_cluster import ALL_VERSIONS, HOUR, VERSIONS, OperatedCluster, run
from tests.simulation.plans.operations.restores.test_outages import (
    check_finished,
    check_restored,
    request_restore,
    until_in,
)
from tests.simulation.plans.operations.restores.test_restores import servers_of

KUBEADM = "v1.34.1+kubeadm1"
PHASES = (operations.RESTORE_PHASE, operations.REJOIN_PHASE)
DOWN_SECONDS = 5.0


async def others(cluster: OperatedCluster) -> list[SimulatedNode]:
    """All servers but the leader; the leader if there is no other one."""
    started = operations.Run.of(await cluster.control_plane())
    assert started is not None
    found = [node for node in cluster.servers if cluster.simulation.machine_of(node) != started.leader]
    return found or cluster.servers


async def restart(nodes: Sequence[SimulatedNode]) -> None:
    for node in nodes:
        node.power_off()
    await asyncio.sleep(DOWN_SECONDS)
    for node in nodes:
        node.boot()


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_servers_that_restart_in_a_restore_join_the_restored_one(version: str, phase: str) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        await request_restore(cluster)
        await until_in(cluster, phase)
        stopped = await others(cluster)
        await restart(stopped)
        if len(cluster.servers) > 1:
            assert not any(node.service.state == "active" for node in stopped)
        await check_finished(cluster)

    run(version, scenario, servers=servers_of(version))


@pytest.mark.parametrize("version", VERSIONS)
def test_servers_without_a_task_do_not_start_with_the_old_data(version: str) -> None:
    """They get their own plans when the restore fails before they have dropped their data. The restored server starts
    later. The next restore lets the others join it."""

    async def scenario(cluster: OperatedCluster) -> None:
        name = await request_restore(cluster)
        await until_in(cluster, operations.REJOIN_PHASE)
        stopped = await others(cluster)
        (leader,) = (node for node in cluster.servers if node not in stopped)
        leader.line.cut()
        await until_in(cluster, "Failed")
        await restart(stopped)
        await asyncio.sleep(HOUR / 4)
        leader.line.heal()
        await asyncio.sleep(HOUR / 4)
        assert cluster.simulation.invariants.judge.violations == []
        assert not any(node.running for node in stopped)
        again = await cluster.run(operations.RESTORE, generation=2, name=name)
        assert again.phase == "Finished", again.message
        await check_restored(cluster)

    run(version, scenario, servers=servers_of(version))


def cut_when_stopped(node: SimulatedNode) -> None:
    """Cut the line of a machine as soon as its service has stopped: it cannot report its task."""
    service, stop = node.service, node.service.stop

    def stop_and_cut(*, by_plan: bool) -> None:
        stop(by_plan=by_plan)
        node.line.cut()
        service.stop = stop  # type: ignore[method-assign]

    service.stop = stop_and_cut  # type: ignore[method-assign]


@pytest.mark.parametrize("version", [*VERSIONS, KUBEADM])
def test_servers_that_do_not_report_their_stop_start_after_the_abort(version: str) -> None:
    """Their fences must not outlast the operation: nothing was restored."""

    async def scenario(cluster: OperatedCluster) -> None:
        await request_restore(cluster)
        await until_in(cluster, "Snapshot")
        stopped = await others(cluster)
        for node in stopped:
            cut_when_stopped(node)
        await until_in(cluster, operations.ABORT_PHASE)
        await restart(stopped)
        assert not any(node.running for node in stopped)
        await until_in(cluster, "Failed")
        for node in stopped:
            node.line.heal()
        await cluster.simulation.until_settled()
        assert (await cluster.has("before"), await cluster.has("after")) == (True, True)
        assert all(node.running for node in cluster.simulation.nodes)
        cluster.simulation.check()

    run(version, scenario, servers=servers_of(version))
