"""Simulated lifecycle of a Machine: real API servers, the real runtime, and providers simulated by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from herder.api.capi.crds import CRDS
from herder.api.capi.kinds import CLUSTER, DEFINITION, MACHINE, NODE
from herder.api.capi.names import MACHINE_FINALIZER
from herder.controllers.capi.machine.controller import CONTROLLER
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Kind, Object
from herder.sim import loop
from herder.sim.faults import NONE, ROUGH, Faults
from herder.sim.world import World
from tests.support.builders import new_condition, new_manifest, object_reference
from tests.unit.controllers.capi.machine.harness import WORKLOAD
from tests.unit.controllers.capi.machine.objects import CONFIG, HEALTHY, INFRA

NAMESPACE = Kind("", "v1", "Namespace", "namespaces", namespaced=False)


def provider_definition(kind: Kind) -> Object:
    any_object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": kind.version, "served": True, "storage": True, "subresources": {"status": {}}}
    spec = {
        "group": kind.group,
        "scope": "Namespaced",
        "names": {"plural": kind.plural, "singular": kind.kind.lower(), "kind": kind.kind},
        "versions": [version | {"schema": {"openAPIV3Schema": any_object}}],
    }
    labels = {"cluster.x-k8s.io/v1beta2": kind.version}
    return new_manifest(DEFINITION, f"{kind.plural}.{kind.group}", labels=labels, spec=spec)


class Actors:
    """Acts as the user, both providers and the kubelet."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def create(self, kind: Kind, name: str, **options: Any) -> None:
        await self.world.client.create(kind.resource, new_manifest(kind, name, "farm", **options), namespace="farm")

    async def report_status(self, kind: Kind, name: str, status: Object, **parts: Any) -> None:
        if parts:
            await self.world.client.patch(kind.resource, name, parts, namespace="farm")
        patch = {"status": status}
        await self.world.client.patch(kind.resource, name, patch, namespace="farm", subresource="status")

    async def machine(self) -> Object:
        return await self.world.client.get(MACHINE.resource, "ewe", namespace="farm")

    async def until(self, reached: Callable[[Object], bool], *, within: float = 600.0) -> Object:
        async def is_reached() -> bool:
            return reached(await self.machine())

        await self.world.until(is_reached, within=within)
        return await self.machine()

    async def create_cluster_and_machine(self) -> None:
        await self.world.client.create(NAMESPACE.resource, new_manifest(NAMESPACE, "farm"))
        await self.create(CLUSTER, "north", spec={"infrastructureRef": object_reference(INFRA, "north")})
        await self.create(
            MACHINE,
            "ewe",
            spec={
                "clusterName": "north",
                "bootstrap": {"configRef": object_reference(CONFIG, "ewe")},
                "infrastructureRef": object_reference(INFRA, "ewe"),
            },
        )

    async def initialize_cluster(self) -> None:
        initialized = new_condition("ControlPlaneInitialized", reason="Initialized", since="2026-01-01T00:00:00Z")
        status = {"initialization": {"infrastructureProvisioned": True}, "conditions": [initialized]}
        await self.report_status(CLUSTER, "north", status)

    async def provide(self) -> None:
        await self.create(CONFIG, "ewe")
        await self.create(INFRA, "ewe")
        bootstrapped = {"initialization": {"dataSecretCreated": True}, "dataSecretName": "ewe-data"}
        await self.report_status(CONFIG, "ewe", bootstrapped)
        await self.report_status(
            INFRA, "ewe", {"initialization": {"provisioned": True}}, spec={"providerID": "paddock://ewe"}
        )

    async def join(self) -> None:
        await self.world.workloads.serve(WORKLOAD)
        client = self.world.workloads.client(WORKLOAD)
        taints = [{"key": "node.cluster.x-k8s.io/uninitialized", "effect": "NoSchedule"}]
        node = new_manifest(NODE, "ewe-node", spec={"providerID": "paddock://ewe", "taints": taints})
        await client.create(NODE.resource, node)
        conditions = [{"type": type_, "status": status} for type_, status in HEALTHY.items()]
        status = {"conditions": conditions, "nodeInfo": {"kubeletVersion": "v1.36.0"}}
        await client.patch(NODE.resource, "ewe-node", {"status": status}, subresource="status")


def is_available(machine: Object) -> bool:
    return {"Available": "True"}.items() <= conditions(machine).items()


def conditions(machine: Object) -> dict[str, str]:
    return {known["type"]: known["status"] for known in machine.get("status", {}).get("conditions", ())}


def simulate(scenario: Callable[[Actors], Awaitable[None]], *, seed: int = 1, faults: Faults = NONE) -> World:
    async def run_world() -> World:
        crds = [*CRDS, provider_definition(CONFIG), provider_definition(INFRA)]
        async with World(seed, [CONTROLLER], crds=crds, faults=faults, watched=[MACHINE]) as world:
            await scenario(Actors(world))
        return world

    return loop.run(run_world())


async def provision_machine(actors: Actors) -> None:
    await actors.create_cluster_and_machine()
    await asyncio.sleep(5)  # the Machine exists before the objects it references
    await actors.provide()
    await actors.until(lambda machine: machine["spec"].get("providerID") == "paddock://ewe")
    await actors.initialize_cluster()
    await actors.join()

    machine = await actors.until(is_available)
    assert machine["status"]["phase"] == "Running"
    assert machine["status"]["nodeRef"] == {"name": "ewe-node"}
    client = actors.world.workloads.client(WORKLOAD)
    node = await client.get(NODE.resource, "ewe-node")
    assert node["metadata"]["annotations"]["cluster.x-k8s.io/machine"] == "ewe"
    assert "taints" not in node["spec"]
    for kind in (CONFIG, INFRA):
        obj = await actors.world.client.get(kind.resource, "ewe", namespace="farm")
        assert obj["metadata"]["ownerReferences"][0]["uid"] == machine["metadata"]["uid"]

    await client.patch(NODE.resource, "ewe-node", {"metadata": {"labels": {"example.com/rack": "7"}}})
    labels = {"node-role.kubernetes.io/shed": ""}
    await actors.world.client.patch(MACHINE.resource, "ewe", {"metadata": {"labels": labels}}, namespace="farm")

    async def labelled() -> bool:
        node = await client.get(NODE.resource, "ewe-node")
        return bool({**labels, "example.com/rack": "7"}.items() <= node["metadata"]["labels"].items())

    await actors.world.until(labelled)


async def lose_and_restore_connection(actors: Actors) -> None:
    await provision_machine(actors)
    actors.world.workloads.cut(WORKLOAD)
    began = asyncio.get_running_loop().time()
    await actors.until(lambda machine: conditions(machine)["NodeReady"] == "Unknown")
    assert 300 <= asyncio.get_running_loop().time() - began <= 420
    actors.world.workloads.heal(WORKLOAD)
    await actors.until(is_available)


async def delete_machine(actors: Actors) -> None:
    await provision_machine(actors)
    await actors.world.client.delete(MACHINE.resource, "ewe", namespace="farm")

    async def is_gone() -> bool:
        for kind in (INFRA, CONFIG, MACHINE):
            try:
                await actors.world.client.get(kind.resource, "ewe", namespace="farm")
            except NotFound:
                continue
            return False
        return True

    await actors.world.until(is_gone)


def test_machine_is_provisioned_and_its_labels_are_synced_to_its_node() -> None:
    simulate(provision_machine)


@pytest.mark.parametrize("seed", range(5))
def test_provisioning_tolerates_faults_and_crashes(seed: int) -> None:
    simulate(provision_machine, seed=seed, faults=ROUGH)


def test_simulation_is_deterministic() -> None:
    assert simulate(provision_machine, seed=3).digest() == simulate(provision_machine, seed=3).digest()


def test_node_ready_is_unknown_after_five_minutes_without_connection_and_recovers() -> None:
    simulate(lose_and_restore_connection)


def test_deleted_machine_deletes_its_provider_objects() -> None:
    simulate(delete_machine)


def test_finalizer_is_added_by_the_first_reconcile() -> None:
    async def scenario(actors: Actors) -> None:
        await actors.create_cluster_and_machine()
        await actors.until(lambda machine: MACHINE_FINALIZER in machine["metadata"].get("finalizers", ()))

    simulate(scenario)
