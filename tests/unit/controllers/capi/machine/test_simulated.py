"""One Machine in a whole simulated deployment: real API servers, the real runtime, and providers played by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from herder.api.capi.crds import CRDS
from herder.api.capi.kinds import CLUSTER, MACHINE, NODE
from herder.api.capi.names import MACHINE_FINALIZER
from herder.controllers.capi.machine.controller import CONTROLLER
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Kind, Object
from herder.sim import loop
from herder.sim.faults import NONE, ROUGH, Faults
from herder.sim.world import World
from tests.unit.controllers.capi.machine.stage import CONFIG, HEALTHY, INFRA, WORKLOAD

NAMESPACE = Kind("", "v1", "Namespace", "namespaces", namespaced=False)


def provider(kind: Kind) -> Object:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": kind.version, "served": True, "storage": True, "subresources": {"status": {}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}", "labels": {"cluster.x-k8s.io/v1beta2": kind.version}},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {"plural": kind.plural, "singular": kind.kind.lower(), "kind": kind.kind},
            "versions": [version | {"schema": {"openAPIV3Schema": anything}}],
        },
    }


def bare(kind: Kind, name: str, **parts: Any) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name, "namespace": "farm"}} | parts


class Play:
    """The user, both providers and the kubelet."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def create(self, kind: Kind, name: str, **parts: Any) -> None:
        await self.world.client.create(kind.resource, bare(kind, name, **parts), namespace="farm")

    async def report_status(self, kind: Kind, name: str, status: Object, **parts: Any) -> None:
        if parts:
            await self.world.client.patch(kind.resource, name, parts, namespace="farm")
        patch = {"status": status}
        await self.world.client.patch(kind.resource, name, patch, namespace="farm", subresource="status")

    async def machine(self) -> Object:
        return await self.world.client.get(MACHINE.resource, "ewe", namespace="farm")

    async def until(self, reached: Callable[[Object], bool], *, within: float = 600.0) -> Object:
        async def so() -> bool:
            return reached(await self.machine())

        await self.world.until(so, within=within)
        return await self.machine()

    async def set_the_scene(self) -> None:
        await self.world.client.create(NAMESPACE.resource, {**bare(NAMESPACE, "farm"), "metadata": {"name": "farm"}})
        await self.create(CLUSTER, "north", spec={"infrastructureRef": ref(INFRA, "north")})
        await self.create(
            MACHINE,
            "ewe",
            spec={
                "clusterName": "north",
                "bootstrap": {"configRef": ref(CONFIG, "ewe")},
                "infrastructureRef": ref(INFRA, "ewe"),
            },
        )

    async def initialize_the_cluster(self) -> None:
        initialized = {
            "type": "ControlPlaneInitialized",
            "status": "True",
            "reason": "Initialized",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        status = {"initialization": {"infrastructureProvisioned": True}, "conditions": [initialized]}
        await self.report_status(CLUSTER, "north", status)

    async def provide(self) -> None:
        await self.create(CONFIG, "ewe")
        await self.create(INFRA, "ewe")
        made = {"initialization": {"dataSecretCreated": True}, "dataSecretName": "ewe-data"}
        await self.report_status(CONFIG, "ewe", made)
        await self.report_status(
            INFRA, "ewe", {"initialization": {"provisioned": True}}, spec={"providerID": "paddock://ewe"}
        )

    async def join(self) -> None:
        await self.world.workloads.serve(WORKLOAD)
        beside = self.world.workloads.client(WORKLOAD)
        taints = [{"key": "node.cluster.x-k8s.io/uninitialized", "effect": "NoSchedule"}]
        node = bare(NODE, "ewe-node", spec={"providerID": "paddock://ewe", "taints": taints})
        node["metadata"].pop("namespace")
        await beside.create(NODE.resource, node)
        conditions = [{"type": type_, "status": status} for type_, status in HEALTHY.items()]
        status = {"conditions": conditions, "nodeInfo": {"kubeletVersion": "v1.36.0"}}
        await beside.patch(NODE.resource, "ewe-node", {"status": status}, subresource="status")


def ref(kind: Kind, name: str) -> Object:
    return {"apiGroup": kind.group, "kind": kind.kind, "name": name}


def is_available(machine: Object) -> bool:
    return {"Available": "True"}.items() <= conditions(machine).items()


def conditions(machine: Object) -> dict[str, str]:
    return {known["type"]: known["status"] for known in machine.get("status", {}).get("conditions", ())}


def simulate(story: Callable[[Play], Awaitable[None]], *, seed: int = 1, faults: Faults = NONE) -> World:
    async def live() -> World:
        crds = [*CRDS, provider(CONFIG), provider(INFRA)]
        async with World(seed, [CONTROLLER], crds=crds, faults=faults, watched=[MACHINE]) as world:
            await story(Play(world))
        return world

    return loop.run(live())


async def a_whole_life(play: Play) -> None:
    await play.set_the_scene()
    await asyncio.sleep(5)  # a Machine that comes before all that it names
    await play.provide()
    await play.until(lambda machine: machine["spec"].get("providerID") == "paddock://ewe")
    await play.initialize_the_cluster()
    await play.join()

    machine = await play.until(is_available)
    assert machine["status"]["phase"] == "Running"
    assert machine["status"]["nodeRef"] == {"name": "ewe-node"}
    beside = play.world.workloads.client(WORKLOAD)
    node = await beside.get(NODE.resource, "ewe-node")
    assert node["metadata"]["annotations"]["cluster.x-k8s.io/machine"] == "ewe"
    assert "taints" not in node["spec"]
    for kind in (CONFIG, INFRA):
        obj = await play.world.client.get(kind.resource, "ewe", namespace="farm")
        assert obj["metadata"]["ownerReferences"][0]["uid"] == machine["metadata"]["uid"]

    await beside.patch(NODE.resource, "ewe-node", {"metadata": {"labels": {"example.com/rack": "7"}}})
    labels = {"node-role.kubernetes.io/shed": ""}
    await play.world.client.patch(MACHINE.resource, "ewe", {"metadata": {"labels": labels}}, namespace="farm")

    async def labelled() -> bool:
        node = await beside.get(NODE.resource, "ewe-node")
        return bool({**labels, "example.com/rack": "7"}.items() <= node["metadata"]["labels"].items())

    await play.world.until(labelled)


async def falls_silent_and_comes_back(play: Play) -> None:
    await a_whole_life(play)
    play.world.workloads.cut(WORKLOAD)
    asked = asyncio.get_running_loop().time()
    await play.until(lambda machine: conditions(machine)["NodeReady"] == "Unknown")
    assert 300 <= asyncio.get_running_loop().time() - asked <= 420
    play.world.workloads.heal(WORKLOAD)
    await play.until(is_available)


async def is_deleted(play: Play) -> None:
    await a_whole_life(play)
    await play.world.client.delete(MACHINE.resource, "ewe", namespace="farm")

    async def gone() -> bool:
        for kind in (INFRA, CONFIG, MACHINE):
            try:
                await play.world.client.get(kind.resource, "ewe", namespace="farm")
            except NotFound:
                continue
            return False
        return True

    await play.world.until(gone)


def test_a_machine_comes_to_run_and_keeps_its_node_in_step() -> None:
    simulate(a_whole_life)


@pytest.mark.parametrize("seed", range(5))
def test_faults_and_crashes_on_the_way_change_nothing(seed: int) -> None:
    simulate(a_whole_life, seed=seed, faults=ROUGH)


def test_the_same_seed_gives_the_same_story() -> None:
    assert simulate(a_whole_life, seed=3).digest() == simulate(a_whole_life, seed=3).digest()


def test_a_silent_cluster_is_noticed_after_five_minutes_and_forgiven_when_it_answers() -> None:
    simulate(falls_silent_and_comes_back)


def test_a_machine_takes_its_objects_with_it() -> None:
    simulate(is_deleted)


def test_the_finalizer_is_there_from_the_first_pass() -> None:
    async def story(play: Play) -> None:
        await play.set_the_scene()
        await play.until(lambda machine: MACHINE_FINALIZER in machine["metadata"].get("finalizers", ()))

    simulate(story)
