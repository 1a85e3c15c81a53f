"""Provisioned clusters for tests: what people write, and a world in which it becomes something."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from herder.api.capi.crds import CRDS as CORE_CRDS
from herder.api.capi.kinds import NAMESPACE
from herder.api.crds import SETTING_CRD
from herder.api.machines.crds import CRDS as MACHINE_CRDS
from herder.api.machines.crds import driver_definitions
from herder.api.machines.drivers.schemas import schema
from herder.api.machines.kinds import DYNAMIC_SCHEMA, kinds_of
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

WORKSPACE, NAME = "fleet-default", "meadow"
VERSION = "v1.34.1+k3s1"
DRIVER = "shed"
KINDS = kinds_of(DRIVER)
FIELDS = {name: {"type": "string", "create": True, "update": True} for name in ("image", "size")}
SCHEMA = schema("shedconfig", FIELDS)


def new(kind: Kind, name: str, namespace: str = "", **meta: Any) -> Object:
    where = {"namespace": namespace} if namespace else {}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name, **where, **meta}}


def config(name: str, **fields: str) -> Object:
    return new(KINDS.config, name, WORKSPACE) | fields


def pool(name: str, *roles: str, config: str = "sheds", **fields: Any) -> Object:
    given = {f"{role}Role": True for role in roles or ("worker",)}
    return {"name": name, "machineConfigRef": {"kind": KINDS.config.kind, "name": config}, **given, **fields}


def cluster(*pools: Object, spec: Object | None = None, **rke_config: Any) -> Object:
    config = {**({"machinePools": [*pools]} if pools else {}), **rke_config}
    return new(PROVISIONING_CLUSTER, NAME, WORKSPACE) | {
        "spec": {"kubernetesVersion": VERSION, "rkeConfig": config, **(spec or {})}
    }


def _install_rules(server: ApiServer) -> None:
    install_admission(server)
    install_cluster_admission(server)


class Pasture:
    """The embedded server with Cluster API's core and the controllers of provisioned clusters, and no machines: what
    Machines there are stay as they were made."""

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
        """`core`: instead of Cluster API's own. `controllers`, `crds` and `performers`: more than these."""
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
            prepare=_install_rules,
        )

    async def _renew(self, arguments: Mapping[str, Any]) -> Object:
        return await Renewal(self.world.client, self.world.now, self.world.random.randbytes)(arguments)

    async def prepare(self) -> None:
        await self.create(NAMESPACE, new(NAMESPACE, WORKSPACE))
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
        """As a client that does not know the fields that were filled in."""
        await self.patch(PROVISIONING_CLUSTER, NAME, {"spec": {"rkeConfig": {"machinePools": [*pools]}}})

    async def cluster(self) -> Object:
        found = await self.get(PROVISIONING_CLUSTER, NAME)
        assert found is not None
        return found
