"""Field ownership after writes through every endpoint, in every version, and through webhooks that change
managedFields."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.conformance.conftest import Widgets
from tests.conformance.objects import Obj, config_map, deployment, pod
from tests.support.api import Api
from tests.support.engines import unique
from tests.unit.engine.apiserver.admission.hook_server import HookServer, patch

SCALERS = "autoscaling/{}/horizontalpodautoscalers"
TARGET = {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}
CPU: Obj = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}


def owned(obj: Obj, manager: str) -> Any:
    """Return the fields of a manager's entry; None without one."""
    entries = obj["metadata"].get("managedFields") or []
    return next((entry["fieldsV1"] for entry in entries if entry["manager"] == manager), None)


async def test_status_in_a_create_has_no_owner(api: Api, widgets: Widgets) -> None:
    sent = widgets.named("w", {"color": "red"}, status={"phase": "new"})
    created = (await api.post(f"{api.at(widgets.resource)}?fieldManager=maker", sent)).expect(201)
    assert owned(created, "maker") == {"f:spec": {".": {}, "f:color": {}, "f:replicas": {}}}
    applied = (await api.apply(api.at(widgets.resource, "w"), sent, "applier", force=True)).expect(200)
    assert owned(applied, "applier") == {"f:spec": {"f:color": {}}}


async def test_the_status_endpoint_of_a_custom_object_owns_only_status(api: Api, widgets: Widgets) -> None:
    await api.create(widgets.resource, widgets.named("w", {"color": "red"}))
    change = {"metadata": {"labels": {"a": "b"}}, "spec": {"color": "blue"}, "status": {"phase": "new"}}
    status = api.at(widgets.resource, "w", "status")
    patched = (await api.patch(f"{status}?fieldManager=patcher", change)).expect(200)
    assert owned(patched, "patcher") == {"f:status": {".": {}, "f:phase": {}}}
    applied = (await api.apply(status, widgets.named("w") | change, "applier", force=True)).expect(200)
    assert owned(applied, "applier") == {"f:status": {"f:phase": {}}}


async def test_a_deployments_status_endpoint_owns_annotations_but_no_labels(api: Api) -> None:
    await api.create("apps/v1/deployments", deployment("d"))
    sent = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d", "labels": {"a": "b"}, "annotations": {"c": "d"}},
        "status": {"replicas": 3},
    }
    done = (await api.apply(api.at("apps/v1/deployments", "d", "status"), sent, "applier", force=True)).expect(200)
    assert owned(done, "applier") == {"f:metadata": {"f:annotations": {"f:c": {}}}, "f:status": {"f:replicas": {}}}


async def test_a_pods_status_endpoint_owns_labels(api: Api) -> None:
    await api.create("pods", pod("p"))
    sent = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "labels": {"a": "b"}},
        "status": {"message": "hello"},
    }
    done = (await api.apply(api.at("pods", "p", "status"), sent, "applier")).expect(200)
    assert owned(done, "applier") == {"f:metadata": {"f:labels": {"f:a": {}}}, "f:status": {"f:message": {}}}


async def test_a_nodes_status_is_owned_by_its_endpoint(api: Api) -> None:
    name = unique("node")
    await api.create_cluster("nodes", {"metadata": {"name": name, "labels": {"a": "b"}}})
    change = {"spec": {"unschedulable": True}, "status": {"volumesInUse": ["a"]}}
    main = (await api.patch(f"{api.cluster('nodes', name)}?fieldManager=main", change)).expect(200)
    status = (await api.patch(f"{api.cluster('nodes', name, 'status')}?fieldManager=kubelet", change)).expect(200)
    assert owned(main, "main") == {"f:spec": {"f:unschedulable": {}}}
    assert owned(status, "kubelet") == {"f:status": {"f:volumesInUse": {}}}
    await api.delete(api.cluster("nodes", name))


async def test_the_scaler_owns_replicas(api: Api) -> None:
    url, scale = api.at("apps/v1/deployments", "d"), api.at("apps/v1/deployments", "d", "scale")
    created = await api.post(f"{api.at('apps/v1/deployments')}?fieldManager=maker", deployment("d", paused=True))
    assert "f:replicas" in owned(created.expect(201), "maker")["f:spec"]
    (await api.patch(f"{scale}?fieldManager=scaler", {"spec": {"replicas": 2}})).expect(200)
    scaled = await api.read(url)
    assert "f:replicas" not in owned(scaled, "maker")["f:spec"]
    (entry,) = [entry for entry in scaled["metadata"]["managedFields"] if entry["manager"] == "scaler"]
    assert entry == {
        "manager": "scaler",
        "operation": "Update",
        "apiVersion": "apps/v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:replicas": {}}},
        "subresource": "scale",
    }
    (await api.patch(f"{scale}?fieldManager=other", {"spec": {"replicas": 0}})).expect(200)
    scaled = await api.read(url)
    assert (owned(scaled, "scaler"), owned(scaled, "other")) == (None, None)


async def test_unowned_replicas_stay_unowned_when_scaled(api: Api, widgets: Widgets) -> None:
    sent = widgets.named("w", {"replicas": 2})
    (await api.post(f"{api.at(widgets.resource)}?fieldManager=maker", sent)).expect(201)
    scale = api.at(widgets.resource, "w", "scale")

    async def owners_after(replicas: int) -> list[str]:
        (await api.patch(f"{scale}?fieldManager=to-{replicas}", {"spec": {"replicas": replicas}})).expect(200)
        scaled = await api.read(api.at(widgets.resource, "w"))
        return [e["manager"] for e in scaled["metadata"]["managedFields"] if "f:replicas" in e["fieldsV1"]["f:spec"]]

    assert await owners_after(3) == ["to-3"]
    assert await owners_after(4) == ["to-4"]
    assert await owners_after(0) == []
    assert await owners_after(5) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"spec": {"replicas": "x"}},
            "cannot unmarshal string into Go struct field ScaleSpec.spec.replicas of type int32",
        ),
        (
            {"spec": {"replicas": True}},
            "cannot unmarshal bool into Go struct field ScaleSpec.spec.replicas of type int32",
        ),
        ({"spec": [1]}, "cannot unmarshal array into Go struct field Scale.spec of type v1.ScaleSpec"),
        ({"spec": {"other": 1}}, 'strict decoding error: unknown field "spec.other"'),
    ],
)
async def test_a_patched_scale_must_be_a_scale(api: Api, change: Obj, expected: str) -> None:
    await api.create("apps/v1/deployments", deployment("d", paused=True))
    rejected = await api.patch(f"{api.at('apps/v1/deployments', 'd', 'scale')}?fieldValidation=Strict", change)
    assert (rejected.status, rejected.reason) == (422, "Invalid")
    assert expected in rejected.message


async def test_a_scale_must_have_the_name_of_its_object(api: Api) -> None:
    await api.create("apps/v1/deployments", deployment("d", paused=True))
    rejected = await api.put(api.at("apps/v1/deployments", "d", "scale"), {"spec": {"replicas": 1}})
    expected = "the name of the object (d based on URL) was undeterminable: name must be provided"
    assert rejected.failure == (400, "BadRequest", expected)


async def test_owners_are_tracked_across_versions(api: Api) -> None:
    old, new = (api.at(SCALERS.format(version), "h") for version in ("v1", "v2"))
    spec = {"maxReplicas": 3, "scaleTargetRef": TARGET, "metrics": [{"type": "Resource", "resource": CPU}]}
    created = await api.post(
        f"{api.at(SCALERS.format('v2'))}?fieldManager=maker", {"metadata": {"name": "h"}, "spec": spec}
    )
    assert "f:metrics" in owned(created.expect(201), "maker")["f:spec"]
    changed = await api.patch(f"{old}?fieldManager=other", {"spec": {"targetCPUUtilizationPercentage": 60}})
    assert owned(changed.expect(200), "other") == {"f:spec": {"f:targetCPUUtilizationPercentage": {}}}
    assert "f:metrics" not in owned(changed.body, "maker")["f:spec"]
    assert (await api.read(new))["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"] == 60


async def test_apply_conflicts_with_owners_of_another_version(api: Api) -> None:
    old = api.at(SCALERS.format("v1"), "h")
    spec = {"maxReplicas": 3, "scaleTargetRef": TARGET, "metrics": [{"type": "Resource", "resource": CPU}]}
    sent = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"}, "spec": spec}
    (await api.apply(api.at(SCALERS.format("v2"), "h"), sent, "first")).expect(201)
    sent |= {"apiVersion": "autoscaling/v1", "spec": {"targetCPUUtilizationPercentage": 70}}
    rejected = await api.apply(old, sent, "second")
    assert rejected.causes == [("FieldManagerConflict", ".spec.metrics", 'conflict with "first"')]
    taken = (await api.apply(old, sent, "second", force=True)).expect(200)
    assert "f:metrics" not in owned(taken, "first")["f:spec"]


@pytest.fixture
async def corrupting_webhook(api: Api) -> AsyncIterator[HookServer]:
    """A webhook that corrupts the managedFields of ConfigMaps in the test's namespace."""
    server = HookServer()
    await server.start()
    entry = {"manager": "x", "operation": "Fly", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}}
    server.answers["/"] = lambda request: patch(
        request, {"op": "replace", "path": "/metadata/managedFields", "value": [entry]}
    )
    hook = {
        "name": "meddler.example.com",
        "clientConfig": server.client_config(),
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": api.namespace}},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
    }
    url = "admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    name = unique("meddler")
    await api.create_cluster(url, {"metadata": {"name": name}, "webhooks": [hook]})
    yield server
    await api.delete(api.cluster(url, name))
    await server.stop()


async def test_managed_fields_corrupted_by_a_webhook_are_restored(api: Api, corrupting_webhook: HookServer) -> None:
    found_warnings: list[str] = []
    number = 0
    while not found_warnings:  # until the server has loaded the webhook
        number += 1
        created = await api.post(f"{api.at('configmaps')}?fieldManager=maker", config_map(f"c{number}", a="b"))
        found_warnings = created.warnings
    assert owned(created.expect(201), "maker") == {"f:data": {".": {}, "f:a": {}}}
    assert found_warnings == [
        '299 - ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated '
        'mutating admission controller; please fix your requests: operation must be `Apply` or `Update`"'
    ]


async def test_a_label_key_has_at_most_one_slash(api: Api) -> None:
    sent = config_map("c") | {"metadata": {"name": "c", "labels": {"a/b/c": "x"}}}
    rejected = await api.post(api.at("configmaps"), sent)
    assert rejected.status == 422
    assert 'metadata.labels: Invalid value: "a/b/c": a valid label key must consist of' in rejected.message
