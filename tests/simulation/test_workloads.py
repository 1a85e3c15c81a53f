"""Workload clusters in simulation: watched, written to, disconnected and reconnected; replayable by seed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from herder.api.capi.kinds import NODE
from herder.api.example import CONFIG_MAP
from herder.engine.meta.errors import ServiceUnavailable
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Apply, Connect, Decision, Observe, Patch, Projection, Ref, waiting
from herder.engine.runtime.view import Observed, View
from herder.sim import loop
from herder.sim.faults import NONE, ROUGH, Faults
from herder.sim.world import World

CLUSTER = "default/c1"
MACHINES = 5


def _provider(node: Object) -> Iterable[str]:
    return (node["spec"]["providerID"],)


RECORD = Projection("nodes", lambda node: {"spec": node["spec"], "metadata": node["metadata"]}, {"provider": _provider})


def adopt(view: View) -> Decision:
    """A machine, here a ConfigMap, finds its node, labels it, and records it in its own data."""
    if not view.name.startswith("machine-") or view.get(CONFIG_MAP, view.name) is None:
        return DONE
    subscription = Observe(CLUSTER, NODE, projection=RECORD, focus=("provider", f"sim://{view.name}"))
    needs = Decision(observe=(subscription, Connect(CLUSTER)))
    seen = view.observed(subscription)
    if not isinstance(seen, Observed) or not seen.objects:
        return needs + waiting("no node with its provider ID")
    [node] = seen.objects
    name = node["metadata"]["name"]
    label_patch = Patch(
        Ref(NODE, name), {"metadata": {"labels": {"machine": view.name}}}, "label with its machine", target=CLUSTER
    )
    record = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": view.name, "namespace": "default"},
        "data": {"node": name},
    }
    labeled = (node["metadata"].get("labels") or {}).get("machine") == view.name
    return needs + Decision(writes=(Apply(CONFIG_MAP, record, "found"),) if labeled else (label_patch,))


ADOPT = Controller("adopt", CONFIG_MAP, adopt)


def machine(number: int) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"machine-{number}", "namespace": "default"}}


def node(number: int) -> Object:
    spec = {"providerID": f"sim://machine-{number}"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{number}"}, "spec": spec}


async def run_scenario(seed: int, faults: Faults, fault: str) -> World:
    async with World(seed, [ADOPT], faults=faults, watched=[CONFIG_MAP]) as world:

        async def all_found() -> bool:
            found = await world.client.list(CONFIG_MAP.resource, namespace="default")
            return sum("node" in (obj.get("data") or {}) for obj in found.items) == MACHINES

        for number in range(MACHINES):
            await world.client.create(CONFIG_MAP.resource, machine(number), namespace="default")
        await asyncio.sleep(20)  # the cluster does not exist yet
        await world.workloads.serve(CLUSTER)
        await asyncio.sleep(world.random.uniform(0, 60))
        world.workloads.cut(CLUSTER, fault)
        workload = world.workloads.client(CLUSTER)
        for number in range(MACHINES):
            await workload.create(NODE.resource, node(number))
            await asyncio.sleep(world.random.uniform(0, 60))
        world.workloads.heal(CLUSTER)
        await world.until(all_found)
        labeled = await workload.list(NODE.resource)
        assert [obj["metadata"]["labels"]["machine"] for obj in labeled.items] == [
            f"machine-{n}" for n in range(MACHINES)
        ]
    return world


@pytest.mark.parametrize("fault", ["", "refuse", "hang", "slow=2"])
@pytest.mark.parametrize("faults", [NONE, ROUGH], ids=["smooth", "rough"])
def test_machines_find_their_nodes_under_faults(faults: Faults, fault: str) -> None:
    for seed in range(1, 6):
        loop.run(run_scenario(seed, faults, fault))


@pytest.mark.parametrize("fault", ["refuse", "hang"])
def test_the_same_seed_gives_the_same_log(fault: str) -> None:
    first, again = (loop.run(run_scenario(7, ROUGH, fault)) for _ in range(2))
    assert first.log == again.log
    assert first.digest() != loop.run(run_scenario(8, ROUGH, fault)).digest()


def test_a_stopped_cluster_loses_its_objects() -> None:
    async def work() -> None:
        async with World(1, []) as world:
            await world.workloads.serve(CLUSTER)
            await world.workloads.client(CLUSTER).create(NODE.resource, node(1))
            manager = await world._connect(CLUSTER)
            assert len((await manager.list(NODE.resource)).items) == 1
            await world.workloads.stop(CLUSTER)
            with pytest.raises(ServiceUnavailable, match="connection refused"):
                await manager.list(NODE.resource)
            await world.workloads.serve(CLUSTER)
            assert (await manager.list(NODE.resource)).items == []

    loop.run(work())
