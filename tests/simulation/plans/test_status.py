"""What a person sees of a provisioned cluster when a machine or the cluster agent is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from herder.api.capi.conditions import find
from herder.api.machines.archive import CONFIG_MAP
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.rke import log
from herder.engine.meta.kinds import Kind, Object
from herder.sim import loop
from herder.sim.faults import NONE
from herder.sim.provisioned import NAME
from tests.simulation.plans.provisioning_simulation import DesiredState, ProvisioningSimulation

VERSION = "v1.34.1+k3s1"
MINUTE = 60.0


class ObservedCluster:
    """A cluster of one server and two workers, as its user sees it."""

    def __init__(self) -> None:
        self.simulation = ProvisioningSimulation(5, NONE)

    async def create(self) -> None:
        pools = {"servers": (1, ("etcd", "controlPlane")), "workers": (2, ("worker",))}
        await self.simulation.create_cluster(DesiredState(VERSION, pools))
        await self.simulation.until_settled()
        await self.until_display(state="Ready", message="", version=VERSION, readyMachines="3/3")

    async def all(self, kind: Kind) -> list[Object]:
        return (await self.simulation.sim.world.client.list_all(kind.resource)).items

    async def get(self) -> Object:
        return next(each for each in await self.all(PROVISIONING_CLUSTER) if each["metadata"]["name"] == NAME)

    async def until_display(self, within: float = MINUTE, **expected: str) -> Object:
        """Wait until these columns are shown, and return the Cluster."""

        async def is_shown() -> bool:
            shown = (await self.get())["status"].get("display") or {}
            return all(shown.get(column) == value for column, value in expected.items())

        await self.simulation.sim.world.until(is_shown, within=within)
        return await self.get()

    async def log(self) -> str:
        maps = await self.all(CONFIG_MAP)
        (found,) = [each for each in maps if each["metadata"]["name"] == log.LOG_NAME]
        return str(found["data"][log.LOG])


def run(scenario: Callable[[ObservedCluster], Awaitable[None]]) -> None:
    async def run_scenario() -> None:
        cluster = ObservedCluster()
        async with cluster.simulation:
            await cluster.create()
            await scenario(cluster)

    loop.run(run_scenario())


def test_a_lost_worker_is_reported_within_a_minute_and_not_replaced() -> None:
    async def scenario(cluster: ObservedCluster) -> None:
        worker = next(node for node in cluster.simulation.nodes if node.is_worker)
        worker.power_off()
        found = await cluster.until_display(state="Degraded", readyMachines="2/3")
        healthy, message = find(found, "NodesHealthy") or {}, found["status"]["display"]["message"]
        assert (healthy["status"], healthy["reason"]) == ("False", "NodesNotReady")
        assert cluster.simulation.machine_of(worker) in message
        assert " is not ready since 20" in message
        assert healthy["message"] == message
        assert f"[ERROR] {message}\n" in await cluster.log()
        await asyncio.sleep(30 * MINUTE)
        assert len(cluster.simulation.nodes) == 3, "lost machines are reported, not replaced"
        worker.boot()
        await cluster.until_display(state="Ready", message="", readyMachines="3/3")
        assert (await cluster.log()).endswith(f"[INFO ] {log.HEALTHY}\n")

    run(scenario)


def test_a_lost_agent_is_reported_within_a_minute() -> None:
    async def scenario(cluster: ObservedCluster) -> None:
        downstream = cluster.simulation.sim.downstream
        downstream.tunnel_is_cut = True
        downstream.changed()
        found = await cluster.until_display(state="Disconnected")
        message = found["status"]["display"]["message"]
        assert message.startswith("Cluster agent is not connected since 20")
        for type_, status in {"Connected": "False", "Ready": "False", "NodesHealthy": "Unknown"}.items():
            condition = find(found, type_) or {}
            assert (condition["status"], condition["reason"]) == (status, "Disconnected")
            assert condition["message"] == message
        assert found["status"]["ready"] is False
        assert f"[ERROR] {message}\n" in await cluster.log()
        (management,) = await cluster.all(MANAGEMENT_CLUSTER)
        assert management["status"]["display"]["state"] == "Disconnected"
        downstream.tunnel_is_cut = False
        downstream.changed()
        found = await cluster.until_display(state="Ready", message="")
        assert found["status"]["ready"] is True

    run(scenario)


def test_nothing_is_written_while_nothing_changes() -> None:
    async def scenario(cluster: ObservedCluster) -> None:
        await asyncio.sleep(10 * MINUTE)
        before = [await cluster.all(kind) for kind in (PROVISIONING_CLUSTER, MANAGEMENT_CLUSTER)]
        await asyncio.sleep(60 * MINUTE)
        assert before == [await cluster.all(kind) for kind in (PROVISIONING_CLUSTER, MANAGEMENT_CLUSTER)]

    run(scenario)
