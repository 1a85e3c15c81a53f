"""Simulated Machine deletion: Pods are evicted through a real API server that enforces disruption budgets."""

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
from tests.support.builders import new_manifest, object_reference
from tests.unit.controllers.capi.machine.harness import WORKLOAD
from tests.unit.controllers.capi.machine.objects import CONFIG, INFRA
from tests.unit.controllers.capi.machine.test_simulated import (
    Actors,
    provider_definition,
    provision_machine,
)

BUDGET = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")


class DeletionActors(Actors):
    """Acts as the kubelet of the Node and the owner of its Pods, besides the user and the providers."""

    async def provision(self) -> None:
        await provision_machine(self)
        spec = {
            "clusterName": "north",
            "bootstrap": {"configRef": object_reference(CONFIG, "ram")},
            "infrastructureRef": object_reference(INFRA, "ram"),
        }
        await self.create(MACHINE, "ram", labels={CONTROL_PLANE: ""}, spec=spec)

    async def run(self, name: str, **options: Any) -> None:
        """Create a Pod that is ready on the Machine's Node."""
        client = self.world.workloads.client(WORKLOAD)
        spec = {"nodeName": "ewe-node", "containers": [{"name": "c", "image": "i"}]}
        pod = new_manifest(POD, name, "default", spec=spec, **options)
        await client.create(POD.resource, pod, namespace="default")
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        await client.patch(POD.resource, name, {"status": status}, namespace="default", subresource="status")

    async def protect(self, app: str) -> None:
        client = self.world.workloads.client(WORKLOAD)
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}}
        budget = new_manifest(BUDGET, app, "default", spec=spec)
        created = await client.create(BUDGET.resource, budget, namespace="default")
        status = {
            "observedGeneration": created["metadata"]["generation"],
            "currentHealthy": 1,
            "desiredHealthy": 1,
            "disruptionsAllowed": 0,
            "expectedPods": 1,
        }
        await client.patch(BUDGET.resource, app, {"status": status}, namespace="default", subresource="status")

    async def run_kubelet(self) -> None:
        """Act as the kubelet: a deleted Pod ends three seconds later."""
        client = self.world.workloads.client(WORKLOAD)
        while True:
            for pod in (await client.list(POD.resource, namespace="default")).items:
                if pod["metadata"].get("deletionTimestamp"):
                    await asyncio.sleep(3)
                    name = pod["metadata"]["name"]
                    await client.delete(POD.resource, name, namespace="default", grace_seconds=0)
            await asyncio.sleep(1)

    async def delete(self) -> None:
        await self.world.client.delete(MACHINE.resource, "ewe", namespace="farm")

    async def until_gone(self, *, within: float = 600.0) -> None:
        async def is_gone() -> bool:
            found = [await self.exists(kind) for kind in (INFRA, CONFIG, MACHINE)]
            return not any(found)

        await self.world.until(is_gone, within=within)

    async def exists(self, kind: Kind) -> bool:
        try:
            await self.world.client.get(kind.resource, "ewe", namespace="farm")
        except NotFound:
            return False
        return True

    async def nodes(self) -> list[Object]:
        client = self.world.workloads.client(WORKLOAD)
        return list((await client.list(NODE.resource)).items)


def deleting_message(machine: Object) -> str:
    messages = [known for known in machine["status"].get("conditions", ()) if known["type"] == "Deleting"]
    return messages[0]["message"] if messages else ""


def simulate(scenario: Callable[[DeletionActors], Awaitable[None]], *, seed: int = 1, faults: Faults = NONE) -> World:
    async def run_world() -> World:
        crds = [*CRDS, provider_definition(CONFIG), provider_definition(INFRA)]
        async with World(
            seed, [CONTROLLER], crds=crds, faults=faults, watched=[MACHINE], remote_performers=REMOTE_PERFORMERS
        ) as world:
            await scenario(DeletionActors(world))
        return world

    return loop.run(run_world())


async def drain_and_delete(actors: DeletionActors) -> None:
    await actors.provision()
    await actors.run("web", labels={"app": "web"})
    await actors.run("static", annotations={"kubernetes.io/config.mirror": "x"})
    await actors.run("solo")
    await actors.protect("web")
    kubelet = asyncio.ensure_future(actors.run_kubelet())
    await actors.delete()

    blocked = (
        "* Pod default/web: cannot evict pod as it would violate the pod's disruption budget. "
        "The disruption budget web needs 1 healthy pods and has 1 currently"
    )
    machine = await actors.until(lambda machine: deleting_message(machine).endswith("\n" + blocked), within=120)
    assert machine["status"]["deletion"]["nodeDrainStartTime"]
    [node] = await actors.nodes()
    assert node["spec"]["unschedulable"] is True

    await asyncio.sleep(90)
    assert blocked in deleting_message(await actors.machine())
    assert await actors.exists(INFRA)
    await actors.world.workloads.client(WORKLOAD).delete(BUDGET.resource, "web", namespace="default")
    await actors.until_gone(within=120)
    assert await actors.nodes() == []
    kubelet.cancel()


async def delete_in_unreachable_cluster(actors: DeletionActors) -> None:
    await actors.provision()
    limits = {"nodeDrainTimeoutSeconds": 60, "nodeVolumeDetachTimeoutSeconds": 60, "nodeDeletionTimeoutSeconds": 30}
    await actors.world.client.patch(MACHINE.resource, "ewe", {"spec": {"deletion": limits}}, namespace="farm")
    await actors.run("web")
    actors.world.workloads.cut(WORKLOAD)
    await asyncio.sleep(120)
    began = asyncio.get_running_loop().time()
    await actors.delete()
    await actors.until(lambda machine: "cannot be reached" in deleting_message(machine), within=120)
    await actors.until_gone(within=400)
    assert 149 <= asyncio.get_running_loop().time() - began <= 200
    assert len(await actors.nodes()) == 1  # the cluster was unreachable


async def delete_after_a_long_drain(actors: DeletionActors) -> None:
    """The timeout of the Node's deletion does not run during the drain."""
    await actors.provision()
    limits = {"nodeDrainTimeoutSeconds": 300, "nodeDeletionTimeoutSeconds": 10}
    await actors.world.client.patch(MACHINE.resource, "ewe", {"spec": {"deletion": limits}}, namespace="farm")
    await actors.run("web", labels={"app": "web"})
    await actors.protect("web")
    await actors.delete()
    await asyncio.sleep(290)
    assert await actors.exists(INFRA)
    await actors.until_gone(within=60)
    assert await actors.nodes() == []


def test_pods_are_evicted_within_budgets_before_the_node_is_deleted() -> None:
    simulate(drain_and_delete)


@pytest.mark.parametrize("seed", range(3))
def test_deletion_tolerates_faults_and_crashes(seed: int) -> None:
    simulate(delete_after_a_long_drain, seed=seed, faults=ROUGH)


def test_unreachable_cluster_blocks_deletion_only_until_the_timeouts() -> None:
    simulate(delete_in_unreachable_cluster)


def test_node_is_deleted_after_a_long_drain() -> None:
    simulate(delete_after_a_long_drain)
