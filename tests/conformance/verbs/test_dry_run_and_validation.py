"""Dry run, and field validation."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.conftest import Widgets
from tests.conformance.objects import config_map, deployment, secret
from tests.support.api import JSON_PATCH, MERGE, STRATEGIC, Api

DRY = "?dryRun=All"


async def test_a_dry_create_stores_nothing(api: Api) -> None:
    created = (await api.post(api.at("secrets") + DRY, secret("a", key="v"))).expect(201)
    assert created["metadata"]["uid"]
    assert created["type"] == "Opaque"
    assert (await api.get(api.at("secrets", "a"))).status == 404


async def test_a_dry_create_of_a_taken_name_already_exists(api: Api) -> None:
    await api.create("secrets", secret("a"))
    answer = await api.post(api.at("secrets") + DRY, secret("a"))
    assert answer.failure == (409, "AlreadyExists", 'secrets "a" already exists')


async def test_a_dry_create_is_validated(api: Api) -> None:
    answer = await api.post(api.at("secrets") + DRY, secret("Upper"))
    assert (answer.status, answer.reason) == (422, "Invalid")


async def test_a_dry_create_generates_a_name(api: Api) -> None:
    created = (await api.post(api.at("secrets") + DRY, {"metadata": {"generateName": "pre-"}})).expect(201)
    assert created["metadata"]["name"].startswith("pre-")


async def test_a_dry_update_changes_nothing(api: Api) -> None:
    created = await api.create("configmaps", config_map("a", x="1"))
    changed = (await api.put(api.at("configmaps", "a") + DRY, created | {"data": {"x": "2"}})).expect(200)
    assert changed["data"] == {"x": "2"}
    assert changed["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]
    assert await api.read(api.at("configmaps", "a")) == created


async def test_a_dry_update_conflicts_like_a_real_one(api: Api) -> None:
    created = await api.create("configmaps", config_map("a"))
    await api.patch(api.at("configmaps", "a"), {"data": {"x": "1"}})
    answer = await api.put(api.at("configmaps", "a") + DRY, created)
    assert (answer.status, answer.reason) == (409, "Conflict")


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        (JSON_PATCH, [{"op": "add", "path": "/data", "value": {"x": "2"}}]),
        (MERGE, {"data": {"x": "2"}}),
        (STRATEGIC, {"data": {"x": "2"}}),
    ],
)
async def test_a_dry_patch_changes_nothing(api: Api, kind: str, patch: Any) -> None:
    created = await api.create("configmaps", config_map("a", x="1"))
    changed = (await api.patch(api.at("configmaps", "a") + DRY, patch, kind)).expect(200)
    assert changed["data"] == {"x": "2"}
    assert await api.read(api.at("configmaps", "a")) == created


async def test_a_dry_apply_creates_nothing(api: Api) -> None:
    created = (await api.apply(api.at("configmaps", "a") + DRY, config_map("a", x="1"))).expect(201)
    assert created["data"] == {"x": "1"}
    assert (await api.get(api.at("configmaps", "a"))).status == 404


async def test_a_dry_apply_reports_conflicts(api: Api) -> None:
    await api.apply(api.at("configmaps", "a"), config_map("a", x="1"), "one")
    answer = await api.apply(api.at("configmaps", "a") + DRY, config_map("a", x="2"), "two")
    assert (answer.status, answer.reason) == (409, "Conflict")


async def test_a_dry_delete_deletes_nothing(api: Api) -> None:
    await api.create("secrets", secret("a"))
    body = (await api.delete(api.at("secrets", "a") + DRY)).expect(200)
    assert body["status"] == "Success"
    (await api.delete(api.at("secrets", "a"), {"dryRun": ["All"]})).expect(200)
    assert (await api.get(api.at("secrets", "a"))).status == 200


async def test_a_dry_delete_of_a_collection_deletes_nothing(api: Api) -> None:
    await api.create("secrets", secret("a"))
    (await api.delete(api.at("secrets") + DRY)).expect(200)
    assert await api.names(api.at("secrets")) == ["a"]


async def test_a_dry_status_update_changes_nothing(api: Api, widgets: Widgets) -> None:
    created = await api.create(widgets.resource, widgets.named("a"))
    url = api.at(widgets.resource, "a", "status")
    changed = (await api.put(url + DRY, created | {"status": {"phase": "Ready"}})).expect(200)
    assert changed["status"] == {"phase": "Ready"}
    assert "status" not in await api.read(api.at(widgets.resource, "a"))


async def test_a_dry_namespace_is_not_created(api: Api) -> None:
    (await api.post("/api/v1/namespaces" + DRY, {"metadata": {"name": f"{api.namespace}-dry"}})).expect(201)
    assert (await api.get(f"/api/v1/namespaces/{api.namespace}-dry")).status == 404


async def test_dry_run_accepts_one_value(api: Api) -> None:
    answer = await api.post(api.at("secrets") + "?dryRun=Some", secret("a"))
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert 'dryRun: Unsupported value: ["Some"]: supported values: "All"' in answer.message


# --- unknown fields ---------------------------------------------------------------------------------------------


def odd(name: str = "a") -> dict[str, Any]:
    return deployment(name) | {"extra": 1, "spec": deployment(name)["spec"] | {"typo": True}}


async def test_unknown_fields_are_dropped_with_a_warning(api: Api) -> None:
    answer = await api.post(api.at("apps/v1/deployments") + DRY, odd())
    created = answer.expect(201)
    assert answer.warnings == ['299 - "unknown field \\"spec.typo\\""', '299 - "unknown field \\"extra\\""']
    assert "extra" not in created
    assert "typo" not in created["spec"]


async def test_warnings_for_unknown_fields_can_be_disabled(api: Api) -> None:
    answer = await api.post(api.at("apps/v1/deployments") + DRY + "&fieldValidation=Ignore", odd())
    answer.expect(201)
    assert answer.warnings == []


async def test_strict_rejects_unknown_fields(api: Api) -> None:
    answer = await api.post(api.at("apps/v1/deployments") + DRY + "&fieldValidation=Strict", odd())
    assert (answer.status, answer.reason) == (400, "BadRequest")
    assert answer.message == (
        'Deployment in version "v1" cannot be handled as a Deployment: strict decoding error: '
        'unknown field "spec.typo", unknown field "extra"'
    )


async def test_strict_rejects_unknown_fields_of_a_patch(api: Api) -> None:
    await api.create("configmaps", config_map("a"))
    answer = await api.patch(api.at("configmaps", "a") + "?fieldValidation=Strict", {"nonsense": 1})
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert 'strict decoding error: unknown field "nonsense"' in answer.message


async def test_unknown_fields_of_a_patch_cause_a_warning(api: Api) -> None:
    await api.create("configmaps", config_map("a"))
    answer = await api.patch(api.at("configmaps", "a"), {"nonsense": 1})
    answer.expect(200)
    assert answer.warnings == ['299 - "unknown field \\"nonsense\\""']


async def test_duplicate_keys_cause_a_warning(api: Api) -> None:
    body = b'{"metadata":{"name":"a"},"data":{"x":"1","x":"2"}}'
    answer = await api.post(api.at("configmaps"), body)
    assert answer.expect(201)["data"] == {"x": "2"}
    assert answer.warnings == ['299 - "duplicate field \\"data.x\\""']


async def test_strict_rejects_duplicate_keys(api: Api) -> None:
    body = b'{"metadata":{"name":"a"},"data":{"x":"1","x":"2"}}'
    answer = await api.post(api.at("configmaps") + "?fieldValidation=Strict", body)
    assert (answer.status, answer.reason) == (400, "BadRequest")
    assert 'strict decoding error: duplicate field "data.x"' in answer.message


async def test_unknown_fields_of_custom_resources_are_pruned_with_a_warning(api: Api, widgets: Widgets) -> None:
    answer = await api.post(api.at(widgets.resource), widgets.named("a", {"color": "red", "typo": 1}))
    assert answer.expect(201)["spec"] == {"color": "red", "replicas": 1}
    assert answer.warnings == ['299 - "unknown field \\"spec.typo\\""']


async def test_strict_rejects_unknown_fields_of_custom_resources(api: Api, widgets: Widgets) -> None:
    url = api.at(widgets.resource) + "?fieldValidation=Strict"
    answer = await api.post(url, widgets.named("a", {"typo": 1, "parts": [{"name": "x", "more": 1}]}))
    assert (answer.status, answer.reason) == (400, "BadRequest")
    assert 'strict decoding error: unknown field "spec.parts[0].more", unknown field "spec.typo"' in answer.message


async def test_strict_matches_field_names_exactly(api: Api) -> None:
    body = {"metadata": {"name": "a"}, "Data": {"x": "1"}}
    answer = await api.post(api.at("configmaps") + "?fieldValidation=Strict", body)
    assert answer.status == 400
    assert 'unknown field "Data"' in answer.message


async def test_field_validation_accepts_three_values(api: Api) -> None:
    answer = await api.post(api.at("configmaps") + "?fieldValidation=Sometimes", config_map("a"))
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert 'fieldValidation: Unsupported value: "Sometimes": supported values: "", "Ignore", "Strict", "Warn"' in (
        answer.message
    )


async def test_strict_rejects_unknown_metadata_fields(api: Api, widgets: Widgets) -> None:
    obj = widgets.named("a")
    obj["metadata"]["typo"] = "x"
    answer = await api.post(api.at(widgets.resource) + "?fieldValidation=Strict", obj)
    assert (answer.status, answer.reason) == (400, "BadRequest")
    assert 'unknown field "metadata.typo"' in answer.message
