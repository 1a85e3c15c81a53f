"""Service accounts of the management cluster come in at the manager's own address with the rights that they have there:
so do the agents of nodes, each of which may use one Secret."""

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
from herder.api.identity.roles import RBAC
from herder.engine.client.client import Client
from herder.engine.meta.errors import Forbidden, StatusError, Unauthorized
from herder.engine.meta.kinds import GroupVersionResource, Object
from tests.support.peers import peer
from tests.unit.gateway.front import Front, account_token, front, namespace

SPACE = "fleet-default"
OWN, OTHER = "plan-of-this-node", "plan-of-another"
ROLES = GroupVersionResource(RBAC, "v1", "roles")
BINDINGS = GroupVersionResource(RBAC, "v1", "rolebindings")


@dataclass
class Scene:
    front: Front
    token: str

    def node(self, path: str = "") -> Client:
        return self.front.as_holder_of(self.token, path)


@pytest.fixture(scope="module", params=["embedded", "real"])
async def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with front(request.param, tmp_path_factory.mktemp("front")) as made:
        await namespace(made.client, SPACE)
        for name in (OWN, OTHER):
            await made.client.create(SECRET.resource, secret(name), namespace=SPACE)
        token = await account_token(made.client, SPACE, "node")
        await may_use_one_secret(made.client)
        yield Scene(made, token)


def secret(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"plan": "none yet"}}


async def may_use_one_secret(client: Client) -> None:
    rule = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "watch", "list", "update"]}
    role = {"apiVersion": ROLES.api_version, "kind": "Role", "metadata": {"name": "node"}}
    await client.create(ROLES, role | {"rules": [rule | {"resourceNames": [OWN]}]}, namespace=SPACE)
    binding: Object = {"apiVersion": BINDINGS.api_version, "kind": "RoleBinding", "metadata": {"name": "node"}}
    binding["roleRef"] = {"apiGroup": RBAC, "kind": "Role", "name": "node"}
    binding["subjects"] = [{"kind": "ServiceAccount", "name": "node", "namespace": SPACE}]
    await client.create(BINDINGS, binding, namespace=SPACE)


async def test_it_reads_and_writes_what_it_may(scene: Scene) -> None:
    node = scene.node()
    found = await node.get(SECRET.resource, OWN, namespace=SPACE)
    found["data"]["applied"] = base64.b64encode(b"checksum").decode()
    await node.update(SECRET.resource, found)
    kept = await scene.front.client.get(SECRET.resource, OWN, namespace=SPACE)
    assert kept["data"]["applied"] == found["data"]["applied"]


@pytest.mark.parametrize("initial_events", [False, True], ids=["list and watch", "streaming list"])
async def test_it_is_told_of_changes_as_they_happen(scene: Scene, initial_events: bool) -> None:
    node, wanted = scene.node(), os.urandom(8).hex()
    start = "" if initial_events else await _revision(node)
    events = node.watch(
        SECRET.resource,
        namespace=SPACE,
        fields=f"metadata.name={OWN}",
        resource_version=start,
        initial_events=initial_events,
    )
    async with asyncio.timeout(30), aclosing(events):
        if initial_events:
            assert (await anext(events)).object["metadata"]["name"] == OWN
        changed = {"metadata": {"annotations": {"test": wanted}}}
        await scene.front.client.patch(SECRET.resource, OWN, changed, namespace=SPACE)
        async for event in events:
            if (event.object["metadata"].get("annotations") or {}).get("test") == wanted:
                return


async def _revision(node: Client) -> str:
    page = await node.list(SECRET.resource, namespace=SPACE, fields=f"metadata.name={OWN}")
    return page.resource_version


async def test_it_may_do_nothing_else(scene: Scene) -> None:
    node = scene.node()
    for refused in (
        node.get(SECRET.resource, OTHER, namespace=SPACE),
        node.list(SECRET.resource, namespace=SPACE),
        node.delete(SECRET.resource, OWN, namespace=SPACE),
        node.create(SECRET.resource, secret("new"), namespace=SPACE),
        node.list(NAMESPACE.resource),
    ):
        with pytest.raises(Forbidden, match="system:serviceaccount:fleet-default:node"):
            await refused


@pytest.mark.parametrize("path", ["/k8s/clusters/local", "/k8s/proxy/local", "/k8s/clusters/c-m-other"])
async def test_it_is_nobody_where_clusters_are_reached(scene: Scene, path: str) -> None:
    with pytest.raises(Unauthorized):
        await scene.node(path).get(SECRET.resource, OWN, namespace=SPACE)


PATH = SECRET.resource.path(SPACE, OWN)
STRANGERS = {
    "nobody": {},
    "a token of nobody": {"authorization": "Bearer eyJhbGciOiJub25lIn0.e30."},
    "no token in it": {"authorization": "Bearer "},
    "another scheme": {"authorization": "Basic bm9kZTpzZWNyZXQ="},
    "a token of ours, guessed": {"authorization": "Bearer token-abcde:bcdfg"},
    "what looks like ours but is not": {"authorization": "Bearer a:b:c"},
    "a user's name": {"x-remote-user": "admin", "x-remote-group": "system:masters"},
    "somebody else's name": {"impersonate-user": "admin", "impersonate-group": "system:masters"},
}


@pytest.mark.parametrize("headers", STRANGERS.values(), ids=STRANGERS)
async def test_strangers_never_come_in_as_the_manager(scene: Scene, headers: dict[str, str]) -> None:
    """Whose own connection to the API server has every right."""
    answer = await scene.front.as_holder_of("").raw("GET", PATH, headers=dict(headers))
    assert answer.status in {400, 401, 403}
    assert b"none yet" not in answer.content()
    assert b"bm9uZSB5ZXQ" not in answer.content()


SMUGGLED = {
    "impersonation": {"impersonate-user": "admin", "impersonate-group": "system:masters"},
    "impersonation that is gone on the way": {"impersonate-user": "admin", "connection": "impersonate-user"},
    "the token gone on the way": {"connection": "authorization"},
    "a front proxy's word": {"x-remote-user": "admin", "x-remote-group": "system:masters"},
}


@pytest.mark.parametrize("headers", SMUGGLED.values(), ids=SMUGGLED)
async def test_no_header_gives_a_service_account_more_than_it_has(scene: Scene, headers: dict[str, str]) -> None:
    answer = await scene.node().raw("GET", SECRET.resource.path(SPACE, OTHER), headers=dict(headers))
    assert answer.status in {400, 403}


async def test_an_upgrade_is_no_way_around(scene: Scene) -> None:
    """A watch over WebSocket: with the account's own rights, or none."""
    watch = f"{SECRET.resource.path(SPACE)}?watch=true"
    for bearer, path in (("", watch), ("x.y.z", watch), (scene.token, watch), ("", f"{watch}&fieldSelector=x")):
        stream = await scene.front.upgraded(path, bearer)
        assert stream.status in {401, 403}
        await stream.close()


async def test_what_it_may_watch_it_may_watch_over_websocket(scene: Scene) -> None:
    """Where the API server has such watches."""
    if scene.front.engine == "embedded":
        return
    watch = f"{SECRET.resource.path(SPACE)}?watch=true&fieldSelector=metadata.name%3D{OWN}"
    stream = await scene.front.upgraded(watch, scene.token)
    assert stream.status == 101
    async with asyncio.timeout(30):
        assert b"ADDED" in await stream.reader.read(1024)
    await stream.close()


async def test_kubectl_uses_it(scene: Scene, tmp_path: Path) -> None:
    authority = tmp_path / "ca.crt"
    authority.write_bytes(scene.front.ca)
    token = tmp_path / "config"
    flags = [f"--server={scene.front.url}", f"--certificate-authority={authority}", f"--kubeconfig={token}"]
    token.touch(mode=0o600)
    user = {"name": "node", "user": {"token": scene.token}}
    context = {"name": "node", "context": {"cluster": "", "user": "node"}}
    token.write_text(
        str({"apiVersion": "v1", "kind": "Config", "users": [user], "contexts": [context], "current-context": "node"})
    )
    process = await asyncio.create_subprocess_exec(
        peer("kubectl"), *flags, "get", "secret", OWN, "-n", SPACE, "-o", "name", stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        printed, _ = await process.communicate()
    assert printed.decode().strip() == f"secret/{OWN}"


async def test_an_account_that_is_gone_is_refused(scene: Scene) -> None:
    token = await account_token(scene.front.client, SPACE, "leaver")
    accounts = GroupVersionResource("", "v1", "serviceaccounts")
    await scene.front.client.delete(accounts, "leaver", namespace=SPACE)
    async with asyncio.timeout(30):
        while True:  # a real server remembers for some seconds that a token was good
            try:
                await scene.front.as_holder_of(token).get(SECRET.resource, OWN, namespace=SPACE)
            except Unauthorized:
                return
            except StatusError:
                await asyncio.sleep(0.5)
