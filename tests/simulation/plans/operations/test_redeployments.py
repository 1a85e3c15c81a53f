"""Redeployment of node agents on simulated machines of every distribution, with crashes in each phase."""

from __future__ import annotations

import asyncio

import pytest

from herder.api.capi.conditions import find
from herder.api.rke import operations
from herder.sim.nodes import SimulatedNode
from tests.simulation.plans.operations.operated_cluster import OperatedCluster, run
from tests.simulation.plans.operations.test_rotations import CRASHES, VERSIONS, plans, run_with_crashes

CONDITION = "NodeAgentsUpToDate"


def versions(cluster: OperatedCluster) -> set[str]:
    """Versions of the agents that run on the machines."""
    return {node.running_agent.version for node in cluster.simulation.nodes}


def starts(cluster: OperatedCluster) -> dict[str, int]:
    return {node.name: node.starts for node in cluster.simulation.nodes}


async def serve(cluster: OperatedCluster, version: str) -> None:
    """Upgrade the manager: another process serves this agent."""
    cluster.simulation.sim.serve_agent(version)
    cluster.simulation.sim.world.crash()
    await asyncio.sleep(60)
    await cluster.simulation.until_settled()


async def condition(cluster: OperatedCluster) -> tuple[str, str]:
    found = find(await cluster.control_plane(), CONDITION) or {}
    return str(found.get("status")), str(found.get("message"))


@pytest.mark.parametrize("version", VERSIONS)
def test_all_agents_are_redeployed_and_kubernetes_keeps_running(version: str) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        before, started = {plan.name: plan.plan_bytes for plan in plans(cluster)}, starts(cluster)
        assert await condition(cluster) == ("True", "")
        await serve(cluster, "1.1.0")
        assert versions(cluster) == {"1.0.0"}, "an upgrade of the manager changes no machine"
        status, message = await condition(cluster)
        assert status == "False"
        assert "herder redeploy agents" in message
        ended = await cluster.run(operations.AGENTS)
        assert ended.phase == "Finished", ended.message
        assert versions(cluster) == {"1.1.0"}
        assert await condition(cluster) == ("True", "")
        assert starts(cluster) == started
        assert {plan.name: plan.plan_bytes for plan in plans(cluster)} == before

    run(version, scenario, servers=VERSIONS[version])


@pytest.mark.parametrize("actor", CRASHES)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_redeployment_survives_a_crash_in_each_phase(version: str, actor: str) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        await serve(cluster, "1.1.0")
        ended, phases = await run_with_crashes(cluster, operations.AGENTS, CRASHES[actor])
        assert phases >= {"Servers", "Workers"}
        assert ended.phase == "Finished", ended.message
        assert versions(cluster) == {"1.1.0"}
        assert not any(operations.task_instructions(plan.plan) for plan in plans(cluster))

    run(version, scenario, servers=VERSIONS[version])


def test_a_newer_agent_is_left_as_it_is() -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        await serve(cluster, "0.9.0")
        status, message = await condition(cluster)
        assert status == "True"
        assert "newer than that of the manager, 0.9.0, and keep it" in message
        ended = await cluster.run(operations.AGENTS)
        assert ended.phase == "Finished", ended.message
        assert "keep their agents, which are newer" in ended.inverse["message"]
        assert versions(cluster) == {"1.0.0"}

    run("v1.34.1+k3s1", scenario)


def test_an_agent_that_does_not_come_up_is_replaced_by_the_previous_one() -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        sim = cluster.simulation.sim
        await serve(cluster, "1.1.0")
        sim.context.broken_agents.add(sim.context.served_agent.checksum)
        ended = await cluster.run(operations.AGENTS)
        assert ended.phase == "Failed"
        assert "has not reported itself as version 1.1.0" in ended.message
        assert versions(cluster) == {"1.0.0"}
        assert (await condition(cluster))[0] == "False"
        sim.context.broken_agents.clear()
        ended = await cluster.run(operations.AGENTS, generation=2)
        assert ended.phase == "Finished", ended.message
        assert versions(cluster) == {"1.1.0"}

    run("v1.34.1+k3s1", scenario)


def test_another_build_than_the_pinned_one_is_not_installed() -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        sim = cluster.simulation.sim
        await serve(cluster, "1.1.0")
        sim.context.served_agent = sim.context.served_agent._replace(checksum="f" * 64)
        ended = await cluster.run(operations.AGENTS)
        assert ended.phase == "Failed"
        assert "has the checksum ffff" in ended.message
        assert versions(cluster) == {"1.0.0"}

    run("v1.34.1+k3s1", scenario)


def test_a_silent_machine_is_waited_for() -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        worker: SimulatedNode = next(node for node in cluster.simulation.nodes if node.is_worker)
        await serve(cluster, "1.1.0")
        worker.line.cut()
        asyncio.get_running_loop().call_later(400, worker.line.heal)
        ended = await cluster.run(operations.AGENTS)
        assert ended.phase == "Finished", ended.message
        assert not ended.skipped
        assert versions(cluster) == {"1.1.0"}

    run("v1.34.1+k3s1", scenario)


def test_a_worker_that_stays_silent_is_skipped_and_named() -> None:
    """The others go on, although only one at a time replaces its agent."""

    async def scenario(cluster: OperatedCluster) -> None:
        worker = cluster.first_worker
        await serve(cluster, "1.1.0")
        worker.line.cut()
        ended = await cluster.run(operations.AGENTS, settles=False)
        name = cluster.simulation.machine_of(worker)
        assert ended.phase == "Finished", ended.message
        assert ended.skipped == (name,)
        assert f"skipped worker(s) {name}" in ended.skipped_message
        assert ended.timings["Workers"] < 1200, "not the four hours of the phase"
        old = [node.name for node in cluster.simulation.nodes if node.running_agent.version != "1.1.0"]
        assert old == [worker.name]
        assert (await condition(cluster))[0] == "False"
        worker.line.heal()
        await cluster.simulation.until_settled()
        ended = await cluster.run(operations.AGENTS, generation=2)
        assert (ended.phase, ended.skipped) == ("Finished", ())
        assert versions(cluster) == {"1.1.0"}

    run("v1.34.1+k3s1", scenario, workers=3)
