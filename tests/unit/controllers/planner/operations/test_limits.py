"""Machines that do not respond: what fails an operation before it starts, and when a phase ends without them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from herder.api.capi.kinds import MACHINE
from herder.api.rke import names, operations
from herder.sim import loop
from tests.support.builders import new_condition
from tests.unit.controllers.planner.operations.test_operations import REQUESTS, Agents, create, run
from tests.unit.controllers.planner.simulated_cluster import NAMESPACE, SimulatedCluster

SERVERS = ("server-0", "server-1", "server-2")
LOST = {"conditions": [new_condition("NodeReady", "Unknown", "NodeReadyUnknown")]}


@pytest.mark.parametrize(
    ("kind", "lost", "message"),
    [
        (operations.SNAPSHOT, SERVERS, "no etcd machine is reachable; it needs one to save a snapshot"),
        (operations.CERTIFICATES, SERVERS[2:], "etcd machine(s) server-2 are not reachable; repair or delete them"),
        (operations.ENCRYPTION_KEYS, SERVERS[2:], "server(s) server-2 are not reachable; repair or delete them"),
    ],
)
def test_servers_that_are_lost_fail_an_operation_before_it_starts(kind: str, lost: Sequence[str], message: str) -> None:
    async def scenario() -> None:
        agents = Agents()
        async with SimulatedCluster(answer=agents) as cluster:
            plans = await create(cluster)
            for machine in lost:
                await cluster.client.patch(
                    MACHINE.resource, machine, {"status": LOST}, namespace=NAMESPACE, subresource="status"
                )
            await asyncio.sleep(5)  # until the planner has seen it
            status = await run(cluster, kind, REQUESTS[kind], ready=False)
            assert status["operation"]["phase"] == "Failed"
            assert status["operation"]["message"].startswith(message), status["operation"]["message"]
            assert agents.ran == []
            assert {machine: (await cluster.plan(machine)).plan_bytes for machine in plans} == plans

    loop.run(scenario())


@pytest.mark.parametrize(
    ("kind", "phase", "minutes"),
    [
        (operations.SNAPSHOT, "Started", 15),
        (operations.CERTIFICATES, "Rotate", 60),
        (operations.ENCRYPTION_KEYS, "PostPrepareRestart", 60),
    ],
)
def test_a_server_that_does_not_answer_fails_the_phase_at_its_deadline(kind: str, phase: str, minutes: int) -> None:
    async def scenario() -> None:
        async with SimulatedCluster(answer=Agents()) as cluster:
            await create(cluster)
            cluster.silent = lambda plan: (
                plan.labels[names.MACHINE_NAME] == "server-1" and bool(plan.annotations.get(names.PLAN_TASK))
            )
            began = cluster.world.now()
            operation: dict[str, Any] = (await run(cluster, kind, REQUESTS[kind], ready=False))["operation"]
            assert operation["phase"] == "Failed"
            assert operation["message"].startswith(f"phase {phase}: "), operation["message"]
            assert "server-1" in operation["message"]
            assert minutes <= (cluster.world.now() - began).total_seconds() / 60 < minutes + 15

    loop.run(scenario())
