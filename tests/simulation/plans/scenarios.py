"""Scenarios of provisioned clusters: users edit them, machines break, managers and agents crash."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from herder.sim.faults import NONE, ROUGH, Faults
from herder.sim.nodes import AGENT_FAULTS, NO_AGENT_FAULTS
from herder.sim.world import World
from tests.simulation.plans.provisioning_simulation import DesiredState, ProvisioningSimulation

VERSIONS = {
    "k3s": ("v1.32.3+k3s1", "v1.32.8+k3s1", "v1.33.4+k3s1", "v1.34.1+k3s1"),
    "rke2": ("v1.32.3+rke2r1", "v1.32.8+rke2r1", "v1.33.4+rke2r1", "v1.34.1+rke2r1"),
    "kubeadm": ("v1.32.3+kubeadm1", "v1.32.8+kubeadm1", "v1.33.4+kubeadm1", "v1.34.1+kubeadm1"),
    "embedded": ("v1.32.3+herder1", "v1.32.8+herder1", "v1.33.4+herder1", "v1.34.1+herder1"),
}
HARSH = replace(ROUGH, crash=0.004)
CONCURRENCY = ("1", "2", "50%", "0")


def initial_state(simulation: ProvisioningSimulation) -> DesiredState:
    random = simulation.random
    if simulation.distribution:
        servers = 1 if simulation.distribution == "embedded" else 3
        pools = {"servers": (servers, ("etcd", "controlPlane")), "workers": (2, ("worker",))}
        return DesiredState(VERSIONS[simulation.distribution][0], pools, strategy=strategy(simulation))
    servers = random.choice((1, 1, 3))
    split = random.random() < 0.2
    pools = (
        {"etcd": (servers, ("etcd",)), "planes": (random.randint(1, 2), ("controlPlane",))}
        if split
        else {"servers": (servers, ("etcd", "controlPlane"))}
    )
    versions = VERSIONS[random.choice(("k3s", "rke2"))]
    return DesiredState(
        versions[0], {**pools, "workers": (random.randint(1, 3), ("worker",))}, strategy=strategy(simulation)
    )


def strategy(simulation: ProvisioningSimulation) -> dict[str, Any]:
    random = simulation.random
    drain = {"enabled": random.random() < 0.3, "timeout": 60, "gracePeriod": -1}
    return {
        "workerConcurrency": random.choice(CONCURRENCY),
        "controlPlaneConcurrency": random.choice(CONCURRENCY),
        "workerDrainOptions": drain,
        "controlPlaneDrainOptions": drain,
    }


# --- user actions -----------------------------------------------------------------------------------------------------


async def upgrade(simulation: ProvisioningSimulation) -> None:
    versions = versions_like(simulation.desired.version)
    await simulation.upgrade(versions[min(versions.index(simulation.desired.version) + 1, len(versions) - 1)])


def versions_like(version: str) -> tuple[str, ...]:
    """The versions of the same distribution."""
    return next(versions for versions in VERSIONS.values() if version in versions)


async def configure(simulation: ProvisioningSimulation) -> None:
    await simulation.configure(f"max-pods={simulation.random.randint(50, 60)}")


async def scale_workers(simulation: ProvisioningSimulation) -> None:
    await simulation.scale("workers", simulation.random.randint(1, 4))


async def scale_servers(simulation: ProvisioningSimulation) -> None:
    if simulation.distribution == "embedded":
        return  # it has one server
    name = "etcd" if "etcd" in simulation.desired.pools else "servers"
    await simulation.scale(name, simulation.random.choice((1, 2, 3)))


async def change_strategy(simulation: ProvisioningSimulation) -> None:
    await simulation.change_strategy(strategy(simulation))


async def restart_all(simulation: ProvisioningSimulation) -> None:
    await simulation.restart_all()


async def pause(simulation: ProvisioningSimulation) -> None:
    await simulation.pause(True)
    await simulation.pass_time(0, 20)
    await simulation.random.choice((configure, upgrade, scale_workers))(simulation)
    await simulation.pass_time(5, 60)
    await simulation.pause(False)


async def pause_machine(simulation: ProvisioningSimulation) -> None:
    machine = simulation.machine_of(simulation.random.choice(simulation.nodes)) if simulation.nodes else ""
    if machine:
        await simulation.pause_machine(machine, True)
        await simulation.random.choice((configure, upgrade))(simulation)
        await simulation.pass_time(5, 90)
        await simulation.pause_machine(machine, False)


async def delete_machine(simulation: ProvisioningSimulation) -> None:
    chosen = [node for node in simulation.nodes if simulation.can_be_destroyed(node)]
    if chosen:
        await simulation.delete_machine(simulation.machine_of(simulation.random.choice(chosen)))


# --- faults -----------------------------------------------------------------------------------------------------------


async def reboot(simulation: ProvisioningSimulation) -> None:
    for node in simulation.random.sample(simulation.nodes, min(1, len(simulation.nodes))):
        simulation.log_action(f"{node.name} reboots")
        node.power_off()
        await simulation.pass_time(5, 90)
        node.boot()


async def destroy_machine(simulation: ProvisioningSimulation) -> None:
    """Destroy a machine; then the user notices and deletes its Machine."""
    chosen = [node for node in simulation.nodes if simulation.can_be_destroyed(node)]
    if chosen:
        node = simulation.random.choice(chosen)
        simulation.log_action(f"{node.name} is lost")
        machine = simulation.machine_of(node)
        node.die()
        await simulation.pass_time(10, 120)
        await simulation.delete_machine(machine)


async def kill_agents(simulation: ProvisioningSimulation) -> None:
    for node in simulation.random.sample(simulation.nodes, len(simulation.nodes) // 2):
        simulation.log_action(f"the agent of {node.name} is killed")
        node.kill_agent()


async def partition(simulation: ProvisioningSimulation) -> None:
    cut = simulation.random.sample(simulation.nodes, simulation.random.randint(0, len(simulation.nodes)))
    simulation.log_action(f"cut off: {[node.name for node in cut]}")
    for node in cut:
        node.line.cut()
    await simulation.pass_time(5, 200)
    for node in cut:
        node.line.heal()


async def cut_tunnel(simulation: ProvisioningSimulation) -> None:
    simulation.log_action("the tunnel is cut")
    simulation.sim.downstream.cut_tunnel()
    await simulation.pass_time(5, 400)
    simulation.sim.downstream.heal_tunnel()


async def crash_manager(simulation: ProvisioningSimulation) -> None:
    simulation.log_action("the manager crashes")
    simulation.sim.world.crash()


Action = Callable[[ProvisioningSimulation], Awaitable[None]]
EDITS: tuple[Action, ...] = (
    *(upgrade, configure, configure, scale_workers, scale_servers),
    *(change_strategy, restart_all, pause, pause_machine, delete_machine),
)
FAULTS: tuple[Action, ...] = (reboot, destroy_machine, kill_agents, partition, cut_tunnel, crash_manager)


async def random_actions(simulation: ProvisioningSimulation) -> None:
    """Edits and faults in any order, mostly before the previous one has been processed."""
    random = simulation.random
    await simulation.create_cluster(initial_state(simulation))
    if random.random() < 0.7:
        await simulation.until_settled()
    for _ in range(random.randint(3, 6)):
        simulation.take_branch()
        await random.choice(EDITS if random.random() < 0.6 else FAULTS)(simulation)
        await simulation.pass_time(0, random.choice((5, 60, 300)))
    await simulation.stop_faults()


async def every_action(simulation: ProvisioningSimulation) -> None:
    """Every action, one after the other, so that all code paths are used."""
    random = simulation.random
    desired = initial_state(simulation)
    servers = desired.pools.get("servers", (3, ()))[0] if simulation.distribution else 3
    quantities = {"etcd": 3, "servers": servers, "planes": 2, "workers": 3}
    desired.pools = {name: (quantities[name], roles) for name, (_, roles) in desired.pools.items()}
    await simulation.create_cluster(desired)
    await simulation.until_settled()
    actions = [*dict.fromkeys(EDITS), downgrade_temporarily, destroy_machine, reboot, partition]
    for action in random.sample(actions, len(actions)):
        if action in FAULTS:
            await restart_all(simulation)
            await simulation.pass_time(0, 60)
        await action(simulation)
        await simulation.until_settled()
    await simulation.stop_faults()


async def downgrade_temporarily(simulation: ProvisioningSimulation) -> None:
    """Request an older version for a while: no machine may be downgraded."""
    version = simulation.desired.version
    await simulation.upgrade(versions_like(version)[0])
    await simulation.pass_time(30, 90)
    await simulation.upgrade(version)


Scenario = Callable[[ProvisioningSimulation], Awaitable[None]]


async def run_scenario(simulation: ProvisioningSimulation, scenario: Scenario) -> ProvisioningSimulation:
    async with simulation:
        await scenario(simulation)
    return simulation


async def simulate(seed: int, faults: Faults = HARSH, *, strict: bool = True, distribution: str = "") -> World:
    simulation = ProvisioningSimulation(
        seed,
        faults,
        NO_AGENT_FAULTS if faults is NONE else AGENT_FAULTS,
        strict=strict,
        distribution=distribution,
    )
    return (await run_scenario(simulation, random_actions)).sim.world
