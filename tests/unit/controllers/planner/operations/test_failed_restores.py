"""Restores that fail after the data was restored: what starts, and what a later restore may do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from herder.api.rke import names, operations
from herder.api.rke.node.plan_secret import PlanSecret
from herder.engine.meta.kinds import Object
from herder.sim import loop
from tests.unit.controllers.planner.operations.test_operations import create, run
from tests.unit.controllers.planner.operations.test_restore import (
    SERVERS,
    TASKS,
    Witness,
    create_snapshot,
    instructions_of,
)
from tests.unit.controllers.planner.simulated_cluster import SimulatedCluster

LEADER, BROKEN = "server-1", "server-0"


class FailingServers(Witness):
    """Records when tasks begin. `fails` chooses tasks by machine and instructions."""

    def __init__(self, fails: Callable[[str, list[str]], bool]) -> None:
        super().__init__()
        self.fails = fails
        self.times: list[tuple[str, float]] = []

    def __call__(self, plan: PlanSecret) -> bool:
        machine = plan.labels[names.MACHINE_NAME]
        self.times.append((machine, asyncio.get_running_loop().time()))
        return super().__call__(plan) and not self.fails(machine, instructions_of(plan))


def _cannot_drop(machine: str, instructions: list[str]) -> bool:
    return machine == BROKEN and operations.DROP_DATA in instructions


async def fail_to_join(cluster: SimulatedCluster, witness: Witness) -> Object:
    await create(cluster)
    await create_snapshot(cluster, machine=LEADER)
    witness.tasks.clear()
    return await run(cluster, operations.RESTORE, {"generation": 1, "name": "before"}, ready=False)


def test_a_server_that_cannot_join_keeps_no_other_one_down() -> None:
    async def scenario() -> None:
        witness = FailingServers(_cannot_drop)
        async with SimulatedCluster(answer=witness) as cluster:
            status = await fail_to_join(cluster, witness)
            assert status["operation"]["phase"] == "Failed"
            assert f"machine {BROKEN}:" in status["operation"]["message"]
            assert status["unjoinedServers"] == [BROKEN]
            assert status["operationHistory"][-1]["leader"] == LEADER
            _, _, drops = map(witness.positions, TASKS)
            assert list(drops.values()) == [BROKEN, "server-2", BROKEN, BROKEN]

    loop.run(scenario())


def test_attempts_have_increasing_delays_and_say_why() -> None:
    async def scenario() -> None:
        witness = FailingServers(_cannot_drop)
        async with SimulatedCluster(answer=witness) as cluster:
            await create(cluster)
            await create_snapshot(cluster, machine=LEADER)
            await cluster.edit(etcdSnapshotRestore={"generation": 1, "name": "before"})
            delays = []
            for attempt in (2, 3):

                async def is_reached(attempt: int = attempt) -> bool:
                    found = operations.Run.of(await cluster.control_plane())
                    return found is not None and found.attempt == attempt

                await cluster.world.until(is_reached)
                found = operations.Run.of(await cluster.control_plane())
                assert found is not None
                assert found.retry_at is not None
                assert found.deadline is not None
                assert f"machine {BROKEN}:" in found.retry_reason
                delays.append((found.retry_at - cluster.world.now()).total_seconds())
                assert f"attempt {attempt} at" in await cluster.message()
                assert (found.deadline - found.retry_at).total_seconds() == 30 * 60
            assert 13 < delays[0] <= 15
            assert 28 < delays[1] <= 30

    loop.run(scenario())


def test_a_server_with_the_data_of_before_an_earlier_restore_never_starts_with_it() -> None:
    """If the next restore fails too, the others start again, and this one drops its data and joins them. Two such
    servers would have the quorum of the old cluster."""

    async def scenario() -> None:
        witness = FailingServers(_cannot_drop)
        async with SimulatedCluster(answer=witness) as cluster:
            await fail_to_join(cluster, witness)
            witness.fails = lambda _machine, instructions: operations.RESTORE_SNAPSHOT in instructions
            witness.tasks.clear()
            status = await run(cluster, operations.RESTORE, {"generation": 2, "name": "before"})
            assert "phase Restore:" in status["operation"]["message"]
            started = set(witness.positions(operations.START_SERVICES).values())
            assert started == set(SERVERS) - {BROKEN}
            assert set(witness.positions(operations.DROP_DATA).values()) == {BROKEN}

    loop.run(scenario())
