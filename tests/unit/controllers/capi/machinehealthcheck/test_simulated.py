"""Simulated health checks, together with the Machine controller, on Nodes that become unknown or unreachable."""

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
from tests.support.builders import new_condition
from tests.unit.controllers.capi.machine.harness import WORKLOAD
from tests.unit.controllers.capi.machine.objects import CONFIG, INFRA
from tests.unit.controllers.capi.machine.test_simulated import (
    Actors,
    conditions,
    provider_definition,
    provision_machine,
)

CHECKS = {
    "unhealthyNodeConditions": [{"type": "Ready", "status": "Unknown", "timeoutSeconds": 300}],
    "nodeStartupTimeoutSeconds": 600,
}


class HealthCheckActors(Actors):
    async def create_health_check(self) -> None:
        await provision_machine(self)
        cluster = await self.world.client.get(CLUSTER.resource, "north", namespace="farm")
        ready = new_condition("InfrastructureReady", reason="Ready", since="2026-01-01T00:00:00Z")
        await self.report_status(CLUSTER, "north", {"conditions": [*cluster["status"]["conditions"], ready]})
        labels = {"metadata": {"labels": {"pool": "sheep"}}}
        await self.world.client.patch(MACHINE.resource, "ewe", labels, namespace="farm")
        spec = {"clusterName": "north", "selector": {"matchLabels": {"pool": "sheep"}}, "checks": CHECKS}
        await self.create(MACHINE_HEALTH_CHECK, "sheep", spec=spec)

    async def set_node_ready(self, ready: str) -> None:
        client = self.world.workloads.client(WORKLOAD)
        node = await client.get(NODE.resource, "ewe-node")
        now = self.world.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        node_conditions = [
            {**known, "status": ready, "lastTransitionTime": now} if known["type"] == "Ready" else known
            for known in node["status"]["conditions"]
        ]
        await client.patch(NODE.resource, "ewe-node", {"status": {"conditions": node_conditions}}, subresource="status")

    async def health_check(self) -> Object:
        return await self.world.client.get(MACHINE_HEALTH_CHECK.resource, "sheep", namespace="farm")


def health_check_status(machine: Object) -> str:
    return conditions(machine).get("HealthCheckSucceeded", "")


async def lose_and_restore_node(actors: HealthCheckActors) -> None:
    await actors.create_health_check()
    await actors.until(lambda machine: health_check_status(machine) == "True", within=120)
    await asyncio.sleep(10)
    status = (await actors.health_check())["status"]
    assert (status["expectedMachines"], status["currentHealthy"], status["targets"]) == (1, 1, ["ewe"])

    await actors.set_node_ready("Unknown")
    began = asyncio.get_running_loop().time()
    machine = await actors.until(lambda machine: health_check_status(machine) == "False", within=600)
    assert 300 <= asyncio.get_running_loop().time() - began <= 330
    assert conditions(machine)["OwnerRemediated"] == "False"

    await actors.set_node_ready("True")
    await actors.until(lambda machine: health_check_status(machine) == "True", within=120)


async def lose_connection(actors: HealthCheckActors) -> None:
    """Machines of an unreachable cluster are not remediated."""
    await actors.create_health_check()
    await actors.until(lambda machine: health_check_status(machine) == "True", within=120)
    actors.world.workloads.cut(WORKLOAD)
    await asyncio.sleep(3600)
    assert health_check_status(await actors.machine()) == "True"


def simulate(scenario: Callable[[HealthCheckActors], Awaitable[None]], *, seed: int = 1, faults: Faults = NONE) -> None:
    async def run_world() -> None:
        crds = [*CRDS, provider_definition(CONFIG), provider_definition(INFRA)]
        async with World(seed, [MACHINES, CONTROLLER], crds=crds, faults=faults, watched=[MACHINE]) as world:
            await scenario(HealthCheckActors(world))

    loop.run(run_world())


def test_machine_is_unhealthy_after_its_node_is_unknown_and_recovers() -> None:
    simulate(lose_and_restore_node)


@pytest.mark.parametrize("seed", range(3))
def test_health_checks_tolerate_faults_and_crashes(seed: int) -> None:
    simulate(lose_and_restore_node, seed=seed, faults=ROUGH)


def test_machines_of_an_unreachable_cluster_stay_healthy() -> None:
    simulate(lose_connection)
