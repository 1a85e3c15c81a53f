"""On API servers without Herder's admission, policies let only users with the verb `escalate` grant rights by Herder's
kinds.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import product

import msgspec
import pytest

from herder.api.identity.crds import CRDS
from herder.api.identity.policies import CREATORS, ROLES
from herder.api.identity.roles import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, RBAC, cluster_role, cluster_role_binding
from herder.api.machines.credentials import CREATOR
from herder.api.management.crds import CRDS as MANAGEMENT_CRDS
from herder.api.management.kinds import GLOBAL_ROLE, MANAGEMENT_CLUSTER, PROJECT_BINDING
from herder.api.management.names import CONNECTED_SINCE, PROVISIONING_CLUSTER_OF
from herder.api.policies import POLICY, POLICY_BINDING
from herder.app.install import install_kinds, install_role_policies
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Object
from herder.engine.wire import Response
from tests.support.engines import Engine, remove_kinds

PATH = GLOBAL_ROLE.resource.path()


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[Client]:
    client = engine.client()
    kinds = {f"{kind.plural}.{kind.group}" for kind in (GLOBAL_ROLE, PROJECT_BINDING, MANAGEMENT_CLUSTER)}
    definitions = [each for each in (*CRDS, *MANAGEMENT_CRDS) if each["metadata"]["name"] in kinds]
    await install_kinds(client, definitions)
    await install_role_policies(client)
    try:
        yield client
    finally:
        for kind, name in product((POLICY_BINDING, POLICY), (ROLES, CREATORS)):
            await client.delete(kind.resource, name)
        # Other tests of this folder compare the list of all kinds.
        await remove_kinds(client, (each["metadata"]["name"] for each in definitions))
        await client.close()


MEMBER = msgspec.json.encode(
    {
        "apiVersion": PROJECT_BINDING.api_version,
        "kind": PROJECT_BINDING.kind,
        "metadata": {"name": "mallory"},
        "projectName": "c-m-1:p-x",
        "roleTemplateName": "project-owner",
        "userName": "mallory",
    }
)


def role(name: str, verbs: str = "get") -> bytes:
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": [verbs]}
    body: Object = {"apiVersion": GLOBAL_ROLE.api_version, "kind": GLOBAL_ROLE.kind, "metadata": {"name": name}}
    return msgspec.json.encode({**body, "rules": [rule]})


async def write_as(client: Client, user: str, method: str, path: str, body: bytes) -> Response:
    content = "application/json" if method == "POST" else "application/merge-patch+json"
    headers = {"impersonate-user": user, "content-type": content, "accept": "application/json"}
    return await client.raw(method, path, body=body, headers=headers)


async def test_granting_rights_requires_the_escalate_verb(client: Client) -> None:
    unique = uuid.uuid4().hex[:8]
    names = {role_name: f"{role_name}-{unique}" for role_name in ("editor", "boss")}
    for role_name, verbs in (("editor", ["create", "update", "patch", "get"]), ("boss", ["*"])):
        kinds = [GLOBAL_ROLE.plural, PROJECT_BINDING.plural, MANAGEMENT_CLUSTER.plural]
        rule = {"apiGroups": [GLOBAL_ROLE.group], "resources": kinds, "verbs": verbs}
        await client.create(CLUSTER_ROLE.resource, cluster_role(names[role_name], [rule]))
        subject = {"apiGroup": RBAC, "kind": "User", "name": names[role_name]}
        await client.create(
            CLUSTER_ROLE_BINDING.resource, cluster_role_binding(names[role_name], names[role_name], subject)
        )
    target = f"role-{unique}"
    try:
        async with asyncio.timeout(30):  # until rights and the policy are enforced
            while (await write_as(client, names["boss"], "POST", PATH, role(target))).status != 201:
                await asyncio.sleep(0.1)
            while (
                rejected := await write_as(client, names["editor"], "POST", PATH, role(f"x-{unique}"))
            ).status != 403:
                await _delete(client, f"x-{unique}")
                await asyncio.sleep(0.1)
        assert b"requires the verb escalate" in rejected.content()
        wider = await write_as(client, names["editor"], "PATCH", f"{PATH}/{target}", b'{"rules": [{"verbs": ["*"]}]}')
        assert wider.status == 403
        bound = await write_as(client, names["editor"], "POST", PROJECT_BINDING.resource.path("default"), MEMBER)
        assert (bound.status, b"requires the verb escalate" in bound.content()) == (403, True)
        labeled = await write_as(
            client, names["editor"], "PATCH", f"{PATH}/{target}", b'{"metadata": {"labels": {"a": "b"}}}'
        )
        assert labeled.status == 200, "writes that grant nothing are allowed"
        await _assert_only_the_manager_sets_creators(client, names["editor"], f"c-{unique}")
    finally:
        for leftover in (target, f"x-{unique}"):
            await _delete(client, leftover)
        for kind in (CLUSTER_ROLE_BINDING, CLUSTER_ROLE):
            for name in names.values():
                await client.delete(kind.resource, name)


async def _assert_only_the_manager_sets_creators(client: Client, user: str, name: str) -> None:
    path = MANAGEMENT_CLUSTER.resource.path()

    async def create(**annotations: str) -> int:
        meta = {"name": name, "annotations": annotations}
        body = {"apiVersion": MANAGEMENT_CLUSTER.api_version, "kind": "Cluster", "metadata": meta, "spec": {}}
        return (await write_as(client, user, "POST", path, msgspec.json.encode(body))).status

    async def annotate(**annotations: str | None) -> int:
        body = msgspec.json.encode({"metadata": {"annotations": annotations}})
        return (await write_as(client, user, "PATCH", f"{path}/{name}", body)).status

    try:
        assert await create(**{CREATOR: "somebody"}) == 403
        assert await create(**{CONNECTED_SINCE: "2026-01-01T00:00:00Z"}) == 403
        assert await create(**{CREATOR: user, PROVISIONING_CLUSTER_OF: ""}) == 403
        assert await create(**{CREATOR: user, "mine": "1"}) == 201
        assert await annotate(**{CREATOR: "somebody"}) == 403
        assert await annotate(**{CREATOR: None}) == 403
        assert await annotate(**{CONNECTED_SINCE: "2026-01-01T00:00:00Z"}) == 403
        assert await annotate(**{PROVISIONING_CLUSTER_OF: ""}) == 403
        assert await annotate(mine="2") == 200
    finally:
        with suppress(NotFound):
            await client.delete(MANAGEMENT_CLUSTER.resource, name)


async def _delete(client: Client, name: str) -> None:
    with suppress(NotFound):
        await client.delete(GLOBAL_ROLE.resource, name)
