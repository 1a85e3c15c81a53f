"""Lifecycle of a Cluster on a real API server in virtual time; the test acts as the providers and the Machines."""

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
from herder.api.inmemory.kinds import IN_MEMORY_CLUSTER, IN_MEMORY_CONTROL_PLANE, IN_MEMORY_MACHINE_TEMPLATE
from herder.controllers.capi.cluster.controller import CONTROLLER
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Kind, Object
from herder.sim import loop
from herder.sim.faults import NONE, ROUGH, Faults
from herder.sim.world import World
from tests.support.builders import new_manifest, object_reference

NAMESPACE = "default"
MACHINES = 5


class Actors:
    """Acts as the user and the providers."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.client = world.client

    async def create(self, kind: Kind, name: str, **options: Any) -> None:
        obj = new_manifest(kind, name, NAMESPACE, **options)
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

    async def until_condition(self, type_: str, status: str, reason: str) -> None:
        async def reached() -> bool:
            conditions = (await self.status()).get("conditions") or []
            return any((each["type"], each["status"], each["reason"]) == (type_, status, reason) for each in conditions)

        await self.world.until(reached)

    async def until(self, predicate: Callable[[], Awaitable[bool]]) -> None:
        await self.world.until(predicate)

    async def until_deleting(self, kind: Kind, name: str) -> None:
        async def reached() -> bool:
            found = await self.get(kind, name)
            return found is None or bool(found["metadata"].get("deletionTimestamp"))

        await self.world.until(reached)

    def conditions(self, *types: str) -> list[Object]:
        now = timestamp(self.world.now())
        return [condition(type_, "True", type_) | {"lastTransitionTime": now} for type_ in types]


async def provision(actors: Actors) -> None:
    spec = {
        "infrastructureRef": object_reference(IN_MEMORY_CLUSTER, "c"),
        "controlPlaneRef": object_reference(IN_MEMORY_CONTROL_PLANE, "c"),
    }
    await actors.create(CLUSTER, "c", spec=spec)
    await asyncio.sleep(5)
    for kind in (IN_MEMORY_CLUSTER, IN_MEMORY_CONTROL_PLANE):
        await actors.create(kind, "c", finalizers=["test/provider"], spec=_spec(kind))

        async def adopted(kind: Kind = kind) -> bool:
            found = await actors.get(kind, "c")
            return found is not None and bool(found["metadata"].get("ownerReferences"))

        await actors.until(adopted)
    endpoint = {"spec": {"controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443}}}
    await actors.set(IN_MEMORY_CLUSTER, "c", endpoint)
    await actors.set(IN_MEMORY_CLUSTER, "c", {"status": {"initialization": {"provisioned": True}}}, "status")
    await actors.set(
        IN_MEMORY_CONTROL_PLANE, "c", {"status": {"initialization": {"controlPlaneInitialized": True}}}, "status"
    )
    await actors.until_condition("ControlPlaneInitialized", "True", "Initialized")
    await actors.world.workloads.serve(f"{NAMESPACE}/c")
    await actors.create(SECRET, "c-kubeconfig", type=SECRET_TYPE, data={})
    for number in range(MACHINES):
        spec = {
            "clusterName": "c",
            "bootstrap": {"dataSecretName": "x"},
            "infrastructureRef": spec["infrastructureRef"],
        }
        labels = {CLUSTER_NAME: "c"}
        await actors.create(MACHINE, f"w-{number}", labels=labels, finalizers=["test/machine"], spec=spec)
    await actors.until_condition("WorkerMachinesReady", "Unknown", "ReadyUnknown")
    for number in range(MACHINES):
        conditions = actors.conditions("Ready", "Available", "UpToDate")
        await actors.set(MACHINE, f"w-{number}", {"status": {"conditions": conditions}}, "status")
    await actors.until_condition("WorkerMachinesReady", "True", "Ready")
    await actors.until_condition("Available", "True", "Available")


def _spec(kind: Kind) -> Object:
    if kind == IN_MEMORY_CLUSTER:
        return {}
    reference = object_reference(IN_MEMORY_MACHINE_TEMPLATE, "t")
    return {"replicas": 1, "version": "v1.31.0", "machineTemplate": {"spec": {"infrastructureRef": reference}}}


async def lose_and_restore_connection(actors: Actors) -> None:
    actors.world.workloads.cut(f"{NAMESPACE}/c")
    await actors.until_condition("RemoteConnectionProbe", "False", "ProbeFailed")
    await actors.until_condition("Available", "False", "NotAvailable")
    actors.world.workloads.heal(f"{NAMESPACE}/c")
    await actors.until_condition("Available", "True", "Available")


async def delete_cluster(actors: Actors) -> None:
    await actors.client.delete(CLUSTER.resource, "c", namespace=NAMESPACE)
    await actors.until_condition("Deleting", "True", "WaitingForWorkersDeletion")
    for number in range(MACHINES):
        await actors.client.delete(MACHINE.resource, f"w-{number}", namespace=NAMESPACE)
        await actors.set(MACHINE, f"w-{number}", {"metadata": {"finalizers": []}})
    for kind in (IN_MEMORY_CONTROL_PLANE, IN_MEMORY_CLUSTER):
        await actors.until_deleting(kind, "c")
        await actors.set(kind, "c", {"metadata": {"finalizers": []}})

    async def is_gone() -> bool:
        return await actors.get(CLUSTER, "c") is None

    await actors.until(is_gone)


@pytest.mark.parametrize(("seed", "faults"), [(1, NONE), (2, ROUGH), (3, ROUGH)])
def test_cluster_is_provisioned_reconnected_and_deleted(seed: int, faults: Faults) -> None:
    async def run() -> list[str]:
        events: list[str] = []

        def count(_kind: Kind, event: str, _obj: Object) -> None:
            events.append(event)

        crds = (*CRDS, *PROVIDERS)
        async with World(seed, [CONTROLLER], crds=crds, faults=faults, watched=[CLUSTER], invariant=count) as world:
            actors = Actors(world)
            await provision(actors)
            await lose_and_restore_connection(actors)
            await delete_cluster(actors)
            return events

    events = loop.run(run())
    if faults is NONE:
        assert len(events) <= 16, "creation, finalizer, endpoint, one status for each real change, deletion"
