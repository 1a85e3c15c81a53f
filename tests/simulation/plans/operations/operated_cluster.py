"""A simulated cluster with operations. The planner, its guards and the agents' core are the real ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from herder.api.guards import GUARDS
from herder.api.machines.archive import CONFIG_MAP
from herder.api.rke import operations
from herder.api.rke.kinds import CONTROL_PLANE
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Object
from herder.engine.runtime.executor import Guard
from herder.sim import loop
from herder.sim.faults import NONE, Faults
from herder.sim.nodes import SimulatedNode
from tests.simulation.plans.provisioning_simulation import DesiredState, ProvisioningSimulation
from tests.support.builders import new_manifest

HOUR = 3600.0
VERSIONS = ("v1.34.1+k3s1", "v1.34.1+rke2r1")
ALL_VERSIONS = (*VERSIONS, "v1.34.1+kubeadm1", "v1.34.1+herder1")


class OperatedCluster:
    """Servers and a worker, with encryption of Secrets."""

    def __init__(
        self,
        version: str,
        faults: Faults = NONE,
        servers: int = 3,
        guards: Sequence[Guard] = GUARDS,
        *,
        workers: int = 1,
        seed: int = 7,
        strict: bool = True,
    ) -> None:
        distribution = next((name for name in ("kubeadm", "herder") if name in version), "")
        distribution = distribution.replace("herder", "embedded")
        self.simulation = ProvisioningSimulation(seed, faults, guards=guards, distribution=distribution, strict=strict)
        self._version, self._servers, self._workers = version, servers, workers

    async def create(self, **etcd: Any) -> None:
        """`etcd`: fields of rkeConfig.etcd."""
        pools = {"servers": (self._servers, ("etcd", "controlPlane")), "workers": (self._workers, ("worker",))}
        config = {"secrets-encryption": True} if "k3s" in self._version else {}
        await self.simulation.create_cluster(DesiredState(self._version, pools, config, etcd=etcd))
        await self.simulation.until_settled()

    @property
    def workload(self) -> Client:
        return self.simulation.sim.downstream.api

    @property
    def servers(self) -> list[SimulatedNode]:
        return [node for node in self.simulation.nodes if not node.is_worker]

    @property
    def first_worker(self) -> SimulatedNode:
        """The worker that comes first in operations: that whose Machine has the first name."""
        workers = [node for node in self.simulation.nodes if node.is_worker]
        return min(workers, key=lambda node: self.simulation.machine_of(node) or "")

    async def run(self, kind: str, *, settles: bool = True, **request: Any) -> operations.Run:
        """Request an operation, and wait until it has ended and the cluster is settled, if it can be."""
        wanted = {"generation": 1, **request}
        change: Object = {"spec": {"rkeConfig": {}}}
        operations.set_request(change, kind, wanted)
        await self.simulation.sim.edit(change["spec"])

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
    seed: int = 7,
    workers: int = 1,
) -> None:
    async def run_scenario() -> None:
        cluster = OperatedCluster(version, faults, servers, workers=workers, seed=seed)
        async with cluster.simulation:
            await prepare(cluster)
            await scenario(cluster)

    loop.run(run_scenario())
