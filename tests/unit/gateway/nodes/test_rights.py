"""Rights of the token that a node receives: its own plan and nothing else, on both engines."""

from __future__ import annotations

import asyncio
import base64
import copy
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from herder.api.policies import POLICY, POLICY_BINDING
from herder.api.rke.names import PLAN_SECRET_TYPE
from herder.api.rke.node.reports import NOT_A_STATUS_UPDATE, POLICY_NAME, is_refused
from herder.app.install import install_plan_policy
from herder.controllers.bootstrap import objects
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Object
from tests.support.api import Api, ApiResponse
from tests.support.engines import Engine

NAME, OTHER = "pool-1-abc", "pool-1-xyz"
PLAN, OTHER_PLAN = f"{NAME}-machine-plan", f"{OTHER}-machine-plan"
ROLES, BINDINGS = "rbac.authorization.k8s.io/v1/roles", "rbac.authorization.k8s.io/v1/rolebindings"
OWN_PLAN = f"fieldSelector=metadata.name%3D{PLAN}"


def _named(api: Api, name: str) -> Object:
    """A Machine, RKEBootstrap or Cluster, of which only the name matters here."""
    return {"metadata": {"name": name, "namespace": api.namespace, "uid": "none"}}


async def _create(api: Api, resource: str, obj: Object) -> None:
    obj["metadata"].pop("ownerReferences")  # they would be garbage collected without their RKEBootstrap
    await api.create(resource, obj)


async def _account(api: Api, name: str) -> str:
    """Create the objects of a machine, and return the token of its account."""
    machine = _named(api, name)
    account = objects.plan_account(machine, machine)
    await _create(api, "serviceaccounts", account)
    await _create(api, "secrets", objects.token_secret(machine, machine, account))
    await _create(api, "secrets", objects.plan_secret(machine, machine, machine))
    await _create(api, ROLES, objects.plan_role(machine))
    await _create(api, BINDINGS, objects.plan_binding(machine))
    path = api.at("secrets", f"{name}-machine-plan-token")
    filled = await api.until_object(path, lambda secret: "token" in secret.get("data", {}))
    return base64.b64decode(filled["data"]["token"]).decode()


@pytest.fixture
async def node(api: Api) -> AsyncIterator[Api]:
    """A client with the token of a machine's account. There is another machine too."""
    await _account(api, OTHER)
    client = api.with_token(await _account(api, NAME))
    yield client
    await client.close()


async def _plan(node: Api) -> Object:
    """The node's own plan; a real server applies new rights a moment later."""

    def is_found(response: ApiResponse) -> bool:
        return response.status == 200

    plan: Object = (await node.until(node.at("secrets", PLAN), is_found)).body
    return plan


async def test_a_node_reads_and_updates_its_own_plan(node: Api) -> None:
    plan = await _plan(node)
    assert len((await node.get(f"{node.at('secrets')}?{OWN_PLAN}")).expect(200)["items"]) == 1
    async with node.watch(f"{node.at('secrets')}?watch=true&{OWN_PLAN}") as watching:
        plan["data"] = {"applied-checksum": base64.b64encode(b"abc").decode()}
        (await node.put(node.at("secrets", PLAN), plan)).expect(200)
        assert (await watching.next())["object"]["metadata"]["name"] == PLAN


@pytest.mark.parametrize(
    ("method", "resource", "name"),
    [
        ("GET", "secrets", ""),
        ("GET", "secrets", f"{PLAN}-token"),
        ("GET", "secrets", OTHER_PLAN),
        ("PUT", "secrets", OTHER_PLAN),
        ("GET", "secrets", f"{NAME}-machine-bootstrap"),
        ("DELETE", "secrets", PLAN),
        ("DELETE", "secrets", f"?{OWN_PLAN}"),
        ("PATCH", "secrets", PLAN),
        ("POST", "secrets", ""),
        ("GET", "serviceaccounts", PLAN),
        ("POST", "serviceaccounts", f"{PLAN}/token"),
        ("POST", "serviceaccounts", f"{OTHER_PLAN}/token"),
        ("GET", "configmaps", ""),
        ("GET", ROLES, PLAN),
        ("PUT", ROLES, PLAN),
        ("POST", BINDINGS, ""),
        # Lists and watches of more than its Secret, with any selector.
        ("GET", "secrets", "?watch=true"),
        ("GET", "secrets", f"?fieldSelector=metadata.name%3D{OTHER_PLAN}"),
        ("GET", "secrets", f"?watch=true&fieldSelector=metadata.name%3D{OTHER_PLAN}"),
        ("GET", "secrets", f"?fieldSelector=metadata.name%21%3D{PLAN}"),
        ("GET", "secrets", f"?watch=true&fieldSelector=metadata.name%21%3D{OTHER_PLAN}"),
        ("GET", "secrets", f"?watch=true&fieldSelector=type%3D{PLAN_SECRET_TYPE.replace('/', '%2F')}"),
        ("GET", "secrets", "?labelSelector=rke.cattle.io%2Fmachine-name"),
    ],
)
async def test_a_node_may_do_nothing_else(node: Api, method: str, resource: str, name: str) -> None:
    another = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "another"}}
    object_name, _, query = name.partition("?")
    path = node.at(resource, object_name) + (f"?{query}" if query else "")
    if method == "PATCH":
        response = await node.patch(path, {"data": {}})
    else:
        response = await node.send(method, path, another if method in {"POST", "PUT"} else None)
    assert response.status == 403


async def test_a_node_may_not_list_other_namespaces(node: Api) -> None:
    await _plan(node)  # its rights are effective
    for query in (OWN_PLAN, f"watch=true&{OWN_PLAN}"):
        assert (await node.get(f"{node.cluster('secrets')}?{query}")).status == 403
        assert (await node.get(f"{node.in_namespace('kube-system').at('secrets')}?{query}")).status == 403


async def test_a_node_has_only_the_default_rights_and_its_plan(api: Api, node: Api) -> None:
    await _plan(node)
    await api.create("serviceaccounts", {"metadata": {"name": "nobody"}})
    token_request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = (await api.post(api.at("serviceaccounts", "nobody", "token"), token_request)).expect(201)["status"]["token"]
    default_account = api.with_token(token)
    try:
        plain = await _rules(default_account)
    finally:
        await default_account.close()
    additional = [rule for rule in await _rules(node) if rule not in plain]
    (rule,) = objects.plan_role(_named(api, NAME))["rules"]
    assert [{key: sorted(value) for key, value in each.items()} for each in additional] == [
        {key: sorted(value) for key, value in rule.items()}
    ]
    granted = [each for each in plain if set(each["verbs"]) - {"create"}]
    assert granted == [], "default rights are self reviews only"


async def _rules(client: Api) -> list[Any]:
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview"}
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    review_result = (await client.post(path, review | {"spec": {"namespace": client.namespace}})).expect(201)
    rules: list[Any] = review_result["status"]["resourceRules"]
    return rules


# --- changes of the plan --------------------------------------------------------------------------------------------


def _with(change: Callable[[Object], object], plan: Object) -> Object:
    changed = copy.deepcopy(plan)
    change(changed)
    return changed


_BASE64 = base64.b64encode(b"x").decode()
FORBIDDEN_CHANGES: dict[str, Callable[[Object], object]] = {
    "a role": lambda plan: plan["metadata"]["labels"].update({"rke.cattle.io/control-plane-role": "true"}),
    "another cluster": lambda plan: plan["metadata"]["labels"].update({"rke.cattle.io/cluster-name": "pasture"}),
    "a removed label": lambda plan: plan["metadata"]["labels"].popitem(),
    "a join URL": lambda plan: plan["metadata"].update(annotations={"rke.cattle.io/join-url": "https://10.0.0.9"}),
    "an owner": lambda plan: plan["metadata"].update(
        ownerReferences=[{"apiVersion": "v1", "kind": "Secret", "name": PLAN, "uid": "1"}]
    ),
    "a finalizer": lambda plan: plan["metadata"].update(finalizers=["example.com/mine"]),
    "the plan": lambda plan: plan.update(data={"plan": _BASE64}),
    "the plan, as text": lambda plan: plan.update(stringData={"plan": "{}"}),
    "the applied plan": lambda plan: plan.update(data={"appliedPlan": _BASE64}),
    "max failures": lambda plan: plan.update(data={"max-failures": _BASE64}),
    "a lock": lambda plan: plan.update(immutable=True),
}


@asynccontextmanager
async def _guarded(engine: Engine, node: Api, plan: Object) -> AsyncIterator[None]:
    """With the policy in force, which a server applies a moment later."""
    client = engine.client()
    try:
        await install_plan_policy(client)
        locked = _with(FORBIDDEN_CHANGES["a lock"], plan)
        async with asyncio.timeout(30):
            while (await node.put(f"{node.at('secrets', PLAN)}?dryRun=All", locked)).status != 403:
                await asyncio.sleep(0.05)
        yield
    finally:
        for kind in (POLICY_BINDING, POLICY):
            with suppress(NotFound):
                await client.delete(kind.resource, POLICY_NAME)
        await client.close()


async def test_a_node_changes_only_the_status_keys_of_its_plan(api: Api, node: Api, engine: Engine) -> None:
    """A worker that gave itself a server role would receive all keys of its cluster."""
    plan = await _plan(node)
    path = node.at("secrets", PLAN)
    async with _guarded(engine, node, plan):
        for change_name, change in FORBIDDEN_CHANGES.items():
            response = await node.put(path, _with(change, plan))
            assert (response.status, NOT_A_STATUS_UPDATE in response.message) == (403, True), change_name
        report = _with(lambda secret: secret.update(data={"applied-checksum": _BASE64, "plan-state": _BASE64}), plan)
        stored = (await node.put(path, report)).expect(200)
        assert stored["data"] == report["data"]
        for change in (FORBIDDEN_CHANGES["a role"], FORBIDDEN_CHANGES["the plan"]):
            (await api.put(path, _with(change, (await api.get(path)).body))).expect(200)  # allowed for the manager


@pytest.mark.parametrize(
    "change_name", [change_name for change_name in FORBIDDEN_CHANGES if change_name != "the plan, as text"]
)
def test_the_embedded_server_enforces_the_same_rules(change_name: str) -> None:
    labels = {"rke.cattle.io/worker-role": "true", "rke.cattle.io/cluster-name": "meadow"}
    meta = {"name": PLAN, "namespace": "ws", "labels": labels}
    plan: Object = {"type": PLAN_SECRET_TYPE, "metadata": meta, "data": {"plan": "e30="}}
    changed = _with(FORBIDDEN_CHANGES[change_name], plan)
    assert is_refused(f"system:serviceaccount:ws:{PLAN}", plan, changed)
    assert not is_refused("system:serviceaccount:herder:manager", plan, changed)
    assert not is_refused(f"system:serviceaccount:ws:{PLAN}", {**plan, "type": "Opaque"}, changed)
    report = _with(lambda secret: secret["data"].update({"plan-state": "x"}), plan)
    assert not is_refused(f"system:serviceaccount:ws:{PLAN}", plan, report)
