"""Service accounts of the management cluster use the manager's address with their own rights.

Node agents do so too: each may use one Secret.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import pytest

from herder.api.capi.kinds import NAMESPACE, SECRET
from herder.api.identity.authn.tokens import NewToken
from herder.api.identity.roles import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, RBAC, cluster_role, cluster_role_binding
from herder.api.management.kinds import USER
from herder.engine.client.client import Client
from herder.engine.meta.errors import Forbidden, StatusError, Unauthorized
from herder.engine.meta.kinds import GroupVersionResource, Object
from tests.support.builders import new_manifest
from tests.support.peers import peer
from tests.unit.gateway.gateway_server import GatewayServer, create_account_token, create_namespace, running_gateway

TEST_NAMESPACE = "fleet-default"
OWN, OTHER = "plan-of-this-node", "plan-of-another"
ROLES = GroupVersionResource(RBAC, "v1", "roles")
BINDINGS = GroupVersionResource(RBAC, "v1", "rolebindings")


@dataclass
class Harness:
    gateway: GatewayServer
    token: str

    def node(self, path: str = "") -> Client:
        return self.gateway.client_with_token(self.token, path)


@pytest.fixture(scope="module", params=["embedded", "real"])
async def harness(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Harness]:
    async with running_gateway(request.param, tmp_path_factory.mktemp("front")) as server:
        await create_namespace(server.client, TEST_NAMESPACE)
        for name in (OWN, OTHER):
            await server.client.create(SECRET.resource, secret(name), namespace=TEST_NAMESPACE)
        token = await create_account_token(server.client, TEST_NAMESPACE, "node")
        await grant_one_secret(server.client)
        yield Harness(server, token)


def secret(name: str) -> Object:
    return new_manifest(SECRET, name, stringData={"plan": "none yet"})


async def grant_one_secret(client: Client) -> None:
    rule = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "watch", "list", "update"]}
    role = {"apiVersion": ROLES.api_version, "kind": "Role", "metadata": {"name": "node"}}
    await client.create(ROLES, role | {"rules": [rule | {"resourceNames": [OWN]}]}, namespace=TEST_NAMESPACE)
    binding: Object = {"apiVersion": BINDINGS.api_version, "kind": "RoleBinding", "metadata": {"name": "node"}}
    binding["roleRef"] = {"apiGroup": RBAC, "kind": "Role", "name": "node"}
    binding["subjects"] = [{"kind": "ServiceAccount", "name": "node", "namespace": TEST_NAMESPACE}]
    await client.create(BINDINGS, binding, namespace=TEST_NAMESPACE)


async def test_an_account_reads_and_writes_its_secret(harness: Harness) -> None:
    node = harness.node()
    plan = await node.get(SECRET.resource, OWN, namespace=TEST_NAMESPACE)
    plan["data"]["applied"] = base64.b64encode(b"checksum").decode()
    await node.update(SECRET.resource, plan)
    stored = await harness.gateway.client.get(SECRET.resource, OWN, namespace=TEST_NAMESPACE)
    assert stored["data"]["applied"] == plan["data"]["applied"]


@pytest.mark.parametrize("initial_events", [False, True], ids=["list and watch", "streaming list"])
async def test_an_account_can_watch_its_secret(harness: Harness, initial_events: bool) -> None:
    node, marker = harness.node(), os.urandom(8).hex()
    start = "" if initial_events else await _revision(node)
    events = node.watch(
        SECRET.resource,
        namespace=TEST_NAMESPACE,
        fields=f"metadata.name={OWN}",
        resource_version=start,
        initial_events=initial_events,
    )
    async with asyncio.timeout(30), aclosing(events):
        if initial_events:
            assert (await anext(events)).object["metadata"]["name"] == OWN
        changed = {"metadata": {"annotations": {"test": marker}}}
        await harness.gateway.client.patch(SECRET.resource, OWN, changed, namespace=TEST_NAMESPACE)
        async for event in events:
            if (event.object["metadata"].get("annotations") or {}).get("test") == marker:
                return


async def _revision(node: Client) -> str:
    page = await node.list(SECRET.resource, namespace=TEST_NAMESPACE, fields=f"metadata.name={OWN}")
    return page.resource_version


async def test_an_account_may_do_nothing_else(harness: Harness) -> None:
    node = harness.node()
    for request in (
        node.get(SECRET.resource, OTHER, namespace=TEST_NAMESPACE),
        node.list(SECRET.resource, namespace=TEST_NAMESPACE),
        node.delete(SECRET.resource, OWN, namespace=TEST_NAMESPACE),
        node.create(SECRET.resource, secret("new"), namespace=TEST_NAMESPACE),
        node.list(NAMESPACE.resource),
    ):
        with pytest.raises(Forbidden, match="system:serviceaccount:fleet-default:node"):
            await request


@pytest.mark.parametrize("path", ["/k8s/clusters/local", "/k8s/proxy/local", "/k8s/clusters/c-m-other"])
async def test_accounts_of_the_manager_are_rejected_by_the_cluster_proxy(harness: Harness, path: str) -> None:
    with pytest.raises(Unauthorized):
        await harness.node(path).get(SECRET.resource, OWN, namespace=TEST_NAMESPACE)


PATH = SECRET.resource.path(TEST_NAMESPACE, OWN)
UNAUTHENTICATED = {
    "no credential": {},
    "an unsigned token": {"authorization": "Bearer eyJhbGciOiJub25lIn0.e30."},
    "an empty token": {"authorization": "Bearer "},
    "another scheme": {"authorization": "Basic bm9kZTpzZWNyZXQ="},
    "a guessed user token": {"authorization": "Bearer token-abcde:bcdfg"},
    "a malformed user token": {"authorization": "Bearer a:b:c"},
    "front proxy headers": {"x-remote-user": "admin", "x-remote-group": "system:masters"},
    "impersonation headers": {"impersonate-user": "admin", "impersonate-group": "system:masters"},
}


@pytest.mark.parametrize("headers", UNAUTHENTICATED.values(), ids=UNAUTHENTICATED)
async def test_unauthenticated_requests_never_use_the_managers_identity(
    harness: Harness, headers: dict[str, str]
) -> None:
    """The manager's own connection to the API server has every right."""
    response = await harness.gateway.client_with_token("").raw("GET", PATH, headers=dict(headers))
    assert response.status in {400, 401, 403}
    assert b"none yet" not in response.content()
    assert b"bm9uZSB5ZXQ" not in response.content()


SMUGGLED = {
    "impersonation": {"impersonate-user": "admin", "impersonate-group": "system:masters"},
    "impersonation as a hop-by-hop header": {"impersonate-user": "admin", "connection": "impersonate-user"},
    "the token as a hop-by-hop header": {"connection": "authorization"},
    "front proxy headers": {"x-remote-user": "admin", "x-remote-group": "system:masters"},
}


@pytest.mark.parametrize("headers", SMUGGLED.values(), ids=SMUGGLED)
async def test_no_header_extends_the_rights_of_a_service_account(harness: Harness, headers: dict[str, str]) -> None:
    response = await harness.node().raw("GET", SECRET.resource.path(TEST_NAMESPACE, OTHER), headers=dict(headers))
    assert response.status in {400, 403}


async def test_an_upgrade_does_not_bypass_authorization(harness: Harness) -> None:
    """A watch over WebSocket uses the account's own rights, or is rejected."""
    watch = f"{SECRET.resource.path(TEST_NAMESPACE)}?watch=true"
    for bearer, path in (("", watch), ("x.y.z", watch), (harness.token, watch), ("", f"{watch}&fieldSelector=x")):
        stream = await harness.gateway.upgrade(path, bearer)
        assert stream.status in {401, 403}
        await stream.close()


async def test_an_account_can_watch_its_secret_over_websocket(harness: Harness) -> None:
    """If the API server supports watches over WebSocket."""
    if harness.gateway.engine == "embedded":
        return
    watch = f"{SECRET.resource.path(TEST_NAMESPACE)}?watch=true&fieldSelector=metadata.name%3D{OWN}"
    stream = await harness.gateway.upgrade(watch, harness.token)
    assert stream.status == 101
    async with asyncio.timeout(30):
        assert b"ADDED" in await stream.reader.read(1024)
    await stream.close()


async def test_kubectl_works_with_the_token_of_an_account(harness: Harness, tmp_path: Path) -> None:
    authority = tmp_path / "ca.crt"
    authority.write_bytes(harness.gateway.ca)
    token = tmp_path / "config"
    flags = [f"--server={harness.gateway.url}", f"--certificate-authority={authority}", f"--kubeconfig={token}"]
    token.touch(mode=0o600)
    user = {"name": "node", "user": {"token": harness.token}}
    context = {"name": "node", "context": {"cluster": "", "user": "node"}}
    token.write_text(
        str({"apiVersion": "v1", "kind": "Config", "users": [user], "contexts": [context], "current-context": "node"})
    )
    process = await asyncio.create_subprocess_exec(
        peer("kubectl"),
        *flags,
        "get",
        "secret",
        OWN,
        "-n",
        TEST_NAMESPACE,
        "-o",
        "name",
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    assert output.decode().strip() == f"secret/{OWN}"


async def test_a_deleted_account_is_rejected(harness: Harness) -> None:
    token = await create_account_token(harness.gateway.client, TEST_NAMESPACE, "removed")
    accounts = GroupVersionResource("", "v1", "serviceaccounts")
    await harness.gateway.client.delete(accounts, "removed", namespace=TEST_NAMESPACE)
    async with asyncio.timeout(30):
        while True:  # a real server caches token reviews for some seconds
            try:
                await harness.gateway.client_with_token(token).get(SECRET.resource, OWN, namespace=TEST_NAMESPACE)
            except Unauthorized:
                return
            except StatusError:
                await asyncio.sleep(0.5)


@pytest.mark.parametrize(("resource", "status"), [("users", 403), ("serviceaccounts", 200)])
@pytest.mark.parametrize("prefix", ["", "/k8s/clusters/local"], ids=["management API", "cluster"])
async def test_impersonating_a_service_account_needs_rights_on_service_accounts(
    harness: Harness, prefix: str, resource: str, status: int
) -> None:
    server, name = harness.gateway, f"u-as-{resource}"
    await server.client.apply(USER.resource, new_manifest(USER, name, username=name))
    issued = await server.parts.identity.issuer.issue_ext(NewToken(name, name, kind="kubeconfig", ttl_ms=3_600_000))
    rule = {"apiGroups": [""], "resources": [resource], "verbs": ["impersonate"]}
    await server.client.apply(CLUSTER_ROLE.resource, cluster_role(name, [rule]))
    subject = {"apiGroup": RBAC, "kind": "User", "name": name}
    await server.client.apply(CLUSTER_ROLE_BINDING.resource, cluster_role_binding(name, name, subject))
    path = f"{prefix}/api/v1/namespaces/{TEST_NAMESPACE}/secrets/{OWN}"
    account = f"system:serviceaccount:{TEST_NAMESPACE}:node"
    for _ in range(20):  # API servers read new rights with a delay
        stream = await server.stream(path, issued.bearer, f"Impersonate-User: {account}")
        await stream.close()
        if stream.status == 200:
            break
        await asyncio.sleep(0.1)
    assert stream.status == status
