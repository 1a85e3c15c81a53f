"""What a node may do with the token that it is handed: use its own plan, and nothing else; on both engines."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator

import pytest

from herder.controllers.bootstrap import objects
from herder.engine.meta.kinds import Object
from tests.support.api import Answer, Api

NAME = "pool-1-abc"
PLAN = f"{NAME}-machine-plan"
ROLES, BINDINGS = "rbac.authorization.k8s.io/v1/roles", "rbac.authorization.k8s.io/v1/rolebindings"


def _named(api: Api) -> Object:
    """Of a Machine, its RKEBootstrap and its Cluster no more than the name counts here."""
    return {"metadata": {"name": NAME, "namespace": api.namespace, "uid": "none"}}


async def _make(api: Api, resource: str, obj: Object) -> None:
    obj["metadata"].pop("ownerReferences")  # there is no RKEBootstrap that would keep them alive
    await api.create(resource, obj)


@pytest.fixture
async def node(api: Api) -> AsyncIterator[Api]:
    """Whoever has the token of the account that is made for a machine."""
    own = _named(api)
    account = objects.plan_account(own, own)
    await _make(api, "serviceaccounts", account)
    await _make(api, "secrets", objects.token_secret(own, own, account))
    await _make(api, "secrets", objects.plan_secret(own, own, own))
    await _make(api, ROLES, objects.plan_role(own))
    await _make(api, BINDINGS, objects.plan_binding(own))
    path = api.at("secrets", f"{PLAN}-token")
    filled = await api.until_object(path, lambda secret: "token" in secret.get("data", {}))
    holder = api.with_token(base64.b64decode(filled["data"]["token"]).decode())
    yield holder
    await holder.close()


async def test_a_node_reads_and_updates_its_own_plan(node: Api) -> None:
    def mine(answer: Answer) -> bool:
        return answer.status == 200  # a real server learns of a new right a moment later

    plan = (await node.until(node.at("secrets", PLAN), mine)).body
    only = f"fieldSelector=metadata.name%3D{PLAN}"
    assert len((await node.get(f"{node.at('secrets')}?{only}")).expect(200)["items"]) == 1
    async with node.watch(f"{node.at('secrets')}?watch=true&{only}") as watching:
        plan["data"] = {"applied-checksum": base64.b64encode(b"abc").decode()}
        (await node.put(node.at("secrets", PLAN), plan)).expect(200)
        assert (await watching.next())["object"]["metadata"]["name"] == PLAN


@pytest.mark.parametrize(
    ("method", "resource", "name"),
    [
        ("GET", "secrets", ""),
        ("GET", "secrets", f"{PLAN}-token"),
        ("DELETE", "secrets", PLAN),
        ("PATCH", "secrets", PLAN),
        ("POST", "secrets", ""),
        ("GET", "serviceaccounts", PLAN),
        ("GET", "configmaps", ""),
        ("GET", ROLES, PLAN),
        ("PUT", ROLES, PLAN),
        ("POST", BINDINGS, ""),
    ],
)
async def test_a_node_does_nothing_else(node: Api, method: str, resource: str, name: str) -> None:
    another = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "another"}}
    if method == "PATCH":
        answer = await node.patch(node.at(resource, name), {"data": {}})
    else:
        answer = await node.send(method, node.at(resource, name), another if method in {"POST", "PUT"} else None)
    assert answer.status == 403
