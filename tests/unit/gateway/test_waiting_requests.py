"""A request can wait for its slot, its body, the thread of large documents or a cluster. Rights that end meanwhile do
not count."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from herder.api.capi.kinds import SECRET
from herder.api.identity.authn.tokens import NewToken
from herder.api.machines.jobs import ROLE, ROLE_BINDING
from herder.api.management.kinds import USER
from herder.engine import wire
from herder.engine.apiserver.compute import LARGE_BYTES, shared_executor
from herder.engine.apiserver.request.yaml_body import LARGE_YAML_BYTES
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Object
from herder.engine.wire import User
from herder.gateway.proxy import dial_tcp
from herder.gateway.proxy.upstream.channel import Channel
from tests.support.builders import new_manifest
from tests.support.kube import Authority
from tests.unit.gateway.gateway_server import GatewayServer, create_namespace, running_gateway
from tests.unit.gateway.proxy.proxy_gateway import ALICE, Gateway
from tests.unit.gateway.proxy.recorder import Received, Recorder, StaticTokens

TEAM, CLUSTER = "team", "c-m-managed"
SECRETS = f"/api/v1/namespaces/{TEAM}/secrets"
TOKENS = "/apis/ext.cattle.io/v1/tokens"
PREFIXES = {"management API": "", "cluster": "/k8s/clusters/local"}
ACCOUNT = "Impersonate-User: system:serviceaccount:default:shepherd"
BINDINGS = f"/k8s/clusters/{CLUSTER}/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


@pytest.fixture(autouse=True)
def every_wait_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "RECHECK_SECONDS", 0.0)


@pytest.fixture(scope="module", params=["embedded", "real"])
async def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[GatewayServer]:
    async with running_gateway(request.param, tmp_path_factory.mktemp("front")) as server:
        await create_namespace(server.client, TEAM)
        yield server


@dataclass
class SlowRequest:
    """A request whose head is authenticated and authorized, and whose body is not sent yet."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    body: bytes

    async def finish(self) -> int:
        """Send the body, and return the status."""
        self.writer.write(self.body)
        return await self.status()

    async def status(self) -> int:
        async with asyncio.timeout(30):
            line = await self.reader.readline()
        self.writer.close()
        return int(line.split()[1])


async def begin(
    port: int,
    context: ssl.SSLContext | None,
    path: str,
    bearer: str,
    body: Object | bytes,
    *headers: str,
    method: str = "POST",
) -> SlowRequest:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {bearer}",
        "Expect: 100-continue",
        *headers,
    ]
    kind = "yaml" if isinstance(body, bytes) else "json"
    lines += [f"Content-Type: application/{kind}", f"Content-Length: {len(content)}"]
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write("\r\n".join([*lines, "", ""]).encode())
    async with asyncio.timeout(30):
        assert b" 100 " in await reader.readuntil(b"\r\n\r\n"), "the server reads the body"
    return SlowRequest(reader, writer, content)


# --- the manager ------------------------------------------------------------------------------------------------------


async def user(gateway: GatewayServer, name: str) -> tuple[str, str]:
    """Create a user who may write Secrets. Return the token, and its name."""
    body = {"apiVersion": USER.api_version, "kind": USER.kind, "metadata": {"name": name}, "username": name}
    await gateway.client.apply(USER.resource, body)
    rules = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "update", "delete"]}]
    await gateway.client.apply(ROLE.resource, new_manifest(ROLE, name, TEAM) | {"rules": rules})
    group = "rbac.authorization.k8s.io"
    binding: dict[str, Any] = new_manifest(ROLE_BINDING, name, TEAM)
    binding["roleRef"] = {"apiGroup": group, "kind": ROLE.kind, "name": name}
    binding["subjects"] = [{"apiGroup": group, "kind": "User", "name": name}]
    await gateway.client.apply(ROLE_BINDING.resource, binding)
    issued = await gateway.parts.identity.issuer.issue_ext(NewToken(name, name, kind="kubeconfig", ttl_ms=3_600_000))
    return issued.bearer, issued.bearer.partition(":")[0].removeprefix("ext/")


async def begin_at(
    gateway: GatewayServer, path: str, bearer: str, body: Object | bytes, *, method: str = "POST"
) -> SlowRequest:
    context = ssl.create_default_context(cadata=gateway.ca.decode())
    return await begin(int(gateway.url.rpartition(":")[2]), context, path, bearer, body, method=method)


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
async def test_a_request_whose_right_has_ended_is_rejected(gateway: GatewayServer, prefix: str) -> None:
    bearer, _ = await user(gateway, "u-leaves")
    kept, late = [
        await begin_at(gateway, prefix + SECRETS, bearer, new_manifest(SECRET, f"{name}{len(prefix)}", TEAM))
        for name in ("kept", "late")
    ]
    assert await kept.finish() == 201
    await gateway.client.delete(ROLE_BINDING.resource, "u-leaves", namespace=TEAM)
    assert await late.finish() == 403
    with pytest.raises(NotFound):
        await gateway.client.get(SECRET.resource, f"late{len(prefix)}", namespace=TEAM)


async def test_no_token_outlasts_the_one_that_requested_it(gateway: GatewayServer) -> None:
    """Otherwise, whoever stole a token could have another one after it is revoked."""
    bearer, name = await user(gateway, "u-robbed")
    body = {"apiVersion": "ext.cattle.io/v1", "kind": "Token", "spec": {"description": "another"}}
    requests = [
        await begin_at(gateway, path, bearer, content)
        for path, content in ((TOKENS, body), (SECRETS, new_manifest(SECRET, "stolen", TEAM)))
    ]
    await gateway.client.delete(SECRET.resource, name, namespace="cattle-tokens")
    while gateway.parts.identity.identity.known.cached_token(name, ext=True) is not None:
        await asyncio.sleep(0.01)
    assert [await each.finish() for each in requests] == [401, 401]


async def test_a_token_that_ends_in_the_queue_for_a_slot_is_rejected(gateway: GatewayServer) -> None:
    """Users wait up to 15 s for a slot if they have 100 requests in flight, which may be requests with slow bodies."""
    bearer, name = await user(gateway, "u-queues-up")
    slots, holder = gateway.http.flow.in_flight, ("u-queues-up", "")
    while slots.try_acquire(holder):
        pass
    taken = slots.usage()["largest_user"]
    body = {"apiVersion": "ext.cattle.io/v1", "kind": "Token", "spec": {"description": "another"}}
    late = new_manifest(SECRET, "queued", TEAM)
    requests = [await send(gateway, path, bearer, content) for path, content in ((TOKENS, body), (SECRETS, late))]
    while slots.usage()["waiting"] < len(requests):
        await asyncio.sleep(0.01)
    await gateway.client.delete(SECRET.resource, name, namespace="cattle-tokens")
    while gateway.parts.identity.identity.known.cached_token(name, ext=True) is not None:
        await asyncio.sleep(0.01)
    for _ in range(taken):
        slots.release(holder)
    assert [await each.status() for each in requests] == [401, 401]


async def send(gateway: GatewayServer, path: str, bearer: str, body: Object, method: str = "POST") -> SlowRequest:
    """Send a whole request, without waiting for its response."""
    content = json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {bearer}"]
    lines += ["Content-Type: application/json", f"Content-Length: {len(content)}", "", ""]
    context = ssl.create_default_context(cadata=gateway.ca.decode())
    reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]), ssl=context)
    writer.write("\r\n".join(lines).encode() + content)
    return SlowRequest(reader, writer, b"")


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_a_right_on_a_name_does_not_outlast_the_object(
    gateway: GatewayServer, method: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body that arrives within a second is no long wait, but the object can be another user's by then."""
    monkeypatch.setattr(wire, "RECHECK_SECONDS", 1000.0)
    bearer, _ = await user(gateway, "u-former")
    rules = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"], "resourceNames": ["reused"]}]
    await gateway.client.apply(ROLE.resource, new_manifest(ROLE, "u-former", TEAM) | {"rules": rules})
    secret = new_manifest(SECRET, "reused", TEAM)
    await gateway.client.apply(SECRET.resource, secret)
    body = {} if method == "DELETE" else secret
    request = await begin_at(gateway, f"{prefix}{SECRETS}/reused", bearer, body, method=method)
    await gateway.client.delete(SECRET.resource, "reused", namespace=TEAM)
    await gateway.client.delete(ROLE_BINDING.resource, "u-former", namespace=TEAM)
    await gateway.client.create(SECRET.resource, secret, namespace=TEAM)
    assert await request.finish() == 403


SECRET_OF = {"x": "A" * LARGE_BYTES}
LARGE: dict[str, Object | bytes] = {
    "JSON": new_manifest(SECRET, "queued", TEAM) | {"data": SECRET_OF},
    "YAML": yaml.safe_dump(new_manifest(SECRET, "queued", TEAM) | {"stringData": SECRET_OF}).encode(),
    "small YAML": yaml.safe_dump(
        new_manifest(SECRET, "queued", TEAM) | {"stringData": {"x": "A" * LARGE_YAML_BYTES}}
    ).encode(),
}


@pytest.mark.parametrize("body", LARGE.values(), ids=LARGE)
async def test_a_right_that_ends_in_the_queue_of_large_documents_does_not_count(
    body: Object | bytes, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large documents of one user are processed one after the other, which can take minutes."""
    executor, waiting, may_continue = shared_executor(), asyncio.Event(), asyncio.Event()
    convert = executor.convert_yaml

    async def convert_later(name: str, document: bytes) -> bytes:
        waiting.set()
        await may_continue.wait()
        return await convert(name, document)

    monkeypatch.setattr(executor, "convert_yaml", convert_later)
    async with running_gateway("embedded", tmp_path_factory.mktemp("front")) as gateway:
        await create_namespace(gateway.client, TEAM)
        bearer, _ = await user(gateway, "u-queues")
        request = await begin_at(gateway, SECRETS, bearer, body)
        async with executor.large_request("u-queues"):
            sent = asyncio.ensure_future(request.finish())
            if isinstance(body, bytes):
                await waiting.wait()
            else:
                await asyncio.sleep(0.5)  # until the server has read the body
            await gateway.client.delete(ROLE_BINDING.resource, "u-queues", namespace=TEAM)
            may_continue.set()
            await asyncio.sleep(0)
        assert await sent == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_a_right_that_ends_in_the_thread_of_large_documents_does_not_count(
    method: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step of a large request waits for steps of other users, which take seconds."""
    executor, waiting, may_continue = shared_executor(), asyncio.Event(), asyncio.Event()
    run = executor.run

    async def run_later(name: str, function: Callable[[], Any]) -> Any:
        if name == "u-computes":
            waiting.set()
            await may_continue.wait()
        return await run(name, function)

    monkeypatch.setattr(executor, "run", run_later)
    async with running_gateway("embedded", tmp_path_factory.mktemp("front")) as gateway:
        await create_namespace(gateway.client, TEAM)
        bearer, _ = await user(gateway, "u-computes")
        secret = new_manifest(SECRET, "computed", TEAM) | {"data": SECRET_OF}
        path = SECRETS
        if method != "POST":
            await gateway.client.create(SECRET.resource, secret, namespace=TEAM)
            path, secret["data"] = f"{SECRETS}/computed", {"x": "B" * LARGE_BYTES}
        request = await send(gateway, path, bearer, {} if method == "DELETE" else secret, method)
        await waiting.wait()
        await gateway.client.delete(ROLE_BINDING.resource, "u-computes", namespace=TEAM)
        may_continue.set()
        assert await request.status() == 403
        if method != "POST":
            assert (await gateway.client.get(SECRET.resource, "computed", namespace=TEAM))["data"] == SECRET_OF


# --- managed clusters -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [(), (ACCOUNT,)], ids=["user", "service account"])
async def test_a_removed_member_does_not_reach_the_cluster(
    tmp_path_factory: pytest.TempPathFactory, headers: tuple[str, ...]
) -> None:
    """A service account has rights of its own in the cluster, which do not end with those of the member."""
    recorder = await Recorder(CLUSTER, Authority(tmp_path_factory.mktemp("downstream"))).start()
    recorder.answer = review
    gateway = await Gateway({CLUSTER: recorder.target()}, tokens=StaticTokens()).start()
    try:
        request = await begin(gateway.port, None, BINDINGS, "token-alice", {}, *headers)
        gateway.removed.add(ALICE.name)
        assert await request.finish() == 403
        assert not [each for each in recorder.received if "clusterrolebindings" in each.line]
    finally:
        await gateway.stop()
        await recorder.stop()


async def test_the_right_to_impersonate_an_account_is_checked_again(tmp_path_factory: pytest.TempPathFactory) -> None:
    recorder = await Recorder(CLUSTER, Authority(tmp_path_factory.mktemp("downstream"))).start()
    recorder.answer = review
    gateway = await Gateway({CLUSTER: recorder.target()}, tokens=StaticTokens()).start()
    try:
        request = await begin(gateway.port, None, BINDINGS, "token-alice", {}, ACCOUNT)
        recorder.answer = deny
        assert await request.finish() == 403
        assert not [each for each in recorder.received if "clusterrolebindings" in each.line]
    finally:
        await gateway.stop()
        await recorder.stop()


async def status_of_bindings(port: int, *, upgrade: bool) -> int:
    """Ask for the role bindings of the cluster, as Alice."""
    headers = ("Connection: Upgrade", "Upgrade: websocket") if upgrade else ()
    lines = [f"GET {BINDINGS} HTTP/1.1", "Host: x", "Authorization: Bearer token-alice", *headers, "", ""]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write("\r\n".join(lines).encode())
    return await SlowRequest(reader, writer, b"").status()


@pytest.mark.parametrize("upgrade", [False, True], ids=["request", "upgrade"])
async def test_a_member_who_is_removed_while_the_gateway_connects_does_not_reach_the_cluster(
    upgrade: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A connection takes up to 20 s, and its user may be able to slow the cluster down."""
    recorder = await Recorder(CLUSTER, Authority(tmp_path_factory.mktemp("downstream"))).start()

    async def dial(cluster: str, address: str) -> Channel:
        gateway.removed.add(ALICE.name)
        return await dial_tcp(cluster, address)

    gateway = await Gateway({CLUSTER: recorder.target()}, dial=dial, tokens=StaticTokens()).start()
    try:
        assert await status_of_bindings(gateway.port, upgrade=upgrade) == 403
        assert not recorder.received
    finally:
        await gateway.stop()
        await recorder.stop()


async def test_a_member_who_is_removed_while_the_cluster_issues_a_token_does_not_reach_it(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    recorder = await Recorder(CLUSTER, Authority(tmp_path_factory.mktemp("downstream"))).start()

    async def issue(received: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if "/token" in received.line:
            gateway.removed.add(ALICE.name)
        await review(received, reader, writer)

    recorder.answer = issue
    gateway = await Gateway({CLUSTER: recorder.target()}, tokens=StaticTokens()).start()
    try:
        request = await begin(gateway.port, None, BINDINGS, "token-alice", {}, ACCOUNT)
        assert await request.finish() == 403
        assert gateway.removed
        assert not [each for each in recorder.received if "clusterrolebindings" in each.line]
    finally:
        await gateway.stop()
        await recorder.stop()


@pytest.mark.parametrize("upgrade", [False, True], ids=["request", "upgrade"])
async def test_a_member_who_is_removed_before_the_cluster_is_available_does_not_reach_it(
    upgrade: bool, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway compares the rights in a cluster for up to 30 s, after it has checked that the user is a member."""
    monkeypatch.setattr(wire, "RECHECK_SECONDS", 0.2)
    recorder = await Recorder(CLUSTER, Authority(tmp_path_factory.mktemp("downstream"))).start()
    gateway = await Gateway({CLUSTER: recorder.target()}, tokens=StaticTokens()).start()

    async def compare(_user: User, _cluster: str) -> None:
        if not gateway.removed:
            gateway.removed.add(ALICE.name)
            await asyncio.sleep(0.3)

    gateway.proxy._check_available = compare
    try:
        assert await status_of_bindings(gateway.port, upgrade=upgrade) == 403
        assert not recorder.received
    finally:
        await gateway.stop()
        await recorder.stop()


@pytest.mark.parametrize("slow_reviews", [1, 2])
async def test_a_member_who_is_removed_while_the_cluster_reviews_an_account_does_not_reach_it(
    slow_reviews: int, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster takes its time for the first review, or for the one that repeats it."""
    monkeypatch.setattr(wire, "RECHECK_SECONDS", 0.2)
    recorder = await Recorder(CLUSTER, Authority(tmp_path_factory.mktemp("downstream"))).start()
    reviews = 0

    async def slowly(received: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal reviews
        if "subjectaccessreviews" in received.line:
            reviews += 1
            await asyncio.sleep(0.3)
            if reviews == slow_reviews:
                gateway.removed.add(ALICE.name)
        await review(received, reader, writer)

    recorder.answer = slowly
    gateway = await Gateway({CLUSTER: recorder.target()}, tokens=StaticTokens()).start()
    try:
        lines = [f"GET {BINDINGS} HTTP/1.1", "Host: x", "Authorization: Bearer token-alice", ACCOUNT, "", ""]
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write("\r\n".join(lines).encode())
        assert await SlowRequest(reader, writer, b"").status() == 403
        assert gateway.removed
        assert not [each for each in recorder.received if "clusterrolebindings" in each.line]
    finally:
        await gateway.stop()
        await recorder.stop()


async def review(received: Received, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The cluster lets everybody impersonate its accounts."""
    respond(writer, {"status": {"allowed": True, "token": "token-of-the-account"}, "spec": {}})


async def deny(received: Received, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    respond(writer, {"status": {"allowed": False}})


def respond(writer: asyncio.StreamWriter, body: Object) -> None:
    content = json.dumps(body).encode()
    head = f"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
