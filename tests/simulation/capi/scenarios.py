"""Scenarios: rollouts, edits during rollouts, and failing nodes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from herder.api.capi.kinds import MACHINE
from herder.api.inmemory.kinds import IN_MEMORY_MACHINE
from herder.api.inmemory.names import FAIL, NEVER_READY, NODE_READY
from herder.engine.meta.kinds import Object
from herder.sim.faults import Faults
from herder.sim.world import World
from tests.simulation.capi.rollout_simulation import RolloutSimulation

FIRST = "herd"
SURGES = (0, 1, 2, 3, "20%", "34%", "100%")
UNAVAILABLE = (0, 1, 2, "20%", "50%", "100%")
FAILURE_RATE = 0.25
USER_VISITS = 20
"""How often the user deletes Machines: at the end, all outdated ones are deleted."""


async def rolling_update(seed: int, faults: Faults) -> World:
    """A new template is rolled out, while some of the new machines fail for a while."""

    async def steps(simulation: RolloutSimulation) -> None:
        random = simulation.random
        workers, inject = random.randint(3, 6), random.random() < 0.5
        await simulation.create_cluster(workers, rollout=rolling(simulation))
        if inject:
            simulation.run_in_background(inject_failures(simulation))
        await simulation.change_template("second")
        await simulation.until_settled()
        await simulation.check_settled()
        machine_count = simulation.invariants.created[MACHINE]
        assert machine_count == 2 * workers + 1, (
            f"{machine_count} Machines were created, but each of {workers} must be replaced once"
        )

    return await run(seed, faults, steps)


async def on_delete(seed: int, faults: Faults) -> World:
    """A new template takes effect only for Machines that the user deletes."""

    async def steps(simulation: RolloutSimulation) -> None:
        random = simulation.random
        await simulation.create_cluster(random.randint(3, 6), rollout={"strategy": {"type": "OnDelete"}})
        await simulation.change_template("second")
        for _ in range(USER_VISITS):
            outdated = [name_of(machine) for machine in simulation.invariants.outdated()]
            for name in random.sample(outdated, min(random.randint(1, 2), len(outdated))):
                await simulation.delete_machine(name)
            if outdated and random.random() < 0.3:
                await simulation.edit(replicas=random.randint(2, 6))
            await simulation.pass_time(0, 30)
        await simulation.until_settled()
        await simulation.check_settled()

    return await run(seed, faults, steps)


async def edits_during_rollout(seed: int, faults: Faults) -> World:
    """During a rollout the user scales, pauses, deletes Machines, and changes strategy and template."""

    async def steps(simulation: RolloutSimulation) -> None:
        random = simulation.random
        await simulation.create_cluster(random.randint(3, 6), rollout=rolling(simulation))
        await simulation.change_template("second")
        for number in range(random.randint(3, 5)):
            await simulation.pass_time(0, 25)
            await random_edit(simulation, f"template-{number}")
        if random.random() < 0.3:
            return  # the cluster is deleted during the rollout
        await simulation.until_settled()
        await simulation.check_settled()

    return await run(seed, faults, steps)


async def random_edit(simulation: RolloutSimulation, template: str) -> None:
    random = simulation.random
    match random.choice(("scale", "scale", "pause", "pause", "hold", "strategy", "template", "back", "delete")):
        case "scale":
            await simulation.edit(replicas=random.randint(0, 6))
        case "pause":
            await simulation.pause(True)
            await simulation.pass_time(0, 20)
            if random.random() < 0.5:
                await simulation.edit(replicas=random.randint(1, 6))
            await simulation.pass_time(0, 20)
            await simulation.pause(False)
        case "hold":
            await simulation.edit(paused=True)
            await simulation.pass_time(0, 10)
            await simulation.edit(replicas=random.randint(1, 6))
            await simulation.pass_time(0, 10)
            await simulation.edit(paused=False)
        case "strategy":
            await simulation.edit(rollout=rolling(simulation))
        case "template":
            await simulation.change_template(template)
        case "back":
            await simulation.edit(template={"spec": {"infrastructureRef": {"name": FIRST}}})
        case "delete":
            for machine in random.sample(simulation.invariants.members(), min(1, len(simulation.invariants.members()))):
                await simulation.delete_machine(name_of(machine))


async def storm(seed: int, faults: Faults) -> World:
    """Nodes break, a few or many at once, and sometimes the cluster does not respond."""

    async def steps(simulation: RolloutSimulation) -> None:
        random = simulation.random
        most = random.choice((2, 3, "40%", "60%"))
        workers, in_flight = random.randint(4, 6), random.choice((1, 2, "25%"))
        strategy = rolling(simulation) if random.random() < 0.7 else {"strategy": {"type": "OnDelete"}}
        await simulation.create_cluster(workers, rollout=strategy, remediation={"maxInFlight": in_flight})
        await simulation.check_health(timeout=random.choice((40, 60, 90)), most=most)
        if random.random() < 0.5:
            await simulation.change_template("second")
            for machine in random.sample(simulation.invariants.members(), 2):  # so that both revisions have Machines
                await simulation.delete_machine(name_of(machine))
            await simulation.pass_time(0, 60)
        for _ in range(random.randint(1, 3)):
            await simulation.pass_time(0, 60)
            await break_nodes(simulation)
        await heal_all(simulation)

    return await run(seed, faults, steps)


async def break_nodes(simulation: RolloutSimulation) -> None:
    random = simulation.random
    names = sorted(name_of(machine) for machine in simulation.invariants.members())
    for name in random.sample(names, min(random.choice((1, 1, 2, len(names))), len(names))):
        await simulation.break_node(name, random.choice(("False", "Unknown")))
        await simulation.pass_time(0, 3)
    if random.random() < 0.3:
        await simulation.disconnect(random.choice(("refuse", "hang")), random.uniform(10, 400))
    await simulation.pass_time(0, 200)


async def heal_all(simulation: RolloutSimulation) -> None:
    """Heal Nodes that were not replaced because too many were broken; then everything must settle."""
    for name in sorted(simulation.invariants.broken):
        await simulation.heal_node(name)
    for machine in simulation.invariants.outdated():
        await simulation.delete_machine(name_of(machine))  # with OnDelete, only users replace Machines
    await simulation.until_settled()
    await simulation.check_settled()


SCENARIOS: dict[str, Callable[[int, Faults], Coroutine[Any, Any, World]]] = {
    "rolling update": rolling_update,
    "on delete": on_delete,
    "changes of mind": edits_during_rollout,
    "storm": storm,
}


async def run(seed: int, faults: Faults, steps: Callable[[RolloutSimulation], Awaitable[None]]) -> World:
    simulation = RolloutSimulation(seed, faults)
    async with simulation.world:
        await steps(simulation)
        await simulation.delete_cluster()
    return simulation.world


def rolling(simulation: RolloutSimulation) -> Object:
    """A valid strategy: not both values are zero."""
    while True:
        surge, unavailable = simulation.random.choice(SURGES), simulation.random.choice(UNAVAILABLE)
        if surge != 0 or unavailable != 0:
            limits: dict[str, Any] = {"maxSurge": surge, "maxUnavailable": unavailable}
            return {"strategy": {"type": "RollingUpdate", "rollingUpdate": limits}}


async def inject_failures(simulation: RolloutSimulation) -> None:
    """Some new machines fail, or never become ready, for a while."""
    simulation.invariants.new_infrastructure.clear()
    while True:
        await simulation.until(lambda: bool(simulation.invariants.new_infrastructure))
        machine = simulation.invariants.new_infrastructure.pop()
        if simulation.random.random() < FAILURE_RATE:
            simulation.run_in_background(fail_for_a_while(simulation, name_of(machine)))


async def fail_for_a_while(simulation: RolloutSimulation, machine: str) -> None:
    annotation, value = simulation.random.choice(((FAIL, "OutOfStock"), (NEVER_READY, "true"), (NODE_READY, "False")))
    await simulation.annotate(IN_MEMORY_MACHINE, machine, annotation, value)
    await simulation.pass_time(5, 120)
    await simulation.annotate(IN_MEMORY_MACHINE, machine, annotation, None)


def name_of(obj: Object) -> str:
    return str(obj["metadata"]["name"])
