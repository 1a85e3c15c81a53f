"""The lives of provisioned clusters: people change their minds, machines break, managers and agents die."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from herder.sim.faults import NONE, ROUGH, Faults
from herder.sim.nodes import NO_TROUBLES, TROUBLES
from herder.sim.world import World
from tests.simulation.plans.ranch import Ranch, Wish

VERSIONS = {
    "k3s": ("v1.32.3+k3s1", "v1.32.8+k3s1", "v1.33.4+k3s1", "v1.34.1+k3s1"),
    "rke2": ("v1.32.3+rke2r1", "v1.32.8+rke2r1", "v1.33.4+rke2r1", "v1.34.1+rke2r1"),
}
HARSH = replace(ROUGH, crash=0.004)
CONCURRENCY = ("1", "2", "50%", "0")


def first_wish(ranch: Ranch) -> Wish:
    random = ranch.random
    servers = random.choice((1, 1, 3))
    split = random.random() < 0.2
    pools = (
        {"etcd": (servers, ("etcd",)), "planes": (random.randint(1, 2), ("controlPlane",))}
        if split
        else {"servers": (servers, ("etcd", "controlPlane"))}
    )
    versions = VERSIONS[random.choice(("k3s", "rke2"))]
    return Wish(versions[0], {**pools, "workers": (random.randint(1, 3), ("worker",))}, strategy=strategy(ranch))


def strategy(ranch: Ranch) -> dict[str, Any]:
    random = ranch.random
    drain = {"enabled": random.random() < 0.3, "timeout": 60, "gracePeriod": -1}
    return {
        "workerConcurrency": random.choice(CONCURRENCY),
        "controlPlaneConcurrency": random.choice(CONCURRENCY),
        "workerDrainOptions": drain,
        "controlPlaneDrainOptions": drain,
    }


# --- what people do -------------------------------------------------------------------------------------------------


async def upgrade(ranch: Ranch) -> None:
    versions = VERSIONS["k3s" if "k3s" in ranch.wish.version else "rke2"]
    await ranch.upgrade(versions[min(versions.index(ranch.wish.version) + 1, len(versions) - 1)])


async def configure(ranch: Ranch) -> None:
    await ranch.configure(f"max-pods={ranch.random.randint(50, 60)}")


async def scale_workers(ranch: Ranch) -> None:
    await ranch.scale("workers", ranch.random.randint(1, 4))


async def scale_servers(ranch: Ranch) -> None:
    name = "etcd" if "etcd" in ranch.wish.pools else "servers"
    await ranch.scale(name, ranch.random.choice((1, 2, 3)))


async def change_strategy(ranch: Ranch) -> None:
    await ranch.change_strategy(strategy(ranch))


async def restart_all(ranch: Ranch) -> None:
    await ranch.restart_all()


async def pause(ranch: Ranch) -> None:
    await ranch.pause(True)
    await ranch.pass_time(0, 20)
    await ranch.random.choice((configure, upgrade, scale_workers))(ranch)
    await ranch.pass_time(5, 60)
    await ranch.pause(False)


async def pause_machine(ranch: Ranch) -> None:
    machine = ranch.machine_of(ranch.random.choice(ranch.nodes)) if ranch.nodes else ""
    if machine:
        await ranch.pause_machine(machine, True)
        await ranch.random.choice((configure, upgrade))(ranch)
        await ranch.pass_time(5, 90)
        await ranch.pause_machine(machine, False)


async def delete_machine(ranch: Ranch) -> None:
    chosen = [node for node in ranch.nodes if ranch.can_be_lost(node)]
    if chosen:
        await ranch.delete_machine(ranch.machine_of(ranch.random.choice(chosen)))


# --- what befalls machines ------------------------------------------------------------------------------------------


async def reboot(ranch: Ranch) -> None:
    for node in ranch.random.sample(ranch.nodes, min(1, len(ranch.nodes))):
        ranch.did(f"{node.name} reboots")
        node.power_off()
        await ranch.pass_time(5, 90)
        node.boot()


async def lose(ranch: Ranch) -> None:
    """For good; somebody notices and deletes its Machine."""
    chosen = [node for node in ranch.nodes if ranch.can_be_lost(node)]
    if chosen:
        node = ranch.random.choice(chosen)
        ranch.did(f"{node.name} is lost")
        machine = ranch.machine_of(node)
        node.die()
        await ranch.pass_time(10, 120)
        await ranch.delete_machine(machine)


async def kill_agents(ranch: Ranch) -> None:
    for node in ranch.random.sample(ranch.nodes, len(ranch.nodes) // 2):
        ranch.did(f"the agent of {node.name} is killed")
        node.kill_agent()


async def partition(ranch: Ranch) -> None:
    cut = ranch.random.sample(ranch.nodes, ranch.random.randint(0, len(ranch.nodes)))
    ranch.did(f"cut off: {[node.name for node in cut]}")
    for node in cut:
        node.line.cut()
    await ranch.pass_time(5, 200)
    for node in cut:
        node.line.heal()


async def cut_tunnel(ranch: Ranch) -> None:
    ranch.did("the tunnel is cut")
    ranch.sim.downstream.cut_tunnel()
    await ranch.pass_time(5, 400)
    ranch.sim.downstream.heal_tunnel()


async def crash_manager(ranch: Ranch) -> None:
    ranch.did("the manager crashes")
    ranch.sim.world.crash()


Deed = Callable[[Ranch], Awaitable[None]]
EDITS: tuple[Deed, ...] = (
    *(upgrade, configure, configure, scale_workers, scale_servers),
    *(change_strategy, restart_all, pause, pause_machine, delete_machine),
)
BLOWS: tuple[Deed, ...] = (reboot, lose, kill_agents, partition, cut_tunnel, crash_manager)


async def changes_of_mind(ranch: Ranch) -> None:
    """Edits and blows in any order, most of them before the last has come to its end."""
    random = ranch.random
    await ranch.ask_for(first_wish(ranch))
    if random.random() < 0.7:
        await ranch.until_settled()
    for _ in range(random.randint(3, 6)):
        ranch.choose_way()
        await random.choice(EDITS if random.random() < 0.6 else BLOWS)(ranch)
        await ranch.pass_time(0, random.choice((5, 60, 300)))
    await ranch.calm()


async def ordeal(ranch: Ranch) -> None:
    """All that there is, one after the other: what takes part in any of it is used."""
    random = ranch.random
    wish = first_wish(ranch)
    quantities = {"etcd": 3, "servers": 3, "planes": 2, "workers": 3}
    wish.pools = {name: (quantities[name], roles) for name, (_, roles) in wish.pools.items()}
    await ranch.ask_for(wish)
    await ranch.until_settled()
    deeds = [*dict.fromkeys(EDITS), go_back, lose, reboot, partition]
    for deed in random.sample(deeds, len(deeds)):
        if deed in BLOWS:
            await restart_all(ranch)
            await ranch.pass_time(0, 60)
        await deed(ranch)
        await ranch.until_settled()
    await ranch.calm()


async def go_back(ranch: Ranch) -> None:
    """To an older version, for a while: nobody is to follow."""
    version = ranch.wish.version
    await ranch.upgrade(VERSIONS["k3s" if "k3s" in version else "rke2"][0])
    await ranch.pass_time(30, 90)
    await ranch.upgrade(version)


Story = Callable[[Ranch], Awaitable[None]]


async def live(ranch: Ranch, story: Story) -> Ranch:
    async with ranch:
        await story(ranch)
    return ranch


async def live_through(seed: int, faults: Faults = HARSH, *, strict: bool = True) -> World:
    ranch = Ranch(seed, faults, NO_TROUBLES if faults is NONE else TROUBLES, strict=strict)
    return (await live(ranch, changes_of_mind)).sim.world
