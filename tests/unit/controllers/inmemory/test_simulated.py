"""Whole in-memory clusters under our core, on virtual time: made, slowed, broken, upgraded, taken down."""

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
PLANE = "c"
WORKLOAD = f"{NAMESPACE}/c"


async def kubeconfig(_arguments: Mapping[str, Any]) -> Object:
    """Nobody reads it here: in the simulation a cluster is found by its name."""
    never = datetime(2040, 1, 1, tzinfo=UTC).isoformat()
    return {"kubeconfig": base64.b64encode(b"simulated").decode(), "expires": never, "renew": never}


class Play:
    def __init__(self, world: World) -> None:
        self.world = world
        self.client = world.client

    async def create(self, **asked: Any) -> None:
        for kind, obj in manifests.cluster("c", **asked):
            await self.client.create(kind.resource, obj, namespace=NAMESPACE)

    async def all(self, kind: Kind) -> list[Object]:
        return (await self.client.list(kind.resource, namespace=NAMESPACE)).items

    async def nodes(self) -> dict[str, Object]:
        page = await self.world.workloads.client(WORKLOAD).list(NODE.resource)
        return {node["metadata"]["name"]: node for node in page.items}

    async def patch(self, kind: Kind, name: str, patch: Object) -> None:
        await self.client.patch(kind.resource, name, patch, namespace=NAMESPACE)

    async def until_available(self, machines: int, *, version: str = "v1.35.0", within: float = 900.0) -> float:
        """How long it took until so many Machines of the version are available, and no others are there."""
        began = asyncio.get_running_loop().time()

        async def so() -> bool:
            found = await self.all(MACHINE)
            good = [m for m in found if m["spec"]["version"] == version and _is(m, "Available")]
            return len(good) == len(found) == machines

        await self.world.until(so, within=within)
        return asyncio.get_running_loop().time() - began


def _is(obj: Object, type_: str) -> bool:
    conditions = (obj.get("status") or {}).get("conditions") or []
    return any(known["type"] == type_ and known["status"] == "True" for known in conditions)


def simulate(story: Callable[[Play], Awaitable[None]], *, seed: int = 1, faults: Faults = NONE) -> World:
    async def live() -> World:
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
            await story(Play(world))
        return world

    return loop.run(live())


async def a_whole_life(play: Play) -> None:
    await play.create(control_planes=3, workers=2)
    await play.until_available(5)
    machines = {m["metadata"]["name"] for m in await play.all(MACHINE)}
    nodes = await play.nodes()
    assert set(nodes) == machines
    assert all(not node["spec"].get("taints") for node in nodes.values() if "worker" in node["metadata"]["name"])

    async def cluster_is_available() -> bool:
        return all(_is(c, "Available") for c in await play.all(CLUSTER))

    await play.world.until(cluster_is_available)
    await play.client.delete(CLUSTER.resource, "c", namespace=NAMESPACE)

    async def nothing_is_left() -> bool:
        kinds = (CLUSTER, MACHINE_SET, MACHINE, IN_MEMORY_CLUSTER, IN_MEMORY_CONTROL_PLANE, IN_MEMORY_MACHINE)
        return not any([await play.all(kind) for kind in (*kinds, IN_MEMORY_BOOTSTRAP, SECRET)])

    await play.world.until(nothing_is_left)


def test_a_cluster_is_made_and_leaves_nothing_behind() -> None:
    simulate(a_whole_life)


@pytest.mark.parametrize("seed", range(4))
def test_faults_and_crashes_on_the_way_change_nothing(seed: int) -> None:
    simulate(a_whole_life, seed=seed, faults=ROUGH)


def test_the_same_seed_gives_the_same_story() -> None:
    assert simulate(a_whole_life, seed=3).digest() == simulate(a_whole_life, seed=3).digest()


def test_it_does_not_matter_in_which_order_the_objects_come() -> None:
    async def story(play: Play) -> None:
        for kind, obj in reversed(manifests.cluster("c", workers=1)):
            await play.client.create(kind.resource, obj, namespace=NAMESPACE)
            await asyncio.sleep(5)
        await play.until_available(2, within=60)

    simulate(story)


@pytest.mark.parametrize("late", [IN_MEMORY_MACHINE_TEMPLATE, IN_MEMORY_CLUSTER, IN_MEMORY_CONTROL_PLANE])
def test_what_comes_late_is_seen_when_it_comes(late: Kind) -> None:
    async def story(play: Play) -> None:
        objects = manifests.cluster("c", workers=1)
        for kind, obj in sorted(objects, key=lambda each: each[0] == late):
            await asyncio.sleep(60 if kind == late else 0)
            await play.client.create(kind.resource, obj, namespace=NAMESPACE)
        await play.until_available(2, within=60)

    simulate(story)


def test_without_delays_nothing_waits() -> None:
    async def story(play: Play) -> None:
        await play.create(control_planes=1, workers=3)
        assert await play.until_available(4) < 5

    simulate(story)


def test_delays_are_kept_one_after_the_other() -> None:
    async def story(play: Play) -> None:
        delays = {names.START_DELAY: "100", names.NODE_DELAY: "20"}
        await play.create(control_planes=1, workers=1, annotations={names.API_DELAY: "50"}, machine_annotations=delays)
        took = await play.until_available(2)
        assert 50 + 2 * 120 - 5 <= took <= 50 + 2 * 120 + 10

    simulate(story)


def test_a_new_version_replaces_control_plane_machines_one_at_a_time() -> None:
    async def story(play: Play) -> None:
        await play.create(control_planes=3, workers=0)
        await play.until_available(3)
        most = 0

        async def count() -> None:
            nonlocal most
            async for _ in play.client.watch(MACHINE.resource, initial_events=True):
                most = max(most, len(await play.all(MACHINE)))

        counting = asyncio.ensure_future(count())
        await play.patch(IN_MEMORY_CONTROL_PLANE, PLANE, {"spec": {"version": "v1.36.0"}})
        await play.until_available(3, version="v1.36.0")
        counting.cancel()
        assert most == 4
        versions = {node["status"]["nodeInfo"]["kubeletVersion"] for node in (await play.nodes()).values()}
        assert versions == {"v1.36.0"}

    simulate(story)


def test_a_control_plane_scales_up_and_down() -> None:
    async def story(play: Play) -> None:
        await play.create(control_planes=1, workers=0)
        for replicas in (3, 1):
            await play.until_available(1 if replicas == 3 else 3)
            await play.patch(IN_MEMORY_CONTROL_PLANE, PLANE, {"spec": {"replicas": replicas}})
            await play.until_available(replicas)
        assert len(await play.nodes()) == 1

    simulate(story)


def test_a_node_reports_what_is_asked_for_while_it_lives() -> None:
    async def story(play: Play) -> None:
        await play.create(control_planes=1, workers=1)
        await play.until_available(2)
        worker = next(m["metadata"]["name"] for m in await play.all(MACHINE) if "worker" in m["metadata"]["name"])
        for asked, healthy in (("False", False), ("True", True)):
            await play.patch(IN_MEMORY_MACHINE, worker, {"metadata": {"annotations": {names.NODE_READY: asked}}})

            async def seen(healthy: bool = healthy) -> bool:
                found = await play.client.get(MACHINE.resource, worker, namespace=NAMESPACE)
                return _is(found, "NodeHealthy") is healthy

            await play.world.until(seen, within=60)

    simulate(story)


def test_nodes_join_again_when_a_workload_cluster_starts_anew_with_its_manager() -> None:
    async def story(play: Play) -> None:
        await play.create(control_planes=1, workers=2)
        await play.until_available(3)
        machines = {m["metadata"]["name"] for m in await play.all(MACHINE)}
        play.world.crash()
        await play.world.workloads.stop(WORKLOAD)
        await play.world.workloads.serve(WORKLOAD)

        async def all_are_back() -> bool:
            return set(await play.nodes()) == machines

        await play.world.until(all_are_back, within=60)

    simulate(story)


def test_a_fault_of_the_workload_api_is_seen_by_the_core_and_can_be_healed() -> None:
    async def story(play: Play) -> None:
        await play.create(control_planes=1, workers=0)
        await play.until_available(1)
        for fault, answers in (("hang", False), (None, True), ("refuse", False), (None, True)):
            await play.patch(IN_MEMORY_CLUSTER, "c", {"metadata": {"annotations": {names.API_FAULT: fault}}})

            async def seen(answers: bool = answers) -> bool:
                (found,) = await play.all(CLUSTER)
                return _is(found, "RemoteConnectionProbe") is answers

            await play.world.until(seen, within=300)

    simulate(story)


def test_a_failure_is_told_on_the_machine_and_its_siblings_go_on() -> None:
    async def story(play: Play) -> None:
        await play.create(control_planes=1, workers=0, machine_annotations={names.FAIL: "QuotaExceeded"})

        async def told() -> bool:
            found = [m for m in await play.all(MACHINE) if m.get("status")]
            deprecated = [m["status"].get("deprecated", {}).get("v1beta1", {}) for m in found]
            return any(each.get("failureReason") == "QuotaExceeded" for each in deprecated)

        await play.world.until(told, within=60)

    simulate(story)
