"""MachineSets and MachineDeployments on a simulated API server: field ownership, number of writes, and namespaces."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from herder.api.capi.kinds import MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET
from herder.api.capi.kinds import NAMESPACE as NAMESPACE_KIND
from herder.api.inmemory.kinds import IN_MEMORY_BOOTSTRAP, IN_MEMORY_MACHINE
from herder.api.writes import owner_reference
from herder.engine.meta.kinds import Kind, Object
from herder.sim import loop
from herder.sim.faults import NONE
from tests.simulation.capi.invariants import OTHER_NAMESPACE
from tests.simulation.capi.rollout_simulation import DEPLOYMENT, NAMESPACE, RolloutSimulation
from tests.support.builders import new_manifest

WORKERS = f"cluster.x-k8s.io/deployment-name={DEPLOYMENT}"
ALL = (MACHINE, IN_MEMORY_MACHINE, IN_MEMORY_BOOTSTRAP)


def _simulate(scenario: Callable[[RolloutSimulation], Awaitable[None]]) -> None:
    async def run_world() -> None:
        simulation = RolloutSimulation(1, NONE)
        async with simulation.world:
            await simulation.create_cluster(3)
            await scenario(simulation)

    loop.run(run_world())


async def _list(simulation: RolloutSimulation, kind: Kind, labels: str = WORKERS) -> list[Object]:
    return list((await simulation.world.client.list(kind.resource, namespace=NAMESPACE, labels=labels)).items)


async def _edit_template_metadata(simulation: RolloutSimulation, **metadata: Any) -> None:
    await simulation.edit(template={"metadata": metadata})
    await asyncio.sleep(10)


def test_template_labels_are_added_and_removed_and_others_are_kept() -> None:
    async def scenario(simulation: RolloutSimulation) -> None:
        names = {kind: [each["metadata"]["name"] for each in await _list(simulation, kind)] for kind in ALL}
        for kind in ALL:
            assert len(names[kind]) == 3
            for name in names[kind]:
                await simulation.patch(kind, name, {"metadata": {"labels": {"mine": "kept"}}})
        await _edit_template_metadata(
            simulation, labels={"tier": "one", "gone": "soon"}, annotations={"example.io/a": "1"}
        )
        await _edit_template_metadata(
            simulation, labels={"tier": "two", "gone": None}, annotations={"example.io/a": None}
        )
        for kind in ALL:
            for each in await _list(simulation, kind):
                labels = each["metadata"]["labels"]
                assert (labels["tier"], labels["mine"], "gone" in labels) == ("two", "kept", False), kind
                assert "example.io/a" not in (each["metadata"].get("annotations") or {})
        assert {kind: [each["metadata"]["name"] for each in await _list(simulation, kind)] for kind in ALL} == names

    _simulate(scenario)


def test_edited_labels_are_restored() -> None:
    async def scenario(simulation: RolloutSimulation) -> None:
        name = (await _list(simulation, MACHINE))[0]["metadata"]["name"]
        await _edit_template_metadata(simulation, labels={"tier": "one"})
        await simulation.patch(MACHINE, name, {"metadata": {"labels": {"tier": "edited"}}})
        await asyncio.sleep(5)
        machine = await simulation.world.client.get(MACHINE.resource, name, namespace=NAMESPACE)
        assert machine["metadata"]["labels"]["tier"] == "one"

    _simulate(scenario)


def test_fields_are_owned_by_upstreams_field_managers() -> None:
    async def scenario(simulation: RolloutSimulation) -> None:
        await _edit_template_metadata(simulation, labels={"tier": "one"})
        for kind, manager in (
            (MACHINE_SET, "capi-machinedeployment"),
            (MACHINE, "capi-machineset"),
            (IN_MEMORY_MACHINE, "capi-machineset-metadata"),
        ):
            for each in await _list(simulation, kind):
                entries = each["metadata"]["managedFields"]
                (entry,) = [entry for entry in entries if entry["manager"] == manager]
                assert entry["operation"] == "Apply"
                assert "f:tier" in entry["fieldsV1"]["f:metadata"]["f:labels"]

    _simulate(scenario)


def test_idle_objects_are_not_written() -> None:
    async def scenario(simulation: RolloutSimulation) -> None:
        await asyncio.sleep(60)
        before = [
            each["metadata"]["resourceVersion"]
            for kind in (MACHINE_SET, MACHINE_DEPLOYMENT, *ALL)
            for each in await _list(simulation, kind, "")
        ]
        await asyncio.sleep(3600)
        after = [
            each["metadata"]["resourceVersion"]
            for kind in (MACHINE_SET, MACHINE_DEPLOYMENT, *ALL)
            for each in await _list(simulation, kind, "")
        ]
        assert before == after

    _simulate(scenario)


def test_scale_up_needs_few_status_writes() -> None:
    """Progress is debounced: not every step of a Machine is a write of its MachineSet and MachineDeployment."""

    async def scenario(simulation: RolloutSimulation) -> None:
        await simulation.edit(replicas=23)
        log_start = len(simulation.world.log)
        await simulation.until_settled()
        writes = [line.split() for line in simulation.world.log[log_start:]]
        for kind in ("MachineSet", "MachineDeployment"):
            assert sum(kind == fields[2] for fields in writes) <= 23, kind

    _simulate(scenario)


def test_machines_of_another_namespace_are_not_counted() -> None:
    """A user who may create Machines in another namespace can name any MachineSet as their owner by its uid.

    If they were counted, the MachineSet would delete its own Machines.
    """

    async def scenario(simulation: RolloutSimulation) -> None:
        before = {each["metadata"]["uid"] for each in await _list(simulation, MACHINE)}
        client = simulation.world.client
        (owner,) = await _list(simulation, MACHINE_SET)
        await client.create(NAMESPACE_KIND.resource, new_manifest(NAMESPACE_KIND, OTHER_NAMESPACE))
        for number in range(3):
            machine = new_manifest(
                MACHINE,
                f"m{number}",
                finalizers=["example.io/stay"],
                owners=[owner_reference(MACHINE_SET, owner, controller=True)],
                spec=owner["spec"]["template"]["spec"],
            )
            await client.create(MACHINE.resource, machine, namespace=OTHER_NAMESPACE)
        await asyncio.sleep(600)
        assert {each["metadata"]["uid"] for each in await _list(simulation, MACHINE)} == before
        assert (await _list(simulation, MACHINE_SET))[0]["status"]["replicas"] == 3
        await simulation.edit(replicas=4)
        await asyncio.sleep(600)
        assert len(await _list(simulation, MACHINE)) == 4

    _simulate(scenario)
