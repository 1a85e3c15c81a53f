"""Defaulting and validation of Cluster API kinds: in the embedded server, and by our webhooks on a real
kube-apiserver."""

from __future__ import annotations

import pytest

from herder.api.capi import kinds
from herder.api.references.approvals import APPROVED
from herder.engine.meta.kinds import Kind, Object
from tests.support.api import JSON_PATCH, Api, ApiResponse
from tests.support.manager.admission_servers import WEBHOOK_PATHS, resource_path, try_to_create
from tests.unit.api.capi.admission.cases import CASES, Case
from tests.unit.api.capi.admission.objects import MACHINE, MACHINE_DEPLOYMENT, VALID, changed


@pytest.fixture
async def api(admission_admin: Api) -> Api:
    return await admission_admin.in_new_namespace()


async def _write(api: Api, case: Case) -> ApiResponse:
    """Create or replace an object as a dry run."""
    if case.old is None:
        return await try_to_create(api, case.kind, case.obj)
    stored = (await try_to_create(api, case.kind, case.old, "")).expect(201)
    obj = changed(case.obj, {"metadata.resourceVersion": stored["metadata"]["resourceVersion"]})
    return await api.put(api.at(resource_path(case.kind), obj["metadata"]["name"]) + "?dryRun=All", obj)


def _as_written(obj: Object) -> Object:
    """Return the part of an object that its author wrote."""
    meta = {name: {**(obj["metadata"].get(name) or {})} for name in ("labels", "annotations")}
    meta["annotations"].pop(APPROVED, None)  # tested in test_reference_admission.py
    return {"metadata": meta, "spec": obj["spec"]}


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_cases_of_the_table(api: Api, case: Case) -> None:
    answer = await _write(api, case)
    if case.fields:
        assert (answer.status, answer.reason) == (422, "Invalid"), answer.text
        assert {field for _, field, _ in answer.causes} == set(case.fields)
        assert "is invalid: " in answer.message
    else:
        assert _as_written(answer.expect(200, 201)) == _as_written(case.result or case.obj)


async def test_errors_say_what_to_do(api: Api) -> None:
    answer = await try_to_create(api, kinds.MACHINE, changed(MACHINE, {"spec.bootstrap": {}}))
    message = "expected either spec.bootstrap.dataSecretName or spec.bootstrap.configRef to be populated"
    assert answer.causes == [("FieldValueRequired", "spec.bootstrap", f"Required value: {message}")]
    assert answer.message.endswith(
        f'Machine.cluster.x-k8s.io "one" is invalid: spec.bootstrap: Required value: {message}'
    )


async def test_every_write_verb_is_validated(api: Api) -> None:
    url = api.at(resource_path(kinds.MACHINE_DEPLOYMENT), "one")
    applied = (await api.apply(url, changed(MACHINE_DEPLOYMENT, {"metadata.labels": {}}))).expect(201)
    assert applied["metadata"]["labels"] == {"cluster.x-k8s.io/cluster-name": "prod"}
    moved = {"spec": {"clusterName": "other", "template": {"spec": {"clusterName": "other"}}}}
    operations = [{"op": "replace", "path": "/spec/template/spec/clusterName", "value": "other"}]
    for answer in (
        await api.patch(url, moved),
        await api.patch(url, operations, JSON_PATCH),
        await api.apply(url, changed(MACHINE_DEPLOYMENT, {"spec.clusterName": "other"}), force=True),
    ):
        assert {field for _, field, _ in answer.causes} == {"spec.clusterName"}, answer.text


async def test_applying_again_keeps_defaults(api: Api) -> None:
    """Applying the same manifest again, which relies on defaults, changes nothing."""
    url = api.at(resource_path(kinds.MACHINE_DEPLOYMENT), "one")
    manifest = changed(MACHINE_DEPLOYMENT, {"metadata.labels": {}, "spec.selector": {}})
    manifest["spec"].pop("rollout")
    first = (await api.apply(url, manifest)).expect(201)
    second = (await api.apply(url, manifest)).expect(200)
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_finalizers_owners_and_status_do_not_call_the_webhook(api: Api) -> None:
    await api.create(resource_path(kinds.MACHINE), MACHINE)
    url = api.at(resource_path(kinds.MACHINE), "one")
    WEBHOOK_PATHS.clear()
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "u"}
    (await api.patch(url, {"metadata": {"finalizers": ["example.com/a"]}})).expect(200)
    (await api.patch(url, {"metadata": {"ownerReferences": [owner]}})).expect(200)
    (await api.patch(f"{url}/status", {"status": {"phase": "Running"}})).expect(200)
    assert WEBHOOK_PATHS == []
    labelled = (await api.patch(url, {"metadata": {"labels": None}})).expect(200)
    assert labelled["metadata"]["labels"] == MACHINE["metadata"]["labels"]


async def test_the_scale_subresource_is_not_validated(api: Api) -> None:
    await api.create(resource_path(kinds.MACHINE_DEPLOYMENT), MACHINE_DEPLOYMENT)
    scaled = await api.patch(api.at(resource_path(kinds.MACHINE_DEPLOYMENT), "one", "scale"), {"spec": {"replicas": 7}})
    assert scaled.expect(200)["spec"]["replicas"] == 7


@pytest.mark.parametrize("kind", VALID, ids=str)
async def test_a_valid_object_is_created_and_deleted(api: Api, kind: Kind) -> None:
    stored = await api.create(resource_path(kind), changed(VALID[kind], {"metadata.finalizers": ["example.com/a"]}))
    assert _as_written(stored) == _as_written(VALID[kind])
    url = api.at(resource_path(kind), "one")
    (await api.delete(url)).expect(200)
    (await api.patch(url, {"metadata": {"finalizers": None}})).expect(200)
    await api.until_gone(url)
