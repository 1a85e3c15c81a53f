"""JSON patch, merge patch and strategic merge patch."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.conformance.conftest import Widgets
from tests.conformance.objects import config_map, deployment, pod
from tests.support.api import JSON_PATCH, MERGE, STRATEGIC, Api

# --- JSON patch ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operations", "data"),
    [
        ([{"op": "add", "path": "/data/b", "value": "2"}], {"a": "1", "b": "2"}),
        ([{"op": "replace", "path": "/data/a", "value": "2"}], {"a": "2"}),
        ([{"op": "remove", "path": "/data/a"}], None),
        ([{"op": "copy", "from": "/data/a", "path": "/data/b"}], {"a": "1", "b": "1"}),
        ([{"op": "move", "from": "/data/a", "path": "/data/b"}], {"b": "1"}),
        ([{"op": "test", "path": "/data/a", "value": "1"}], {"a": "1"}),
        ([{"op": "add", "path": "/data", "value": {"c": "3"}}], {"c": "3"}),
        ([{"op": "add", "path": "/data/x.y", "value": "1"}], {"a": "1", "x.y": "1"}),
        ([], {"a": "1"}),
    ],
)
async def test_json_patch_operations(api: Api, operations: list[Any], data: Any) -> None:
    await api.create("configmaps", config_map("a", a="1"))
    patched = (await api.patch(api.at("configmaps", "a"), operations, JSON_PATCH)).expect(200)
    assert patched.get("data") == data


async def test_json_patch_escapes_slashes_in_keys(api: Api) -> None:
    await api.create("configmaps", config_map("a"))
    operations = [{"op": "add", "path": "/metadata/annotations", "value": {"example.com/x": "1"}}]
    await api.patch(api.at("configmaps", "a"), operations, JSON_PATCH)
    operations = [{"op": "replace", "path": "/metadata/annotations/example.com~1x", "value": "2"}]
    patched = (await api.patch(api.at("configmaps", "a"), operations, JSON_PATCH)).expect(200)
    assert patched["metadata"]["annotations"] == {"example.com/x": "2"}


@pytest.mark.parametrize(
    ("operations", "message"),
    [
        (
            [{"op": "test", "path": "/data/a", "value": "2"}],
            "the server rejected our request due to an error in our request",
        ),
        ([{"op": "remove", "path": "/data/nothing"}], "the server rejected our request due to an error in our request"),
        ([{"op": "replace", "path": "/nothing/x", "value": 1}], "the server rejected our request"),
    ],
)
async def test_inapplicable_json_patches_are_rejected(api: Api, operations: list[Any], message: str) -> None:
    await api.create("configmaps", config_map("a", a="1"))
    answer = await api.patch(api.at("configmaps", "a"), operations, JSON_PATCH)
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert message in answer.message


@pytest.mark.parametrize("body", [b"{}", b"nonsense", b'[{"op":"add"', b'"text"'])
async def test_invalid_json_patch_is_a_bad_request(api: Api, body: bytes) -> None:
    await api.create("configmaps", config_map("a"))
    answer = await api.patch(api.at("configmaps", "a"), body, JSON_PATCH)
    assert (answer.status, answer.reason) == (400, "BadRequest")


async def test_json_patch_adds_to_the_end_of_a_list(api: Api, widgets: Widgets) -> None:
    await api.create(widgets.resource, widgets.named("a", {"steps": ["one"]}))
    operations = [{"op": "add", "path": "/spec/steps/-", "value": "two"}]
    operations.append({"op": "add", "path": "/spec/steps/0", "value": "zero"})
    patched = (await api.patch(api.at(widgets.resource, "a"), operations, JSON_PATCH)).expect(200)
    assert patched["spec"]["steps"] == ["zero", "one", "two"]


# --- merge patch --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patch", "data"),
    [
        ({"data": {"b": "2"}}, {"a": "1", "b": "2"}),
        ({"data": {"a": None}}, None),
        ({"data": None}, None),
        ({"data": {"a": None, "b": "2"}}, {"b": "2"}),
        ({"data": {"zzz": None}}, {"a": "1"}),
        ({}, {"a": "1"}),
    ],
)
async def test_merge_patch(api: Api, patch: Any, data: Any) -> None:
    await api.create("configmaps", config_map("a", a="1"))
    patched = (await api.patch(api.at("configmaps", "a"), patch, MERGE)).expect(200)
    assert patched.get("data") == data


async def test_merge_patch_replaces_lists(api: Api, widgets: Widgets) -> None:
    await api.create(widgets.resource, widgets.named("a", {"parts": [{"name": "x"}, {"name": "y"}]}))
    patched = (await api.patch(api.at(widgets.resource, "a"), {"spec": {"parts": [{"name": "z"}]}})).expect(200)
    assert patched["spec"]["parts"] == [{"name": "z"}]


async def test_a_patch_with_an_older_version_conflicts(api: Api) -> None:
    created = await api.create("configmaps", config_map("a"))
    await api.patch(api.at("configmaps", "a"), {"data": {"x": "1"}})
    patch = {"metadata": {"resourceVersion": created["metadata"]["resourceVersion"]}, "data": {"x": "2"}}
    answer = await api.patch(api.at("configmaps", "a"), patch)
    assert (answer.status, answer.reason) == (409, "Conflict")


async def test_a_patch_cannot_change_the_uid(api: Api) -> None:
    await api.create("configmaps", config_map("a"))
    answer = await api.patch(api.at("configmaps", "a"), {"metadata": {"uid": "other"}})
    message = 'ConfigMap "a" is invalid: metadata.uid: Invalid value: "other": field is immutable'
    assert answer.failure == (422, "Invalid", message)


async def test_patches_without_a_version_do_not_conflict_with_each_other(api: Api) -> None:
    await api.create("configmaps", config_map("a"))
    url = api.at("configmaps", "a")
    answers = await asyncio.gather(*(api.patch(url, {"data": {f"k{n}": "v"}}) for n in range(8)))
    assert {answer.status for answer in answers} == {200}
    assert len((await api.read(url))["data"]) == 8


async def test_a_patch_of_an_unknown_name_is_not_found(api: Api) -> None:
    answer = await api.patch(api.at("configmaps", "nobody"), {"data": {"x": "1"}})
    assert answer.failure == (404, "NotFound", 'configmaps "nobody" not found')


async def test_a_patch_cannot_rename(api: Api) -> None:
    await api.create("configmaps", config_map("a"))
    answer = await api.patch(api.at("configmaps", "a"), {"metadata": {"name": "b"}})
    assert answer.failure == (
        400,
        "BadRequest",
        "the name of the object (b) does not match the name on the URL (a)",
    )


async def test_the_patched_object_is_validated(api: Api, widgets: Widgets) -> None:
    await api.create(widgets.resource, widgets.named("a"))
    answer = await api.patch(api.at(widgets.resource, "a"), {"spec": {"replicas": -1}})
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert "spec.replicas: Invalid value: -1: spec.replicas in body should be greater than or equal to 0" in (
        answer.message
    )


async def test_a_patch_cannot_change_the_type_of_a_field(api: Api) -> None:
    await api.create("configmaps", config_map("a"))
    answer = await api.patch(api.at("configmaps", "a"), {"data": {"x": 5}})
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert answer.message.startswith(' "" is invalid: patch: Invalid value: ')
    assert answer.message.endswith(
        '}": json: cannot unmarshal number into Go struct field ConfigMap.data of type string'
    )


@pytest.mark.parametrize("body", [b"[]", b"nonsense", b'{"data":'])
async def test_invalid_merge_patch_is_a_bad_request(api: Api, body: bytes) -> None:
    await api.create("configmaps", config_map("a"))
    answer = await api.patch(api.at("configmaps", "a"), body, MERGE)
    assert (answer.status, answer.reason) == (400, "BadRequest")


# --- strategic merge patch --------------------------------------------------------------------------------------


async def patched(api: Api, spec: Any, patch: Any) -> Any:
    """Return the template's pod spec after a strategic merge patch."""
    obj = deployment("a", paused=True)
    obj["spec"]["template"]["spec"] |= spec
    await api.create("apps/v1/deployments", obj)
    body = {"spec": {"template": {"spec": patch}}}
    answer = await api.patch(api.at("apps/v1/deployments", "a"), body, STRATEGIC)
    return answer.expect(200)["spec"]["template"]["spec"]


async def test_strategic_patch_merges_containers_by_name(api: Api) -> None:
    created = await patched(
        api,
        {"containers": [{"name": "x", "image": "x:1"}, {"name": "y", "image": "y:1"}]},
        {"containers": [{"name": "y", "image": "y:2"}, {"name": "z", "image": "z:1"}]},
    )
    assert {c["name"]: c["image"] for c in created["containers"]} == {"x": "x:1", "y": "y:2", "z": "z:1"}


async def test_strategic_patch_deletes_an_item_by_directive(api: Api) -> None:
    created = await patched(
        api,
        {"containers": [{"name": "x", "image": "x:1"}, {"name": "y", "image": "y:1"}]},
        {"containers": [{"name": "x", "$patch": "delete"}]},
    )
    assert [c["name"] for c in created["containers"]] == ["y"]


async def test_strategic_patch_replaces_a_list_by_directive(api: Api) -> None:
    created = await patched(
        api,
        {"containers": [{"name": "x", "image": "x:1"}, {"name": "y", "image": "y:1"}]},
        {"containers": [{"$patch": "replace"}, {"name": "z", "image": "z:1"}]},
    )
    assert [c["name"] for c in created["containers"]] == ["z"]


async def test_strategic_patch_replaces_a_map_by_directive(api: Api) -> None:
    created = await patched(api, {"nodeSelector": {"a": "1"}}, {"nodeSelector": {"$patch": "replace", "b": "2"}})
    assert created["nodeSelector"] == {"b": "2"}


async def test_strategic_patch_orders_a_list_by_directive(api: Api) -> None:
    created = await patched(
        api,
        {"containers": [{"name": "x", "image": "x:1"}, {"name": "y", "image": "y:1"}]},
        {"$setElementOrder/containers": [{"name": "y"}, {"name": "x"}], "containers": [{"name": "x", "image": "x:2"}]},
    )
    assert [(c["name"], c["image"]) for c in created["containers"]] == [("y", "y:1"), ("x", "x:2")]


async def test_strategic_patch_replaces_lists_without_a_key(api: Api) -> None:
    created = await patched(
        api,
        {"tolerations": [{"key": "a", "operator": "Exists"}]},
        {"tolerations": [{"key": "b", "operator": "Exists"}]},
    )
    assert [t["key"] for t in created["tolerations"]] == ["b"]


async def test_strategic_patch_merges_volumes_and_replaces_their_source(api: Api) -> None:
    created = await patched(
        api,
        {"volumes": [{"name": "v", "emptyDir": {}}]},
        {"volumes": [{"name": "v", "emptyDir": None, "hostPath": {"path": "/x"}}]},
    )
    assert created["volumes"] == [{"name": "v", "hostPath": {"path": "/x", "type": ""}}]


async def test_strategic_patch_deletes_from_a_list_of_primitives(api: Api) -> None:
    obj = config_map("a")
    obj["metadata"]["finalizers"] = ["example.com/a", "example.com/b"]
    await api.create("configmaps", obj)
    body = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/a"]}}
    created = (await api.patch(api.at("configmaps", "a"), body, STRATEGIC)).expect(200)
    assert created["metadata"]["finalizers"] == ["example.com/b"]
    await api.patch(api.at("configmaps", "a"), {"metadata": {"finalizers": None}})


async def test_strategic_patch_merges_lists_of_primitives(api: Api) -> None:
    obj = config_map("a")
    obj["metadata"]["finalizers"] = ["example.com/a"]
    await api.create("configmaps", obj)
    body = {"metadata": {"finalizers": ["example.com/b"]}}
    created = (await api.patch(api.at("configmaps", "a"), body, STRATEGIC)).expect(200)
    assert sorted(created["metadata"]["finalizers"]) == ["example.com/a", "example.com/b"]
    await api.patch(api.at("configmaps", "a"), {"metadata": {"finalizers": None}})


async def test_custom_resources_do_not_support_strategic_patch(api: Api, widgets: Widgets) -> None:
    await api.create(widgets.resource, widgets.named("a"))
    answer = await api.patch(api.at(widgets.resource, "a"), {"spec": {"replicas": 2}}, STRATEGIC)
    assert (answer.status, answer.reason) == (415, "UnsupportedMediaType")
    assert answer.message == (
        "the body of the request was in an unknown format - accepted media types include: "
        "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
    )


async def test_unknown_patch_types_are_rejected(api: Api) -> None:
    await api.create("configmaps", config_map("a"))
    answer = await api.patch(api.at("configmaps", "a"), {}, "application/json")
    assert answer.failure == (415, "UnsupportedMediaType", "415: Unsupported Media Type")


async def test_most_of_a_pod_is_immutable(api: Api) -> None:
    await api.until(api.at("serviceaccounts", "default"), lambda answer: answer.status == 200)
    await api.create("pods", pod("a"))
    answer = await api.patch(api.at("pods", "a"), {"spec": {"restartPolicy": "Never"}}, STRATEGIC)
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`" in answer.message
    image = {"spec": {"containers": [{"name": "main", "image": "other"}]}}
    changed = (await api.patch(api.at("pods", "a"), image, STRATEGIC)).expect(200)
    assert changed["spec"]["containers"][0]["image"] == "other"
