"""Health of machines: lost workers are replaced, and no machine because restored data does not know its Node.

A kubelet registers its Node only when it starts, so the Nodes of machines that have joined since the snapshot are
missing after a restore until their kubelets are restarted.
"""

from __future__ import annotations

import pytest

from herder.api.capi.conditions import find
from herder.api.capi.kinds import MACHINE, MACHINE_HEALTH_CHECK
from herder.api.rke import operations
from herder.api.rke.kinds import ETCD_SNAPSHOT
from herder.sim.provisioned import pool
from tests.simulation.plans.operations.operated_cluster import ALL_VERSIONS, HOUR, OperatedCluster, run
from tests.simulation.plans.operations.restores.test_restores import servers_of


async def add_workers(cluster: OperatedCluster, quantity: int, timeout: str = "60s") -> None:
    """Scale the pool of workers, whose machines are replaced if their Nodes are unhealthy for longer."""
    simulation = cluster.simulation
    simulation.desired.pools["workers"] = (quantity, ("worker",))
    servers = pool("servers", simulation.desired.pools["servers"][0], "etcd", "controlPlane")
    workers = pool("workers", quantity, "worker", unhealthyNodeTimeout=timeout)
    await simulation.sim.edit({"rkeConfig": {"machinePools": [servers, workers]}})
    await simulation.until_settled()


async def machines(cluster: OperatedCluster) -> set[str]:
    return {each["metadata"]["name"] for each in await cluster.simulation.sim.all(MACHINE)}


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_workers_that_joined_after_the_snapshot_are_not_replaced(version: str) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        saved = await cluster.run(operations.SNAPSHOT)
        assert saved.phase == "Finished", saved.message
        snapshot = (await cluster.simulation.sim.all(ETCD_SNAPSHOT))[-1]
        await add_workers(cluster, 3)
        before = await machines(cluster)
        restored = await cluster.run(operations.RESTORE, name=snapshot["metadata"]["name"])
        assert restored.phase == "Finished", restored.message
        assert await machines(cluster) == before

    run(version, scenario, servers=servers_of(version))


async def until_replaced(cluster: OperatedCluster, machine: str) -> None:
    async def is_replaced() -> bool:
        return machine not in await machines(cluster)

    await cluster.simulation.sim.world.until(is_replaced, within=HOUR)
    await cluster.simulation.until_settled()


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_a_worker_whose_node_is_lost_is_replaced(version: str) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        await add_workers(cluster, 3)
        lost = next(node for node in cluster.simulation.nodes if node.is_worker)
        machine = cluster.simulation.machine_of(lost)
        others = await machines(cluster) - {machine}
        lost.die()
        await until_replaced(cluster, machine)
        assert others < await machines(cluster)

    run(version, scenario, servers=1)


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_a_worker_that_is_lost_in_a_restore_is_replaced_after_it(version: str) -> None:
    """The others, which have joined after the snapshot, stay."""

    async def scenario(cluster: OperatedCluster) -> None:
        saved = await cluster.run(operations.SNAPSHOT)
        assert saved.phase == "Finished", saved.message
        snapshot = (await cluster.simulation.sim.all(ETCD_SNAPSHOT))[-1]["metadata"]["name"]
        await add_workers(cluster, 3)
        before = await machines(cluster)
        lost = next(node for node in cluster.simulation.nodes if node.is_worker)
        machine = cluster.simulation.machine_of(lost)
        lost.die()
        restored = await cluster.run(operations.RESTORE, settles=False, name=snapshot)
        assert restored.phase == "Finished", restored.message
        assert await machines(cluster) == before

        async def is_reported() -> bool:
            (check,) = await cluster.simulation.sim.all(MACHINE_HEALTH_CHECK)
            allowed = find(check, "RemediationAllowed") or {}
            return (allowed["status"], allowed["reason"]) == ("False", "WaitingForNodesAfterEtcdRestore")

        await cluster.simulation.sim.world.until(is_reported, within=300)
        assert await machines(cluster) == before
        await until_replaced(cluster, machine)
        assert before - {machine} < await machines(cluster)

    run(version, scenario, servers=1)
