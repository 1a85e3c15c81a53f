"""Cluster API's kinds are filled in and judged alike on both engines: by the embedded server itself, and on a real one
by our webhooks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from herder.api.capi import kinds
from herder.api.capi.crds import CRDS
from herder.cli.admission import install_admission
from herder.cli.install import install_kinds
from herder.engine.apiserver.limits import BODY_BYTES
from herder.engine.apiserver.pki import Pki
from herder.engine.apiserver.server import assemble
from herder.engine.client.client import Client
from herder.engine.client.wire import Request, Response
from herder.engine.front.http import HttpFront
from herder.engine.meta.kinds import Object
from herder.gateway.webhooks.configurations import Url
from herder.gateway.webhooks.keeping import install
from herder.gateway.webhooks.server import Webhooks
from tests.product_api.capi.admission.cases import CASES, Case
from tests.product_api.capi.admission.objects import MACHINE, MACHINE_DEPLOYMENT, VALID, changed
from tests.support.api import JSON_PATCH, PATIENCE, Answer, Api
from tests.support.engines import Engine
from tests.support.kube import RealKube

ASKED: list[str] = []  # paths that a server asked our webhooks at


class HeardWebhooks(Webhooks):
    async def handle(self, request: Request) -> Response:
        ASKED.append(request.path)
        return await super().handle(request)


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture(scope="module", params=["embedded", "real"])
async def admin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    """An engine of its own, without controllers: on a shared one the webhooks would stay behind unanswered."""
    serve = _embedded if request.param == "embedded" else _real
    async with serve(tmp_path_factory.mktemp(request.param)) as api:
        yield api


@asynccontextmanager
async def _embedded(directory: Path) -> AsyncIterator[Api]:
    pki = Pki.load_or_create(None, now=now())
    server = await assemble(None, clock=now, entropy=os.urandom, pki=pki)
    install_admission(server)
    front = HttpFront(server, clock=now, body_bytes=BODY_BYTES)
    host, port = await front.listen("127.0.0.1", 0, pki.server_context())
    kubeconfig = directory / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(pki.admin_kubeconfig(f"https://{host}:{port}")))
    try:
        async with _defined(Engine("embedded", kubeconfig)) as (api, _):
            yield api
    finally:
        await asyncio.gather(front.stop(), server.stop())


@asynccontextmanager
async def _real(directory: Path) -> AsyncIterator[Api]:
    with RealKube(directory) as kube:
        async with _defined(Engine("real", kube.kubeconfig)) as (api, client), _webhooks(api, client):
            yield api


@asynccontextmanager
async def _defined(engine: Engine) -> AsyncIterator[tuple[Api, Client]]:
    api, client = Api(engine.connection), engine.client()
    try:
        await install_kinds(client, CRDS)
        yield api, client
    finally:
        await client.close()
        await api.close()


@asynccontextmanager
async def _webhooks(api: Api, client: Client) -> AsyncIterator[None]:
    await api.create_cluster("namespaces", {"metadata": {"name": "herder-system"}})
    webhooks = HeardWebhooks(clock=now)
    host, port = await webhooks.start("127.0.0.1", 0)
    try:
        await install(client, webhooks, Url(f"https://{host}:{port}"), clock=now)
        await _in_force(api)
        yield
    finally:
        await webhooks.stop()


async def _in_force(api: Api) -> None:
    """A server takes a moment to see its configurations, each of the two on its own."""
    unnamed = changed(MACHINE, {"metadata.labels": {}})
    refused = changed(MACHINE, {"spec.bootstrap": {}})
    async with asyncio.timeout(PATIENCE):
        while not (await _create(api, kinds.MACHINE, unnamed)).body["metadata"].get("labels"):
            pass
        while (await _create(api, kinds.MACHINE, refused)).status == 201:
            pass


@pytest.fixture
async def api(admin: Api) -> Api:
    return await admin.in_new_namespace()


def path(kind: kinds.Kind) -> str:
    return f"{kind.group}/{kind.version}/{kind.plural}"


async def _create(api: Api, kind: kinds.Kind, obj: Object, query: str = "?dryRun=All") -> Answer:
    return await api.post(api.at(path(kind)) + query, obj)


async def _write(api: Api, case: Case) -> Answer:
    """Create what is new, replace what is old; nothing is kept of the write that is judged."""
    if case.old is None:
        return await _create(api, case.kind, case.obj)
    stored = (await _create(api, case.kind, case.old, "")).expect(201)
    obj = changed(case.obj, {"metadata.resourceVersion": stored["metadata"]["resourceVersion"]})
    return await api.put(api.at(path(case.kind), obj["metadata"]["name"]) + "?dryRun=All", obj)


def _as_written(obj: Object) -> Object:
    """What of an object is its writer's."""
    meta = {name: obj["metadata"].get(name) or {} for name in ("labels", "annotations")}
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
    answer = await _create(api, kinds.MACHINE, changed(MACHINE, {"spec.bootstrap": {}}))
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
async def test_a_valid_object_comes_and_goes(api: Api, kind: kinds.Kind) -> None:
    stored = await api.create(path(kind), changed(VALID[kind], {"metadata.finalizers": ["example.com/a"]}))
    assert _as_written(stored) == _as_written(VALID[kind])
    url = api.at(path(kind), "one")
    (await api.delete(url)).expect(200)
    (await api.patch(url, {"metadata": {"finalizers": None}})).expect(200)
    await api.gone(url)
