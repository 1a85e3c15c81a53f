"""What a node may do with the token that it is handed: use its own plan, and nothing else; on both engines."""

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
from tests.support.api import Answer, Api
from tests.support.engines import Engine

NAME, OTHER = "pool-1-abc", "pool-1-xyz"
PLAN, OTHER_PLAN = f"{NAME}-machine-plan", f"{OTHER}-machine-plan"
ROLES, BINDINGS = "rbac.authorization.k8s.io/v1/roles", "rbac.authorization.k8s.io/v1/rolebindings"
ITS_OWN = f"fieldSelector=metadata.name%3D{PLAN}"


def _named(api: Api, name: str) -> Object:
    """Of a Machine, its RKEBootstrap and its Cluster no more than the name counts here."""
    return {"metadata": {"name": name, "namespace": api.namespace, "uid": "none"}}


async def _make(api: Api, resource: str, obj: Object) -> None:
    obj["metadata"].pop("ownerReferences")  # there is no RKEBootstrap that would keep them alive
    await api.create(resource, obj)


async def _account(api: Api, name: str) -> str:
    """All that is made for a machine; the token of its account."""
    own = _named(api, name)
    account = objects.plan_account(own, own)
    await _make(api, "serviceaccounts", account)
    await _make(api, "secrets", objects.token_secret(own, own, account))
    await _make(api, "secrets", objects.plan_secret(own, own, own))
    await _make(api, ROLES, objects.plan_role(own))
    await _make(api, BINDINGS, objects.plan_binding(own))
    path = api.at("secrets", f"{name}-machine-plan-token")
    filled = await api.until_object(path, lambda secret: "token" in secret.get("data", {}))
    return base64.b64decode(filled["data"]["token"]).decode()


@pytest.fixture
async def node(api: Api) -> AsyncIterator[Api]:
    """Whoever has the token of the account that is made for a machine. There is another machine beside it."""
    await _account(api, OTHER)
    holder = api.with_token(await _account(api, NAME))
    yield holder
    await holder.close()


async def _plan(node: Api) -> Object:
    """Its own; a real server learns of a new right a moment later."""

    def is_there(answer: Answer) -> bool:
        return answer.status == 200

    found: Object = (await node.until(node.at("secrets", PLAN), is_there)).body
    return found


async def test_a_node_reads_and_updates_its_own_plan(node: Api) -> None:
    plan = await _plan(node)
    assert len((await node.get(f"{node.at('secrets')}?{ITS_OWN}")).expect(200)["items"]) == 1
    async with node.watch(f"{node.at('secrets')}?watch=true&{ITS_OWN}") as watching:
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
        ("DELETE", "secrets", f"?{ITS_OWN}"),
        ("PATCH", "secrets", PLAN),
        ("POST", "secrets", ""),
        ("GET", "serviceaccounts", PLAN),
        ("POST", "serviceaccounts", f"{PLAN}/token"),
        ("POST", "serviceaccounts", f"{OTHER_PLAN}/token"),
        ("GET", "configmaps", ""),
        ("GET", ROLES, PLAN),
        ("PUT", ROLES, PLAN),
        ("POST", BINDINGS, ""),
        # Lists and watches of more than the one Secret, whatever they are narrowed by.
        ("GET", "secrets", "?watch=true"),
        ("GET", "secrets", f"?fieldSelector=metadata.name%3D{OTHER_PLAN}"),
        ("GET", "secrets", f"?watch=true&fieldSelector=metadata.name%3D{OTHER_PLAN}"),
        ("GET", "secrets", f"?fieldSelector=metadata.name%21%3D{PLAN}"),
        ("GET", "secrets", f"?watch=true&fieldSelector=metadata.name%21%3D{OTHER_PLAN}"),
        ("GET", "secrets", f"?watch=true&fieldSelector=type%3D{PLAN_SECRET_TYPE.replace('/', '%2F')}"),
        ("GET", "secrets", "?labelSelector=rke.cattle.io%2Fmachine-name"),
    ],
)
async def test_a_node_does_nothing_else(node: Api, method: str, resource: str, name: str) -> None:
    another = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "another"}}
    asked, _, query = name.partition("?")
    path = node.at(resource, asked) + (f"?{query}" if query else "")
    if method == "PATCH":
        answer = await node.patch(path, {"data": {}})
    else:
        answer = await node.send(method, path, another if method in {"POST", "PUT"} else None)
    assert answer.status == 403


async def test_nor_in_other_namespaces_whatever_it_narrows_a_list_by(node: Api) -> None:
    await _plan(node)  # its rights are in force
    for query in (ITS_OWN, f"watch=true&{ITS_OWN}"):
        assert (await node.get(f"{node.cluster('secrets')}?{query}")).status == 403
        assert (await node.get(f"{node.within('kube-system').at('secrets')}?{query}")).status == 403


async def test_its_rights_are_those_of_an_account_without_any_and_its_plan(api: Api, node: Api) -> None:
    await _plan(node)
    await api.create("serviceaccounts", {"metadata": {"name": "nobody"}})
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = (await api.post(api.at("serviceaccounts", "nobody", "token"), asked)).expect(201)["status"]["token"]
    nobody = api.with_token(token)
    try:
        plain = await _rules(nobody)
    finally:
        await nobody.close()
    more = [rule for rule in await _rules(node) if rule not in plain]
    (rule,) = objects.plan_role(_named(api, NAME))["rules"]
    assert [{key: sorted(value) for key, value in each.items()} for each in more] == [
        {key: sorted(value) for key, value in rule.items()}
    ]
    handed_out = [each for each in plain if set(each["verbs"]) - {"create"}]
    assert handed_out == [], "what everybody may do is to ask about themselves"


async def _rules(who: Api) -> list[Any]:
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview"}
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    told = (await who.post(path, review | {"spec": {"namespace": who.namespace}})).expect(201)
    found: list[Any] = told["status"]["resourceRules"]
    return found


# --- what it may change of its plan ---------------------------------------------------------------------------------


def _with(change: Callable[[Object], object], plan: Object) -> Object:
    changed = copy.deepcopy(plan)
    change(changed)
    return changed


_BASE64 = base64.b64encode(b"x").decode()
MORE_THAN_A_REPORT: dict[str, Callable[[Object], object]] = {
    "a role": lambda plan: plan["metadata"]["labels"].update({"rke.cattle.io/control-plane-role": "true"}),
    "another cluster": lambda plan: plan["metadata"]["labels"].update({"rke.cattle.io/cluster-name": "pasture"}),
    "a label gone": lambda plan: plan["metadata"]["labels"].popitem(),
    "a join URL": lambda plan: plan["metadata"].update(annotations={"rke.cattle.io/join-url": "https://10.0.0.9"}),
    "an owner": lambda plan: plan["metadata"].update(
        ownerReferences=[{"apiVersion": "v1", "kind": "Secret", "name": PLAN, "uid": "1"}]
    ),
    "a finalizer": lambda plan: plan["metadata"].update(finalizers=["example.com/mine"]),
    "the plan": lambda plan: plan.update(data={"plan": _BASE64}),
    "the plan, as text": lambda plan: plan.update(stringData={"plan": "{}"}),
    "what the manager says that it applied": lambda plan: plan.update(data={"appliedPlan": _BASE64}),
    "how often it may fail": lambda plan: plan.update(data={"max-failures": _BASE64}),
    "a lock": lambda plan: plan.update(immutable=True),
}


@asynccontextmanager
async def _guarded(engine: Engine, node: Api, plan: Object) -> AsyncIterator[None]:
    """With the policy in force, which takes a server a moment."""
    client = engine.client()
    try:
        await install_plan_policy(client)
        locked = _with(MORE_THAN_A_REPORT["a lock"], plan)
        async with asyncio.timeout(30):
            while (await node.put(f"{node.at('secrets', PLAN)}?dryRun=All", locked)).status != 403:
                await asyncio.sleep(0.05)
        yield
    finally:
        for kind in (POLICY_BINDING, POLICY):
            with suppress(NotFound):
                await client.delete(kind.resource, POLICY_NAME)
        await client.close()


async def test_a_node_reports_on_its_plan_and_changes_nothing_else_there(api: Api, node: Api, engine: Engine) -> None:
    """A worker that gave itself a server's role would be handed all keys of its cluster."""
    plan = await _plan(node)
    path = node.at("secrets", PLAN)
    async with _guarded(engine, node, plan):
        for what, change in MORE_THAN_A_REPORT.items():
            answer = await node.put(path, _with(change, plan))
            assert (answer.status, NOT_A_STATUS_UPDATE in answer.message) == (403, True), what
        told = _with(lambda secret: secret.update(data={"applied-checksum": _BASE64, "plan-state": _BASE64}), plan)
        kept = (await node.put(path, told)).expect(200)
        assert kept["data"] == told["data"]
        for change in (MORE_THAN_A_REPORT["a role"], MORE_THAN_A_REPORT["the plan"]):
            (await api.put(path, _with(change, (await api.get(path)).body))).expect(200)  # the manager may


@pytest.mark.parametrize("what", [what for what in MORE_THAN_A_REPORT if what != "the plan, as text"])
def test_the_embedded_server_has_the_same_rules_without_a_policy(what: str) -> None:
    labels = {"rke.cattle.io/worker-role": "true", "rke.cattle.io/cluster-name": "meadow"}
    meta = {"name": PLAN, "namespace": "ws", "labels": labels}
    plan: Object = {"type": PLAN_SECRET_TYPE, "metadata": meta, "data": {"plan": "e30="}}
    changed = _with(MORE_THAN_A_REPORT[what], plan)
    assert is_refused(f"system:serviceaccount:ws:{PLAN}", plan, changed)
    assert not is_refused("system:serviceaccount:herder:manager", plan, changed)
    assert not is_refused(f"system:serviceaccount:ws:{PLAN}", {**plan, "type": "Opaque"}, changed)
    report = _with(lambda secret: secret["data"].update({"plan-state": "x"}), plan)
    assert not is_refused(f"system:serviceaccount:ws:{PLAN}", plan, report)
