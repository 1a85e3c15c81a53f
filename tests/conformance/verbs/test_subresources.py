"""Status and scale subresources of built-in and custom kinds."""

from __future__ import annotations

from tests.conformance.conftest import Widgets
from tests.conformance.objects import config_map, deployment, pod
from tests.support.api import JSON_PATCH, Api


async def test_status_is_not_set_by_a_create(api: Api, widgets: Widgets) -> None:
    created = await api.create(widgets.resource, widgets.named("a", {}, status={"phase": "Ready"}))
    assert "status" not in created


async def test_status_is_not_changed_by_an_update_of_the_object(api: Api, widgets: Widgets) -> None:
    created = await api.create(widgets.resource, widgets.named("a"))
    url = api.at(widgets.resource, "a")
    created = (await api.put(url + "/status", created | {"status": {"phase": "Ready"}})).expect(200)
    created = (await api.put(url, created | {"status": {"phase": "Gone"}, "spec": {"color": "red"}})).expect(200)
    assert created["status"] == {"phase": "Ready"}
    assert created["spec"]["color"] == "red"


async def test_spec_and_metadata_are_not_changed_by_an_update_of_the_status(api: Api, widgets: Widgets) -> None:
    created = await api.create(widgets.resource, widgets.named("a", {"color": "red"}))
    created["spec"]["color"] = "blue"
    created["metadata"]["labels"] = {"x": "1"}
    changed = (await api.put(api.at(widgets.resource, "a", "status"), created | {"status": {"phase": "x"}})).expect(200)
    assert changed["spec"]["color"] == "red"
    assert "labels" not in changed["metadata"]
    assert changed["status"] == {"phase": "x"}


async def test_status_does_not_increment_the_generation(api: Api, widgets: Widgets) -> None:
    created = await api.create(widgets.resource, widgets.named("a"))
    assert created["metadata"]["generation"] == 1
    url = api.at(widgets.resource, "a")
    changed = (await api.patch(url + "/status", {"status": {"phase": "x"}})).expect(200)
    assert changed["metadata"]["generation"] == 1
    changed = (await api.patch(url, {"spec": {"color": "red"}})).expect(200)
    assert changed["metadata"]["generation"] == 2
    changed = (await api.patch(url, {"metadata": {"labels": {"x": "1"}}})).expect(200)
    assert changed["metadata"]["generation"] == 2


async def test_status_is_read_like_the_object(api: Api, widgets: Widgets) -> None:
    created = await api.create(widgets.resource, widgets.named("a"))
    assert await api.read(api.at(widgets.resource, "a", "status")) == created


async def test_status_is_validated(api: Api, widgets: Widgets) -> None:
    await api.create(widgets.resource, widgets.named("a"))
    answer = await api.patch(api.at(widgets.resource, "a", "status"), {"status": {"replicas": "many"}})
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert 'status.replicas: Invalid value: "string"' in answer.message


async def test_kinds_without_a_status_have_no_such_subresource(api: Api) -> None:
    await api.create("configmaps", config_map("a"))
    answer = await api.get(api.at("configmaps", "a", "status"))
    assert answer.failure == (404, "NotFound", "the server could not find the requested resource")


async def test_status_of_a_built_in_kind(api: Api) -> None:
    await api.until(api.at("serviceaccounts", "default"), lambda answer: answer.status == 200)
    await api.create("pods", pod("a"))
    status = {"status": {"phase": "Running", "message": "hello"}}
    changed = (await api.patch(api.at("pods", "a", "status"), status)).expect(200)
    assert changed["status"]["phase"] == "Running"
    assert changed["status"]["qosClass"] == "BestEffort"
    unchanged = (await api.patch(api.at("pods", "a"), {"status": {"phase": "Failed"}})).expect(200)
    assert unchanged["status"]["phase"] == "Running"


async def test_scale_of_a_deployment(api: Api) -> None:
    created = await api.create("apps/v1/deployments", deployment("a", paused=True, replicas=2))
    scale = await api.read(api.at("apps/v1/deployments", "a", "scale"))
    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert scale["spec"] == {"replicas": 2}
    assert scale["status"]["selector"] == "app=a"
    assert scale["metadata"]["uid"] == created["metadata"]["uid"]
    scale["spec"]["replicas"] = 5
    del scale["metadata"]["resourceVersion"]
    (await api.put(api.at("apps/v1/deployments", "a", "scale"), scale)).expect(200)
    assert (await api.read(api.at("apps/v1/deployments", "a")))["spec"]["replicas"] == 5


async def test_scale_of_a_custom_resource(api: Api, widgets: Widgets) -> None:
    await api.create(widgets.resource, widgets.named("a", {"replicas": 2}))
    await api.patch(api.at(widgets.resource, "a", "status"), {"status": {"replicas": 1, "selector": "app=x"}})
    scale = await api.read(api.at(widgets.resource, "a", "scale"))
    assert scale["spec"] == {"replicas": 2}
    assert scale["status"] == {"replicas": 1, "selector": "app=x"}
    changed = (await api.patch(api.at(widgets.resource, "a", "scale"), {"spec": {"replicas": 7}})).expect(200)
    assert changed["spec"] == {"replicas": 7}
    found = await api.read(api.at(widgets.resource, "a"))
    assert found["spec"]["replicas"] == 7
    assert found["metadata"]["generation"] == 2


async def test_scale_accepts_json_patch(api: Api, widgets: Widgets) -> None:
    await api.create(widgets.resource, widgets.named("a", {"replicas": 2}))
    operations = [{"op": "replace", "path": "/spec/replicas", "value": 3}]
    changed = (await api.patch(api.at(widgets.resource, "a", "scale"), operations, JSON_PATCH)).expect(200)
    assert changed["spec"] == {"replicas": 3}


async def test_a_scale_below_zero_is_invalid(api: Api, widgets: Widgets) -> None:
    await api.create(widgets.resource, widgets.named("a"))
    answer = await api.patch(api.at(widgets.resource, "a", "scale"), {"spec": {"replicas": -1}})
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert "spec.replicas: Invalid value: -1: " in answer.message


async def test_a_scale_that_the_schema_forbids_is_invalid(api: Api, widgets: Widgets) -> None:
    await api.create(widgets.resource, widgets.named("a"))
    answer = await api.patch(api.at(widgets.resource, "a", "scale"), {"spec": {"replicas": 101}})
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert "spec.replicas in body should be less than or equal to 100" in answer.message


async def test_scale_with_an_older_version_conflicts(api: Api, widgets: Widgets) -> None:
    await api.create(widgets.resource, widgets.named("a", {}))
    scale = await api.read(api.at(widgets.resource, "a", "scale"))
    await api.patch(api.at(widgets.resource, "a"), {"spec": {"color": "red"}})
    scale["spec"]["replicas"] = 3
    answer = await api.put(api.at(widgets.resource, "a", "scale"), scale)
    assert (answer.status, answer.reason) == (409, "Conflict")


async def test_subresources_cannot_be_created(api: Api, widgets: Widgets) -> None:
    await api.create(widgets.resource, widgets.named("a"))
    answer = await api.post(api.at(widgets.resource, "a", "status"), {})
    assert (answer.status, answer.reason) == (405, "MethodNotAllowed")


async def test_pods_are_bound_to_a_node_once(api: Api) -> None:
    await api.until(api.at("serviceaccounts", "default"), lambda answer: answer.status == 200)
    await api.create("pods", pod("a"))
    binding = {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "far"}}
    (await api.post(api.at("pods", "a", "binding"), binding)).expect(201)
    found = await api.read(api.at("pods", "a"))
    assert found["spec"]["nodeName"] == "far"
    again = await api.post(api.at("pods", "a", "binding"), binding)
    assert (again.status, again.reason) == (409, "Conflict")
    assert 'pod a is already assigned to node "far"' in again.message


async def test_pods_are_evicted(api: Api) -> None:
    await api.until(api.at("serviceaccounts", "default"), lambda answer: answer.status == 200)
    await api.create("pods", pod("a"))
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
    body = (await api.post(api.at("pods", "a", "eviction"), eviction)).expect(201)
    assert body["status"] == "Success"
    await api.until_gone(api.at("pods", "a"))
