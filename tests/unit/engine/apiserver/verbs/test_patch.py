from __future__ import annotations

import pytest

from tests.unit.engine.apiserver.api import APPLY, JSON_PATCH, MERGE, STRATEGIC, Api, config_map


@pytest.fixture
async def url(api: Api) -> str:
    await api.post(api.path("configmaps"), config_map("a", x="1", y="2"))
    return api.path("configmaps", "a")


async def test_a_merge_patch_sets_and_removes(api: Api, url: str) -> None:
    changed = await api.patch(url, {"data": {"x": "9", "y": None}})
    assert (changed.status, changed.body["data"]) == (200, {"x": "9"})


async def test_a_json_patch_is_atomic(api: Api, url: str) -> None:
    ops = [{"op": "replace", "path": "/data/x", "value": "5"}, {"op": "test", "path": "/data/y", "value": "no"}]
    rejected = await api.patch(url, ops, JSON_PATCH)
    assert (rejected.status, rejected.reason) == (422, "Invalid")
    assert (await api.get(url)).body["data"]["x"] == "1"
    assert (await api.patch(url, ops[:1], JSON_PATCH)).body["data"]["x"] == "5"


async def test_a_strategic_patch_merges_lists_by_key(api: Api) -> None:
    containers = [{"name": "c", "image": "one"}]
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": containers}}
    deployment = {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}}
    url = api.path("deployments", group="apps")
    assert (await api.post(url, deployment)).status == 201
    more = {"spec": {"template": {"spec": {"containers": [{"name": "e", "image": "two"}]}}}}
    changed = await api.patch(f"{url}/d", more, STRATEGIC)
    names = [container["name"] for container in changed.body["spec"]["template"]["spec"]["containers"]]
    assert sorted(names) == ["c", "e"]


async def test_custom_resources_have_no_strategic_patch(api: Api, widgets: str) -> None:
    rejected = await api.patch(f"{widgets}/w", {}, STRATEGIC)
    assert rejected.status == 415


@pytest.mark.parametrize("content_type", ["application/json", "text/plain"])
async def test_other_content_types_are_rejected(api: Api, url: str, content_type: str) -> None:
    assert (await api.patch(url, {}, content_type)).status == 415


async def test_a_patch_with_an_old_revision_conflicts(api: Api, url: str) -> None:
    rejected = await api.patch(url, {"metadata": {"resourceVersion": "1"}, "data": {"z": "1"}})
    assert (rejected.status, rejected.reason) == (409, "Conflict")


async def test_a_noop_patch_writes_nothing(api: Api, url: str) -> None:
    before = (await api.get(url)).body
    assert (await api.patch(url, {"data": {"x": "1"}})).body == before


@pytest.mark.parametrize(
    ("patch", "status"),
    [
        ({"metadata": {"name": "b"}}, 400),
        ({"metadata": {"uid": "b"}}, 422),
        ({"data": {"x": 5}}, 422),
        (b"{", 400),
        ([], 400),
    ],
)
async def test_invalid_patches_are_rejected(api: Api, url: str, patch: object, status: int) -> None:
    assert (await api.patch(url, patch)).status == status


async def test_a_missing_object_cannot_be_patched(api: Api) -> None:
    assert (await api.patch(api.path("configmaps", "none"), {})).status == 404


async def test_strict_patches_reject_unknown_fields(api: Api, url: str) -> None:
    rejected = await api.patch(f"{url}?fieldValidation=Strict", {"foo": 1})
    assert rejected.status == 422
    assert 'unknown field "foo"' in rejected.message
    assert (await api.patch(url, {"foo": 1})).warnings == ['unknown field "foo"']


# --- apply --------------------------------------------------------------------------------------------------------


async def test_apply_creates_then_owns(api: Api) -> None:
    url = api.path("configmaps", "s")
    created = await api.patch(f"{url}?fieldManager=one", config_map("s", x="1"), APPLY)
    assert created.status == 201
    (entry,) = created.body["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"]) == ("one", "Apply")
    api.clock.advance(60)
    again = await api.patch(f"{url}?fieldManager=one", config_map("s", x="1"), APPLY)
    assert (again.status, again.body) == (200, created.body)


async def test_apply_conflicts_until_forced(api: Api) -> None:
    url = api.path("configmaps", "s")
    await api.patch(f"{url}?fieldManager=one", config_map("s", x="1"), APPLY)
    rejected = await api.patch(f"{url}?fieldManager=two", config_map("s", x="2"), APPLY)
    assert (rejected.status, rejected.reason) == (409, "Conflict")
    assert rejected.body["details"]["causes"][0]["field"] == ".data.x"
    forced = await api.patch(f"{url}?fieldManager=two&force=true", config_map("s", x="2"), APPLY)
    assert forced.body["data"] == {"x": "2"}


async def test_apply_removes_fields_that_its_manager_omits(api: Api) -> None:
    url = api.path("configmaps", "s")
    await api.patch(f"{url}?fieldManager=one", config_map("s", x="1", y="2"), APPLY)
    changed = await api.patch(f"{url}?fieldManager=one", config_map("s", x="1"), APPLY)
    assert changed.body["data"] == {"x": "1"}


async def test_apply_requires_a_field_manager_and_other_patches_reject_force(api: Api, url: str) -> None:
    rejected = await api.patch(url, config_map("a"), APPLY)
    assert (rejected.status, rejected.body["details"]["causes"][0]["field"]) == (422, "fieldManager")
    rejected = await api.patch(f"{url}?force=true", {}, MERGE)
    assert (rejected.status, rejected.body["details"]["causes"][0]["field"]) == (422, "force")


async def test_apply_of_status_only_writes_status(api: Api, widgets: str) -> None:
    widget = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}}
    await api.post(widgets, widget | {"spec": {"color": "red"}})
    sent = widget | {"spec": {"color": "blue"}, "status": {"replicas": 2}}
    changed = await api.patch(f"{widgets}/w/status?fieldManager=m", sent, APPLY)
    assert changed.status == 200, changed.body
    assert (changed.body["spec"]["color"], changed.body["status"]) == ("red", {"replicas": 2})
