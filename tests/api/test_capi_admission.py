"""Cluster API's kinds are filled in and judged alike on both engines: by the embedded server itself, and on a real one
by our webhooks."""

from __future__ import annotations

import pytest

from herder.api.capi import kinds
from herder.api.references.approvals import APPROVED
from herder.engine.meta.kinds import Kind, Object
from tests.product_api.capi.admission.cases import CASES, Case
from tests.product_api.capi.admission.objects import MACHINE, MACHINE_DEPLOYMENT, VALID, changed
from tests.support.api import JSON_PATCH, Answer, Api
from tests.support.judged import ASKED, path, try_to_create


@pytest.fixture
async def api(judged_admin: Api) -> Api:
    return await judged_admin.in_new_namespace()


async def _write(api: Api, case: Case) -> Answer:
    """Create what is new, replace what is old; nothing is kept of the write that is judged."""
    if case.old is None:
        return await try_to_create(api, case.kind, case.obj)
    stored = (await try_to_create(api, case.kind, case.old, "")).expect(201)
    obj = changed(case.obj, {"metadata.resourceVersion": stored["metadata"]["resourceVersion"]})
    return await api.put(api.at(path(case.kind), obj["metadata"]["name"]) + "?dryRun=All", obj)


def _as_written(obj: Object) -> Object:
    """What of an object is its writer's."""
    meta = {name: {**(obj["metadata"].get(name) or {})} for name in ("labels", "annotations")}
    meta["annotations"].pop(APPROVED, None)  # references have tests of their own
    return {"metadata": meta, "spec": obj["spec"]}


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_the_table(api: Api, case: Case) -> None:
    answer = await _write(api, case)
    if case.fields:
        assert (answer.status, answer.reason) == (422, "Invalid"), answer.text
        assert {field for _, field, _ in answer.causes} == set(case.fields)
        assert "is invalid: " in answer.message
    else:
        assert _as_written(answer.expect(200, 201)) == _as_written(case.result or case.obj)


async def test_a_refusal_tells_what_to_do(api: Api) -> None:
    answer = await try_to_create(api, kinds.MACHINE, changed(MACHINE, {"spec.bootstrap": {}}))
    told = "expected either spec.bootstrap.dataSecretName or spec.bootstrap.configRef to be populated"
    assert answer.causes == [("FieldValueRequired", "spec.bootstrap", f"Required value: {told}")]
    assert answer.message.endswith(f'Machine.cluster.x-k8s.io "one" is invalid: spec.bootstrap: Required value: {told}')


async def test_every_way_of_writing_is_judged(api: Api) -> None:
    url = api.at(path(kinds.MACHINE_DEPLOYMENT), "one")
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


async def test_what_defaults_fill_in_is_not_taken_from_its_writer_again(api: Api) -> None:
    """An apply of the same manifest, which leaves things to defaults, changes nothing."""
    url = api.at(path(kinds.MACHINE_DEPLOYMENT), "one")
    manifest = changed(MACHINE_DEPLOYMENT, {"metadata.labels": {}, "spec.selector": {}})
    manifest["spec"].pop("rollout")
    first = (await api.apply(url, manifest)).expect(201)
    second = (await api.apply(url, manifest)).expect(200)
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_bookkeeping_is_not_held_up_by_a_call(api: Api) -> None:
    await api.create(path(kinds.MACHINE), MACHINE)
    url = api.at(path(kinds.MACHINE), "one")
    ASKED.clear()
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "u"}
    (await api.patch(url, {"metadata": {"finalizers": ["example.com/a"]}})).expect(200)
    (await api.patch(url, {"metadata": {"ownerReferences": [owner]}})).expect(200)
    (await api.patch(f"{url}/status", {"status": {"phase": "Running"}})).expect(200)
    assert ASKED == []
    labelled = (await api.patch(url, {"metadata": {"labels": None}})).expect(200)
    assert labelled["metadata"]["labels"] == MACHINE["metadata"]["labels"]


async def test_scaling_is_no_matter_of_the_rules(api: Api) -> None:
    await api.create(path(kinds.MACHINE_DEPLOYMENT), MACHINE_DEPLOYMENT)
    scaled = await api.patch(api.at(path(kinds.MACHINE_DEPLOYMENT), "one", "scale"), {"spec": {"replicas": 7}})
    assert scaled.expect(200)["spec"]["replicas"] == 7


@pytest.mark.parametrize("kind", VALID, ids=str)
async def test_a_valid_object_comes_and_goes(api: Api, kind: Kind) -> None:
    stored = await api.create(path(kind), changed(VALID[kind], {"metadata.finalizers": ["example.com/a"]}))
    assert _as_written(stored) == _as_written(VALID[kind])
    url = api.at(path(kind), "one")
    (await api.delete(url)).expect(200)
    (await api.patch(url, {"metadata": {"finalizers": None}})).expect(200)
    await api.gone(url)
