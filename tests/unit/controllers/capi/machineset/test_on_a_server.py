"""What depends on a server's own rules: who owns which field, and that nothing is written when nothing changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from herder.api.capi.kinds import MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET
from herder.api.capi.kinds import NAMESPACE as NAMESPACE_KIND
from herder.api.inmemory.kinds import IN_MEMORY_BOOTSTRAP, IN_MEMORY_MACHINE
from herder.api.inmemory.manifest import new_object
from herder.api.writes import owner_reference
from herder.engine.meta.kinds import Kind, Object
from herder.sim import loop
from herder.sim.faults import NONE
from tests.simulation.capi.herd import DEPLOYMENT, NAMESPACE, Herd
from tests.simulation.capi.model import OTHERS

WORKERS = f"cluster.x-k8s.io/deployment-name={DEPLOYMENT}"
ALL = (MACHINE, IN_MEMORY_MACHINE, IN_MEMORY_BOOTSTRAP)


def _live(story: Callable[[Herd], Awaitable[None]]) -> None:
    async def run() -> None:
        herd = Herd(1, NONE)
        async with herd.world:
            await herd.bring_up(3)
            await story(herd)

    loop.run(run())


async def _list(herd: Herd, kind: Kind, labels: str = WORKERS) -> list[Object]:
    return list((await herd.world.client.list(kind.resource, namespace=NAMESPACE, labels=labels)).items)


async def _template(herd: Herd, **metadata: Any) -> None:
    await herd.edit(template={"metadata": metadata})
    await asyncio.sleep(10)


def test_labels_come_and_go_with_the_template_and_others_stay() -> None:
    async def story(herd: Herd) -> None:
        names = {kind: [each["metadata"]["name"] for each in await _list(herd, kind)] for kind in ALL}
        for kind in ALL:
            assert len(names[kind]) == 3
            for name in names[kind]:
                await herd.patch(kind, name, {"metadata": {"labels": {"mine": "kept"}}})
        await _template(herd, labels={"tier": "one", "gone": "soon"}, annotations={"example.io/a": "1"})
        await _template(herd, labels={"tier": "two", "gone": None}, annotations={"example.io/a": None})
        for kind in ALL:
            for each in await _list(herd, kind):
                labels = each["metadata"]["labels"]
                assert (labels["tier"], labels["mine"], "gone" in labels) == ("two", "kept", False), kind
                assert "example.io/a" not in (each["metadata"].get("annotations") or {})
        assert {kind: [each["metadata"]["name"] for each in await _list(herd, kind)] for kind in ALL} == names

    _live(story)


def test_an_edited_label_is_set_right_again() -> None:
    async def story(herd: Herd) -> None:
        name = (await _list(herd, MACHINE))[0]["metadata"]["name"]
        await _template(herd, labels={"tier": "one"})
        await herd.patch(MACHINE, name, {"metadata": {"labels": {"tier": "edited"}}})
        await asyncio.sleep(5)
        machine = await herd.world.client.get(MACHINE.resource, name, namespace=NAMESPACE)
        assert machine["metadata"]["labels"]["tier"] == "one"

    _live(story)


def test_fields_are_owned_by_the_managers_that_upstream_uses() -> None:
    async def story(herd: Herd) -> None:
        await _template(herd, labels={"tier": "one"})
        for kind, manager in (
            (MACHINE_SET, "capi-machinedeployment"),
            (MACHINE, "capi-machineset"),
            (IN_MEMORY_MACHINE, "capi-machineset-metadata"),
        ):
            for each in await _list(herd, kind):
                entries = each["metadata"]["managedFields"]
                (entry,) = [entry for entry in entries if entry["manager"] == manager]
                assert entry["operation"] == "Apply"
                assert "f:tier" in entry["fieldsV1"]["f:metadata"]["f:labels"]

    _live(story)


def test_a_settled_herd_is_quiet() -> None:
    async def story(herd: Herd) -> None:
        await asyncio.sleep(60)
        before = [
            each["metadata"]["resourceVersion"]
            for kind in (MACHINE_SET, MACHINE_DEPLOYMENT, *ALL)
            for each in await _list(herd, kind, "")
        ]
        await asyncio.sleep(3600)
        after = [
            each["metadata"]["resourceVersion"]
            for kind in (MACHINE_SET, MACHINE_DEPLOYMENT, *ALL)
            for each in await _list(herd, kind, "")
        ]
        assert before == after

    _live(story)


def test_sets_tell_little_while_machines_come_up() -> None:
    """Progress is told together: not each Machine's step is a write of its set and its deployment."""

    async def story(herd: Herd) -> None:
        await herd.edit(replicas=23)
        mark = len(herd.world.log)
        await herd.until_settled()
        writes = [line.split() for line in herd.world.log[mark:]]
        for kind in ("MachineSet", "MachineDeployment"):
            assert sum(kind == words[2] for words in writes) <= 23, kind

    _live(story)


def test_machines_of_another_namespace_are_not_counted() -> None:
    """Whoever may create Machines somewhere can name any MachineSet as their owner, by its uid: with as many as it has,
    it would delete its own."""

    async def story(herd: Herd) -> None:
        before = {each["metadata"]["uid"] for each in await _list(herd, MACHINE)}
        client = herd.world.client
        (owner,) = await _list(herd, MACHINE_SET)
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OTHERS}}
        await client.create(NAMESPACE_KIND.resource, space)
        meta = {
            "finalizers": ["example.io/stay"],
            "ownerReferences": [owner_reference(MACHINE_SET, owner, controller=True)],
        }
        for number in range(3):
            _, machine = new_object(MACHINE, f"m{number}", owner["spec"]["template"]["spec"], meta)
            await client.create(MACHINE.resource, machine, namespace=OTHERS)
        await asyncio.sleep(600)
        assert {each["metadata"]["uid"] for each in await _list(herd, MACHINE)} == before
        assert (await _list(herd, MACHINE_SET))[0]["status"]["replicas"] == 3
        await herd.edit(replicas=4)
        await asyncio.sleep(600)
        assert len(await _list(herd, MACHINE)) == 4

    _live(story)
