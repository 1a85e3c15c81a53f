"""Snapshots that simulated K3s and RKE2 servers take by their own schedule have hashes, which restores require."""

from __future__ import annotations

from dataclasses import replace

import pytest

from herder.api.rke import operations
from herder.api.rke.kinds import ETCD_SNAPSHOT
from herder.api.rke.names import SNAPSHOT_SHA256
from herder.engine.meta.kinds import Object
from herder.sim.faults import ROUGH, Faults
from herder.sim.host.disk import Snapshot
from herder.sim.nodes import SimulatedNode
from tests.simulation.plans.operations.operated_cluster import HOUR, VERSIONS, OperatedCluster, run


def path_of(server: SimulatedNode, number: int) -> str:
    return f"{server.disk.layout.snapshots}/etcd-snapshot-{server.name}-{number}"


def new_file(server: SimulatedNode, number: int) -> Snapshot:
    assert server.disk.etcd is not None
    bootstrap, name = server.disk.etcd.cluster.bootstrap, path_of(server, number).rpartition("/")[2]
    return Snapshot(name, server.name, number, server.cluster.freeze(), bootstrap, {})


def save(server: SimulatedNode, number: int, damage: str = "") -> Snapshot:
    """What the schedule of the server does."""
    file = replace(new_file(server, number), damage=damage)
    server.disk.files[path_of(server, number)] = file
    server.context.witness.saved(server, file)
    server.cluster.snapshots_changed(server)
    return file


async def snapshot_of(cluster: OperatedCluster, file: Snapshot) -> Object:
    found = await cluster.simulation.sim.all(ETCD_SNAPSHOT)
    return next((each for each in found if each["snapshotFile"]["name"] == file.name), {"metadata": {}})


async def hash_of(cluster: OperatedCluster, file: Snapshot) -> str | None:
    found: str | None = ((await snapshot_of(cluster, file))["metadata"].get("annotations") or {}).get(SNAPSHOT_SHA256)
    return found


async def until_recorded(cluster: OperatedCluster, *files: Snapshot) -> None:
    async def is_recorded() -> bool:
        return all([await hash_of(cluster, each) == each.sha256 for each in files])

    await cluster.simulation.sim.world.until(is_recorded, within=HOUR)


async def restore(cluster: OperatedCluster, file: Snapshot, generation: int = 1) -> operations.Run:
    name = (await snapshot_of(cluster, file))["metadata"]["name"]
    return await cluster.run(operations.RESTORE, name=name, generation=generation)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_scheduled_snapshot_that_was_changed_later_is_not_restored(version: str) -> None:
    """Its file is a valid snapshot, but another one. Its server reports the hash of the other one too."""

    async def scenario(cluster: OperatedCluster) -> None:
        server, other = cluster.servers[:2]
        file, kept = save(server, 1), save(other, 2)
        await until_recorded(cluster, file, kept)
        await cluster.write("later")
        changed = replace(new_file(server, 1), created=3)
        assert changed.sha256 != file.sha256
        server.disk.files[path_of(server, 1)] = changed
        await cluster.simulation.pass_time(HOUR, HOUR)
        assert changed.sha256 in server.disk.files[f"{server.disk.layout.database}/snapshot-hashes"].values()
        assert await hash_of(cluster, file) == file.sha256, "the first hash counts"

        starts = [each.starts for each in cluster.servers]
        refused = await restore(cluster, file)
        assert (refused.phase, [each.starts for each in cluster.servers]) == ("Failed", starts), "no server stops"
        assert refused.message.startswith("phase Started: "), refused.message
        assert "its hash differs" in refused.message

        restored = await restore(cluster, kept, generation=2)
        assert restored.phase == "Finished", restored.message
        assert not await cluster.has("later")

    run(version, scenario)


@pytest.mark.parametrize("damage", ["bytes", "truncated"])
def test_a_snapshot_that_is_corrupt_at_once_has_no_hash_and_is_not_restored(damage: str) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        file, valid = save(cluster.servers[0], 1, damage), save(cluster.servers[0], 2)
        await until_recorded(cluster, valid)
        assert await hash_of(cluster, file) is None
        refused = await restore(cluster, file)
        assert refused.phase == "Failed"
        assert "is corrupt: its hash is wrong" in refused.message

    run("v1.34.1+k3s1", scenario, servers=1)


def test_corruption_that_changes_neither_size_nor_time_is_found() -> None:
    """The server does not read the file again, and reports the hash that it knows."""

    async def scenario(cluster: OperatedCluster) -> None:
        (server,) = cluster.servers
        file = save(server, 1)
        await until_recorded(cluster, file)
        server.disk.files[path_of(server, 1)] = replace(file, damage="bytes")
        await cluster.simulation.pass_time(HOUR, HOUR)
        known = server.disk.files[f"{server.disk.layout.database}/snapshot-hashes"]
        assert [*known.values()] == [file.sha256]
        refused = await restore(cluster, file)
        assert (refused.phase, "hash" in refused.message) == ("Failed", True)

    run("v1.34.1+k3s1", scenario, servers=1)


def test_hashes_of_deleted_files_are_forgotten() -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        (server,) = cluster.servers
        first, second = save(server, 1), save(server, 2)
        await until_recorded(cluster, first, second)
        server.disk.files.pop(path_of(server, 1))
        server.cluster.snapshots_changed(server)

        async def is_forgotten() -> bool:
            known = server.disk.files[f"{server.disk.layout.database}/snapshot-hashes"]
            return [*known.values()] == [second.sha256] and "name" not in (await snapshot_of(cluster, first))[
                "metadata"
            ]

        await cluster.simulation.sim.world.until(is_forgotten, within=HOUR)

    run("v1.34.1+k3s1", scenario, servers=1)


@pytest.mark.parametrize("faults", [ROUGH])
def test_hashes_are_recorded_despite_faults(faults: Faults) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        files = [save(each, number) for number, each in enumerate(cluster.servers, 1)]
        await until_recorded(cluster, *files)

    run("v1.34.1+rke2r1", scenario, faults)
