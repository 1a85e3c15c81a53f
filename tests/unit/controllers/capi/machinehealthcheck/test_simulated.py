"""Health checks in a whole simulated deployment, beside the Machine controller, on Nodes that fall silent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from herder.api.capi.crds import CRDS
from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_HEALTH_CHECK, NODE
from herder.controllers.capi.machine.controller import CONTROLLER as MACHINES
from herder.controllers.capi.machinehealthcheck import CONTROLLER
from herder.engine.meta.kinds import Object
from herder.sim import loop
from herder.sim.faults import NONE, ROUGH, Faults
from herder.sim.world import World
from tests.unit.controllers.capi.machine.stage import CONFIG, INFRA, WORKLOAD
from tests.unit.controllers.capi.machine.test_simulated import Play, a_whole_life, conditions, provider

CHECKS = {
    "unhealthyNodeConditions": [{"type": "Ready", "status": "Unknown", "timeoutSeconds": 300}],
    "nodeStartupTimeoutSeconds": 600,
}


class Watch(Play):
    async def begin(self) -> None:
        await a_whole_life(self)
        cluster = await self.world.client.get(CLUSTER.resource, "north", namespace="farm")
        ready = {
            "type": "InfrastructureReady",
            "status": "True",
            "reason": "Ready",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        await self.report_status(CLUSTER, "north", {"conditions": [*cluster["status"]["conditions"], ready]})
        labels = {"metadata": {"labels": {"pool": "sheep"}}}
        await self.world.client.patch(MACHINE.resource, "ewe", labels, namespace="farm")
        spec = {"clusterName": "north", "selector": {"matchLabels": {"pool": "sheep"}}, "checks": CHECKS}
        await self.create(MACHINE_HEALTH_CHECK, "sheep", spec=spec)

    async def node_is(self, ready: str) -> None:
        beside = self.world.workloads.client(WORKLOAD)
        node = await beside.get(NODE.resource, "ewe-node")
        now = self.world.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        told = [
            {**known, "status": ready, "lastTransitionTime": now} if known["type"] == "Ready" else known
            for known in node["status"]["conditions"]
        ]
        await beside.patch(NODE.resource, "ewe-node", {"status": {"conditions": told}}, subresource="status")

    async def check(self) -> Object:
        return await self.world.client.get(MACHINE_HEALTH_CHECK.resource, "sheep", namespace="farm")


def healthy(machine: Object) -> str:
    return conditions(machine).get("HealthCheckSucceeded", "")


async def falls_silent_and_recovers(watch: Watch) -> None:
    await watch.begin()
    await watch.until(lambda machine: healthy(machine) == "True", within=120)
    await asyncio.sleep(10)
    status = (await watch.check())["status"]
    assert (status["expectedMachines"], status["currentHealthy"], status["targets"]) == (1, 1, ["ewe"])

    await watch.node_is("Unknown")
    began = asyncio.get_running_loop().time()
    machine = await watch.until(lambda machine: healthy(machine) == "False", within=600)
    assert 300 <= asyncio.get_running_loop().time() - began <= 330
    assert conditions(machine)["OwnerRemediated"] == "False"

    await watch.node_is("True")
    await watch.until(lambda machine: healthy(machine) == "True", within=120)


async def is_cut_off(watch: Watch) -> None:
    """A cluster that does not answer is no reason to replace its Machines."""
    await watch.begin()
    await watch.until(lambda machine: healthy(machine) == "True", within=120)
    watch.world.workloads.cut(WORKLOAD)
    await asyncio.sleep(3600)
    assert healthy(await watch.machine()) == "True"


def simulate(story: Callable[[Watch], Awaitable[None]], *, seed: int = 1, faults: Faults = NONE) -> None:
    async def live() -> None:
        crds = [*CRDS, provider(CONFIG), provider(INFRA)]
        async with World(seed, [MACHINES, CONTROLLER], crds=crds, faults=faults, watched=[MACHINE]) as world:
            await story(Watch(world))

    loop.run(live())


def test_a_node_that_falls_silent_has_its_machine_replaced_in_time_and_is_forgiven() -> None:
    simulate(falls_silent_and_recovers)


@pytest.mark.parametrize("seed", range(3))
def test_faults_and_crashes_on_the_way_change_nothing(seed: int) -> None:
    simulate(falls_silent_and_recovers, seed=seed, faults=ROUGH)


def test_a_silent_cluster_is_not_its_machines_fault() -> None:
    simulate(is_cut_off)
