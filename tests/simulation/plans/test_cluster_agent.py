"""The pod of the cluster agent, when it does not start, and when the server that it runs on is deleted."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from datetime import datetime

from herder.api.capi.conditions import find
from herder.api.capi.core import DEPLOYMENT
from herder.api.capi.kinds import MACHINE, NAMESPACE, NODE, POD
from herder.api.capi.names import annotations_of, is_deleting
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.management.manifest import NAME as AGENT
from herder.api.management.names import SYSTEM_NAMESPACE
from herder.api.rke.kinds import CONTROL_PLANE, PLAN_SECRET, TOKENS_SECRET
from herder.api.rke.names import AGENT_HOOK, tokens_secret
from herder.api.rke.node.plan import AGENT_STATUS
from herder.api.rke.node.plan_secret import PlanSecret
from herder.controllers.planner.rollout.agent_wait import REPORTED_AFTER
from herder.controllers.provisioning.cluster_agent import MOVE_TIMEOUT
from herder.engine.client.client import Client
from herder.engine.meta.kinds import Object
from herder.sim import loop
from herder.sim.faults import NONE
from herder.sim.provisioned import NAME as CLUSTER_NAME
from tests.simulation.plans.provisioning_simulation import DesiredState, ProvisioningSimulation
from tests.support.builders import new_manifest

MINUTE = 60.0


class Servers:
    """A cluster of three servers, one of which runs the only agent pod."""

    def __init__(self) -> None:
        self.simulation = ProvisioningSimulation(5, NONE)

    async def create(self) -> None:
        pools = {"servers": (3, ("etcd", "controlPlane", "worker"))}
        await self.simulation.create_cluster(DesiredState("v1.34.1+k3s1", pools))
        await self.simulation.until_settled()
        self.first, self.second, _ = (node.name for node in self.simulation.nodes)
        await self.workload.create(NAMESPACE.resource, new_manifest(NAMESPACE, SYSTEM_NAMESPACE))
        await self.workload.create(DEPLOYMENT.resource, _deployment(), namespace=SYSTEM_NAMESPACE)
        await self.start_agent(self.first)
        await self.until(self.is_marked)

    @property
    def workload(self) -> Client:
        return self.simulation.sim.world.workloads.client(self.simulation.sim.downstream.key)

    async def until(self, reached: Callable[[], Awaitable[bool]], within: float = MINUTE) -> None:
        await self.simulation.sim.world.until(reached, within=within)

    async def start_agent(self, node: str, name: str = AGENT) -> None:
        """Run a pod of the agent that is connected, as the Deployment would."""
        container = {"name": "cluster-register", "image": "agent"}
        spec = {"nodeName": node, "containers": [container]}
        pod = new_manifest(POD, f"{name}-{node}", SYSTEM_NAMESPACE, labels={"app": AGENT}, spec=spec)
        await self.workload.create(POD.resource, pod, namespace=SYSTEM_NAMESPACE)
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        await self.workload.patch(
            POD.resource, pod["metadata"]["name"], ready, namespace=SYSTEM_NAMESPACE, subresource="status"
        )

    async def has_pod(self, node: str) -> bool:
        return await self.count_pods(node) > 0

    async def count_pods(self, node: str) -> int:
        pods = (await self.workload.list(POD.resource, namespace=SYSTEM_NAMESPACE)).items
        return sum(pod["spec"]["nodeName"] == node and not is_deleting(pod) for pod in pods)

    async def machine(self) -> Object | None:
        machines = await self.simulation.sim.all(MACHINE)
        return next((each for each in machines if each["status"]["nodeRef"]["name"] == self.first), None)

    async def delete_machine(self) -> None:
        machine = await self.machine()
        assert machine is not None
        await self.simulation.delete_machine(machine["metadata"]["name"])

    async def is_marked(self) -> bool:
        machine = await self.machine()
        return machine is not None and AGENT_HOOK in annotations_of(machine)

    async def is_released(self) -> bool:
        return not await self.is_marked()

    async def is_cordoned(self) -> bool:
        node = await self.workload.get(NODE.resource, self.first)
        return bool(node["spec"].get("unschedulable"))


def _deployment() -> Object:
    labels = {"app": AGENT}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "cluster-register", "image": "agent"}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": pod}
    return new_manifest(DEPLOYMENT, AGENT, SYSTEM_NAMESPACE, spec=spec)


def run(scenario: Callable[[Servers], Awaitable[None]]) -> None:
    async def run_scenario() -> None:
        servers = Servers()
        async with servers.simulation:
            await servers.create()
            await scenario(servers)

    loop.run(run_scenario())


def test_a_second_server_gets_a_second_agent() -> None:
    async def scenario(servers: Servers) -> None:
        async def is_scaled() -> bool:
            found = await servers.workload.get(DEPLOYMENT.resource, AGENT, namespace=SYSTEM_NAMESPACE)
            return bool(found["spec"]["replicas"] == 2)

        await servers.until(is_scaled)

    run(scenario)


def test_the_agent_moves_before_its_server_is_deleted() -> None:
    async def scenario(servers: Servers) -> None:
        await servers.delete_machine()
        await servers.until(servers.is_cordoned)
        await asyncio.sleep(MOVE_TIMEOUT.total_seconds() / 2)
        assert await servers.has_pod(servers.first), "it stays until another agent is connected"
        assert await servers.is_marked()
        await servers.start_agent(servers.second)
        await servers.until(servers.is_released, within=MOVE_TIMEOUT.total_seconds() / 4)
        assert not await servers.has_pod(servers.first)
        assert await servers.has_pod(servers.second)
        await servers.simulation.until_settled()

    run(scenario)


def test_one_of_two_agents_on_the_same_server_moves_first() -> None:
    async def scenario(servers: Servers) -> None:
        await servers.start_agent(servers.first, "second")
        await servers.delete_machine()

        async def is_one_left() -> bool:
            return await servers.count_pods(servers.first) == 1

        await servers.until(is_one_left)
        await asyncio.sleep(MOVE_TIMEOUT.total_seconds() / 4)
        assert await servers.count_pods(servers.first) == 1, "one stays connected"
        await servers.start_agent(servers.second)
        await servers.until(servers.is_released, within=MOVE_TIMEOUT.total_seconds() / 4)
        await servers.simulation.until_settled()

    run(scenario)


def test_the_deletion_does_not_wait_forever_for_another_agent() -> None:
    async def scenario(servers: Servers) -> None:
        await servers.delete_machine()
        machine = await servers.machine()
        assert machine is not None
        deleted_at = datetime.fromisoformat(machine["metadata"]["deletionTimestamp"])
        await servers.until(servers.is_released, within=MOVE_TIMEOUT.total_seconds() + MINUTE)
        assert servers.simulation.sim.world.now() >= deleted_at + MOVE_TIMEOUT
        await servers.simulation.until_settled()

    run(scenario)


def test_the_hook_follows_the_pod() -> None:
    async def scenario(servers: Servers) -> None:
        await servers.start_agent(servers.second)
        await servers.workload.delete(POD.resource, f"{AGENT}-{servers.first}", namespace=SYSTEM_NAMESPACE)
        await servers.until(servers.is_released)

    run(scenario)


# --- a pod that does not start ----------------------------------------------------------------------------------------

NOT_CONNECTED = "waiting for cluster agent to connect"
WITHOUT_IMAGE = "pod cattle-cluster-agent-1 2026 Pending  \ncontainer waiting ErrImagePull not+found \n"
PROBLEM = f"{NOT_CONNECTED}: cattle-cluster-agent-1: ErrImagePull: not found"


class AgentWithoutImage:
    """A cluster whose agent does not start. One server bootstraps it; the others join once the agent is connected."""

    def __init__(self) -> None:
        self.simulation = ProvisioningSimulation(5, NONE)

    async def create(self) -> None:
        self.simulation.sim.downstream.agent_status = WITHOUT_IMAGE
        self.simulation.sim.downstream.cut_tunnel()
        pools = {"servers": (3, ("etcd", "controlPlane")), "workers": (1, ("worker",))}
        await self.simulation.create_cluster(DesiredState("v1.34.1+k3s1", pools))

    async def messages(self) -> set[str]:
        """The messages of the control plane and of the Machines."""
        planes = [find(each, "Ready") for each in await self.simulation.sim.all(CONTROL_PLANE)]
        machines = [find(each, "Reconciled") for each in await self.simulation.sim.all(MACHINE)]
        return {str(each.get("message")) for each in (*planes, *machines) if each}

    async def until_message(self, expected: str) -> None:
        async def is_shown() -> bool:
            return any(each.endswith(expected) for each in await self.messages())

        await self.simulation.sim.world.until(is_shown, within=10 * MINUTE)

    async def displays_problem(self) -> bool:
        (cluster,) = await self.simulation.sim.all(PROVISIONING_CLUSTER)
        return PROBLEM in cluster["status"]["display"]["message"]

    def plans(self) -> list[PlanSecret]:
        return [PlanSecret(each) for each in self.simulation.invariants.objects[PLAN_SECRET].values()]

    def reporters(self) -> list[PlanSecret]:
        return [each for each in self.plans() if each.plan and each.plan.reports_agent]

    def starts(self) -> dict[str, int]:
        return {node.name: node.starts for node in self.simulation.nodes}


def test_a_pod_that_does_not_start_is_reported_until_the_agent_connects() -> None:
    async def scenario() -> None:
        cluster = AgentWithoutImage()
        async with cluster.simulation:
            await cluster.create()
            await cluster.until_message(NOT_CONNECTED)
            before, starts = cluster.simulation.sim.world.now(), cluster.starts()
            assert not cluster.reporters()
            await cluster.until_message(PROBLEM)
            assert cluster.simulation.sim.world.now() >= before + REPORTED_AFTER / 2
            (reporter,) = cluster.reporters()
            assert reporter.is_init
            await cluster.simulation.sim.world.until(cluster.displays_problem, within=MINUTE)
            shown = await cluster.messages()
            machine = reporter.labels["rke.cattle.io/machine-name"]
            assert {PROBLEM, f"configuring bootstrap node(s) {machine}: {PROBLEM}"} <= shown
            await asyncio.sleep(10 * MINUTE)
            assert await cluster.messages() == shown
            assert cluster.starts() == starts, "nothing is restarted"
            cluster.simulation.sim.downstream.heal_tunnel()
            await cluster.simulation.until_settled()
            assert not cluster.reporters()
            assert AGENT_STATUS not in {name for plan in cluster.plans() for name in plan.periodic_outputs}

    loop.run(scenario())


def test_a_lost_agent_is_reported_and_nothing_is_drained() -> None:
    async def scenario() -> None:
        cluster = AgentWithoutImage()
        async with cluster.simulation:
            await cluster.create()
            cluster.simulation.sim.downstream.heal_tunnel()
            await cluster.simulation.change_strategy({"controlPlaneDrainOptions": {"enabled": True}})
            await cluster.simulation.until_settled()
            starts = cluster.starts()
            cluster.simulation.sim.downstream.cut_tunnel()
            await cluster.until_message(PROBLEM)
            assert len(cluster.reporters()) == 1

            async def is_on_the_cluster() -> bool:
                (provisioning,) = await cluster.simulation.sim.all(PROVISIONING_CLUSTER)
                return bool((find(provisioning, "Provisioned") or {})["message"].endswith(PROBLEM))

            await cluster.simulation.sim.world.until(is_on_the_cluster, within=MINUTE)
            tokens = await cluster.simulation.sim.get(TOKENS_SECRET, tokens_secret(CLUSTER_NAME))
            (token, *_) = (base64.b64decode(each).decode() for each in tokens["data"].values())
            cluster.simulation.sim.downstream.agent_status = WITHOUT_IMAGE.replace("not+found", f"with+{token}")
            await cluster.until_message("ErrImagePull: with ***")
            cluster.simulation.sim.downstream.heal_tunnel()
            await cluster.simulation.until_settled()
            assert not cluster.reporters()
            assert cluster.starts() == starts

    loop.run(scenario())
