"""Restores of the version and configuration of a snapshot, and rollbacks of upgrades, on simulated K3s and RKE2."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from herder.api.capi.kinds import MACHINE
from herder.api.capi.names import annotations_of
from herder.api.machines.archive import CONFIG_MAP
from herder.api.machines.names import ARCHIVE_NAMESPACE
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke import cluster_spec, names, operations
from herder.api.rke.etcd.restore import saved_spec
from herder.api.rke.kinds import ETCD_SNAPSHOT
from herder.engine.meta.kinds import Object
from herder.sim.provisioned import NAME
from tests.simulation.plans.operations.operated_cluster import HOUR, OperatedCluster, run

VERSIONS = [("v1.33.5+k3s1", "v1.34.1+k3s1"), ("v1.33.5+rke2r1", "v1.34.1+rke2r1")]


async def upgrade(cluster: OperatedCluster, version: str) -> None:
    await cluster.simulation.upgrade(version)
    await cluster.simulation.until_settled()


async def kubelets(cluster: OperatedCluster) -> set[str]:
    machines = await cluster.simulation.sim.all(MACHINE)
    return {each["status"]["nodeInfo"]["kubeletVersion"] for each in machines}


async def spec_of(cluster: OperatedCluster) -> Object:
    found: Object = (await cluster.simulation.sim.get(PROVISIONING_CLUSTER))["spec"]
    return found


async def restore(cluster: OperatedCluster, name: str, mode: str, version: str) -> Any:
    """Restore, and expect this version afterwards."""
    cluster.simulation.desired.version = version
    restored = await cluster.run(operations.RESTORE, name=name, restoreRKEConfig=mode)
    assert restored.phase == "Finished", restored.message
    return restored


async def log_of(cluster: OperatedCluster) -> str:
    """The log that outlives machines and the cluster."""
    archives = await cluster.simulation.sim.world.client.list_all(CONFIG_MAP.resource, namespace=ARCHIVE_NAMESPACE)
    return "".join(each["data"].get("log", "") for each in archives.items)


async def set_manifest(cluster: OperatedCluster, name: str) -> None:
    manifest = f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\n  namespace: default\n"
    await cluster.simulation.sim.edit({"rkeConfig": {"additionalManifest": manifest}})

    async def is_applied() -> bool:
        control_plane = await cluster.control_plane()
        return control_plane["spec"].get("additionalManifest") == manifest and cluster_spec.is_applied(control_plane)

    await cluster.simulation.sim.world.until(is_applied, within=HOUR)


SERVERS = {"k3s1": 3, "rke2r1": 3, "kubeadm1": 3, "herder1": 1}
"""By build of the version."""


@pytest.mark.parametrize("build", SERVERS)
@pytest.mark.parametrize("mode", ["kubernetesVersion", "all"])
def test_a_restore_takes_version_and_configuration_from_the_snapshot(build: str, mode: str) -> None:
    before, after = f"v1.33.5+{build}", f"v1.34.1+{build}"

    async def scenario(cluster: OperatedCluster) -> None:
        await set_manifest(cluster, "old")
        await cluster.write("before")
        saved = await cluster.run(operations.SNAPSHOT)
        assert saved.phase == "Finished", saved.message
        snapshots = await cluster.simulation.sim.all(ETCD_SNAPSHOT)
        assert {annotations_of(each)[names.RESTORE_MODES] for each in snapshots} == {"none,kubernetesVersion,all"}
        has_copies = build in ("k3s1", "rke2r1")  # of objects in the cluster
        assert all((names.SNAPSHOT_NAME in annotations_of(each)) is has_copies for each in snapshots)
        await upgrade(cluster, after)
        await set_manifest(cluster, "new")
        await cluster.write("after")
        assert await kubelets(cluster) == {after}
        await restore(cluster, snapshots[0]["metadata"]["name"], mode, before)
        spec = await spec_of(cluster)
        assert spec["kubernetesVersion"] == before
        assert ("name: old" in spec["rkeConfig"]["additionalManifest"]) is (mode == "all")
        assert spec["rkeConfig"]["machinePools"][0]["quantity"] == SERVERS[build]
        assert await kubelets(cluster) == {before}
        assert (await cluster.has("before"), await cluster.has("after")) == (True, False)
        await upgrade(cluster, after)  # it can be upgraded again, after another snapshot
        assert await kubelets(cluster) == {after}

    run(before, scenario, servers=SERVERS[build])


@pytest.mark.parametrize("build", SERVERS)
def test_a_restore_of_the_data_keeps_version_and_configuration(build: str) -> None:
    before, after = f"v1.33.5+{build}", f"v1.34.1+{build}"

    async def scenario(cluster: OperatedCluster) -> None:
        await set_manifest(cluster, "old")
        await cluster.write("before")
        saved = await cluster.run(operations.SNAPSHOT)
        assert saved.phase == "Finished", saved.message
        name = (await cluster.simulation.sim.all(ETCD_SNAPSHOT))[0]["metadata"]["name"]
        await upgrade(cluster, after)
        await set_manifest(cluster, "new")
        await cluster.write("after")
        await restore(cluster, name, "none", after)
        spec = await spec_of(cluster)
        assert (spec["kubernetesVersion"], "name: new" in spec["rkeConfig"]["additionalManifest"]) == (after, True)
        assert await kubelets(cluster) == {after}
        assert (await cluster.has("before"), await cluster.has("after")) == (True, False)

    run(before, scenario, servers=SERVERS[build])


@pytest.mark.parametrize(("before", "after"), VERSIONS)
def test_an_upgrade_takes_a_snapshot_once_and_is_undone_by_it(before: str, after: str) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        await cluster.write("before")
        await set_manifest(cluster, "old")
        assert await cluster.simulation.sim.all(ETCD_SNAPSHOT) == []
        await upgrade(cluster, after)
        status = (await cluster.control_plane())["status"]
        record = status["rollback"]
        assert (record["from"], record["to"], record["result"]) == (before, after, "Saved")
        snapshots = {each["metadata"]["name"]: each for each in await cluster.simulation.sim.all(ETCD_SNAPSHOT)}
        assert len(snapshots) == 3
        assert record["snapshotTime"] == snapshots[record["snapshot"]]["snapshotFile"]["createdAt"]
        await set_manifest(cluster, "new")
        await asyncio.sleep(600)
        assert len(await cluster.simulation.sim.all(ETCD_SNAPSHOT)) == 3
        await cluster.write("after")
        undone = await restore(cluster, record["snapshot"], "kubernetesVersion", before)
        log = await log_of(cluster)
        assert "etcd restore, phase Restore: waiting for machine(s)" in log
        assert undone.inverse["kind"] == operations.RESTORE
        assert await kubelets(cluster) == {before}
        assert (await cluster.has("before"), await cluster.has("after")) == (True, False)
        assert "name: new" in (await spec_of(cluster))["rkeConfig"]["additionalManifest"]
        cluster.simulation.desired.version = after
        await cluster.run(operations.RESTORE, generation=2, **{key: undone.inverse[key] for key in _REQUEST})
        assert await kubelets(cluster) == {after}
        assert await cluster.has("after")

    run(before, scenario)


_REQUEST = ("name", "restoreRKEConfig")


@pytest.mark.parametrize(("build", "servers"), [("kubeadm1", 3), ("herder1", 1)])
def test_a_snapshot_before_an_upgrade_contains_the_spec_of_before(build: str, servers: int) -> None:
    """Servers without commands of their own get the spec with the task, when the Cluster has another one already."""
    before, after = f"v1.33.5+{build}", f"v1.34.1+{build}"

    async def scenario(cluster: OperatedCluster) -> None:
        await upgrade(cluster, after)
        snapshots = await cluster.simulation.sim.all(ETCD_SNAPSHOT)
        assert len(snapshots) == servers
        control_plane = await cluster.control_plane()
        for each in snapshots:
            assert saved_spec(each, control_plane)["kubernetesVersion"] == before
        assert control_plane["status"]["rollback"]["snapshot"] in {each["metadata"]["name"] for each in snapshots}
        assert await kubelets(cluster) == {after}

    run(before, scenario, servers=servers)


def test_the_annotation_of_the_cluster_disables_the_snapshot_before_an_upgrade() -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        marks = {"metadata": {"annotations": {names.NO_UPGRADE_SNAPSHOT: "true"}}}
        await cluster.simulation.sim.patch(PROVISIONING_CLUSTER, NAME, marks)
        await upgrade(cluster, "v1.34.1+k3s1")
        record = (await cluster.control_plane())["status"]["rollback"]
        assert record["result"] == "Skipped"
        assert names.NO_UPGRADE_SNAPSHOT in record["message"]
        assert await cluster.simulation.sim.all(ETCD_SNAPSHOT) == []

    run("v1.33.5+k3s1", scenario, servers=1)


def test_an_upgrade_waits_for_its_snapshot_and_a_failed_one_is_repeated() -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        (server,) = cluster.servers
        server.disk.full_directories.add(server.disk.layout.snapshots)
        await cluster.simulation.upgrade("v1.34.1+k3s1")

        async def is_waiting() -> bool:
            conditions = (await cluster.control_plane())["status"].get("conditions") or ()
            return any("waiting for its snapshot, which has failed" in each.get("message", "") for each in conditions)

        await cluster.simulation.sim.world.until(is_waiting, within=HOUR)
        assert await kubelets(cluster) == {"v1.33.5+k3s1"}
        server.disk.full_directories.clear()
        await cluster.simulation.until_settled()
        assert (await cluster.control_plane())["status"]["rollback"]["result"] == "Saved"
        assert await kubelets(cluster) == {"v1.34.1+k3s1"}

    run("v1.33.5+k3s1", scenario, servers=1)
