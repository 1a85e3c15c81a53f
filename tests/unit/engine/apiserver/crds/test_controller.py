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


class ControllerHarness:
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
async def harness() -> AsyncIterator[ControllerHarness]:
    harness = ControllerHarness()
    running = asyncio.create_task(harness.controller.run())
    yield harness
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_new_definition_is_accepted_established_and_served(harness: ControllerHarness) -> None:
    crd = await harness.established(definition(settled=False))
    assert crd["status"]["acceptedNames"] == crd["spec"]["names"]
    assert [(c["type"], c["status"], c["reason"], c["message"]) for c in crd["status"]["conditions"]] == [
        ("NamesAccepted", "True", "NoConflicts", "no conflicts found"),
        ("Established", "True", "InitialNamesAccepted", "the initial names have been accepted"),
    ]
    assert harness.registry.get(WIDGETS) is not None


async def test_an_established_crd_is_served(harness: ControllerHarness) -> None:
    watch = harness.store.watch(str(DEFINITIONS), since=harness.store.revision)
    await harness.put(definition(settled=False))
    async for batch in watch:
        if any(condition_is(decode(event.record), "Established", "True") for event in batch):
            break
    assert harness.registry.served("example.com", "v1", "widgets") is not None


async def test_the_status_is_owned_by_the_server(harness: ControllerHarness) -> None:
    crd = definition(settled=False)
    manager = {
        "manager": "me",
        "operation": "Update",
        "apiVersion": "apiextensions.k8s.io/v1",
        "fieldsType": "FieldsV1",
    }
    crd["metadata"]["managedFields"] = [manager | {"fieldsV1": {"f:spec": {"f:group": {}}}}]
    established = await harness.established(crd)
    entry = next(e for e in established["metadata"]["managedFields"] if e["manager"] == "kube-apiserver")
    assert (entry["operation"], entry["subresource"]) == ("Update", "status")
    assert 'k:{"type":"Established"}' in entry["fieldsV1"]["f:status"]["f:conditions"]


async def test_definitions_are_served_at_start_without_waiting(harness: ControllerHarness) -> None:
    await harness.established(definition(settled=False))
    registry = Registry(resources())
    CrdController(harness.store, registry, clock=lambda: NOW).load()
    assert registry.get(WIDGETS) is not None


async def test_a_conflicting_name_is_not_accepted_until_it_is_free(harness: ControllerHarness) -> None:
    await harness.established(definition(settled=False))
    rival = definition("gadgets", "Gadget", settled=False)
    rival["spec"]["names"]["shortNames"] = ["wd"]
    rival["spec"]["names"]["singular"] = "widget"
    await harness.put(rival)
    await harness.until(lambda: find_condition(harness.get("gadgets.example.com") or {}, "NamesAccepted"))
    waiting = harness.get("gadgets.example.com")
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
    assert harness.registry.get(GroupResource("example.com", "gadgets")) is None

    await harness.delete("widgets.example.com")
    await harness.until(lambda: condition_is(harness.get("gadgets.example.com") or {}, "Established", "True"))
    assert harness.registry.get(WIDGETS) is None


async def test_names_of_another_group_do_not_conflict(harness: ControllerHarness) -> None:
    await harness.established(definition(settled=False))
    await harness.established(definition(settled=False, group="other.example.com"))


async def test_an_established_definition_keeps_serving_its_old_names_on_a_conflict(harness: ControllerHarness) -> None:
    await harness.established(definition(settled=False))
    await harness.established(definition("gadgets", "Gadget", settled=False))

    def greedy(crd: Object) -> None:
        crd["spec"]["names"]["shortNames"] = ["wd"]

    await harness.change("gadgets.example.com", greedy)
    await harness.until(lambda: condition_is(harness.get("gadgets.example.com") or {}, "NamesAccepted", "False"))
    assert condition_is(harness.get("gadgets.example.com") or {}, "Established", "True")
    gadgets = harness.registry.get(GroupResource("example.com", "gadgets"))
    assert gadgets is not None
    assert gadgets.short_names == ()


async def test_a_new_schema_is_served_as_soon_as_it_is_seen(harness: ControllerHarness) -> None:
    await harness.established(definition(settled=False))
    before = harness.registry.generation

    def shrink(crd: Object) -> None:
        del crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["color"]

    await harness.change("widgets.example.com", shrink)
    await harness.until(lambda: harness.registry.generation > before)
    widgets = harness.registry.get(WIDGETS)
    assert widgets is not None
    _, unknown = widgets.versions["v1"].model.decode({"spec": {"color": "red"}})
    assert unknown == ['unknown field "spec.color"']


async def test_objects_older_than_a_schema_change_are_identified_by_revision(harness: ControllerHarness) -> None:
    await harness.established(definition(settled=False))
    key = await harness.add_instance("old")

    def widgets() -> Resource:
        found = harness.registry.get(WIDGETS)
        assert found is not None
        return found

    old = harness.store.get(key)
    assert old is not None
    assert widgets().schema_changed_at <= old.revision

    def grow(crd: Object) -> None:
        spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        spec["added"] = {"type": "string", "default": "new"}
        del spec["color"]

    await harness.change("widgets.example.com", grow)
    await harness.until(lambda: widgets().schema_changed_at > old.revision)
    prune_and_default = widgets().prune_and_default
    assert prune_and_default is not None
    obj: Object = {"apiVersion": "example.com/v1", "spec": {"color": "red"}}
    prune_and_default(obj)
    assert obj["spec"] == {"added": "new", "size": 3}
    stored_otherwise: Object = {"apiVersion": "example.com/v1alpha1", "spec": {"color": "red"}}
    prune_and_default(stored_otherwise)
    assert stored_otherwise["spec"] == {"color": "red"}

    restarted = Registry(resources())
    CrdController(harness.store, restarted, clock=lambda: NOW).load()
    again = restarted.get(WIDGETS)
    assert again is not None
    assert again.schema_changed_at > old.revision


async def test_a_change_without_effect_keeps_the_served_resource(harness: ControllerHarness) -> None:
    await harness.established(definition(settled=False))
    before = harness.registry.generation

    def annotate(crd: Object) -> None:
        crd["metadata"]["annotations"] = {"a": "b"}

    await harness.change("widgets.example.com", annotate)
    revision = harness.store.revision
    for _ in range(20):
        await asyncio.sleep(0)
    assert (harness.registry.generation, harness.store.revision) == (before, revision)


async def test_protected_groups_report_their_approval_condition(harness: ControllerHarness) -> None:
    crd = definition(settled=False, group="widgets.k8s.io")
    crd["metadata"]["annotations"] = {"api-approved.kubernetes.io": "unapproved, a test"}
    established = await harness.established(crd)
    condition = find_condition(established, "KubernetesAPIApprovalPolicyConformant")
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("False", "UnapprovedAnnotation")


async def test_built_in_kinds_cannot_be_replaced(harness: ControllerHarness) -> None:
    crd = definition("roles", "Role", settled=False, group="rbac.authorization.k8s.io")
    await harness.established(crd)
    roles = harness.registry.get(GroupResource("rbac.authorization.k8s.io", "roles"))
    assert roles is not None
    assert not roles.custom


async def test_a_deleted_definition_deletes_its_instances(harness: ControllerHarness) -> None:
    await harness.established(definition(settled=False))
    await harness.add_instance("a")
    await harness.add_instance("b")
    await harness.delete("widgets.example.com")
    await harness.until(lambda: harness.get("widgets.example.com") is None)
    assert harness.store.count(str(WIDGETS)) == 0
    assert harness.registry.get(WIDGETS) is None


async def test_instances_with_finalizers_block_the_deletion_of_the_definition(harness: ControllerHarness) -> None:
    await harness.established(definition(settled=False))
    key = await harness.add_instance("held", finalizers=["example.com/hold"], generation=1)

    def held() -> Object:
        record = harness.store.get(key)
        assert record is not None
        return decode(record)

    await harness.delete("widgets.example.com")
    await harness.until(lambda: held()["metadata"].get("deletionTimestamp"))
    assert held()["metadata"]["generation"] == 2
    deleting = harness.get("widgets.example.com")
    assert deleting is not None
    condition = find_condition(deleting, "Terminating")
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("True", "InstanceDeletionInProgress")
    assert harness.registry.get(WIDGETS) is not None

    await harness.store.write(Delete(key, encoder(held())))
    await harness.until(lambda: harness.get("widgets.example.com") is None)


async def test_other_finalizers_of_the_definition_are_kept_after_the_cleanup(harness: ControllerHarness) -> None:
    crd = definition(settled=False)
    crd["metadata"]["finalizers"] = ["example.com/mine"]
    await harness.established(crd)
    await harness.delete("widgets.example.com")

    def cleaned() -> bool:
        left = harness.get("widgets.example.com") or {}
        return bool(left["metadata"]["finalizers"] == ["example.com/mine"])

    await harness.until(cleaned)
    assert condition_is(harness.get("widgets.example.com") or {}, "Terminating", "False")


async def test_an_interrupted_cleanup_resumes_after_a_restart() -> None:
    harness = ControllerHarness()
    crd = definition()
    DefinitionStrategy().prepare_delete(crd, context())
    crd["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    await harness.put(crd)
    await harness.add_instance("a")
    harness.controller.load()
    running = asyncio.create_task(harness.controller.run())
    await harness.until(lambda: harness.get("widgets.example.com") is None)
    assert harness.store.count(str(WIDGETS)) == 0
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_stored_definition_starts_with_kind_and_api_version(harness: ControllerHarness) -> None:
    await harness.established(definition(settled=False))
    record = harness.store.get(harness.key("widgets.example.com"))
    assert record is not None
    assert record.value.startswith(b'{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1",')
    assert msgspec.json.decode(record.value)["metadata"]["resourceVersion"] == str(record.revision)
