from __future__ import annotations

import pytest

from tests.unit.engine.apiserver.api import JSON_PATCH, MERGE, Api, widget


@pytest.fixture
async def scale(api: Api, widgets: str) -> str:
    await api.post(widgets, widget("w") | {"spec": {"replicas": 2}})
    await api.patch(f"{widgets}/w/status", {"status": {"replicas": 1, "selector": "a=b"}})
    return f"{widgets}/w/scale"


async def test_a_scale_contains_the_replicas_of_its_parent(api: Api, scale: str) -> None:
    body = (await api.get(scale)).body
    assert (body["kind"], body["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert (body["spec"], body["status"]) == ({"replicas": 2}, {"replicas": 1, "selector": "a=b"})


async def test_a_scale_changes_its_parent(api: Api, scale: str, widgets: str) -> None:
    sent = (await api.get(scale)).body | {"spec": {"replicas": 7}}
    changed = await api.put(scale, sent)
    assert (changed.status, changed.body["spec"]) == (200, {"replicas": 7})
    parent = (await api.get(f"{widgets}/w")).body
    assert (parent["spec"]["replicas"], parent["metadata"]["generation"]) == (7, 2)
    assert (await api.put(scale, sent)).reason == "Conflict"


@pytest.mark.parametrize(
    ("patch", "content_type"),
    [({"spec": {"replicas": 4}}, MERGE), ([{"op": "replace", "path": "/spec/replicas", "value": 4}], JSON_PATCH)],
)
async def test_a_scale_can_be_patched(api: Api, scale: str, patch: object, content_type: str) -> None:
    assert (await api.patch(scale, patch, content_type)).body["spec"] == {"replicas": 4}


@pytest.mark.parametrize(("replicas", "status"), [(-1, 422), ("x", 422), (True, 422)])
async def test_invalid_replicas_are_rejected(api: Api, scale: str, replicas: object, status: int) -> None:
    assert (await api.patch(scale, {"spec": {"replicas": replicas}})).status == status


async def test_the_scale_of_a_missing_parent_is_not_found(api: Api, widgets: str) -> None:
    assert (await api.get(f"{widgets}/none/scale")).status == 404
    assert (await api.patch(f"{widgets}/none/scale", {})).status == 404
    assert (await api.delete(f"{widgets}/none/scale")).status == 405
