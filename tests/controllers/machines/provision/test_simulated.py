"""Machines of a cloud under our core, on virtual time: Jobs that work and that fail, and a manager that dies anywhere."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from herder.api.capi.conditions import is_true
from herder.api.capi.crds import CRDS as CORE_CRDS
from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_SET, SECRET
from herder.api.capi.names import CLUSTER_NAME
from herder.api.inmemory.crds import CRDS as IN_MEMORY_CRDS
from herder.api.inmemory.kinds import IN_MEMORY_CLUSTER
from herder.api.inmemory.manifest import in_memory_cluster, made, reference
from herder.api.machines import names
from herder.api.machines.archive import CONFIG_MAP
from herder.api.machines.crds import CRDS as MACHINE_CRDS
from herder.api.machines.crds import driver_definitions
from herder.api.machines.credentials import CREDENTIAL_TYPE
from herder.api.machines.jobs import JOB, ROLE, ROLE_BINDING, SERVICE_ACCOUNT
from herder.api.machines.kinds import NODE_DRIVER, kinds_of
from herder.api.machines.registered import registered
from herder.api.machines.state import STATE_FINALIZER
from herder.controllers.capi.cluster import controller as core_cluster
from herder.controllers.capi.machine import controller as core_machine
from herder.controllers.capi.machineset import controller as core_machine_set
from herder.controllers.inmemory import cluster
from herder.controllers.machines import archive, cloud_credentials
from herder.controllers.machines.provision.controller import family
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Kind, Object
from herder.sim import loop
from herder.sim.faults import NONE, ROUGH, Faults
from herder.sim.world import World
from tests.controllers.machines.provision.cloud import Cloud

NS = "default"
KINDS = kinds_of("amazonec2")
FIELDS = {name: {"type": "string"} for name in ("region", "instanceType", "zone", "tags", "userdata")}
MODULES = (core_cluster, core_machine, core_machine_set, cluster, archive, cloud_credentials)
SECRET_KEY = "a-very-secret-key"
SAID = f"Running pre-create checks...\nusing {SECRET_KEY}\n"


async def kubeconfig(_arguments: Mapping[str, Any]) -> Object:
    never = datetime(2040, 1, 1, tzinfo=UTC).isoformat()
    return {"kubeconfig": base64.b64encode(b"simulated").decode(), "expires": never, "renew": never}


class Invariants:
    """What must hold at every event."""

    def __init__(self) -> None:
        self.cloud: Cloud | None = None

    def __call__(self, kind: Kind, event: str, obj: Object) -> None:
        assert self.cloud is not None
        if event != "DELETED":
            return
        name = names.instance_name(obj["metadata"]["name"])
        if kind == KINDS.machine:
            assert name not in self.cloud.servers, "a machine's object goes when its server is gone"
        if kind == SECRET and obj.get("type") == names.STATE_SECRET_TYPE:
            infra = obj["metadata"]["labels"][names.INFRA_NAME_LABEL]
            assert infra not in self.cloud.servers, "the state Secret is there while the server may be"


class Play:
    def __init__(self, world: World, cloud: Cloud) -> None:
        self.world, self.cloud, self.client = world, cloud, world.client

    async def begin(self, machines: int = 2) -> None:
        for driver in registered():
            if driver["metadata"]["name"] == "amazonec2":
                await self.client.create(NODE_DRIVER.resource, driver)
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "aws"},
            "type": CREDENTIAL_TYPE,
            "stringData": {
                "amazonec2credentialConfig-accessKey": "AKIA123456",
                "amazonec2credentialConfig-secretKey": SECRET_KEY,
            },
        }
        await self.client.create(SECRET.resource, secret, namespace=NS)
        for kind, obj in _manifest(machines):
            await self.client.create(kind.resource, obj, namespace=NS)

    async def all(self, kind: Kind, namespace: str = NS) -> list[Object]:
        return (await self.client.list(kind.resource, namespace=namespace)).items

    async def until(self, reached: Callable[[], Awaitable[bool]], *, within: float = 3600.0) -> None:
        async def so() -> bool:
            self.cloud.check()
            return await reached()

        await self.world.until(so, within=within)

    async def created(self, machines: int) -> bool:
        found = await self.all(KINDS.machine)
        return len(found) == machines and all(is_true(infra, "CreateJob") for infra in found)

    async def tidied(self) -> bool:
        """Of what made the machines, only their state Secrets are left."""
        left = [obj for kind in (JOB, ROLE, ROLE_BINDING) for obj in await self.all(kind)]
        accounts = [obj for obj in await self.all(SERVICE_ACCOUNT) if obj["metadata"]["name"] != "default"]
        secrets = [obj for obj in await self.all(SECRET) if obj["type"] == "Opaque"]
        return not (left or accounts or secrets)

    async def gone(self) -> bool:
        kinds = (CLUSTER, MACHINE_SET, MACHINE, KINDS.machine, IN_MEMORY_CLUSTER)
        left = [obj for kind in kinds for obj in await self.all(kind)]
        states = [obj for obj in await self.all(SECRET) if obj.get("type") == names.STATE_SECRET_TYPE]
        return not (left or states)


def _manifest(machines: int) -> list[tuple[Kind, Object]]:
    labels = {CLUSTER_NAME: "c", "pool": "workers"}
    machine = {
        "clusterName": "c",
        "version": "v1.35.0",
        "bootstrap": {"dataSecretName": "data"},
        "infrastructureRef": reference(KINDS.template, "pool"),
        "failureDomain": "eu-central-1b",
    }
    pool = {
        "clusterName": "c",
        "replicas": machines,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": machine},
    }
    spec = {"region": "eu-central-1", "common": {"cloudCredentialSecretName": "aws"}}
    wanted = (IN_MEMORY_CLUSTER, CLUSTER)
    kept = [(kind, obj) for kind, obj in in_memory_cluster("c", workers=0) if kind in wanted]
    for kind, obj in kept:
        if kind == CLUSTER:
            obj["spec"].pop("controlPlaneRef")
    return [*kept, made(KINDS.template, "pool", {"template": {"spec": spec}}), made(MACHINE_SET, "c-workers", pool)]


def simulate(
    story: Callable[[Play], Awaitable[None]],
    *,
    seed: int = 1,
    faults: Faults = NONE,
    fails: Callable[[list[str]], str] = lambda _words: "",
) -> None:
    invariants = Invariants()

    async def pod_log(_arguments: Mapping[str, Any]) -> str:
        return SAID

    async def read_secret(arguments: Mapping[str, Any]) -> Object | None:
        try:
            return await world.client.get(SECRET.resource, arguments["name"], namespace=arguments["namespace"])
        except NotFound:
            return None

    world = World(
        seed,
        [module.CONTROLLER for module in MODULES],
        families=[family({"HTTP_PROXY": "http://proxy:3128"})],
        crds=[*CORE_CRDS, *IN_MEMORY_CRDS, *MACHINE_CRDS, *driver_definitions("amazonec2", FIELDS)],
        performers={"kubeconfig": kubeconfig, "pod-log": pod_log, "read-secret": read_secret},
        faults=faults,
        watched=[KINDS.machine, SECRET, JOB],
        invariant=invariants,
    )

    async def live() -> None:
        async with world:
            cloud = invariants.cloud = Cloud(world, fails=fails)
            at_work = asyncio.ensure_future(cloud.run())
            try:
                await story(Play(world, cloud))
                cloud.check()
            finally:
                at_work.cancel()

    loop.run(live())


async def a_whole_life(play: Play) -> None:
    await play.begin(machines=2)
    await play.until(lambda: play.created(2))
    assert set(play.cloud.servers.values()) == {1}
    await play.until(play.tidied)
    for infra in await play.all(KINDS.machine):
        state = await play.client.get(SECRET.resource, names.state_secret(infra["metadata"]["name"]), namespace=NS)
        assert STATE_FINALIZER in state["metadata"]["finalizers"]
        assert infra["status"]["cloudCredentialSecretName"] == "aws"
    assert set(play.cloud.creations.values()) == {1}
    await play.client.delete(CLUSTER.resource, "c", namespace=NS)
    await play.until(play.gone)
    assert play.cloud.servers == {}
    assert set(play.cloud.creations.values()) == {1}


def test_machines_are_made_and_removed_and_only_their_logs_are_left() -> None:
    async def story(play: Play) -> None:
        await a_whole_life(play)
        logs = await play.all(CONFIG_MAP, names.ARCHIVE_NAMESPACE)
        kept = [log["data"] for log in logs if names.ARCHIVE_LABEL in (log["metadata"].get("labels") or {})]
        assert len(kept) == 2
        for data in kept:
            assert set(data) == {names.CREATE_LOG, names.REMOVE_LOG}
            assert "pre-create checks" in data[names.CREATE_LOG]
            assert SECRET_KEY not in str(data)

    simulate(story)


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_made_twice_and_nothing_is_left_wherever_the_manager_dies(seed: int) -> None:
    simulate(a_whole_life, seed=seed, faults=ROUGH)
