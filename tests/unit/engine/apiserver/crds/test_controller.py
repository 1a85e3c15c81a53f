"""The CRD controller on a real store: names, serving, schema updates and deletion."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from herder.engine.apiserver.builtin import resources
from herder.engine.apiserver.crds import CrdController, DefinitionStrategy
from herder.engine.apiserver.crds.controller import DEFINITIONS
from herder.engine.apiserver.crds.status import condition_is, find_condition
from herder.engine.apiserver.registry.resources import Registry, Resource
from herder.engine.apiserver.registry.storage_codec import decode, encoder
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.store import Delete, Key, Put, Store
from tests.unit.engine.apiserver.crds.samples import NOW, context, definition

WIDGETS = GroupResource("example.com", "widgets")


class Bench:
    """A store, a registry and a running controller."""

    def __init__(self) -> None:
        self.store = Store.open(None, clock=lambda: 0.0)
        self.registry = Registry(resources())
        self.controller = CrdController(self.store, self.registry, clock=lambda: NOW)

    def key(self, name: str) -> Key:
        return Key(str(DEFINITIONS), "", name)

    def get(self, name: str) -> Object | None:
        record = self.store.get(self.key(name))
        return decode(record) if record else None

    async def put(self, crd: Object) -> None:
        await self.store.write(Put(self.key(crd["metadata"]["name"]), encoder(crd)))

    async def change(self, name: str, change: Callable[[Object], None]) -> None:
        crd = self.get(name)
        assert crd is not None
        change(crd)
        await self.put(crd)

    async def until(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(5):
            while not holds():
                await asyncio.sleep(0)

    async def established(self, crd: Object) -> Object:
        name = crd["metadata"]["name"]
        await self.put(crd)
        await self.until(lambda: condition_is(self.get(name) or {}, "Established", "True"))
        return self.get(name) or {}

    async def delete(self, name: str) -> None:
        def mark(crd: Object) -> None:
            DefinitionStrategy().prepare_delete(crd, context())
            crd["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"

        await self.change(name, mark)

    async def add_instance(self, name: str, **metadata: Any) -> Key:
        key = Key(str(WIDGETS), "default", name)
        obj = {"kind": "Widget", "apiVersion": "example.com/v1", "metadata": {"name": name, **metadata}}
        await self.store.write(Put(key, encoder(obj)))
        return key


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    running = asyncio.create_task(bench.controller.run())
    yield bench
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_new_definition_is_accepted_established_and_served(bench: Bench) -> None:
    crd = await bench.established(definition(settled=False))
    assert crd["status"]["acceptedNames"] == crd["spec"]["names"]
    assert [(c["type"], c["status"], c["reason"], c["message"]) for c in crd["status"]["conditions"]] == [
        ("NamesAccepted", "True", "NoConflicts", "no conflicts found"),
        ("Established", "True", "InitialNamesAccepted", "the initial names have been accepted"),
    ]
    assert bench.registry.get(WIDGETS) is not None


async def test_an_established_crd_is_served(bench: Bench) -> None:
    watch = bench.store.watch(str(DEFINITIONS), since=bench.store.revision)
    await bench.put(definition(settled=False))
    async for batch in watch:
        if any(condition_is(decode(event.record), "Established", "True") for event in batch):
            break
    assert bench.registry.served("example.com", "v1", "widgets") is not None


async def test_the_status_is_owned_by_the_server(bench: Bench) -> None:
    crd = definition(settled=False)
    manager = {
        "manager": "me",
        "operation": "Update",
        "apiVersion": "apiextensions.k8s.io/v1",
        "fieldsType": "FieldsV1",
    }
    crd["metadata"]["managedFields"] = [manager | {"fieldsV1": {"f:spec": {"f:group": {}}}}]
    established = await bench.established(crd)
    entry = next(e for e in established["metadata"]["managedFields"] if e["manager"] == "kube-apiserver")
    assert (entry["operation"], entry["subresource"]) == ("Update", "status")
    assert 'k:{"type":"Established"}' in entry["fieldsV1"]["f:status"]["f:conditions"]


async def test_definitions_are_served_at_start_without_waiting(bench: Bench) -> None:
    await bench.established(definition(settled=False))
    registry = Registry(resources())
    CrdController(bench.store, registry, clock=lambda: NOW).load()
    assert registry.get(WIDGETS) is not None


async def test_a_taken_name_is_refused_until_it_is_free(bench: Bench) -> None:
    await bench.established(definition(settled=False))
    rival = definition("gadgets", "Gadget", settled=False)
    rival["spec"]["names"]["shortNames"] = ["wd"]
    rival["spec"]["names"]["singular"] = "widget"
    await bench.put(rival)
    await bench.until(lambda: find_condition(bench.get("gadgets.example.com") or {}, "NamesAccepted"))
    waiting = bench.get("gadgets.example.com")
    assert waiting is not None
    assert find_condition(waiting, "NamesAccepted") == {
        "type": "NamesAccepted",
        "status": "False",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
        "reason": "ShortNamesConflict",
        "message": '"wd" is already in use',
    }
    assert find_condition(waiting, "Established") == {
        "type": "Established",
        "status": "False",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
        "reason": "NotAccepted",
        "message": "not all names are accepted",
    }
    assert waiting["status"]["acceptedNames"]["plural"] == "gadgets"
    assert "singular" not in waiting["status"]["acceptedNames"]
    assert bench.registry.get(GroupResource("example.com", "gadgets")) is None

    await bench.delete("widgets.example.com")
    await bench.until(lambda: condition_is(bench.get("gadgets.example.com") or {}, "Established", "True"))
    assert bench.registry.get(WIDGETS) is None


async def test_names_of_another_group_do_not_matter(bench: Bench) -> None:
    await bench.established(definition(settled=False))
    await bench.established(definition(settled=False, group="other.example.com"))


async def test_an_established_definition_keeps_serving_its_old_names_on_a_conflict(bench: Bench) -> None:
    await bench.established(definition(settled=False))
    await bench.established(definition("gadgets", "Gadget", settled=False))

    def greedy(crd: Object) -> None:
        crd["spec"]["names"]["shortNames"] = ["wd"]

    await bench.change("gadgets.example.com", greedy)
    await bench.until(lambda: condition_is(bench.get("gadgets.example.com") or {}, "NamesAccepted", "False"))
    assert condition_is(bench.get("gadgets.example.com") or {}, "Established", "True")
    gadgets = bench.registry.get(GroupResource("example.com", "gadgets"))
    assert gadgets is not None
    assert gadgets.short_names == ()


async def test_a_new_schema_is_served_as_soon_as_it_is_seen(bench: Bench) -> None:
    await bench.established(definition(settled=False))
    before = bench.registry.generation

    def shrink(crd: Object) -> None:
        del crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["color"]

    await bench.change("widgets.example.com", shrink)
    await bench.until(lambda: bench.registry.generation > before)
    widgets = bench.registry.get(WIDGETS)
    assert widgets is not None
    _, unknown = widgets.versions["v1"].model.decode({"spec": {"color": "red"}})
    assert unknown == ['unknown field "spec.color"']


async def test_objects_from_before_a_new_schema_are_known_by_their_revision(bench: Bench) -> None:
    await bench.established(definition(settled=False))
    key = await bench.add_instance("old")

    def widgets() -> Resource:
        found = bench.registry.get(WIDGETS)
        assert found is not None
        return found

    old = bench.store.get(key)
    assert old is not None
    assert widgets().schema_changed_at <= old.revision

    def grow(crd: Object) -> None:
        spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        spec["added"] = {"type": "string", "default": "new"}
        del spec["color"]

    await bench.change("widgets.example.com", grow)
    await bench.until(lambda: widgets().schema_changed_at > old.revision)
    prune_and_default = widgets().prune_and_default
    assert prune_and_default is not None
    obj: Object = {"apiVersion": "example.com/v1", "spec": {"color": "red"}}
    prune_and_default(obj)
    assert obj["spec"] == {"added": "new", "size": 3}
    stored_otherwise: Object = {"apiVersion": "example.com/v1alpha1", "spec": {"color": "red"}}
    prune_and_default(stored_otherwise)
    assert stored_otherwise["spec"] == {"color": "red"}

    restarted = Registry(resources())
    CrdController(bench.store, restarted, clock=lambda: NOW).load()
    again = restarted.get(WIDGETS)
    assert again is not None
    assert again.schema_changed_at > old.revision


async def test_a_change_that_serves_the_same_touches_nothing(bench: Bench) -> None:
    await bench.established(definition(settled=False))
    before = bench.registry.generation

    def annotate(crd: Object) -> None:
        crd["metadata"]["annotations"] = {"a": "b"}

    await bench.change("widgets.example.com", annotate)
    revision = bench.store.revision
    for _ in range(20):
        await asyncio.sleep(0)
    assert (bench.registry.generation, bench.store.revision) == (before, revision)


async def test_community_groups_say_whether_they_were_approved(bench: Bench) -> None:
    crd = definition(settled=False, group="widgets.k8s.io")
    crd["metadata"]["annotations"] = {"api-approved.kubernetes.io": "unapproved, a test"}
    established = await bench.established(crd)
    condition = find_condition(established, "KubernetesAPIApprovalPolicyConformant")
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("False", "UnapprovedAnnotation")


async def test_built_in_kinds_cannot_be_taken_over(bench: Bench) -> None:
    crd = definition("roles", "Role", settled=False, group="rbac.authorization.k8s.io")
    await bench.established(crd)
    roles = bench.registry.get(GroupResource("rbac.authorization.k8s.io", "roles"))
    assert roles is not None
    assert not roles.custom


async def test_a_deleted_definition_takes_its_instances_along(bench: Bench) -> None:
    await bench.established(definition(settled=False))
    await bench.add_instance("a")
    await bench.add_instance("b")
    await bench.delete("widgets.example.com")
    await bench.until(lambda: bench.get("widgets.example.com") is None)
    assert bench.store.count(str(WIDGETS)) == 0
    assert bench.registry.get(WIDGETS) is None


async def test_instances_with_finalizers_hold_the_definition(bench: Bench) -> None:
    await bench.established(definition(settled=False))
    key = await bench.add_instance("held", finalizers=["example.com/hold"], generation=1)

    def held() -> Object:
        record = bench.store.get(key)
        assert record is not None
        return decode(record)

    await bench.delete("widgets.example.com")
    await bench.until(lambda: held()["metadata"].get("deletionTimestamp"))
    assert held()["metadata"]["generation"] == 2
    going = bench.get("widgets.example.com")
    assert going is not None
    condition = find_condition(going, "Terminating")
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("True", "InstanceDeletionInProgress")
    assert bench.registry.get(WIDGETS) is not None

    await bench.store.write(Delete(key, encoder(held())))
    await bench.until(lambda: bench.get("widgets.example.com") is None)


async def test_other_finalizers_of_the_definition_outlast_the_cleanup(bench: Bench) -> None:
    crd = definition(settled=False)
    crd["metadata"]["finalizers"] = ["example.com/mine"]
    await bench.established(crd)
    await bench.delete("widgets.example.com")

    def cleaned() -> bool:
        left = bench.get("widgets.example.com") or {}
        return bool(left["metadata"]["finalizers"] == ["example.com/mine"])

    await bench.until(cleaned)
    assert condition_is(bench.get("widgets.example.com") or {}, "Terminating", "False")


async def test_a_cleanup_that_was_interrupted_goes_on_after_a_restart() -> None:
    bench = Bench()
    crd = definition()
    DefinitionStrategy().prepare_delete(crd, context())
    crd["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    await bench.put(crd)
    await bench.add_instance("a")
    bench.controller.load()
    running = asyncio.create_task(bench.controller.run())
    await bench.until(lambda: bench.get("widgets.example.com") is None)
    assert bench.store.count(str(WIDGETS)) == 0
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_stored_definition_keeps_its_head_first(bench: Bench) -> None:
    await bench.established(definition(settled=False))
    record = bench.store.get(bench.key("widgets.example.com"))
    assert record is not None
    assert record.value.startswith(b'{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1",')
    assert msgspec.json.decode(record.value)["metadata"]["resourceVersion"] == str(record.revision)
