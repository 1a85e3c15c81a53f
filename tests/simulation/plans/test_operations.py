"""Operations on simulated K3s and RKE2 servers, which behave as real ones were observed to.

The planner, its guards and the agents' core are the real ones. The invariants of plans hold throughout.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from herder.api.machines.archive import CONFIG_MAP
from herder.api.rke import operations
from herder.api.rke.kinds import CONTROL_PLANE, ETCD_SNAPSHOT
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Object
from herder.sim import loop
from herder.sim.faults import NONE, ROUGH, Faults
from herder.sim.nodes import SimulatedNode
from tests.simulation.plans.provisioning_simulation import DesiredState, ProvisioningSimulation
from tests.support.builders import new_manifest

HOUR = 3600.0
VERSIONS = ("v1.34.1+k3s1", "v1.34.1+rke2r1")
ALL_VERSIONS = (*VERSIONS, "v1.34.1+kubeadm1", "v1.34.1+herder1")


class OperatedCluster:
    """Servers and a worker, with encryption of Secrets."""

    def __init__(self, version: str, faults: Faults = NONE, servers: int = 3) -> None:
        distribution = next((name for name in ("kubeadm", "herder") if name in version), "")
        self.simulation = ProvisioningSimulation(7, faults, distribution=distribution.replace("herder", "embedded"))
        self._version, self._servers = version, servers

    async def create(self, **etcd: Any) -> None:
        """`etcd`: fields of rkeConfig.etcd."""
        pools = {"servers": (self._servers, ("etcd", "controlPlane")), "workers": (1, ("worker",))}
        config = {"secrets-encryption": True} if "k3s" in self._version else {}
        await self.simulation.create_cluster(DesiredState(self._version, pools, config, etcd=etcd))
        await self.simulation.until_settled()

    @property
    def workload(self) -> Client:
        return self.simulation.sim.downstream.api

    @property
    def servers(self) -> list[SimulatedNode]:
        return [node for node in self.simulation.nodes if not node.is_worker]

    async def run(self, kind: str, *, settles: bool = True, **request: Any) -> operations.Run:
        """Request an operation, and wait until it has ended and the cluster is settled, if it can be."""
        wanted = {"generation": 1, **request}
        await self.simulation.sim.edit({"rkeConfig": {kind: wanted}})

        async def has_ended() -> bool:
            found = operations.Run.of(await self.control_plane())
            wanted_run = (kind, wanted["generation"], False)
            return found is not None and (found.kind, found.generation, found.is_active) == wanted_run

        await self.simulation.sim.world.until(has_ended, within=HOUR)
        if settles:
            await self.simulation.until_settled()
        found = operations.Run.of(await self.control_plane())
        assert found is not None
        return found

    async def control_plane(self) -> Object:
        (found,) = await self.simulation.sim.all(CONTROL_PLANE)
        return found

    async def write(self, name: str) -> None:
        await self.workload.create(CONFIG_MAP.resource, new_manifest(CONFIG_MAP, name, "default"), namespace="default")

    async def has(self, name: str) -> bool:
        try:
            await self.workload.get(CONFIG_MAP.resource, name, namespace="default")
        except NotFound:
            return False
        return True


Scenario = Callable[[OperatedCluster], Awaitable[None]]


def run(
    version: str,
    scenario: Scenario,
    faults: Faults = NONE,
    servers: int = 3,
    prepare: Scenario = OperatedCluster.create,
) -> None:
    async def run_scenario() -> None:
        cluster = OperatedCluster(version, faults, servers)
        async with cluster.simulation:
            await prepare(cluster)
            await scenario(cluster)

    loop.run(run_scenario())


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
