"""What goes on in the management cluster, such as a watch, ends when its user loses the right to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from herder.api.capi.kinds import SECRET
from herder.api.identity.authn.tokens import NewToken
from herder.api.identity.roles import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, RBAC, cluster_role, cluster_role_binding
from herder.api.machines.jobs import ROLE, ROLE_BINDING
from herder.api.management.kinds import MANAGEMENT_CLUSTER, USER
from herder.engine.client.client import Client
from herder.engine.meta.errors import Forbidden, StatusError
from herder.engine.meta.kinds import Kind, Object
from tests.unit.gateway.front import Front, front, namespace

PATIENCE = 10
TEAM = "team"
PREFIXES = {"management API": "", "cluster": "/k8s/clusters/local"}


@dataclass
class Watching:
    """A watch that has begun, until it ends of itself."""

    task: asyncio.Task[None]
    seen: list[Object] = field(default_factory=list)

    async def end(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.task

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture(scope="module", params=["embedded", "real"])
async def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Front]:
    async with front(request.param, tmp_path_factory.mktemp("front")) as made:
        await namespace(made.client, TEAM)
        yield made


async def bearer_of(scene: Front, name: str) -> str:
    """The token of a user without any right yet."""
    body = {"apiVersion": USER.api_version, "kind": USER.kind, "metadata": {"name": name}, "username": name}
    await scene.client.apply(USER.resource, body)
    issued = await scene.parts.identity.issuer.issue_ext(NewToken(name, name, kind="kubeconfig", ttl_ms=3_600_000))
    return issued.bearer


def _bound(meta: Object, kind: Kind, name: str) -> Object:
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
    """What a project gives its members in its namespaces."""
    meta = {"name": name, "namespace": TEAM}
    rules = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "watch"]}]
    await client.apply(
        ROLE.resource, {"apiVersion": ROLE.api_version, "kind": "Role", "metadata": meta, "rules": rules}
    )
    await client.apply(ROLE_BINDING.resource, _bound(meta, ROLE, name))


async def watching(client: Client, kind: Kind, **options: Any) -> Watching:
    """Rights take effect in a moment: until then the watch is refused."""
    begun, made = asyncio.Event(), Watching(asyncio.ensure_future(asyncio.sleep(0)))

    async def watch() -> None:
        while True:
            with suppress(Forbidden):
                async with aclosing(client.watch(kind.resource, initial_events=True, **options)) as events:
                    async for event in events:
                        made.seen.append(event.object)
                        begun.set()
                return
            await asyncio.sleep(0.05)

    async def until_its_end() -> None:
        with suppress(StatusError, OSError):
            await watch()

    made.task = asyncio.ensure_future(until_its_end())
    async with asyncio.timeout(PATIENCE):
        await begun.wait()
    return made


def secret(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": TEAM}}


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
async def test_a_watch_ends_with_the_right_to_it(scene: Front, prefix: str) -> None:
    await scene.client.apply(SECRET.resource, secret("first"))
    names = ("u-leaves", "u-stays")
    watches = []
    for name in names:
        who = scene.as_holder_of(await bearer_of(scene, name), prefix)
        await grant_in_team(scene.client, name)
        watches.append(await watching(who, SECRET, namespace=TEAM))
    leaves, stays = watches
    await scene.client.delete(ROLE_BINDING.resource, "u-leaves", namespace=TEAM)
    try:
        await leaves.end()
        assert not stays.task.done(), "that of somebody else goes on"
    finally:
        for each in watches:
            await each.close()


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
async def test_a_former_owner_does_not_see_the_next_cluster_of_the_name(scene: Front, prefix: str) -> None:
    """Rights on a name come with the object that has it, and the next one may be another user's."""
    client, name = scene.client, "c-m-prod"
    cluster = {"apiVersion": MANAGEMENT_CLUSTER.api_version, "kind": "Cluster", "metadata": {"name": name}, "spec": {}}
    await client.create(MANAGEMENT_CLUSTER.resource, cluster)
    rule = {"apiGroups": [MANAGEMENT_CLUSTER.group], "resources": ["clusters"], "resourceNames": [name]}
    await client.apply(CLUSTER_ROLE.resource, cluster_role("u-owner", [rule | {"verbs": ["get", "list", "watch"]}]))
    subject = {"apiGroup": RBAC, "kind": "User", "name": "u-owner"}
    await client.apply(CLUSTER_ROLE_BINDING.resource, cluster_role_binding("u-owner", "u-owner", subject))
    owner = scene.as_holder_of(await bearer_of(scene, "u-owner"), prefix)
    watch = await watching(owner, MANAGEMENT_CLUSTER, fields=f"metadata.name={name}")
    await client.delete(MANAGEMENT_CLUSTER.resource, name)
    await client.delete(CLUSTER_ROLE_BINDING.resource, "u-owner")
    try:
        await watch.end()
    finally:
        await watch.close()


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
async def test_a_stream_of_another_protocol_ends_with_the_right_to_it(scene: Front, prefix: str) -> None:
    """As a shell in a pod does."""
    if scene.engine == "embedded":
        return  # has none
    await scene.client.apply(SECRET.resource, secret("first"))
    bearer = await bearer_of(scene, "u-shell")
    await grant_in_team(scene.client, "u-shell")
    await (await watching(scene.as_holder_of(bearer, prefix), SECRET, namespace=TEAM)).close()
    stream = await scene.upgraded(f"{prefix}/api/v1/namespaces/{TEAM}/secrets?watch=true", bearer)
    assert stream.status == 101
    await scene.client.delete(ROLE_BINDING.resource, "u-shell", namespace=TEAM)
    async with asyncio.timeout(PATIENCE):
        await stream.until_its_end()
    await stream.close()
