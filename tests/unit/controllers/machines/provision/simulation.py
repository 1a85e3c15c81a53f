"""Simulation of a cluster with machines of a simulated cloud, under the core controllers, and its invariants."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from herder.api.capi.conditions import is_false, is_true
from herder.api.capi.crds import CRDS as CORE_CRDS
from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_SET, SECRET
from herder.api.capi.names import CLUSTER_NAME
from herder.api.inmemory.crds import CRDS as IN_MEMORY_CRDS
from herder.api.inmemory.kinds import IN_MEMORY_CLUSTER
from herder.api.inmemory.manifest import in_memory_cluster, new_object, reference
from herder.api.machines import names
from herder.api.machines.archive import CONFIG_MAP
from herder.api.machines.crds import CRDS as MACHINE_CRDS
from herder.api.machines.crds import driver_definitions
from herder.api.machines.credentials import CREDENTIAL_TYPE
from herder.api.machines.drivers.registered import default_node_drivers
from herder.api.machines.jobs import JOB, ROLE, ROLE_BINDING, SERVICE_ACCOUNT
from herder.api.machines.kinds import NODE_DRIVER, kinds_of
from herder.controllers.capi.cluster import controller as core_cluster
from herder.controllers.capi.machine import controller as core_machine
from herder.controllers.capi.machineset import controller as core_machine_set
from herder.controllers.inmemory import cluster
from herder.controllers.machines import archive, cloud_credentials
from herder.controllers.machines.provision.controller import dynamic_controller
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Kind, Object
from herder.sim import loop
from herder.sim.faults import NONE, Faults
from herder.sim.world import World
from tests.support.builders import new_manifest
from tests.support.canaries import canary
from tests.unit.controllers.machines.provision.cloud import Cloud

NS = "default"
KINDS = kinds_of("amazonec2")
FIELDS = {name: {"type": "string"} for name in ("region", "instanceType", "zone", "tags", "userdata")}
MODULES = (core_cluster, core_machine, core_machine_set, cluster, archive, cloud_credentials)
SECRET_KEY = canary("aws secret key")
POD_LOG = f"Running pre-create checks...\nusing {SECRET_KEY}\n"


async def kubeconfig(_arguments: Mapping[str, Any]) -> Object:
    never = datetime(2040, 1, 1, tzinfo=UTC).isoformat()
    return {"kubeconfig": base64.b64encode(b"simulated").decode(), "expires": never, "renew": never}


class Invariants:
    """Invariants that every event must keep."""

    def __init__(self) -> None:
        self.cloud: Cloud | None = None
        self.abandoned: set[str] = set()  # instances that a user abandoned

    def __call__(self, kind: Kind, event: str, obj: Object) -> None:
        assert self.cloud is not None
        if event != "DELETED":
            return
        existing = self.cloud.servers.keys() - self.abandoned
        if kind == KINDS.machine:
            assert obj["metadata"]["name"] not in existing, "a machine object is deleted only after its server"
        if kind == SECRET and obj.get("type") == names.STATE_SECRET_TYPE:
            infra = obj["metadata"]["labels"][names.INFRA_NAME_LABEL]
            assert infra not in existing, "the state Secret exists while the server may exist"


class Simulation:
    def __init__(self, world: World, cloud: Cloud, abandoned: set[str]) -> None:
        self.world, self.cloud, self.client, self.abandoned = world, cloud, world.client, abandoned

    async def create_cluster(
        self, *, machines: int, credential: Mapping[str, str] | None = None, namespace: str = NS
    ) -> None:
        fields = credential or {"accessKey": "AKIA123456", "secretKey": SECRET_KEY}
        for driver in default_node_drivers():
            if driver["metadata"]["name"] == "amazonec2":
                await self.client.create(NODE_DRIVER.resource, driver)
        data = {f"amazonec2credentialConfig-{name}": value for name, value in fields.items()}
        secret = new_manifest(SECRET, "aws", type=CREDENTIAL_TYPE, stringData=data)
        await self.client.create(SECRET.resource, secret, namespace=namespace)
        for kind, obj in _manifest(machines):
            await self.client.create(kind.resource, obj, namespace=namespace)

    async def create_standalone_machine(self, name: str) -> None:
        """Create a Machine without a MachineSet."""
        _, infra = new_object(KINDS.machine, name, SPEC, {"labels": {CLUSTER_NAME: "c"}})
        _, machine = new_object(MACHINE, name, _machine_spec(KINDS.machine, name))
        await self.client.create(KINDS.machine.resource, infra, namespace=NS)
        await self.client.create(MACHINE.resource, machine, namespace=NS)

    async def patch(self, kind: Kind, name: str, patch: Object) -> None:
        await self.client.patch(kind.resource, name, patch, namespace=NS)

    async def infra(self, name: str) -> Object:
        return await self.client.get(KINDS.machine.resource, name, namespace=NS)

    async def all(self, kind: Kind, namespace: str = NS) -> list[Object]:
        return (await self.client.list(kind.resource, namespace=namespace)).items

    async def until(self, reached: Callable[[], Awaitable[bool]], *, within: float = 3600.0) -> None:
        async def holds() -> bool:
            self.cloud.check()
            return await reached()

        await self.world.until(holds, within=within)

    async def has_servers(self, number: int) -> bool:
        return len(self.cloud.servers) == number

    async def has_failed(self, name: str) -> bool:
        return is_false(await self.infra(name), "CreateJob")

    async def has_no_machines(self) -> bool:
        return not await self.all(MACHINE)

    async def logs(self) -> list[dict[str, str]]:
        archived = await self.all(CONFIG_MAP, names.ARCHIVE_NAMESPACE)
        return [log["data"] for log in archived if names.ARCHIVE_LABEL in (log["metadata"].get("labels") or {})]

    async def are_created(self, machines: int, namespace: str = NS) -> bool:
        found = await self.all(KINDS.machine, namespace)
        return len(found) == machines and all(is_true(infra, "CreateJob") for infra in found)

    async def is_cleaned_up(self) -> bool:
        """Whether only the state Secrets are left of the objects that created the machines."""
        left = [obj for kind in (JOB, ROLE, ROLE_BINDING) for obj in await self.all(kind)]
        accounts = [obj for obj in await self.all(SERVICE_ACCOUNT) if obj["metadata"]["name"] != "default"]
        secrets = [obj for obj in await self.all(SECRET) if obj["type"] == "Opaque"]
        return not (left or accounts or secrets)

    async def is_gone(self) -> bool:
        kinds = (CLUSTER, MACHINE_SET, MACHINE, KINDS.machine, IN_MEMORY_CLUSTER)
        left = [obj for kind in kinds for obj in await self.all(kind)]
        states = [obj for obj in await self.all(SECRET) if obj.get("type") == names.STATE_SECRET_TYPE]
        return not (left or states)


SPEC = {"region": "eu-central-1", "common": {"cloudCredentialSecretName": "aws"}}


def _machine_spec(kind: Kind, name: str) -> Object:
    return {
        "clusterName": "c",
        "version": "v1.35.0",
        "bootstrap": {"dataSecretName": "data"},
        "infrastructureRef": reference(kind, name),
        "failureDomain": "eu-central-1b",
    }


def _manifest(machines: int) -> list[tuple[Kind, Object]]:
    labels = {CLUSTER_NAME: "c", "pool": "workers"}
    machine_set = {
        "clusterName": "c",
        "replicas": machines,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": _machine_spec(KINDS.template, "pool")},
    }
    kinds = (IN_MEMORY_CLUSTER, CLUSTER)
    objects = [(kind, obj) for kind, obj in in_memory_cluster("c", workers=0) if kind in kinds]
    for kind, obj in objects:
        if kind == CLUSTER:
            obj["spec"].pop("controlPlaneRef")
    return [
        *objects,
        new_object(KINDS.template, "pool", {"template": {"spec": SPEC}}),
        new_object(MACHINE_SET, "c-workers", machine_set),
    ]


def simulate(
    scenario: Callable[[Simulation], Awaitable[None]],
    *,
    seed: int = 1,
    faults: Faults = NONE,
    fails: Callable[[list[str]], str] = lambda _arguments: "",
) -> None:
    invariants = Invariants()

    async def pod_log(_arguments: Mapping[str, Any]) -> str:
        return POD_LOG

    async def read_secret(arguments: Mapping[str, Any]) -> Object | None:
        try:
            return await world.client.get(SECRET.resource, arguments["name"], namespace=arguments["namespace"])
        except NotFound:
            return None

    world = World(
        seed,
        [module.CONTROLLER for module in MODULES],
        dynamic_controllers=[dynamic_controller({"HTTP_PROXY": "http://proxy:3128"})],
        crds=[*CORE_CRDS, *IN_MEMORY_CRDS, *MACHINE_CRDS, *driver_definitions("amazonec2", FIELDS)],
        performers={"kubeconfig": kubeconfig, "pod-log": pod_log, "read-secret": read_secret},
        faults=faults,
        watched=[KINDS.machine, SECRET, JOB],
        invariant=invariants,
    )

    async def run_scenario() -> None:
        async with world:
            cloud = invariants.cloud = Cloud(world, fails=fails)
            running_cloud = asyncio.ensure_future(cloud.run())
            try:
                await scenario(Simulation(world, cloud, invariants.abandoned))
                cloud.check()
            finally:
                running_cloud.cancel()

    loop.run(run_scenario())
