"""A Cluster's whole life on a real API server, in virtual time; the test plays the providers and the Machines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from herder.api.capi.conditions import condition, timestamp
from herder.api.capi.crds import CRDS
from herder.api.capi.kinds import CLUSTER, MACHINE, SECRET
from herder.api.capi.names import CLUSTER_NAME, SECRET_TYPE
from herder.api.inmemory.crds import CRDS as PROVIDERS
from herder.api.inmemory.kinds import IN_MEMORY_CLUSTER, IN_MEMORY_CONTROL_PLANE
from herder.controllers.capi.cluster.controller import CONTROLLER
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Kind, Object
from herder.sim import loop
from herder.sim.faults import NONE, ROUGH, Faults
from herder.sim.world import World

NAMESPACE = "default"
MACHINES = 5


class Farm:
    """What the test does in the place of users and providers."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.client = world.client

    async def create(self, kind: Kind, name: str, *, meta: Object | None = None, **parts: Any) -> None:
        meta = {"name": name, "namespace": NAMESPACE, **(meta or {})}
        obj = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, **parts}
        await self.client.create(kind.resource, obj, namespace=NAMESPACE)

    async def get(self, kind: Kind, name: str) -> Object | None:
        try:
            return await self.client.get(kind.resource, name, namespace=NAMESPACE)
        except NotFound:
            return None

    async def set(self, kind: Kind, name: str, patch: Object, subresource: str = "") -> None:
        await self.client.patch(kind.resource, name, patch, namespace=NAMESPACE, subresource=subresource)

    async def status(self) -> Object:
        found = await self.get(CLUSTER, "c")
        return (found or {}).get("status") or {}

    async def until_told(self, type_: str, status: str, reason: str) -> None:
        async def so() -> bool:
            conditions = (await self.status()).get("conditions") or []
            return any((each["type"], each["status"], each["reason"]) == (type_, status, reason) for each in conditions)

        await self.world.until(so)

    async def until(self, so: Callable[[], Awaitable[bool]]) -> None:
        await self.world.until(so)

    async def until_deleting(self, kind: Kind, name: str) -> None:
        async def so() -> bool:
            found = await self.get(kind, name)
            return found is None or bool(found["metadata"].get("deletionTimestamp"))

        await self.world.until(so)

    def conditions(self, *types: str) -> list[Object]:
        now = timestamp(self.world.now())
        return [condition(type_, "True", type_) | {"lastTransitionTime": now} for type_ in types]


async def grow(farm: Farm) -> None:
    group = IN_MEMORY_CLUSTER.group
    spec = {
        "infrastructureRef": {"apiGroup": group, "kind": "InMemoryCluster", "name": "c"},
        "controlPlaneRef": {"apiGroup": group, "kind": "InMemoryControlPlane", "name": "c"},
    }
    await farm.create(CLUSTER, "c", spec=spec)
    await asyncio.sleep(5)
    for kind in (IN_MEMORY_CLUSTER, IN_MEMORY_CONTROL_PLANE):
        await farm.create(kind, "c", meta={"finalizers": ["test/provider"]}, spec=_spec(kind))

        async def adopted(kind: Kind = kind) -> bool:
            found = await farm.get(kind, "c")
            return found is not None and bool(found["metadata"].get("ownerReferences"))

        await farm.until(adopted)
    endpoint = {"spec": {"controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443}}}
    await farm.set(IN_MEMORY_CLUSTER, "c", endpoint)
    await farm.set(IN_MEMORY_CLUSTER, "c", {"status": {"initialization": {"provisioned": True}}}, "status")
    await farm.set(
        IN_MEMORY_CONTROL_PLANE, "c", {"status": {"initialization": {"controlPlaneInitialized": True}}}, "status"
    )
    await farm.until_told("ControlPlaneInitialized", "True", "Initialized")
    await farm.world.workloads.serve(f"{NAMESPACE}/c")
    await farm.create(SECRET, "c-kubeconfig", type=SECRET_TYPE, data={})
    for number in range(MACHINES):
        spec = {
            "clusterName": "c",
            "bootstrap": {"dataSecretName": "x"},
            "infrastructureRef": spec["infrastructureRef"],
        }
        meta = {"labels": {CLUSTER_NAME: "c"}, "finalizers": ["test/machine"]}
        await farm.create(MACHINE, f"w-{number}", meta=meta, spec=spec)
    await farm.until_told("WorkerMachinesReady", "Unknown", "ReadyUnknown")
    for number in range(MACHINES):
        conditions = farm.conditions("Ready", "Available", "UpToDate")
        await farm.set(MACHINE, f"w-{number}", {"status": {"conditions": conditions}}, "status")
    await farm.until_told("WorkerMachinesReady", "True", "Ready")
    await farm.until_told("Available", "True", "Available")


def _spec(kind: Kind) -> Object:
    if kind == IN_MEMORY_CLUSTER:
        return {}
    reference = {"apiGroup": kind.group, "kind": "InMemoryMachineTemplate", "name": "t"}
    return {"replicas": 1, "version": "v1.31.0", "machineTemplate": {"spec": {"infrastructureRef": reference}}}


async def lose_and_find(farm: Farm) -> None:
    farm.world.workloads.cut(f"{NAMESPACE}/c")
    await farm.until_told("RemoteConnectionProbe", "False", "ProbeFailed")
    await farm.until_told("Available", "False", "NotAvailable")
    farm.world.workloads.heal(f"{NAMESPACE}/c")
    await farm.until_told("Available", "True", "Available")


async def take_down(farm: Farm) -> None:
    await farm.client.delete(CLUSTER.resource, "c", namespace=NAMESPACE)
    await farm.until_told("Deleting", "True", "WaitingForWorkersDeletion")
    for number in range(MACHINES):
        await farm.client.delete(MACHINE.resource, f"w-{number}", namespace=NAMESPACE)
        await farm.set(MACHINE, f"w-{number}", {"metadata": {"finalizers": []}})
    for kind in (IN_MEMORY_CONTROL_PLANE, IN_MEMORY_CLUSTER):
        await farm.until_deleting(kind, "c")
        await farm.set(kind, "c", {"metadata": {"finalizers": []}})

    async def gone() -> bool:
        return await farm.get(CLUSTER, "c") is None

    await farm.until(gone)


@pytest.mark.parametrize(("seed", "faults"), [(1, NONE), (2, ROUGH), (3, ROUGH)])
def test_a_cluster_lives_and_goes(seed: int, faults: Faults) -> None:
    async def live() -> list[str]:
        writes: list[str] = []

        def count(_kind: Kind, event: str, _obj: Object) -> None:
            writes.append(event)

        crds = (*CRDS, *PROVIDERS)
        async with World(seed, [CONTROLLER], crds=crds, faults=faults, watched=[CLUSTER], invariant=count) as world:
            farm = Farm(world)
            await grow(farm)
            await lose_and_find(farm)
            await take_down(farm)
            return writes

    writes = loop.run(live())
    if faults is NONE:
        assert len(writes) <= 16, "creation, finalizer, endpoint, one status for each real change, deletion"
