"""An API server with Herder's admission rules: built into the embedded server, as webhooks of kube-apiserver.

It is a separate server without controllers: on a shared one, the webhooks would remain after they stop responding.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import yaml

from herder.api.capi.crds import CRDS
from herder.api.capi.kinds import MACHINE as MACHINE_KIND
from herder.api.management.crds import PROVISIONING_CLUSTER_CRD
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke.crds import CRDS as RKE_CRDS
from herder.app.admission.kinds import install_admission, install_cluster_admission, install_reference_admission
from herder.app.install import install_kinds
from herder.engine.apiserver.auth.users import SERVER
from herder.engine.apiserver.build import assemble
from herder.engine.apiserver.inprocess import InProcess
from herder.engine.apiserver.pki import Pki
from herder.engine.apiserver.request.limits import BODY_BYTES
from herder.engine.client.client import Client
from herder.engine.front.http import HttpFront
from herder.engine.meta.kinds import Kind, Object
from herder.engine.wire import Request, Response, User
from herder.gateway.webhooks import reference_review
from herder.gateway.webhooks.configurations import CLUSTER_API, CLUSTERS, Url
from herder.gateway.webhooks.reconcile import install
from herder.gateway.webhooks.secret_path import hidden, secret_part, with_hidden_paths
from herder.gateway.webhooks.server import Webhooks
from tests.support.api import TIMEOUT, Api, ApiResponse
from tests.support.engines import Engine
from tests.support.kube import RealKube
from tests.unit.api.capi.admission.objects import MACHINE, changed

MANAGER = User("system:serviceaccount:herder-system:herder", groups=("system:masters",))
"""The user of the manager's controllers, of which none runs here."""

WEBHOOK_PATHS: list[str] = []  # of the requests that API servers sent to our webhooks


class RecordingWebhooks(Webhooks):
    async def handle(self, request: Request) -> Response:
        WEBHOOK_PATHS.append(request.path)
        return await super().handle(request)


def now() -> datetime:
    return datetime.now(UTC)


@asynccontextmanager
async def admission_server(engine: str, directory: Path) -> AsyncIterator[Api]:
    async with (_embedded if engine == "embedded" else _real)(directory) as api:
        yield api


@asynccontextmanager
async def _embedded(directory: Path) -> AsyncIterator[Api]:
    pki = Pki.load_or_create(None, now=now())
    server = await assemble(None, clock=now, entropy=os.urandom, pki=pki)
    install_admission(server)
    install_reference_admission(server, Client(InProcess(server, SERVER)), MANAGER)
    front = HttpFront(server, clock=now, body_bytes=BODY_BYTES)
    host, port = await front.listen("127.0.0.1", 0, pki.server_context())
    kubeconfig = directory / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(pki.admin_kubeconfig(f"https://{host}:{port}")))
    try:
        async with _with_kinds(Engine("embedded", kubeconfig)) as (api, _):
            install_cluster_admission(server)
            yield api
    finally:
        await asyncio.gather(front.stop(), server.stop())


@asynccontextmanager
async def _real(directory: Path) -> AsyncIterator[Api]:
    with RealKube(directory) as kube:
        async with _with_kinds(Engine("real", kube.kubeconfig)) as (api, client), _webhooks(api, client):
            yield api


@asynccontextmanager
async def _with_kinds(engine: Engine) -> AsyncIterator[tuple[Api, Client]]:
    api, client = Api(engine.connection), engine.client()
    try:
        await install_kinds(client, [*CRDS, *RKE_CRDS, PROVISIONING_CLUSTER_CRD])
        await api.create_cluster("namespaces", {"metadata": {"name": EARLIER}})
        await api.in_namespace(EARLIER).create(resource_path(PROVISIONING_CLUSTER), EARLIER_CLUSTER)
        yield api, client
    finally:
        await client.close()
        await api.close()


@asynccontextmanager
async def _webhooks(api: Api, client: Client) -> AsyncIterator[None]:
    await api.create_cluster("namespaces", {"metadata": {"name": "herder-system"}})
    part = await secret_part(client, "herder-system", os.urandom)
    reviews = {hidden(reference_review.PATH, part): reference_review.ReferenceReviews(client, MANAGER)}
    webhooks = RecordingWebhooks(clock=now, extra=reviews)
    references = with_hidden_paths(reference_review.configurations(MANAGER), [reference_review.PATH], part)
    host, port = await webhooks.start("127.0.0.1", 0)
    try:
        for configurations in (CLUSTER_API, CLUSTERS, references):
            await install(client, webhooks, Url(f"https://{host}:{port}"), configurations, clock=now)
        await _wait_until_enforced(api)
        yield
    finally:
        await webhooks.stop()


async def _wait_until_enforced(api: Api) -> None:
    """Wait until the rules are enforced: kube-apiserver loads each webhook configuration on its own."""
    unlabeled = changed(MACHINE, {"metadata.labels": {}})
    invalid = [
        (MACHINE_KIND, changed(MACHINE, {"spec.bootstrap": {}})),
        (PROVISIONING_CLUSTER, provisioning_cluster(machineGlobalConfig={"port": 1})),
    ]
    async with asyncio.timeout(TIMEOUT):
        while not (await try_to_create(api, MACHINE_KIND, unlabeled)).body["metadata"].get("labels"):
            pass
        for kind, obj in invalid:
            while (await try_to_create(api, kind, obj)).status == 201:
                pass


def provisioning_cluster(**rke_config: object) -> Object:
    return {
        "apiVersion": PROVISIONING_CLUSTER.api_version,
        "kind": PROVISIONING_CLUSTER.kind,
        "metadata": {"name": "one"},
        "spec": {"kubernetesVersion": "v1.34.1+k3s1", "rkeConfig": rke_config},
    }


EARLIER = "earlier"
EARLIER_CLUSTER = provisioning_cluster(networking={"stackPreference": "ipv6"}, machinePools=[])
EARLIER_CLUSTER["spec"] |= {"kubernetesVersion": "v1.34.1+kubeadm1", "enableNetworkPolicy": True}
"""A Cluster in namespace `EARLIER`, stored before the rules for Clusters apply, with fields that they reject."""


def resource_path(kind: Kind) -> str:
    return f"{kind.group}/{kind.version}/{kind.plural}"


async def try_to_create(api: Api, kind: Kind, obj: Object, query: str = "?dryRun=All") -> ApiResponse:
    return await api.post(api.at(resource_path(kind)) + query, obj)
