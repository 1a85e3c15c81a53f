"""`herder doctor` of a cluster, on the embedded server and on a real kube-apiserver."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from herder.api.capi.core import CRD, DEPLOYMENT, VALIDATING_WEBHOOKS
from herder.api.capi.kinds import NAMESPACE
from herder.app.doctor import cluster, rights
from herder.app.doctor.cluster import ClusterOptions, examine_cluster
from herder.app.doctor.finding import Finding, Status
from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.client.kubeconfig import RestConfig
from herder.engine.meta.errors import AlreadyExists, NotFound
from herder.engine.meta.kinds import GroupVersionResource, Kind, Object
from herder.engine.wire import Request, Response
from tests.support.capi import wait_until
from tests.support.embedded import HERDER
from tests.support.engines import Engine, remove_kinds, unique
from tests.support.kube import free_port

OK, WARNING, FAILED = Status.OK, Status.WARNING, Status.FAILED
ACCOUNTS = GroupVersionResource("", "v1", "serviceaccounts")
ROLE = Kind("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", namespaced=False)
BINDING = Kind("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", namespaced=False)
CLUSTERS = "clusters.provisioning.cattle.io"
DRIVERS = "nodedrivers.management.cattle.io"


class Recorder:
    """A transport that records what could change something."""

    def __init__(self, connection: RestConfig) -> None:
        self._transport = HttpTransport(connection)
        self.writes: list[str] = []

    async def send(self, request: Request) -> Response:
        dry = ("dryRun", "All") in request.query.items
        if request.method != "GET" and not dry and not request.path.endswith("/selfsubjectaccessreviews"):
            self.writes.append(f"{request.method} {request.path}")
        return await self._transport.send(request)

    async def close(self) -> None:
        await self._transport.close()


async def examined(connection: RestConfig, options: ClusterOptions | None = None) -> dict[str, Finding]:
    transport = Recorder(connection)
    client = Client(transport)
    try:
        found = [finding async for finding in examine_cluster(client, options or ClusterOptions())]
    finally:
        await client.close()
    assert transport.writes == [], "it changes nothing"
    assert all(finding.advice or finding.status is OK for finding in found)
    return {finding.check: finding for finding in found}


def expect(finding: Finding, status: Status, text: str) -> None:
    assert (finding.status, text in f"{finding.message}; {finding.advice}") == (status, True), finding


@asynccontextmanager
async def created(client: Client, *objects: tuple[Kind, Object]) -> AsyncIterator[None]:
    for kind, obj in objects:
        await client.create(kind.resource, _typed(kind, obj), namespace=obj["metadata"].get("namespace", ""))
    try:
        yield
    finally:
        for kind, obj in reversed(objects):
            meta = obj["metadata"]
            with suppress(NotFound):
                await client.delete(kind.resource, meta["name"], namespace=meta.get("namespace", ""))


def _typed(kind: Kind, obj: Object) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.kind, **obj}


def deployment(namespace: str, name: str, replicas: int, labels: dict[str, str] | None = None) -> tuple[Kind, Object]:
    pod = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": pod}
    return DEPLOYMENT, {"metadata": {"name": name, "namespace": namespace, "labels": labels or {}}, "spec": spec}


def definition(name: str, kind: str, version: str, scope: str = "Namespaced") -> tuple[Kind, Object]:
    plural, _, group = name.partition(".")
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    spec = {
        "group": group,
        "scope": scope,
        "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
        "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
    }
    return CRD, {"metadata": {"name": name}, "spec": spec}


async def ensure_namespace(client: Client, name: str) -> None:
    with suppress(AlreadyExists):
        await client.create(NAMESPACE.resource, _typed(NAMESPACE, {"metadata": {"name": name}}))


@asynccontextmanager
async def service_account(engine: Engine, client: Client, rules: list[Object]) -> AsyncIterator[RestConfig]:
    """The connection of a service account that has these rights."""
    name = unique("doctor")
    account = _typed(Kind("", "v1", "ServiceAccount", "serviceaccounts"), {"metadata": {"name": name}})
    await client.create(ACCOUNTS, account, namespace="default")
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    answer = await client.create(ACCOUNTS, request, namespace="default", name=name, subresource="token")
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    role = {"apiGroup": ROLE.group, "kind": ROLE.kind, "name": name}
    binding: Object = {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
    here = engine.connection
    try:
        async with created(client, (ROLE, {"metadata": {"name": name}, "rules": rules}), (BINDING, binding)):
            yield RestConfig(here.server, ca=here.ca, token=answer["status"]["token"])
    finally:
        await client.delete(ACCOUNTS, name, namespace="default")


# --- on both engines ------------------------------------------------------------------------------------------------


def test_the_command_examines_an_empty_cluster(engine: Engine) -> None:
    command = [HERDER, "doctor", "--kubeconfig", engine.kubeconfig, "--webhook-url", "https://192.0.2.1:9443"]
    done = subprocess.run([*command, "-o", "json"], capture_output=True, text=True, check=False, env=os.environ)
    document: dict[str, Any] = json.loads(done.stdout)
    found = {each["check"]: each["status"] for each in document["checks"]}
    assert found | {"webhook address": "ok"} == found
    assert not [check for check, status in found.items() if status == "failed"], done.stdout
    assert (done.returncode, document["ok"]) == (0, True)
    assert {"API server", "APIs", "rights", "Cluster API core", "machine provider", "Rancher", "CRDs"} <= set(found)


async def test_missing_rights_are_listed(engine: Engine, client: Client) -> None:
    async with service_account(engine, client, []) as connection:
        found = await examined(connection)
    expect(found["rights"], FAILED, "cannot get customresourcedefinitions.apiextensions.k8s.io")
    expect(found["rights"], FAILED, "docs/rights.md")
    expect(found["Cluster API core"], WARNING, "cannot read:")
    expect(found["CRDs"], FAILED, "cannot be checked")
    expect(found["Rancher"], WARNING, "cannot be checked")


async def test_the_reviewed_rights_are_enough(engine: Engine, client: Client) -> None:
    parts = cluster.ClusterOptions().parts
    wanted = rights.needed(parts, "herder-system")
    rules = [
        {"apiGroups": [each.group], "resources": [each.resource], "verbs": [each.verb]}
        | ({"resourceNames": [each.name]} if each.name else {})
        for each in wanted
    ]
    async with service_account(engine, client, rules) as connection:

        async def review() -> Finding:
            own = Client(HttpTransport(connection))
            try:
                return await rights.check_rights(own, parts, "herder-system")
            finally:
                await own.close()

        expect(await _eventually(review, OK), OK, f"({len(wanted)} reviewed)")
    async with service_account(engine, client, rules[1:]) as connection:
        expect(await _eventually(review, FAILED), FAILED, str(wanted[0]))


async def _eventually(check: Callable[[], Awaitable[Finding]], status: Status) -> Finding:
    """RBAC follows with a delay."""
    async with asyncio.timeout(30):
        while True:
            finding = await check()
            if finding.status is status and "more" not in finding.message:
                return finding
            await asyncio.sleep(0.1)


async def test_a_running_rancher_is_a_problem(engine: Engine, client: Client) -> None:
    await ensure_namespace(client, "cattle-system")
    async with created(client, deployment("cattle-system", "rancher", 3)):
        expect((await examined(engine.connection))["Rancher"], FAILED, "two managers")
    async with created(client, deployment("cattle-system", "rancher", 0)):
        expect((await examined(engine.connection))["Rancher"], WARNING, "scaled to zero")


async def test_another_core_disables_the_own_one(engine: Engine, client: Client) -> None:
    labels = {"cluster.x-k8s.io/provider": "cluster-api"}
    async with created(client, deployment("default", "capi-controller-manager", 1, labels)):
        found = (await examined(engine.connection))["Cluster API core"]
        expect(found, WARNING, "Deployment default/capi-controller-manager runs its controllers")
        own = (await examined(engine.connection, ClusterOptions(core="own")))["Cluster API core"]
        expect(own, FAILED, "pass --capi-core auto")
        external = (await examined(engine.connection, ClusterOptions(core="external")))["Cluster API core"]
        assert external.status is OK


async def test_incompatible_kinds_are_refused_by_the_api_server(engine: Engine, client: Client) -> None:
    try:
        async with created(client, definition(CLUSTERS, "Cluster", "v9")):
            await _established(client, CLUSTERS)
            expect((await examined(engine.connection))["CRDs"], FAILED, CLUSTERS)
            without = await examined(engine.connection, ClusterOptions(gateway=False))
            assert without["CRDs"].status is OK, "Clusters are not installed without the gateway"
    finally:
        await remove_kinds(client, [CLUSTERS])


async def test_kinds_of_another_manager_are_reported(engine: Engine, client: Client) -> None:
    try:
        async with created(client, definition(DRIVERS, "NodeDriver", "v3", scope="Cluster")):
            await _established(client, DRIVERS)
            found = await examined(engine.connection)
            expect(found["machine provider"], WARNING, "another manager, such as Rancher")
            found = await examined(engine.connection, ClusterOptions(machines=True))
            expect(found["machine provider"], OK, "runs")
            expect(found["CRDs"], WARNING, DRIVERS)
    finally:
        await remove_kinds(client, [DRIVERS])


async def _established(client: Client, name: str) -> None:
    def is_established(definitions: list[Object]) -> bool:
        (found,) = [each for each in definitions if each["metadata"]["name"] == name]
        conditions = (found.get("status") or {}).get("conditions") or ()
        return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)

    await wait_until(client, CRD, "", is_established)


@pytest.mark.parametrize(
    ("policy", "group", "status"),
    [("Fail", "provisioning.cattle.io", FAILED), ("Ignore", "provisioning.cattle.io", OK), ("Fail", "example.org", OK)],
)
async def test_webhooks_without_a_service_are_found(
    engine: Engine, client: Client, policy: str, group: str, status: Status
) -> None:
    rule = {"apiGroups": [group], "apiVersions": ["v1"], "resources": ["clusters"], "operations": ["CREATE"]}
    webhook = {
        "name": "leftover.example.org",
        "clientConfig": {"service": {"namespace": "default", "name": "gone", "path": "/"}},
        "rules": [rule],
        "failurePolicy": policy,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    name = unique("leftover")
    async with created(client, (VALIDATING_WEBHOOKS, {"metadata": {"name": name}, "webhooks": [webhook]})):
        found = (await examined(engine.connection))["webhooks of others"]
    assert found.status is status
    assert (name in found.message) == (status is FAILED)


async def test_a_server_that_does_not_answer_is_the_only_finding(engine: Engine) -> None:
    nowhere = replace(engine.connection, server=f"https://127.0.0.1:{free_port()}")
    (found,) = (await examined(nowhere)).values()
    expect(found, FAILED, "does not answer")
    stranger = replace(engine.connection, client_certificate=None, client_key=None, token="wrong")
    (found,) = (await examined(stranger)).values()
    expect(found, FAILED, "credentials")


# --- single checks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "status"),
    [("v1.36.3", OK), ("v1.30.0+k3s1", OK), ("v1.29.9", FAILED), ("v1.99.0", WARNING), ("unknown", WARNING)],
)
def test_version(version: str, status: Status) -> None:
    assert cluster.check_version(version).status is status


async def test_missing_apis(embedded_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "REQUIRED", {"apps/v1": ("deployments", "herds"), "example.org/v1": ("things",)})
    client = embedded_engine.client()
    try:
        expect(await cluster.check_apis(client), FAILED, "not served: herds.apps/v1, things.example.org/v1")
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("url", "in_cluster", "status", "text"),
    [
        ("", False, WARNING, "--webhook-url https://HOST:PORT"),
        ("", True, OK, "Service herder-webhooks"),
        ("http://10.0.0.5:9443", False, FAILED, "not an https URL"),
        ("https://localhost:9443", False, WARNING, "loopback"),
        ("https://no-such-host.invalid:9443", False, WARNING, "cannot be resolved"),
        ("https://192.0.2.1:9443", False, OK, "192.0.2.1"),
    ],
)
async def test_webhook_address(url: str, in_cluster: bool, status: Status, text: str) -> None:
    expect(await cluster.check_webhook_address(ClusterOptions(webhook_url=url, in_cluster=in_cluster)), status, text)
