"""The lives that herds go through: rollouts, users who change their minds, and storms."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from herder.api.capi.kinds import MACHINE
from herder.api.inmemory.kinds import IN_MEMORY_MACHINE
from herder.api.inmemory.names import FAIL, NEVER_READY, NODE_READY
from herder.engine.meta.kinds import Object
from herder.sim.faults import Faults
from herder.sim.world import World
from tests.simulation.capi.herd import Herd

FIRST = "herd"
SURGES = (0, 1, 2, 3, "20%", "34%", "100%")
UNAVAILABLE = (0, 1, 2, "20%", "50%", "100%")
SHARE_THAT_FAILS = 0.25
MANY = 20
"""Times that a user comes by: at the last all that is old has been deleted."""


async def rolling_update(seed: int, faults: Faults) -> World:
    """A new template is rolled out, while some of the new machines do not come up for a while."""

    async def story(herd: Herd) -> None:
        random = herd.random
        workers, troubled = random.randint(3, 6), random.random() < 0.5
        await herd.bring_up(workers, rollout=rolling(herd))
        if troubled:
            herd.meanwhile(trouble(herd))
        await herd.change_template("second")
        await herd.until_settled()
        await herd.check_quiet()
        made = herd.account.created[MACHINE]
        assert made == 2 * workers + 1, f"{made} Machines were made, though each of {workers} was replaced once"

    return await live(seed, faults, story)


async def on_delete(seed: int, faults: Faults) -> World:
    """A new template takes effect where the user deletes Machines, and nowhere else."""

    async def story(herd: Herd) -> None:
        random = herd.random
        await herd.bring_up(random.randint(3, 6), rollout={"strategy": {"type": "OnDelete"}})
        await herd.change_template("second")
        for _ in range(MANY):
            outdated = [name_of(machine) for machine in herd.account.outdated()]
            for name in random.sample(outdated, min(random.randint(1, 2), len(outdated))):
                await herd.delete_machine(name)
            if outdated and random.random() < 0.3:
                await herd.edit(replicas=random.randint(2, 6))
            await herd.pass_time(0, 30)
        await herd.until_settled()
        await herd.check_quiet()

    return await live(seed, faults, story)


async def changes_of_mind(seed: int, faults: Faults) -> World:
    """In the middle of a rollout the user scales, pauses, deletes, changes the strategy and the template."""

    async def story(herd: Herd) -> None:
        random = herd.random
        await herd.bring_up(random.randint(3, 6), rollout=rolling(herd))
        await herd.change_template("second")
        for number in range(random.randint(3, 5)):
            await herd.pass_time(0, 25)
            await change_mind(herd, f"template-{number}")
        if random.random() < 0.3:
            return  # and wants nothing of it any more
        await herd.until_settled()
        await herd.check_quiet()

    return await live(seed, faults, story)


async def change_mind(herd: Herd, template: str) -> None:
    random = herd.random
    match random.choice(("scale", "scale", "pause", "pause", "hold", "strategy", "template", "back", "delete")):
        case "scale":
            await herd.edit(replicas=random.randint(0, 6))
        case "pause":
            await herd.pause(True)
            await herd.pass_time(0, 20)
            if random.random() < 0.5:
                await herd.edit(replicas=random.randint(1, 6))
            await herd.pass_time(0, 20)
            await herd.pause(False)
        case "hold":
            await herd.edit(paused=True)
            await herd.pass_time(0, 10)
            await herd.edit(replicas=random.randint(1, 6))
            await herd.pass_time(0, 10)
            await herd.edit(paused=False)
        case "strategy":
            await herd.edit(rollout=rolling(herd))
        case "template":
            await herd.change_template(template)
        case "back":
            await herd.edit(template={"spec": {"infrastructureRef": {"name": FIRST}}})
        case "delete":
            for machine in random.sample(herd.account.members(), min(1, len(herd.account.members()))):
                await herd.delete_machine(name_of(machine))


async def storm(seed: int, faults: Faults) -> World:
    """Nodes break, some at a time and many at once, and at times the cluster does not answer."""

    async def story(herd: Herd) -> None:
        random = herd.random
        most = random.choice((2, 3, "40%", "60%"))
        workers, in_flight = random.randint(4, 6), random.choice((1, 2, "25%"))
        strategy = rolling(herd) if random.random() < 0.7 else {"strategy": {"type": "OnDelete"}}
        await herd.bring_up(workers, rollout=strategy, remediation={"maxInFlight": in_flight})
        await herd.check_health(timeout=random.choice((40, 60, 90)), most=most)
        if random.random() < 0.5:
            await herd.change_template("second")
            for machine in random.sample(herd.account.members(), 2):  # so that both revisions have some
                await herd.delete_machine(name_of(machine))
            await herd.pass_time(0, 60)
        for _ in range(random.randint(1, 3)):
            await herd.pass_time(0, 60)
            await strike(herd)
        await calm(herd)

    return await live(seed, faults, story)


async def strike(herd: Herd) -> None:
    random = herd.random
    names = sorted(name_of(machine) for machine in herd.account.members())
    for name in random.sample(names, min(random.choice((1, 1, 2, len(names))), len(names))):
        await herd.break_node(name, random.choice(("False", "Unknown")))
        await herd.pass_time(0, 3)
    if random.random() < 0.3:
        await herd.cut_off(random.choice(("refuse", "hang")), random.uniform(10, 400))
    await herd.pass_time(0, 200)


async def calm(herd: Herd) -> None:
    """What was not replaced because too much was broken comes back by itself; then all is well again."""
    for name in sorted(herd.account.broken):
        await herd.heal_node(name)
    for machine in herd.account.outdated():
        await herd.delete_machine(name_of(machine))  # where only users replace Machines
    await herd.until_settled()
    await herd.check_quiet()


SCENARIOS: dict[str, Callable[[int, Faults], Coroutine[Any, Any, World]]] = {
    "rolling update": rolling_update,
    "on delete": on_delete,
    "changes of mind": changes_of_mind,
    "storm": storm,
}


async def live(seed: int, faults: Faults, story: Callable[[Herd], Awaitable[None]]) -> World:
    herd = Herd(seed, faults)
    async with herd.world:
        await story(herd)
        await herd.delete_cluster()
    return herd.world


def rolling(herd: Herd) -> Object:
    """A strategy that the rules admit: not both none."""
    while True:
        surge, unavailable = herd.random.choice(SURGES), herd.random.choice(UNAVAILABLE)
        if surge != 0 or unavailable != 0:
            limits: dict[str, Any] = {"maxSurge": surge, "maxUnavailable": unavailable}
            return {"strategy": {"type": "RollingUpdate", "rollingUpdate": limits}}


async def trouble(herd: Herd) -> None:
    """Some machines that arrive fail, or never come up, until somebody sees to them."""
    herd.account.arrived.clear()
    while True:
        await herd.until(lambda: bool(herd.account.arrived))
        arrived = herd.account.arrived.pop()
        if herd.random.random() < SHARE_THAT_FAILS:
            herd.meanwhile(fail_for_a_while(herd, name_of(arrived)))


async def fail_for_a_while(herd: Herd, machine: str) -> None:
    annotation, value = herd.random.choice(((FAIL, "OutOfStock"), (NEVER_READY, "true"), (NODE_READY, "False")))
    await herd.annotate(IN_MEMORY_MACHINE, machine, annotation, value)
    await herd.pass_time(5, 120)
    await herd.annotate(IN_MEMORY_MACHINE, machine, annotation, None)


def name_of(obj: Object) -> str:
    return str(obj["metadata"]["name"])
