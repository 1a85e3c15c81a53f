"""Operations on simulated K3s and RKE2 servers, which behave as real ones were observed to.

The planner, its guards and the agents' core are the real ones. The invariants of plans hold throughout.
"""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.rke import operations
from herder.api.rke.kinds import ETCD_SNAPSHOT
from herder.sim.faults import NONE, ROUGH, Faults
from herder.sim.nodes import SimulatedNode
from tests.simulation.plans.operated_cluster import ALL_VERSIONS, VERSIONS, OperatedCluster, run


def admin_certificate(node: SimulatedNode) -> Any:
    return node.disk.files[f"{node.disk.layout.tls}/client-admin.crt"]


def keys_of(node: SimulatedNode) -> tuple[str, ...]:
    return node.disk.encryption.keys if node.disk.encryption is not None else ()


@pytest.mark.parametrize("faults", [NONE, ROUGH], ids=["none", "rough"])
@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_data_from_before_a_snapshot_is_back_after_its_restore(version: str, faults: Faults) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        await cluster.write("before")
        saved = await cluster.run(operations.SNAPSHOT)
        assert saved.phase == "Finished", saved.message
        snapshots = await cluster.simulation.sim.all(ETCD_SNAPSHOT)
        assert {each["snapshotFile"]["nodeName"] for each in snapshots} == {node.name for node in cluster.servers}
        await cluster.write("after")
        restored = await cluster.run(operations.RESTORE, name=snapshots[-1]["metadata"]["name"])
        assert restored.phase == "Finished", restored.message
        assert (await cluster.has("before"), await cluster.has("after")) == (True, False)
        assert all(node.running for node in cluster.simulation.nodes)
        await cluster.write("later")

    run(version, scenario, faults, servers=1 if "herder" in version else 3)


@pytest.mark.parametrize(("version", "servers"), [("v1.34.1+kubeadm1", 3), ("v1.34.1+herder1", 1)])
def test_servers_without_commands_of_their_own_save_snapshots(version: str, servers: int) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        for generation in (1, 2):
            saved = await cluster.run(operations.SNAPSHOT, generation=generation)
            assert saved.phase == "Finished", saved.message
        snapshots = await cluster.simulation.sim.all(ETCD_SNAPSHOT)
        assert len(snapshots) == 2 * servers
        assert {each["snapshotFile"]["nodeName"] for each in snapshots} == {node.name for node in cluster.servers}

    run(version, scenario, servers=servers)


@pytest.mark.parametrize("version", VERSIONS)
def test_certificates_are_new_after_their_rotation(version: str) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        before = {node.name: admin_certificate(node) for node in cluster.servers}
        rotated = await cluster.run(operations.CERTIFICATES)
        assert rotated.phase == "Finished", rotated.message
        assert all(admin_certificate(node) != before[node.name] for node in cluster.servers)

    run(version, scenario)


@pytest.mark.parametrize("version", VERSIONS)
def test_all_servers_have_the_new_key_after_its_rotation(version: str) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        before = {keys_of(node) for node in cluster.servers}
        rotated = await cluster.run(operations.ENCRYPTION_KEYS)
        assert rotated.phase == "Done", rotated.message
        after = {keys_of(node) for node in cluster.servers}
        assert (len(before), len(after)) == (1, 1)
        assert before != after

    run(version, scenario)
