"""A simulated manager of provisioned clusters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from herder.api.capi.conditions import is_true
from herder.api.capi.crds import CRDS as CORE_CRDS
from herder.api.capi.kinds import MACHINE, NAMESPACE
from herder.api.crds import SETTING_CRD
from herder.api.machines.crds import CRDS as MACHINE_CRDS
from herder.api.machines.crds import driver_definitions
from herder.api.machines.kinds import DYNAMIC_SCHEMA
from herder.api.management.crds import CRDS as MANAGEMENT_CRDS
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.management.registration import RENEW
from herder.api.rke.crds import CRDS as RKE_CRDS
from herder.api.settings import Settings
from herder.app.admission.kinds import install_admission, install_cluster_admission
from herder.app.manager import core_controllers
from herder.controllers.provisioning import (
    cluster_registration_token,
    provisioning_log,
    rke_cluster,
    rke_control_plane,
)
from herder.controllers.provisioning.cluster import controller as provisioning_cluster
from herder.controllers.provisioning.management_cluster import controller as management_cluster
from herder.effects.registration_token import Renewal
from herder.engine.apiserver.build import ApiServer
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.sim.faults import NONE, Faults
from herder.sim.world import World
from tests.support.builders import new_manifest
from tests.unit.controllers.provisioning.objects import (
    DRIVER,
    FIELDS,
    KINDS,
    NAME,
    SCHEMA,
    WORKSPACE,
    cluster,
    config,
    pool,
)

SERVERS = pool("servers", "etcd", "controlPlane")
WORKERS = pool("workers", quantity=2, labels={"wool": "white"}, unhealthyNodeTimeout="5m", maxUnhealthy="40%")


def _install_all_admission(server: ApiServer) -> None:
    install_admission(server)
    install_cluster_admission(server)


class SimulatedManager:
    """The embedded API server with the core controllers of Cluster API and the controllers of provisioned clusters.

    No controller provisions machines: Machines stay as they were created.
    """

    def __init__(
        self,
        seed: int = 0,
        faults: Faults = NONE,
        watched: tuple[Kind, ...] = (),
        *,
        core: Sequence[Controller] | None = None,
        controllers: Sequence[Controller] = (),
        crds: Sequence[Object] = (),
        performers: Mapping[str, Callable[[Mapping[str, Any]], Awaitable[Any]]] | None = None,
        settings: Settings | None = None,
    ) -> None:
        """`core` replaces the core controllers of Cluster API. `controllers`, `crds` and `performers` are added to
        the usual ones."""
        managed = (management_cluster, provisioning_cluster, cluster_registration_token)
        provisioned = (rke_cluster, rke_control_plane, provisioning_log)
        self.world = World(
            seed,
            [
                *(core_controllers() if core is None else core),
                *(module.CONTROLLER for module in (*managed, *provisioned)),
                provisioning_log.ARCHIVE,
                *controllers,
            ],
            crds=[
                *crds,
                *CORE_CRDS,
                *MACHINE_CRDS,
                *MANAGEMENT_CRDS,
                *RKE_CRDS,
                SETTING_CRD,
                *driver_definitions(DRIVER, FIELDS),
            ],
            performers={RENEW: self._renew, **(performers or {})},
            settings=settings,
            faults=faults,
            watched=watched,
            prepare=_install_all_admission,
        )

    async def _renew(self, arguments: Mapping[str, Any]) -> Object:
        return await Renewal(self.world.client, self.world.now, self.world.random.randbytes)(arguments)

    async def prepare(self) -> None:
        await self.create(NAMESPACE, new_manifest(NAMESPACE, WORKSPACE))
        await self.create(DYNAMIC_SCHEMA, SCHEMA)
        await self.create(KINDS.config, config("sheds", image="debian", size="small"))

    async def create(self, kind: Kind, obj: Object) -> Object:
        return await self.world.client.create(kind.resource, obj, namespace=obj["metadata"].get("namespace", ""))

    async def get(self, kind: Kind, name: str, namespace: str = WORKSPACE) -> Object | None:
        try:
            return await self.world.client.get(kind.resource, name, namespace=namespace if kind.namespaced else "")
        except NotFound:
            return None

    async def all(self, kind: Kind) -> list[Object]:
        return (await self.world.client.list_all(kind.resource)).items

    async def names(self, kind: Kind) -> list[str]:
        return sorted(each["metadata"]["name"] for each in await self.all(kind))

    async def patch(self, kind: Kind, name: str, patch: Object, *, subresource: str = "") -> Object:
        return await self.world.client.patch(kind.resource, name, patch, namespace=WORKSPACE, subresource=subresource)

    async def edit_pools(self, *pools: Object) -> None:
        """Replace all pools, as a client that does not know defaulted fields."""
        await self.patch(PROVISIONING_CLUSTER, NAME, {"spec": {"rkeConfig": {"machinePools": [*pools]}}})

    async def cluster(self) -> Object:
        found = await self.get(PROVISIONING_CLUSTER, NAME)
        assert found is not None
        return found

    async def is_settled(self, machines: int) -> bool:
        """Whether the cluster has been generated and has so many machines."""
        return is_true(await self.cluster(), "RKECluster") and len(await self.all(MACHINE)) == machines

    async def create_cluster(self) -> None:
        """Create a cluster of one server and two workers, and wait for its Machines."""
        await self.prepare()
        await self.create(PROVISIONING_CLUSTER, cluster(SERVERS, WORKERS, machineGlobalConfig={"debug": True}))
        await self.world.until(lambda: self.is_settled(3))
