"""Simulated in-memory clusters with the core controllers: creation, delays, faults, upgrades and deletion."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from herder.api.capi.crds import CRDS as CORE_CRDS
from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_SET, NODE, SECRET
from herder.api.inmemory import names
from herder.api.inmemory.crds import CRDS
from herder.api.inmemory.kinds import (
    IN_MEMORY_BOOTSTRAP,
    IN_MEMORY_CLUSTER,
    IN_MEMORY_CONTROL_PLANE,
    IN_MEMORY_MACHINE,
    IN_MEMORY_MACHINE_TEMPLATE,
)
from herder.controllers.capi.cluster import controller as core_cluster
from herder.controllers.capi.machine import controller as core_machine
from herder.controllers.capi.machineset import controller as core_machine_set
from herder.controllers.inmemory import bootstrap, cluster, controlplane, machine
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.performers import REMOTE_PERFORMERS
from herder.sim import loop
from herder.sim.faults import NONE, ROUGH, Faults
from herder.sim.world import World
from tests.unit.controllers.inmemory import manifests

CORE = (core_cluster, core_machine, core_machine_set)
CONTROLLERS = [module.CONTROLLER for module in (*CORE, cluster, controlplane, bootstrap, machine)]
NAMESPACE = "default"
CONTROL_PLANE = "c"
WORKLOAD = f"{NAMESPACE}/c"


async def kubeconfig(_arguments: Mapping[str, Any]) -> Object:
    """A placeholder. Simulated clusters are connected by name, so it is never read."""
    far_future = datetime(2040, 1, 1, tzinfo=UTC).isoformat()
    return {"kubeconfig": base64.b64encode(b"simulated").decode(), "expires": far_future, "renew": far_future}


class User:
    def __init__(self, world: World) -> None:
        self.world = world
        self.client = world.client

    async def create(self, **options: Any) -> None:
        for kind, obj in manifests.cluster("c", **options):
            await self.client.create(kind.resource, obj, namespace=NAMESPACE)

    async def all(self, kind: Kind) -> list[Object]:
        return (await self.client.list(kind.resource, namespace=NAMESPACE)).items

    async def nodes(self) -> dict[str, Object]:
        page = await self.world.workloads.client(WORKLOAD).list(NODE.resource)
        return {node["metadata"]["name"]: node for node in page.items}

    async def patch(self, kind: Kind, name: str, patch: Object) -> None:
        await self.client.patch(kind.resource, name, patch, namespace=NAMESPACE)

    async def until_available(self, machines: int, *, version: str = "v1.35.0", within: float = 900.0) -> float:
        """Wait until exactly `machines` Machines exist, all available with this version. Return the seconds it took."""
        began = asyncio.get_running_loop().time()

        async def all_available() -> bool:
            found = await self.all(MACHINE)
            available = [m for m in found if m["spec"]["version"] == version and _has_condition(m, "Available")]
            return len(available) == len(found) == machines

        await self.world.until(all_available, within=within)
        return asyncio.get_running_loop().time() - began


def _has_condition(obj: Object, type_: str) -> bool:
    conditions = (obj.get("status") or {}).get("conditions") or []
    return any(known["type"] == type_ and known["status"] == "True" for known in conditions)


def simulate(scenario: Callable[[User], Awaitable[None]], *, seed: int = 1, faults: Faults = NONE) -> World:
    async def run_world() -> World:
        world = World(
            seed,
            CONTROLLERS,
            crds=[*CORE_CRDS, *CRDS],
            performers={"kubeconfig": kubeconfig},
            remote_performers=REMOTE_PERFORMERS,
            faults=faults,
            watched=[MACHINE, IN_MEMORY_MACHINE],
        )
        async with world:
            await scenario(User(world))
        return world

    return loop.run(run_world())


async def create_and_delete_cluster(user: User) -> None:
    await user.create(control_planes=3, workers=2)
    await user.until_available(5)
    machines = {m["metadata"]["name"] for m in await user.all(MACHINE)}
    nodes = await user.nodes()
    assert set(nodes) == machines
    assert all(not node["spec"].get("taints") for node in nodes.values() if "worker" in node["metadata"]["name"])

    async def cluster_is_available() -> bool:
        return all(_has_condition(c, "Available") for c in await user.all(CLUSTER))

    await user.world.until(cluster_is_available)
    await user.client.delete(CLUSTER.resource, "c", namespace=NAMESPACE)

    async def nothing_is_left() -> bool:
        kinds = (CLUSTER, MACHINE_SET, MACHINE, IN_MEMORY_CLUSTER, IN_MEMORY_CONTROL_PLANE, IN_MEMORY_MACHINE)
        return not any([await user.all(kind) for kind in (*kinds, IN_MEMORY_BOOTSTRAP, SECRET)])

    await user.world.until(nothing_is_left)


def test_deleted_cluster_leaves_no_objects() -> None:
    simulate(create_and_delete_cluster)


@pytest.mark.parametrize("seed", range(4))
def test_lifecycle_tolerates_faults_and_crashes(seed: int) -> None:
    simulate(create_and_delete_cluster, seed=seed, faults=ROUGH)


def test_simulation_is_deterministic() -> None:
    assert simulate(create_and_delete_cluster, seed=3).digest() == simulate(create_and_delete_cluster, seed=3).digest()


def test_objects_may_be_created_in_any_order() -> None:
    async def scenario(user: User) -> None:
        for kind, obj in reversed(manifests.cluster("c", workers=1)):
            await user.client.create(kind.resource, obj, namespace=NAMESPACE)
            await asyncio.sleep(5)
        await user.until_available(2, within=60)

    simulate(scenario)


@pytest.mark.parametrize("late", [IN_MEMORY_MACHINE_TEMPLATE, IN_MEMORY_CLUSTER, IN_MEMORY_CONTROL_PLANE])
def test_late_objects_are_picked_up(late: Kind) -> None:
    async def scenario(user: User) -> None:
        objects = manifests.cluster("c", workers=1)
        for kind, obj in sorted(objects, key=lambda each: each[0] == late):
            await asyncio.sleep(60 if kind == late else 0)
            await user.client.create(kind.resource, obj, namespace=NAMESPACE)
        await user.until_available(2, within=60)

    simulate(scenario)


def test_cluster_without_delays_is_available_at_once() -> None:
    async def scenario(user: User) -> None:
        await user.create(control_planes=1, workers=3)
        assert await user.until_available(4) < 5

    simulate(scenario)


def test_delays_add_up() -> None:
    async def scenario(user: User) -> None:
        delays = {names.START_DELAY: "100", names.NODE_DELAY: "20"}
        await user.create(control_planes=1, workers=1, annotations={names.API_DELAY: "50"}, machine_annotations=delays)
        elapsed = await user.until_available(2)
        assert 50 + 2 * 120 - 5 <= elapsed <= 50 + 2 * 120 + 10

    simulate(scenario)


def test_upgrade_replaces_control_plane_machines_one_at_a_time() -> None:
    async def scenario(user: User) -> None:
        await user.create(control_planes=3, workers=0)
        await user.until_available(3)
        max_machines = 0

        async def count() -> None:
            nonlocal max_machines
            async for _ in user.client.watch(MACHINE.resource, initial_events=True):
                max_machines = max(max_machines, len(await user.all(MACHINE)))

        counter = asyncio.ensure_future(count())
        await user.patch(IN_MEMORY_CONTROL_PLANE, CONTROL_PLANE, {"spec": {"version": "v1.36.0"}})
        await user.until_available(3, version="v1.36.0")
        counter.cancel()
        assert max_machines == 4
        versions = {node["status"]["nodeInfo"]["kubeletVersion"] for node in (await user.nodes()).values()}
        assert versions == {"v1.36.0"}

    simulate(scenario)


def test_control_plane_scales_up_and_down() -> None:
    async def scenario(user: User) -> None:
        await user.create(control_planes=1, workers=0)
        for replicas in (3, 1):
            await user.until_available(1 if replicas == 3 else 3)
            await user.patch(IN_MEMORY_CONTROL_PLANE, CONTROL_PLANE, {"spec": {"replicas": replicas}})
            await user.until_available(replicas)
        assert len(await user.nodes()) == 1

    simulate(scenario)


def test_node_ready_annotation_is_reported_at_any_time() -> None:
    async def scenario(user: User) -> None:
        await user.create(control_planes=1, workers=1)
        await user.until_available(2)
        worker = next(m["metadata"]["name"] for m in await user.all(MACHINE) if "worker" in m["metadata"]["name"])
        for value, healthy in (("False", False), ("True", True)):
            await user.patch(IN_MEMORY_MACHINE, worker, {"metadata": {"annotations": {names.NODE_READY: value}}})

            async def is_reported(healthy: bool = healthy) -> bool:
                found = await user.client.get(MACHINE.resource, worker, namespace=NAMESPACE)
                return _has_condition(found, "NodeHealthy") is healthy

            await user.world.until(is_reported, within=60)

    simulate(scenario)


def test_nodes_rejoin_a_restarted_workload_cluster() -> None:
    async def scenario(user: User) -> None:
        await user.create(control_planes=1, workers=2)
        await user.until_available(3)
        machines = {m["metadata"]["name"] for m in await user.all(MACHINE)}
        user.world.crash()
        await user.world.workloads.stop(WORKLOAD)
        await user.world.workloads.serve(WORKLOAD)

        async def all_are_back() -> bool:
            return set(await user.nodes()) == machines

        await user.world.until(all_are_back, within=60)

    simulate(scenario)


def test_api_faults_are_reported_by_the_core_and_can_be_removed() -> None:
    async def scenario(user: User) -> None:
        await user.create(control_planes=1, workers=0)
        await user.until_available(1)
        for fault, connected in (("hang", False), (None, True), ("refuse", False), (None, True)):
            await user.patch(IN_MEMORY_CLUSTER, "c", {"metadata": {"annotations": {names.API_FAULT: fault}}})

            async def is_reported(connected: bool = connected) -> bool:
                (found,) = await user.all(CLUSTER)
                return _has_condition(found, "RemoteConnectionProbe") is connected

            await user.world.until(is_reported, within=300)

    simulate(scenario)


def test_injected_failure_is_reported_by_the_machine() -> None:
    async def scenario(user: User) -> None:
        await user.create(control_planes=1, workers=0, machine_annotations={names.FAIL: "QuotaExceeded"})

        async def failure_is_reported() -> bool:
            found = [m for m in await user.all(MACHINE) if m.get("status")]
            deprecated = [m["status"].get("deprecated", {}).get("v1beta1", {}) for m in found]
            return any(each.get("failureReason") == "QuotaExceeded" for each in deprecated)

        await user.world.until(failure_is_reported, within=60)

    simulate(scenario)
