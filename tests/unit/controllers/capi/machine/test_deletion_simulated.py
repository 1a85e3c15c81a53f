"""Machines that go, in a whole simulated deployment: their Pods are evicted from a real API server, budgets and all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from herder.api.capi.crds import CRDS
from herder.api.capi.kinds import MACHINE, NODE, POD
from herder.api.capi.names import CONTROL_PLANE
from herder.controllers.capi.machine.controller import CONTROLLER
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.performers import REMOTE_PERFORMERS
from herder.sim import loop
from herder.sim.faults import NONE, ROUGH, Faults
from herder.sim.world import World
from tests.unit.controllers.capi.machine.stage import CONFIG, INFRA, WORKLOAD
from tests.unit.controllers.capi.machine.test_simulated import Play, a_whole_life, bare, provider, ref

BUDGET = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")


class Farm(Play):
    """Beside the user and the providers, the kubelet of the Node and the owner of what runs there."""

    async def grow(self) -> None:
        await a_whole_life(self)
        meta = {"name": "ram", "namespace": "farm", "labels": {CONTROL_PLANE: ""}}
        spec = {
            "clusterName": "north",
            "bootstrap": {"configRef": ref(CONFIG, "ram")},
            "infrastructureRef": ref(INFRA, "ram"),
        }
        await self.create(MACHINE, "ram", metadata=meta, spec=spec)

    async def run(self, name: str, **meta: Any) -> None:
        """A Pod that is ready on the Machine's Node."""
        beside = self.world.workloads.client(WORKLOAD)
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", **meta},
            "spec": {"nodeName": "ewe-node", "containers": [{"name": "c", "image": "i"}]},
        }
        await beside.create(POD.resource, pod, namespace="default")
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        await beside.patch(POD.resource, name, {"status": status}, namespace="default", subresource="status")

    async def protect(self, app: str) -> None:
        beside = self.world.workloads.client(WORKLOAD)
        budget = bare(BUDGET, app, spec={"minAvailable": 1, "selector": {"matchLabels": {"app": app}}})
        budget["metadata"]["namespace"] = "default"
        made = await beside.create(BUDGET.resource, budget, namespace="default")
        status = {
            "observedGeneration": made["metadata"]["generation"],
            "currentHealthy": 1,
            "desiredHealthy": 1,
            "disruptionsAllowed": 0,
            "expectedPods": 1,
        }
        await beside.patch(BUDGET.resource, app, {"status": status}, namespace="default", subresource="status")

    async def end_what_must_go(self) -> None:
        """What the kubelet does: a Pod that is deleted ends a little later."""
        beside = self.world.workloads.client(WORKLOAD)
        while True:
            for pod in (await beside.list(POD.resource, namespace="default")).items:
                if pod["metadata"].get("deletionTimestamp"):
                    await asyncio.sleep(3)
                    name = pod["metadata"]["name"]
                    await beside.delete(POD.resource, name, namespace="default", grace_seconds=0)
            await asyncio.sleep(1)

    async def delete(self) -> None:
        await self.world.client.delete(MACHINE.resource, "ewe", namespace="farm")

    async def until_gone(self, *, within: float = 600.0) -> None:
        async def gone() -> bool:
            found = [await self.exists(kind) for kind in (INFRA, CONFIG, MACHINE)]
            return not any(found)

        await self.world.until(gone, within=within)

    async def exists(self, kind: Kind) -> bool:
        try:
            await self.world.client.get(kind.resource, "ewe", namespace="farm")
        except NotFound:
            return False
        return True

    async def nodes(self) -> list[Object]:
        beside = self.world.workloads.client(WORKLOAD)
        return list((await beside.list(NODE.resource)).items)


def deleting(machine: Object) -> str:
    told = [known for known in machine["status"].get("conditions", ()) if known["type"] == "Deleting"]
    return told[0]["message"] if told else ""


def simulate(story: Callable[[Farm], Awaitable[None]], *, seed: int = 1, faults: Faults = NONE) -> World:
    async def live() -> World:
        crds = [*CRDS, provider(CONFIG), provider(INFRA)]
        async with World(
            seed, [CONTROLLER], crds=crds, faults=faults, watched=[MACHINE], remote_performers=REMOTE_PERFORMERS
        ) as world:
            await story(Farm(world))
        return world

    return loop.run(live())


async def is_drained_and_goes(farm: Farm) -> None:
    await farm.grow()
    await farm.run("web", labels={"app": "web"})
    await farm.run("static", annotations={"kubernetes.io/config.mirror": "x"})
    await farm.run("solo")
    await farm.protect("web")
    kubelet = asyncio.ensure_future(farm.end_what_must_go())
    await farm.delete()

    blocked = (
        "* Pod default/web: cannot evict pod as it would violate the pod's disruption budget. "
        "The disruption budget web needs 1 healthy pods and has 1 currently"
    )
    machine = await farm.until(lambda machine: deleting(machine).endswith("\n" + blocked), within=120)
    assert machine["status"]["deletion"]["nodeDrainStartTime"]
    [node] = await farm.nodes()
    assert node["spec"]["unschedulable"] is True

    await asyncio.sleep(90)
    assert blocked in deleting(await farm.machine())
    assert await farm.exists(INFRA)
    await farm.world.workloads.client(WORKLOAD).delete(BUDGET.resource, "web", namespace="default")
    await farm.until_gone(within=120)
    assert await farm.nodes() == []
    kubelet.cancel()


async def goes_although_its_cluster_is_silent(farm: Farm) -> None:
    await farm.grow()
    limits = {"nodeDrainTimeoutSeconds": 60, "nodeVolumeDetachTimeoutSeconds": 60, "nodeDeletionTimeoutSeconds": 30}
    await farm.world.client.patch(MACHINE.resource, "ewe", {"spec": {"deletion": limits}}, namespace="farm")
    await farm.run("web")
    farm.world.workloads.cut(WORKLOAD)
    await asyncio.sleep(120)
    began = asyncio.get_running_loop().time()
    await farm.delete()
    await farm.until(lambda machine: "cannot be reached" in deleting(machine), within=120)
    await farm.until_gone(within=400)
    assert 149 <= asyncio.get_running_loop().time() - began <= 200
    assert len(await farm.nodes()) == 1  # nobody could delete it


async def outlives_a_long_drain(farm: Farm) -> None:
    """The time for the Node's deletion has not begun while its Pods are waited for."""
    await farm.grow()
    limits = {"nodeDrainTimeoutSeconds": 300, "nodeDeletionTimeoutSeconds": 10}
    await farm.world.client.patch(MACHINE.resource, "ewe", {"spec": {"deletion": limits}}, namespace="farm")
    await farm.run("web", labels={"app": "web"})
    await farm.protect("web")
    await farm.delete()
    await asyncio.sleep(290)
    assert await farm.exists(INFRA)
    await farm.until_gone(within=60)
    assert await farm.nodes() == []


def test_pods_are_evicted_as_far_as_budgets_let_them_and_the_node_goes_last() -> None:
    simulate(is_drained_and_goes)


@pytest.mark.parametrize("seed", range(3))
def test_faults_and_crashes_on_the_way_change_nothing(seed: int) -> None:
    simulate(outlives_a_long_drain, seed=seed, faults=ROUGH)


def test_a_silent_cluster_holds_a_machine_only_as_long_as_it_may() -> None:
    simulate(goes_although_its_cluster_is_silent)


def test_a_node_is_deleted_also_after_a_long_drain() -> None:
    simulate(outlives_a_long_drain)
