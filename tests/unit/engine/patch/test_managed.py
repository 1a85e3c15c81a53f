import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given

from herder.engine.meta.errors import BadRequest, Conflict, StatusError
from herder.engine.patch import apply_merge_patch
from herder.engine.patch.ssa import managed
from herder.engine.patch.ssa.managed import InvalidManagedFields, keep_times_of_noop, validate_managed_fields
from herder.engine.patch.ssa.scale import entries_for_parent, entries_for_scale
from herder.engine.patch.typed.types import type_from_schema
from tests.unit.engine.patch.kinds import API_VERSION, SCHEMA, widget
from tests.unit.engine.patch.servers import WIDGET_TYPE, ModelServer, Request
from tests.unit.engine.patch.strategies import HISTORIES, widgets

NOW = datetime(2030, 1, 1, tzinfo=UTC)
TYPES = {API_VERSION: WIDGET_TYPE}
Object = dict[str, Any]


def track(new: Object, old: Object | None, manager: str = "m", **more: Any) -> list[Object]:
    common = {"manager": manager, "api_version": API_VERSION, "now": NOW, "type_of": TYPES.get}
    return managed.track_update(new, old, **common | more)


def apply(live: Object | None, config: Object, manager: str = "a", *, force: bool = False, **more: Any) -> Object:
    common = {"manager": manager, "force": force, "api_version": API_VERSION, "now": NOW, "type_of": TYPES.get}
    return managed.apply(live, config, **common | more)


def created(manager: str = "c", **spec: Any) -> Object:
    obj = widget(**spec)
    obj["metadata"]["uid"] = "u"
    obj["metadata"]["managedFields"] = track(obj, None, manager)
    return obj


def changed(obj: Object, **spec: Any) -> Object:
    return {**copy.deepcopy(obj), "spec": {**obj["spec"], **spec}}


def owners(obj: Object) -> dict[str, Any]:
    return {entry["manager"]: entry["fieldsV1"] for entry in obj["metadata"].get("managedFields") or []}


def test_an_entry_has_the_shape_of_the_api() -> None:
    assert track(widget(replicas=1), None) == [
        {
            "manager": "m",
            "operation": "Update",
            "apiVersion": API_VERSION,
            "time": "2030-01-01T00:00:00Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {".": {}, "f:replicas": {}}},
        }
    ]


def test_a_noop_write_keeps_the_same_entries() -> None:
    live = created(replicas=1)
    again = copy.deepcopy(live)
    again["metadata"]["resourceVersion"] = "2"
    assert track(again, live) is live["metadata"]["managedFields"]


def test_a_change_moves_ownership_and_time() -> None:
    live = created(replicas=1, title="t")
    entries = track(changed(live, replicas=2), live, now=NOW + timedelta(seconds=5))
    assert [(entry["manager"], entry["time"][-3:-1]) for entry in entries] == [("c", "00"), ("m", "05")]
    assert entries[1]["fieldsV1"] == {"f:spec": {"f:replicas": {}}}
    assert entries[0]["fieldsV1"] == {"f:spec": {".": {}, "f:title": {}}}


def test_a_manager_without_fields_is_removed() -> None:
    live = created(replicas=1)
    live["metadata"]["managedFields"][0]["fieldsV1"] = {"f:spec": {"f:replicas": {}}}
    assert [entry["manager"] for entry in track(changed(live, replicas=2), live)] == ["m"]


def test_the_name_and_server_set_fields_have_no_owner() -> None:
    obj = {"apiVersion": API_VERSION, "kind": "Widget", "metadata": {"name": "w", "uid": "u", "generation": 1}}
    assert track(obj, None) == []


def test_fields_that_the_endpoint_resets_are_not_owned() -> None:
    obj = {**widget(replicas=1), "status": {"phase": "x"}}
    entries = track(obj, None, reset={"f:status": {}})
    assert entries[0]["fieldsV1"] == {"f:spec": {".": {}, "f:replicas": {}}}


def test_a_status_write_has_its_own_entry_and_cannot_edit_entries() -> None:
    live = created(replicas=1)
    new = {**copy.deepcopy(live), "status": {"phase": "x"}}
    new["metadata"]["managedFields"] = [{}]
    entries = track(new, live, "c", subresource="status")
    assert [entry.get("subresource") for entry in entries] == [None, "status"]


def test_update_managers_are_capped_at_ten() -> None:
    live = created("m00", granular={"k0": "v"})
    for number in range(1, 15):
        new = changed(live, granular={**live["spec"]["granular"], f"k{number}": "v"})
        new["metadata"]["managedFields"] = track(new, live, f"m{number:02}", now=NOW + timedelta(seconds=number))
        live = new
    names = [entry["manager"] for entry in live["metadata"]["managedFields"]]
    assert len(names) == 10
    assert names[0] == "ancient-changes"
    assert live["metadata"]["managedFields"][0]["time"] == "2030-01-01T00:00:05Z"
    assert "f:k5" in owners(live)["ancient-changes"]["f:spec"]["f:granular"]


def test_valid_entries_sent_by_a_client_are_accepted() -> None:
    live = created(replicas=1)
    entry = {"manager": "x", "operation": "Apply", "apiVersion": API_VERSION, "fieldsType": "FieldsV1"}
    new = copy.deepcopy(live)
    new["metadata"]["managedFields"] = [{**entry, "fieldsV1": {"f:spec": {"f:title": {".": {}}}}}]
    assert track(new, live)[0]["fieldsV1"] == {"f:spec": {"f:title": {}}}
    new["metadata"]["managedFields"] = [{**entry, "fieldsV1": {"f:spec": {"broken": {}}}}]
    assert track(new, live) is live["metadata"]["managedFields"]


def test_cleared_entries_stay_cleared_until_an_apply() -> None:
    live = created(replicas=1, title="t")
    new = copy.deepcopy(live)
    new["metadata"]["managedFields"] = [{}]
    assert track(new, live) == []
    del new["metadata"]["managedFields"]
    assert track(changed(new, replicas=2), new) == []
    applied = apply(new, widget(replicas=1))
    assert set(owners(applied)) == {"before-first-apply", "a"}


def test_managers_of_removed_versions_are_removed() -> None:
    live = created(replicas=1)
    live["metadata"]["managedFields"][0]["apiVersion"] = "patch.test/v0"
    assert [entry["manager"] for entry in track(changed(live, title="t"), live)] == ["m"]


def test_fields_of_managers_are_compared_in_their_own_version() -> None:
    """In v2 the field is called count."""
    second = "patch.test/v2"
    v2 = type_from_schema(
        {"type": "object", "properties": {"spec": {"type": "object", "properties": {"count": {"type": "integer"}}}}}
    )

    def convert(obj: Object, version: str) -> Object:
        spec = dict(obj.get("spec") or {})
        there, back = ("replicas", "count") if version == second else ("count", "replicas")
        if there in spec:
            spec[back] = spec.pop(there)
        return {**obj, "apiVersion": version, "spec": spec}

    more = {"type_of": {**TYPES, second: v2}.get, "convert": convert}
    live = apply(None, {**widget(count=1), "apiVersion": second}, "two", **more | {"api_version": second})
    live = convert(live, API_VERSION)
    with pytest.raises(Conflict) as raised:
        apply(live, widget(replicas=2), **more)
    assert raised.value.message == 'Apply failed with 1 conflict: conflict with "two": .spec.count'
    forced = apply(live, widget(replicas=2), force=True, **more)
    assert owners(forced) == {"a": {"f:spec": {"f:replicas": {}}}}
    # The same applier in another version gives up the fields that it omits there.
    given_up = apply(live, widget(title="t"), "two", **more)
    assert given_up["spec"] == {"title": "t"}


def test_when_a_field_becomes_atomic_owners_of_its_parts_own_all_of_it() -> None:
    live = apply(None, widget(struct={"a": "x"}))
    atomic = copy.deepcopy(SCHEMA)
    atomic["properties"]["spec"]["properties"]["struct"]["x-kubernetes-map-type"] = "atomic"
    after = apply(live, widget(replicas=1), "b", type_of={API_VERSION: type_from_schema(atomic)}.get)
    assert owners(after)["a"] == {"f:spec": {"f:struct": {}}}


def test_applying_again_is_a_noop() -> None:
    first = apply(None, widget(replicas=1))
    again = apply(first, widget(replicas=1), now=NOW + timedelta(hours=1))
    assert again == first


def test_a_second_applier_of_the_same_value_shares_ownership() -> None:
    both = apply(apply(None, widget(replicas=1)), widget(replicas=1), "b")
    assert owners(both)["a"] == owners(both)["b"]
    assert ["time" in entry for entry in both["metadata"]["managedFields"]] == [False, True]


def test_a_field_that_is_no_longer_applied_is_removed_unless_shared() -> None:
    live = apply(apply(None, widget(replicas=1, title="t")), widget(title="t"), "b")
    after = apply(live, widget())
    assert after["spec"] == {"title": "t"}
    assert set(owners(after)) == {"b"}


def test_conflicts_list_every_manager_and_field() -> None:
    live = apply(created("updater", replicas=1), widget(title="t"), "applier")
    with pytest.raises(Conflict) as raised:
        apply(live, widget(replicas=2, title="u"))
    error = raised.value
    assert error.message == (
        'Apply failed with 2 conflicts: conflicts with "applier":\n- .spec.title\n'
        f'conflicts with "updater" using {API_VERSION}:\n- .spec.replicas'
    )
    assert error.details == {
        "causes": [
            {"reason": "FieldManagerConflict", "message": 'conflict with "applier"', "field": ".spec.title"},
            {
                "reason": "FieldManagerConflict",
                "message": f'conflict with "updater" using {API_VERSION}',
                "field": ".spec.replicas",
            },
        ]
    }


def test_a_conflict_with_a_status_writer_names_the_subresource() -> None:
    live = created(replicas=1)
    new = {**live, "status": {"phase": "x"}}
    new["metadata"] = {**live["metadata"], "managedFields": track(new, live, "s", subresource="status")}
    with pytest.raises(
        Conflict, match=f'conflict with "s" with subresource "status" using {API_VERSION}: .status.phase'
    ):
        apply(new, {**widget(), "status": {"phase": "y"}}, subresource="status")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**widget(), "kind": "Other"}, "invalid object type: patch.test/v1, Kind=Other"),
        ({**widget(), "apiVersion": "v1"}, "invalid object type: /v1, Kind=Widget"),
        ({}, "invalid object type: /, Kind="),
        ({**widget(), "metadata": {"managedFields": []}}, "metadata.managedFields must be nil"),
    ],
)
def test_a_configuration_of_another_kind_is_a_bad_request(config: Object, message: str) -> None:
    with pytest.raises(BadRequest) as raised:
        apply(None, config, kind="Widget")
    assert raised.value.message == message


def test_an_invalid_configuration_is_reported_with_object_and_field() -> None:
    config = widget(foo=1)
    config["metadata"]["namespace"] = "ns"
    with pytest.raises(StatusError) as raised:
        apply(None, config)
    assert raised.value.message == (
        "failed to create typed patch object (ns/w; patch.test/v1, Kind=Widget): "
        ".spec.foo: field not declared in schema"
    )
    assert (raised.value.code, raised.value.reason) == (400, "BadRequest")


def test_too_deeply_nested_objects_are_rejected_and_have_no_owner() -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    config = widget(free=deep)
    with pytest.raises(BadRequest, match="exceeded max depth"):
        apply(None, config)
    assert track(config, None) == []
    with pytest.raises(BadRequest, match="exceeded max depth"):
        apply_merge_patch(widget(), {"spec": deep})


def test_invalid_entries_are_detected() -> None:
    validate_managed_fields(created(replicas=1)["metadata"]["managedFields"])
    for bad in ([{"operation": "x"}], [{"operation": "Apply"}], [{"operation": "Apply", "apiVersion": "v1"}], [1]):
        with pytest.raises(InvalidManagedFields):
            validate_managed_fields(bad)


def test_a_noop_write_keeps_the_times_of_its_entries() -> None:
    old = created(replicas=1)
    new = copy.deepcopy(old)
    new["metadata"]["managedFields"][0]["time"] = "2040-01-01T00:00:00Z"
    assert keep_times_of_noop(new, old) is old["metadata"]["managedFields"]
    new["spec"]["replicas"] = 2
    assert keep_times_of_noop(new, old) is new["metadata"]["managedFields"]


def test_replicas_written_through_scale_are_owned_by_the_writer() -> None:
    paths = {API_VERSION: ("f:spec", "f:replicas")}
    parent = apply(None, widget(replicas=1, title="t"))["metadata"]["managedFields"]
    scale = entries_for_scale(parent, paths)
    assert scale[0]["fieldsV1"] == {"f:spec": {"f:replicas": {}}}
    assert entries_for_parent(parent, scale, API_VERSION, paths) == parent
    entry = {"operation": "Update", "apiVersion": "autoscaling/v1", "fieldsType": "FieldsV1", "subresource": "scale"}
    taken = [{"manager": "scaler", **entry, "fieldsV1": {"f:spec": {"f:replicas": {}}}}]
    after = entries_for_parent(parent, taken, API_VERSION, paths)
    assert {e["manager"]: e["fieldsV1"] for e in after} == {
        "a": {"f:spec": {"f:title": {}}},
        "scaler": {"f:spec": {"f:replicas": {}}},
    }


@given(widgets())
def test_an_apply_without_a_live_object_creates_the_configuration(config: Object) -> None:
    kept = copy.deepcopy(config)
    result = apply(None, config)
    result["metadata"].pop("managedFields", None)
    assert result == config == kept


@given(HISTORIES)
def test_no_write_modifies_the_stored_object(history: list[Request]) -> None:
    """Cached objects are shared: a write must not modify the stored object or its entries."""
    model = ModelServer()
    for request in history:
        before, sent = copy.deepcopy(model.live), copy.deepcopy(request.body)
        live = model.live
        model.write(request)
        assert (live, request.body) == (before, sent)
        if model.live is None:
            return


@given(HISTORIES)
def test_applying_the_same_configuration_converges(history: list[Request]) -> None:
    """It converges with the second apply: an emptied map is removed first, as on the real server."""
    model = ModelServer()
    for request in history:
        code, _ = model.write(request)
        if request.verb == "apply" and code < 300:
            model.write(request)
            before = copy.deepcopy(model.live)
            model.write(request)
            assert model.live == before
        if model.live is None:
            return
