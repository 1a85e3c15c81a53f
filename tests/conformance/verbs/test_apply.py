"""Server-side apply: field ownership, conflicts, and removal of fields that are no longer applied."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.conftest import Widgets
from tests.conformance.differences import by_engine
from tests.conformance.objects import config_map, deployment
from tests.support.api import APPLY, Api
from tests.support.engines import Engine


def managers(obj: Any) -> dict[str, tuple[str, str]]:
    """Return operation and subresource by manager."""
    entries = obj["metadata"].get("managedFields") or []
    return {entry["manager"]: (entry["operation"], entry.get("subresource", "")) for entry in entries}


def fields_of(obj: Any, manager: str) -> Any:
    return next(e["fieldsV1"] for e in obj["metadata"]["managedFields"] if e["manager"] == manager)


async def test_apply_creates_a_missing_object(api: Api) -> None:
    created = (await api.apply(api.at("configmaps", "a"), config_map("a", x="1"))).expect(201)
    assert created["data"] == {"x": "1"}
    (entry,) = created["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"], entry["apiVersion"]) == ("applier", "Apply", "v1")
    assert entry["fieldsType"] == "FieldsV1"
    assert entry["fieldsV1"] == {"f:data": {"f:x": {}}}


async def test_reapplying_the_same_object_changes_nothing(api: Api) -> None:
    created = (await api.apply(api.at("configmaps", "a"), config_map("a", x="1"))).expect(201)
    again = (await api.apply(api.at("configmaps", "a"), config_map("a", x="1"))).expect(200)
    assert again == created


async def test_fields_no_longer_applied_are_removed(api: Api) -> None:
    await api.apply(api.at("configmaps", "a"), config_map("a", x="1", y="2"))
    left = (await api.apply(api.at("configmaps", "a"), config_map("a", y="2"))).expect(200)
    assert left["data"] == {"y": "2"}


async def test_two_managers_own_their_own_fields(api: Api) -> None:
    await api.apply(api.at("configmaps", "a"), config_map("a", x="1"), "one")
    both = (await api.apply(api.at("configmaps", "a"), config_map("a", y="2"), "two")).expect(200)
    assert both["data"] == {"x": "1", "y": "2"}
    assert fields_of(both, "one") == {"f:data": {"f:x": {}}}
    assert fields_of(both, "two") == {"f:data": {"f:y": {}}}


async def test_another_managers_field_conflicts(api: Api) -> None:
    await api.apply(api.at("configmaps", "a"), config_map("a", x="1"), "one")
    answer = await api.apply(api.at("configmaps", "a"), config_map("a", x="2"), "two")
    assert (answer.status, answer.reason) == (409, "Conflict")
    assert answer.message == 'Apply failed with 1 conflict: conflict with "one": .data.x'
    assert answer.causes == [("FieldManagerConflict", ".data.x", 'conflict with "one"')]


async def test_all_conflicts_are_reported_together(api: Api) -> None:
    await api.apply(api.at("configmaps", "a"), config_map("a", x="1", y="1"), "one")
    answer = await api.apply(api.at("configmaps", "a"), config_map("a", x="2", y="2"), "two")
    assert answer.message == 'Apply failed with 2 conflicts: conflicts with "one":\n- .data.x\n- .data.y'
    assert sorted(answer.causes) == [
        ("FieldManagerConflict", ".data.x", 'conflict with "one"'),
        ("FieldManagerConflict", ".data.y", 'conflict with "one"'),
    ]


async def test_the_same_value_is_shared_without_conflict(api: Api) -> None:
    await api.apply(api.at("configmaps", "a"), config_map("a", x="1"), "one")
    shared = (await api.apply(api.at("configmaps", "a"), config_map("a", x="1"), "two")).expect(200)
    assert fields_of(shared, "one") == fields_of(shared, "two") == {"f:data": {"f:x": {}}}
    left = (await api.apply(api.at("configmaps", "a"), config_map("a"), "one")).expect(200)
    assert left["data"] == {"x": "1"}  # still owned by the other
    assert set(managers(left)) == {"two"}


async def test_force_takes_over_fields(api: Api) -> None:
    await api.apply(api.at("configmaps", "a"), config_map("a", x="1", y="1"), "one")
    taken = (await api.apply(api.at("configmaps", "a"), config_map("a", x="2"), "two", force=True)).expect(200)
    assert taken["data"] == {"x": "2", "y": "1"}
    assert fields_of(taken, "one") == {"f:data": {"f:y": {}}}
    assert fields_of(taken, "two") == {"f:data": {"f:x": {}}}


async def test_fields_of_an_updater_conflict_with_its_name_and_verb(api: Api) -> None:
    (await api.post(api.at("configmaps") + "?fieldManager=maker", config_map("a", x="1"))).expect(201)
    answer = await api.apply(api.at("configmaps", "a"), config_map("a", x="2"), "two")
    assert answer.status == 409
    assert answer.message.startswith('Apply failed with 1 conflict: conflict with "maker" using v1')
    assert ".data.x" in answer.message


async def test_an_updater_takes_ownership_of_what_it_changes(api: Api) -> None:
    await api.apply(api.at("configmaps", "a"), config_map("a", x="1", y="1"), "one")
    url = api.at("configmaps", "a") + "?fieldManager=editor"
    changed = (await api.patch(url, {"data": {"x": "2"}})).expect(200)
    assert managers(changed) == {"one": ("Apply", ""), "editor": ("Update", "")}
    assert fields_of(changed, "one") == {"f:data": {"f:y": {}}}
    assert fields_of(changed, "editor") == {"f:data": {"f:x": {}}}


async def test_the_user_agent_names_the_manager_of_an_update(api: Api) -> None:
    created = await api.create("configmaps", config_map("a", x="1"))
    (entry,) = created["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"]) == ("tester", "Update")
    assert entry["fieldsV1"] == {"f:data": {".": {}, "f:x": {}}}


async def test_apply_needs_a_field_manager(api: Api) -> None:
    answer = await api.send("PATCH", api.at("configmaps", "a"), config_map("a"), content_type=APPLY)
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert "fieldManager: Required value: is required for apply patch" in answer.message


async def test_a_field_manager_has_a_limited_length(api: Api) -> None:
    answer = await api.post(api.at("configmaps") + f"?fieldManager={'x' * 129}", config_map("a"))
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert "fieldManager: Too long: may not be more than 128 bytes" in answer.message


async def test_force_is_only_valid_for_apply(api: Api) -> None:
    await api.create("configmaps", config_map("a"))
    answer = await api.patch(api.at("configmaps", "a") + "?force=true", {"data": {"x": "1"}})
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert "force: Forbidden: may not be specified for non-apply patch" in answer.message


async def test_applied_objects_must_not_carry_managed_fields(api: Api) -> None:
    obj = config_map("a")
    obj["metadata"]["managedFields"] = [
        {"manager": "x", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}}
    ]
    answer = await api.apply(api.at("configmaps", "a"), obj)
    assert (answer.status, answer.reason) == (400, "BadRequest")
    assert answer.message == "metadata.managedFields must be nil"


async def test_applied_objects_must_carry_kind_and_version(api: Api) -> None:
    answer = await api.apply(api.at("configmaps", "a"), {"metadata": {"name": "a"}})
    assert answer.failure == (400, "BadRequest", "invalid object type: /, Kind=")


async def test_the_applied_version_must_match_the_url(api: Api) -> None:
    answer = await api.apply(api.at("configmaps", "a"), config_map("a") | {"apiVersion": "v2"})
    assert answer.failure == (400, "BadRequest", "invalid object type: /v2, Kind=ConfigMap")


async def test_apply_rejects_unknown_fields(engine: Engine, api: Api) -> None:
    answer = await api.apply(api.at("configmaps", "a"), config_map("a") | {"nonsense": 1})
    assert answer.status == by_engine(engine, "patches-that-do-not-fit", real=500, embedded=400)
    message = "failed to create typed patch object (/a; /v1, Kind=ConfigMap): .nonsense: field not declared in schema"
    assert answer.message == message


async def test_yaml_may_be_applied(api: Api) -> None:
    body = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  x: 'yes'\n"
    assert (await api.apply(api.at("configmaps", "a"), body)).expect(201)["data"] == {"x": "yes"}


async def test_apply_with_an_older_version_conflicts(api: Api) -> None:
    created = (await api.apply(api.at("configmaps", "a"), config_map("a", x="1"))).expect(201)
    await api.apply(api.at("configmaps", "a"), config_map("a", x="2"))
    obj = config_map("a", x="3")
    obj["metadata"]["resourceVersion"] = created["metadata"]["resourceVersion"]
    answer = await api.apply(api.at("configmaps", "a"), obj)
    assert (answer.status, answer.reason) == (409, "Conflict")


async def test_an_empty_entry_clears_managed_fields(api: Api) -> None:
    await api.create("configmaps", config_map("a", x="1"))
    cleared = (await api.patch(api.at("configmaps", "a"), {"metadata": {"managedFields": [{}]}})).expect(200)
    assert "managedFields" not in cleared["metadata"]


# --- lists and maps -------------------------------------------------------------------------------------------------


async def test_list_maps_merge_by_key(api: Api, widgets: Widgets) -> None:
    url = api.at(widgets.resource, "a")
    await api.apply(url, widgets.named("a", {"parts": [{"name": "x", "size": 1}]}), "one")
    both = (await api.apply(url, widgets.named("a", {"parts": [{"name": "y", "size": 2}]}), "two")).expect(200)
    assert both["spec"]["parts"] == [{"name": "x", "size": 1}, {"name": "y", "size": 2}]
    assert fields_of(both, "two") == {"f:spec": {"f:parts": {'k:{"name":"y"}': {".": {}, "f:name": {}, "f:size": {}}}}}


async def test_items_of_list_maps_may_have_several_owners(api: Api, widgets: Widgets) -> None:
    url = api.at(widgets.resource, "a")
    await api.apply(url, widgets.named("a", {"parts": [{"name": "x", "size": 1}]}), "one")
    shared = {"parts": [{"name": "x", "color": "red"}]}
    both = (await api.apply(url, widgets.named("a", shared), "two")).expect(200)
    assert both["spec"]["parts"] == [{"name": "x", "size": 1, "color": "red"}]
    left = (await api.apply(url, widgets.named("a", {}), "one")).expect(200)
    assert left["spec"]["parts"] == [{"name": "x", "color": "red"}]


async def test_an_item_of_a_list_map_conflicts_by_its_key(api: Api, widgets: Widgets) -> None:
    url = api.at(widgets.resource, "a")
    await api.apply(url, widgets.named("a", {"parts": [{"name": "x", "size": 1}]}), "one")
    answer = await api.apply(url, widgets.named("a", {"parts": [{"name": "x", "size": 2}]}), "two")
    assert answer.message == 'Apply failed with 1 conflict: conflict with "one": .spec.parts[name="x"].size'


async def test_sets_merge_by_value(api: Api, widgets: Widgets) -> None:
    url = api.at(widgets.resource, "a")
    await api.apply(url, widgets.named("a", {"tags": ["a", "b"]}), "one")
    both = (await api.apply(url, widgets.named("a", {"tags": ["c", "b"]}), "two")).expect(200)
    assert sorted(both["spec"]["tags"]) == ["a", "b", "c"]
    left = (await api.apply(url, widgets.named("a", {"tags": []}), "one")).expect(200)
    assert sorted(left["spec"]["tags"]) == ["b", "c"]
    assert fields_of(left, "two") == {"f:spec": {"f:tags": {'v:"b"': {}, 'v:"c"': {}}}}


async def test_atomic_lists_are_owned_as_a_whole(api: Api, widgets: Widgets) -> None:
    url = api.at(widgets.resource, "a")
    await api.apply(url, widgets.named("a", {"steps": ["x"]}), "one")
    answer = await api.apply(url, widgets.named("a", {"steps": ["x", "y"]}), "two")
    assert answer.message == 'Apply failed with 1 conflict: conflict with "one": .spec.steps'
    taken = (await api.apply(url, widgets.named("a", {"steps": ["y"]}), "two", force=True)).expect(200)
    assert taken["spec"]["steps"] == ["y"]
    assert fields_of(taken, "two") == {"f:spec": {"f:steps": {}}}


async def test_duplicate_keys_of_a_list_map_are_rejected(engine: Engine, api: Api, widgets: Widgets) -> None:
    url = api.at(widgets.resource, "a")
    answer = await api.apply(url, widgets.named("a", {"parts": [{"name": "x"}, {"name": "x"}]}))
    assert answer.status == by_engine(engine, "patches-that-do-not-fit", real=500, embedded=400)
    assert answer.message.endswith('.spec.parts: duplicate entries for key [name="x"]')


async def test_containers_merge_by_name_and_ports_by_number_and_protocol(api: Api) -> None:
    obj = deployment("a", paused=True)
    url = api.at("apps/v1/deployments", "a")
    obj["spec"]["template"]["spec"]["containers"][0]["ports"] = [{"containerPort": 80}]
    (await api.apply(url, obj, "one")).expect(201)
    more: dict[str, Any] = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "a"},
        "spec": {
            "template": {
                "spec": {"containers": [{"name": "main", "ports": [{"containerPort": 80, "protocol": "UDP"}]}]}
            }
        },
    }
    both = (await api.apply(url, more, "two")).expect(200)
    (container,) = both["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "nothing"
    ports = sorted((port["containerPort"], port["protocol"]) for port in container["ports"])
    assert ports == [(80, "TCP"), (80, "UDP")]


async def test_defaults_have_no_owner(api: Api, widgets: Widgets) -> None:
    url = api.at(widgets.resource, "a")
    created = (await api.apply(url, widgets.named("a", {"color": "red"}))).expect(201)
    assert created["spec"] == {"color": "red", "replicas": 1}
    assert fields_of(created, "applier") == {"f:spec": {"f:color": {}}}
    changed = (await api.apply(url, widgets.named("a", {"replicas": 3}), "other")).expect(200)
    assert changed["spec"]["replicas"] == 3


# --- subresources -----------------------------------------------------------------------------------------------


async def test_status_is_applied_separately(api: Api, widgets: Widgets) -> None:
    url = api.at(widgets.resource, "a")
    await api.apply(url, widgets.named("a", {"color": "red"}), "one")
    status = widgets.named("a", {"color": "blue"}, status={"phase": "Ready"})
    applied = (await api.apply(url + "/status", status, "two")).expect(200)
    assert applied["spec"]["color"] == "red"
    assert applied["status"] == {"phase": "Ready"}
    assert managers(applied) == {"one": ("Apply", ""), "two": ("Apply", "status")}
    assert fields_of(applied, "two") == {"f:status": {"f:phase": {}}}


async def test_status_applied_to_the_object_itself_is_ignored(api: Api, widgets: Widgets) -> None:
    url = api.at(widgets.resource, "a")
    created = (await api.apply(url, widgets.named("a", {}, status={"phase": "Ready"}))).expect(201)
    assert "status" not in created


async def test_scaling_takes_ownership_of_replicas(api: Api) -> None:
    obj = deployment("a", paused=True, replicas=1)
    url = api.at("apps/v1/deployments", "a")
    (await api.apply(url, obj, "one")).expect(201)
    scaled = await api.patch(url + "/scale?fieldManager=scaler", {"spec": {"replicas": 2}})
    scaled.expect(200)
    found = await api.read(url)
    assert managers(found)["scaler"] == ("Update", "scale")
    assert fields_of(found, "scaler") == {"f:spec": {"f:replicas": {}}}
    answer = await api.apply(url, obj, "one")
    assert (answer.status, answer.reason) == (409, "Conflict")
    assert 'conflict with "scaler" with subresource "scale" using apps/v1: .spec.replicas' in answer.message


@pytest.mark.parametrize("body", [b"nonsense: [", b"- a\n- b\n", b"", b"5"])
async def test_only_objects_can_be_applied(api: Api, body: bytes) -> None:
    answer = await api.apply(api.at("configmaps", "a"), body)
    assert (answer.status, answer.reason) == (400, "BadRequest")


async def test_applying_scale_reports_conflicts(api: Api) -> None:
    url = api.at("apps/v1/deployments", "a")
    (await api.apply(url, deployment("a", paused=True, replicas=1), "one")).expect(201)
    scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "a"}, "spec": {"replicas": 3}}
    rejected = await api.apply(url + "/scale", scale, "two")
    assert rejected.failure == (409, "Conflict", 'Apply failed with 1 conflict: conflict with "one": .spec.replicas')
    (await api.apply(url + "/scale", scale, "two", force=True)).expect(200)
    found = await api.read(url)
    assert found["spec"]["replicas"] == 3
    assert managers(found)["two"] == ("Apply", "scale")
    assert "f:replicas" not in fields_of(found, "one")["f:spec"]
