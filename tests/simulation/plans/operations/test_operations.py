"""Operations on simulated K3s and RKE2 servers, which behave as real ones were observed to.

The planner, its guards and the agents' core are the real ones. The invariants of plans hold throughout.
"""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.kinds import NODE
from herder.api.rke import operations
from herder.api.rke.kinds import ETCD_SNAPSHOT
from herder.sim.faults import NONE, ROUGH, Faults
from herder.sim.host import shell
from herder.sim.host.command import Command
from herder.sim.nodes import SimulatedNode
from tests.simulation.plans.operations.operated_cluster import ALL_VERSIONS, HOUR, VERSIONS, OperatedCluster, run


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


@pytest.mark.parametrize("version", VERSIONS)
def test_a_member_that_was_removed_and_has_joined_again_leaves_before_its_machine(version: str) -> None:
    """The mark of the first removal stays on its Node, and servers ignore the next request (trap 7 of K3s)."""

    async def scenario(cluster: OperatedCluster) -> None:
        simulation, node = cluster.simulation, cluster.servers[2]
        downstream, prefix = simulation.sim.downstream, f"etcd.{node.runtime}.cattle.io"
        machine, old = simulation.machine_of(node), await annotation(cluster, node, f"{prefix}/node-name")
        patch = {"metadata": {"annotations": {f"{prefix}/remove": "true"}}}
        await cluster.workload.patch(NODE.resource, node.name, patch)

        async def has_left() -> bool:
            return node.name not in downstream.members

        async def has_joined() -> bool:
            return node.name in downstream.members and await annotation(cluster, node, f"{prefix}/node-name") != ""

        await simulation.sim.world.until(has_left, within=HOUR)
        restarted = await shell.execute(Command(node, "sh", (), {}), "systemctl", "restart", node.service.unit)
        assert restarted.exit_code == 0, restarted.stderr
        await simulation.sim.world.until(has_joined, within=HOUR)
        assert await annotation(cluster, node, f"{prefix}/removed-node-name") == old
        await simulation.delete_machine(machine)
        await simulation.until_settled()
        assert downstream.members.keys() == {each.name for each in cluster.servers}
        assert node.name not in downstream.members

    run(version, scenario)


async def annotation(cluster: OperatedCluster, node: SimulatedNode, name: str) -> str:
    found = await cluster.workload.get(NODE.resource, node.name)
    return str((found["metadata"].get("annotations") or {}).get(name, ""))
