"""Streams in the management cluster, such as watches, end when their user loses the right to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from herder.api.capi.kinds import NODE, POD, SECRET
from herder.api.identity.authn.tokens import NewToken
from herder.api.identity.roles import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, RBAC, cluster_role, cluster_role_binding
from herder.api.machines.jobs import ROLE, ROLE_BINDING, SERVICE_ACCOUNT
from herder.api.management.kinds import MANAGEMENT_CLUSTER, USER
from herder.engine.client.client import Client
from herder.engine.meta.errors import Forbidden, StatusError
from herder.engine.meta.kinds import Kind, Object
from tests.support.builders import new_manifest
from tests.unit.engine.apiserver.builtin.test_subresources import serving
from tests.unit.gateway.gateway_server import GatewayServer, create_namespace, running_gateway

PATIENCE = 10
TEAM = "team"
PREFIXES = {"management API": "", "cluster": "/k8s/clusters/local"}


@dataclass
class Watching:
    """A started watch, until it ends by itself."""

    task: asyncio.Task[None]
    objects: list[Object] = field(default_factory=list)

    async def end(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.task

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture(scope="module", params=["embedded", "real"])
async def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[GatewayServer]:
    async with running_gateway(request.param, tmp_path_factory.mktemp("front")) as server:
        await create_namespace(server.client, TEAM)
        yield server


async def bearer_of(gateway: GatewayServer, name: str) -> str:
    """The token of a user without rights."""
    body = {"apiVersion": USER.api_version, "kind": USER.kind, "metadata": {"name": name}, "username": name}
    await gateway.client.apply(USER.resource, body)
    issued = await gateway.parts.identity.issuer.issue_ext(NewToken(name, name, kind="kubeconfig", ttl_ms=3_600_000))
    return issued.bearer


def _role_binding(meta: Object, kind: Kind, name: str) -> Object:
    reference = {"apiGroup": RBAC, "kind": kind.kind, "name": name}
    subjects = [{"apiGroup": RBAC, "kind": "User", "name": name}]
    return {
        "apiVersion": ROLE_BINDING.api_version,
        "kind": ROLE_BINDING.kind,
        "metadata": meta,
        "roleRef": reference,
        "subjects": subjects,
    }


async def grant_in_team(client: Client, name: str) -> None:
    """Grant what a project grants its members in its namespaces."""
    meta = {"name": name, "namespace": TEAM}
    rules = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "watch"]}]
    await client.apply(
        ROLE.resource, {"apiVersion": ROLE.api_version, "kind": "Role", "metadata": meta, "rules": rules}
    )
    await client.apply(ROLE_BINDING.resource, _role_binding(meta, ROLE, name))


async def start_watch(client: Client, kind: Kind, **options: Any) -> Watching:
    """Start a watch; it is rejected until new rights take effect."""
    started, stream = asyncio.Event(), Watching(asyncio.ensure_future(asyncio.sleep(0)))

    async def watch() -> None:
        while True:
            with suppress(Forbidden):
                async with aclosing(client.watch(kind.resource, initial_events=True, **options)) as events:
                    async for event in events:
                        stream.objects.append(event.object)
                        started.set()
                return
            await asyncio.sleep(0.05)

    async def watch_to_end() -> None:
        with suppress(StatusError, OSError):
            await watch()

    stream.task = asyncio.ensure_future(watch_to_end())
    async with asyncio.timeout(PATIENCE):
        await started.wait()
    return stream


def secret(name: str) -> Object:
    return new_manifest(SECRET, name, TEAM)


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
async def test_a_watch_ends_with_the_right_to_it(gateway: GatewayServer, prefix: str) -> None:
    await gateway.client.apply(SECRET.resource, secret("first"))
    names = ("u-leaves", "u-stays")
    watches = []
    for name in names:
        client = gateway.client_with_token(await bearer_of(gateway, name), prefix)
        await grant_in_team(gateway.client, name)
        watches.append(await start_watch(client, SECRET, namespace=TEAM))
    ended, unaffected = watches
    await gateway.client.delete(ROLE_BINDING.resource, "u-leaves", namespace=TEAM)
    try:
        await ended.end()
        assert not unaffected.task.done(), "the watch of another user continues"
    finally:
        for each in watches:
            await each.close()


async def _endless_log(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while request.query.get("follow") == "true":
        await response.write(b"line\n")
        await asyncio.sleep(0.05)
    return response


async def create_pod(client: Client, port: int, name: str) -> None:
    """Create a pod and its Node, whose kubelet listens on this port."""
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    await client.create(NODE.resource, new_manifest(NODE, name))
    await client.patch(NODE.resource, name, {"status": status}, subresource="status")
    spec = {"nodeName": name, "containers": [{"name": "main", "image": "image"}]}
    await client.apply(SERVICE_ACCOUNT.resource, new_manifest(SERVICE_ACCOUNT, "default", TEAM))
    await client.create(POD.resource, new_manifest(POD, name, TEAM, spec=spec), namespace=TEAM)


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
async def test_a_followed_log_ends_with_the_right_to_it(gateway: GatewayServer, prefix: str, tmp_path: Path) -> None:
    """For every value of `follow` that the server accepts as true."""
    if gateway.engine == "real":
        return  # the gateway binds every stream of another API server
    values, pod = ("true", "yes", "TRUE", ""), f"pod-{'proxied' if prefix else 'direct'}"
    async with serving(_endless_log, tmp_path) as port:
        await create_pod(gateway.client, port, pod)
        rule = {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]}
        meta = {"name": "u-reader", "namespace": TEAM}
        await gateway.client.apply(ROLE.resource, new_manifest(ROLE, "u-reader", TEAM, rules=[rule]))
        await gateway.client.apply(ROLE_BINDING.resource, _role_binding(meta, ROLE, "u-reader"))
        bearer, streams = await bearer_of(gateway, "u-reader"), []
        try:
            for value in values:
                path = f"{prefix}/api/v1/namespaces/{TEAM}/pods/{pod}/log?follow={value}"
                streams.append(await gateway.stream(path, bearer))
                assert await streams[-1].reader.readuntil(b"line\n")
            await gateway.client.delete(ROLE_BINDING.resource, "u-reader", namespace=TEAM)
            for stream in streams:
                async with asyncio.timeout(PATIENCE):
                    await stream.read_to_end()
        finally:
            for stream in streams:
                await stream.close()


async def test_streams_of_a_service_account_end_with_the_right_to_them(gateway: GatewayServer, tmp_path: Path) -> None:
    """The embedded server ends them before the next event or line: such tokens are not the gateway's."""
    if gateway.engine == "real":
        return  # kube-apiserver authorizes them only when they start
    client, name = gateway.client, f"system:serviceaccount:{TEAM}:reader"
    await client.apply(SERVICE_ACCOUNT.resource, new_manifest(SERVICE_ACCOUNT, "reader", TEAM))
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    issued = await client.create(SERVICE_ACCOUNT.resource, request, namespace=TEAM, name="reader", subresource="token")
    bearer = issued["status"]["token"]
    await client.apply(SECRET.resource, secret("first"))
    rules = [{"apiGroups": [""], "resources": ["secrets", "pods/log"], "verbs": ["get", "list", "watch"]}]
    await client.apply(ROLE.resource, new_manifest(ROLE, name, TEAM, rules=rules))
    await client.apply(ROLE_BINDING.resource, _role_binding({"name": name, "namespace": TEAM}, ROLE, name))
    async with serving(_endless_log, tmp_path) as port:
        await create_pod(client, port, "pod-account")
        watch = await start_watch(gateway.client_with_token(bearer), SECRET, namespace=TEAM)
        log = await gateway.stream(f"/api/v1/namespaces/{TEAM}/pods/pod-account/log?follow=true", bearer)
        try:
            assert await log.reader.readuntil(b"line\n")
            await client.delete(ROLE_BINDING.resource, name, namespace=TEAM)
            await client.apply(SECRET.resource, secret("later"))
            await watch.end()
            assert "later" not in [each["metadata"].get("name") for each in watch.objects]
            async with asyncio.timeout(PATIENCE):
                await log.reader.readuntil(b"\r\n0\r\n\r\n")  # the last chunk; the connection stays open
        finally:
            await watch.close()
            await log.close()


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
async def test_a_former_owner_does_not_see_the_next_cluster_of_the_name(gateway: GatewayServer, prefix: str) -> None:
    """Rights on a name belong to the object that has it, and the next one may be another user's."""
    client, name = gateway.client, "c-m-prod"
    cluster = {"apiVersion": MANAGEMENT_CLUSTER.api_version, "kind": "Cluster", "metadata": {"name": name}, "spec": {}}
    await client.create(MANAGEMENT_CLUSTER.resource, cluster)
    rule = {"apiGroups": [MANAGEMENT_CLUSTER.group], "resources": ["clusters"], "resourceNames": [name]}
    await client.apply(CLUSTER_ROLE.resource, cluster_role("u-owner", [rule | {"verbs": ["get", "list", "watch"]}]))
    subject = {"apiGroup": RBAC, "kind": "User", "name": "u-owner"}
    await client.apply(CLUSTER_ROLE_BINDING.resource, cluster_role_binding("u-owner", "u-owner", subject))
    owner = gateway.client_with_token(await bearer_of(gateway, "u-owner"), prefix)
    watch = await start_watch(owner, MANAGEMENT_CLUSTER, fields=f"metadata.name={name}")
    await client.delete(MANAGEMENT_CLUSTER.resource, name)
    await client.delete(CLUSTER_ROLE_BINDING.resource, "u-owner")
    try:
        await watch.end()
    finally:
        await watch.close()


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
async def test_an_upgraded_stream_ends_with_the_right_to_it(gateway: GatewayServer, prefix: str) -> None:
    """For example a shell in a pod."""
    if gateway.engine == "embedded":
        return  # it has no such streams
    await gateway.client.apply(SECRET.resource, secret("first"))
    bearer = await bearer_of(gateway, "u-shell")
    await grant_in_team(gateway.client, "u-shell")
    await (await start_watch(gateway.client_with_token(bearer, prefix), SECRET, namespace=TEAM)).close()
    stream = await gateway.upgrade(f"{prefix}/api/v1/namespaces/{TEAM}/secrets?watch=true", bearer)
    assert stream.status == 101
    await gateway.client.delete(ROLE_BINDING.resource, "u-shell", namespace=TEAM)
    async with asyncio.timeout(PATIENCE):
        await stream.read_to_end()
    await stream.close()


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
async def test_a_watch_without_the_requested_upgrade_ends_with_the_right_to_it(
    gateway: GatewayServer, prefix: str
) -> None:
    """API servers answer a watch with the SPDY headers like any other watch."""
    if gateway.engine == "embedded":
        return  # the gateway does not upgrade there
    later = f"later-{'proxied' if prefix else 'direct'}"
    await gateway.client.apply(SECRET.resource, secret("first"))
    bearer = await bearer_of(gateway, "u-spdy")
    await grant_in_team(gateway.client, "u-spdy")
    await (await start_watch(gateway.client_with_token(bearer, prefix), SECRET, namespace=TEAM)).close()
    path = f"{prefix}/api/v1/namespaces/{TEAM}/secrets?watch=true&timeoutSeconds=5"
    upgrading = asyncio.ensure_future(gateway.upgrade(path, bearer, "SPDY/3.1"))
    await asyncio.sleep(1)
    await gateway.client.delete(ROLE_BINDING.resource, "u-spdy", namespace=TEAM)
    await asyncio.sleep(1)
    await gateway.client.apply(SECRET.resource, secret(later))
    seen = b""
    with suppress(asyncio.IncompleteReadError, OSError):
        stream = await upgrading
        seen = await stream.read_to_end()
        await stream.close()
    assert later.encode() not in seen
