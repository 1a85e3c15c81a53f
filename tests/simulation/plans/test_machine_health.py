"""Restores and the health of machines: no machine is replaced because the restored data does not know its Node.

A kubelet registers its Node only when it starts, so the Nodes of machines that have joined since the snapshot are
missing after a restore until their kubelets are restarted.
"""

from __future__ import annotations

import pytest

from herder.api.capi.kinds import MACHINE
from herder.api.rke import operations
from herder.api.rke.kinds import ETCD_SNAPSHOT
from herder.sim.provisioned import pool
from tests.simulation.plans.operated_cluster import ALL_VERSIONS, OperatedCluster, run
from tests.simulation.plans.test_restores import servers_of


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
