"""Scheduled, listed and deleted snapshots of simulated servers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke import operations
from herder.api.rke.kinds import ETCD_SNAPSHOT
from herder.api.rke.names import SNAPSHOT_NAME, SNAPSHOT_SHA256
from herder.engine.meta.kinds import Object
from herder.sim.faults import NONE, ROUGH, Faults
from herder.sim.host.disk import Snapshot
from tests.simulation.plans.operations.operated_cluster import HOUR, VERSIONS, OperatedCluster, run

BY_MANAGER = [("v1.34.1+kubeadm1", 3), ("v1.34.1+herder1", 1)]


def files_of(cluster: OperatedCluster) -> list[str]:
    """Names of the snapshots on the disks of all servers."""
    disks = [node.disk for node in cluster.servers]
    return sorted(each.name for disk in disks for each in disk.files.values() if isinstance(each, Snapshot))


async def listed(cluster: OperatedCluster) -> list[Object]:
    return await cluster.simulation.sim.all(ETCD_SNAPSHOT)


async def names_of(cluster: OperatedCluster) -> list[str]:
    return sorted(each["snapshotFile"]["name"] for each in await listed(cluster))


async def has_as_many(cluster: OperatedCluster, count: int) -> bool:
    return len(await listed(cluster)) == count and len(files_of(cluster)) == count


@pytest.mark.parametrize(("version", "servers"), BY_MANAGER)
def test_the_manager_takes_scheduled_snapshots_and_keeps_as_many_as_requested(version: str, servers: int) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        simulation = cluster.simulation
        await cluster.run(operations.SNAPSHOT)
        etcd = {"snapshotScheduleCron": "0 * * * *", "snapshotRetention": 2}
        await simulation.sim.edit({"rkeConfig": {"etcd": etcd}})
        await simulation.until_settled()
        for hours in range(1, 5):
            await simulation.pass_time(HOUR, HOUR)
            expected = partial(has_as_many, cluster, servers * (1 + min(hours, 2)))
            await simulation.sim.world.until(expected, within=HOUR / 2)
        assert await names_of(cluster) == files_of(cluster)
        on_demand = [name for name in files_of(cluster) if name.startswith("on-demand-")]
        assert len(on_demand) == servers  # the schedule deletes nothing that a user has saved
        await simulation.sim.edit({"rkeConfig": {"etcd": {"disableSnapshots": True}}})
        await simulation.until_settled()
        before = files_of(cluster)
        await simulation.pass_time(3 * HOUR, 3 * HOUR)
        assert files_of(cluster) == before

    run(version, scenario, servers=servers)


@pytest.mark.parametrize(("version", "faults"), [("v1.34.1+rke2r1", ROUGH), ("v1.34.1+kubeadm1", NONE)])
def test_a_deleted_snapshot_goes_with_its_file(version: str, faults: Faults) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        simulation = cluster.simulation
        for generation in (1, 2):
            await cluster.run(operations.SNAPSHOT, generation=generation)
        assert await has_as_many(cluster, 6)
        chosen = (await listed(cluster))[:2]
        for each in chosen:
            meta = each["metadata"]
            await simulation.sim.world.client.delete(ETCD_SNAPSHOT.resource, meta["name"], namespace=meta["namespace"])
        await simulation.sim.world.until(lambda: has_as_many(cluster, 4), within=HOUR)
        await simulation.until_settled()
        assert not {each["snapshotFile"]["name"] for each in chosen} & {*files_of(cluster)}

        async def is_finished() -> bool:
            found = operations.Run.of(await cluster.control_plane())
            return found is not None and (found.kind, found.phase) == (operations.DELETION, "Finished")

        await simulation.sim.world.until(is_finished, within=HOUR)

    run(version, scenario, faults)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("damage", ["bytes", "another file"])
def test_a_snapshot_whose_hash_is_wrong_is_not_restored(version: str, damage: str) -> None:
    """K3s would move the old data away before it finds out."""

    async def scenario(cluster: OperatedCluster) -> None:
        for generation in (1, 2):
            saved = await cluster.run(operations.SNAPSHOT, generation=generation)
            assert saved.phase == "Finished", saved.message
        found = await listed(cluster)
        assert all(SNAPSHOT_SHA256 in each["metadata"]["annotations"] for each in found)
        node = cluster.servers[0]
        files = {path: each for path, each in node.disk.files.items() if isinstance(each, Snapshot)}
        (path, file), (_, other) = files.items()
        node.disk.files[path] = other if damage == "another file" else replace(file, damage="bytes")
        starts = [each.starts for each in cluster.servers]
        (chosen,) = (each for each in found if each["snapshotFile"]["name"] == file.name)
        restored = await cluster.run(operations.RESTORE, name=chosen["metadata"]["name"])
        assert restored.phase == "Failed"
        assert restored.message.startswith("phase Started: "), restored.message
        assert "hash" in restored.message
        assert [each.starts for each in cluster.servers] == starts, "no server stops"

    run(version, scenario)


def test_snapshots_that_servers_take_by_themselves_are_listed() -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        world, server = cluster.simulation.sim.world, cluster.servers[0]
        name = f"etcd-snapshot-{server.name}-1"
        path = f"{server.disk.layout.snapshots}/{name}"
        assert server.disk.etcd is not None
        bootstrap = server.disk.etcd.cluster.bootstrap
        server.disk.files[path] = Snapshot(name, server.name, 1, server.cluster.freeze(), bootstrap, {})
        server.cluster.snapshots_changed(server)
        await world.until(lambda: has_as_many(cluster, 1), within=HOUR)
        (found,) = await listed(cluster)
        assert found["snapshotFile"]["nodeName"] == server.name
        assert found["metadata"]["annotations"][SNAPSHOT_NAME].startswith(f"local-{name}-")
        server.disk.files.pop(path)
        server.cluster.snapshots_changed(server)
        await world.until(lambda: has_as_many(cluster, 0), within=HOUR)

    run("v1.34.1+k3s1", scenario, servers=1)


def test_snapshots_are_released_with_their_machine_and_cluster() -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        simulation = cluster.simulation
        await cluster.run(operations.SNAPSHOT)
        await simulation.delete_machine(simulation.machine_of(cluster.servers[-1]))
        await simulation.until_settled()
        assert await has_as_many(cluster, 2)
        meta = (await simulation.sim.get(PROVISIONING_CLUSTER))["metadata"]
        client = simulation.sim.world.client
        await client.delete(PROVISIONING_CLUSTER.resource, meta["name"], namespace=meta["namespace"])

        async def is_gone() -> bool:
            return not await listed(cluster)

        await simulation.sim.world.until(is_gone, within=HOUR)

    run("v1.34.1+k3s1", scenario)
