"""Upstream's Cluster API webhooks, on upstream's CRDs, decide the table as Herder's do; exceptions have a reason."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from herder.engine.meta.kinds import Object
from tests.support.api import Api, ApiResponse
from tests.support.engines import Engine
from tests.support.kube import RealKube
from tests.support.upstream import CORE, UpstreamManager
from tests.unit.api.capi.admission.cases import CASES, Case
from tests.unit.api.capi.admission.objects import changed

MISNAMED = {"spec.taints"}  # reported for the template of a pool


@pytest.fixture(scope="module")
async def admin(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    """The administrator of a kube-apiserver; the embedded server would apply its own admission first."""
    with RealKube(tmp_path_factory.mktemp("real")) as kube:
        engine = Engine("real", kube.kubeconfig)
        api = Api(engine.connection)
        # Herder accepts taints, which upstream still has behind a feature gate.
        flags = ["--feature-gates=MachineTaintPropagation=true"]
        manager = UpstreamManager(CORE, engine, tmp_path_factory.mktemp("manager"), flags)
        try:
            await manager.install(api)
            await manager.start()
            yield api
        finally:
            manager.stop()
            await api.close()


@pytest.fixture
async def api(admin: Api) -> Api:
    return await admin.in_new_namespace()


async def _write(api: Api, case: Case) -> ApiResponse:
    collection = api.at(f"{case.kind.group}/{case.kind.version}/{case.kind.plural}")
    if case.old is None:
        return await api.post(f"{collection}?dryRun=All", case.obj)
    url = f"{collection}/{case.obj['metadata']['name']}"
    while True:  # upstream's controllers change the object meanwhile, and may even delete it
        (await api.post(collection, case.old)).expect(201, 409)
        stored = await api.get(url)
        revision = stored.body["metadata"].get("resourceVersion", "")
        answer = await api.put(f"{url}?dryRun=All", changed(case.obj, {"metadata.resourceVersion": revision}))
        if stored.status == 200 and answer.status not in (404, 409):
            return answer


def _as_written(obj: Object) -> Object:
    meta = {name: obj["metadata"].get(name) or {} for name in ("labels", "annotations")}
    return {"metadata": meta, "spec": obj["spec"]}


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_both_decide_equally(api: Api, case: Case) -> None:
    answer = await _write(api, case)
    is_rejected = answer.status in (403, 422)
    assert is_rejected == (bool(case.fields) != bool(case.upstream)), f"{case.upstream}: {answer.text}"
    if is_rejected:
        # Herder may report more precisely which part of a selector is invalid.
        theirs = tuple({field for _, field, _ in answer.causes} - MISNAMED)
        assert not theirs or all(field.startswith(theirs) for field in case.fields), answer.text
    elif not case.fields:
        assert _as_written(answer.expect(200, 201)) == _as_written(case.result or case.obj)
