from __future__ import annotations

import pytest

from herder.engine.apiserver.auth.access import AccessAttributes
from herder.engine.apiserver.auth.impersonate import impersonated
from herder.engine.meta.errors import BadRequest, Forbidden
from herder.engine.wire import Request, User
from tests.unit.engine.apiserver.auth.fake_cluster import ADMIN, ALICE, FakeCluster, rule, user

LIST_NAMESPACES = AccessAttributes("list", "", "v1", "namespaces")
AUTHENTICATION = "authentication.k8s.io"


def impersonate_as(
    cluster: FakeCluster, who: User, headers: dict[str, str], wanted: AccessAttributes = LIST_NAMESPACES
) -> User:
    named = {f"impersonate-{name}": value for name, value in headers.items()}
    request = Request("GET", "/api/v1/namespaces", headers={"accept": "*/*"} | named)
    acting = impersonated(request, who, cluster.authorizer, wanted)
    assert request.headers == {"accept": "*/*"}, "nothing behind may see the headers again"
    return acting


async def test_without_headers_the_user_is_unchanged(cluster: FakeCluster) -> None:
    assert impersonate_as(cluster, ALICE, {}) is ALICE


async def test_a_superuser_can_impersonate_anyone(cluster: FakeCluster) -> None:
    headers = {"user": "bob", "uid": "7", "group": "a, b", "extra-foo%2fbar": "x, y"}
    assert impersonate_as(cluster, ADMIN, headers) == User(
        "bob", "7", ("a", "b", "system:authenticated"), {"foo/bar": ("x", "y")}
    )


async def test_a_service_account_gets_its_own_groups(cluster: FakeCluster) -> None:
    acting = impersonate_as(cluster, ADMIN, {"user": "system:serviceaccount:ci:builder"})
    assert acting.groups == ("system:serviceaccounts", "system:serviceaccounts:ci", "system:authenticated")


async def test_the_anonymous_user_stays_unauthenticated(cluster: FakeCluster) -> None:
    assert impersonate_as(cluster, ADMIN, {"user": "system:anonymous"}).groups == ("system:unauthenticated",)


@pytest.mark.parametrize(
    ("headers", "user_info"),
    [
        ({"group": "a"}, 'Name:"", UID:"", Groups:[]string{"a"}, Extra:map[string][]string(nil)'),
        ({"uid": "a"}, 'Name:"", UID:"a", Groups:[]string(nil), Extra:map[string][]string(nil)'),
        (
            {"extra-foo%2fbar": "a"},
            'Name:"", UID:"", Groups:[]string(nil), Extra:map[string][]string{"foo/bar":[]string{"a"}}',
        ),
    ],
)
async def test_groups_without_a_user_are_a_bad_request(
    cluster: FakeCluster, headers: dict[str, str], user_info: str
) -> None:
    with pytest.raises(BadRequest) as refusal:
        impersonate_as(cluster, ADMIN, headers)
    assert refusal.value.message == (f"requested &user.DefaultInfo{{{user_info}}} without impersonating a user name")


async def test_denials_name_the_missing_permission(cluster: FakeCluster) -> None:
    with pytest.raises(Forbidden) as refusal:
        impersonate_as(cluster, ALICE, {"user": "bob"})
    assert refusal.value.message == (
        'namespaces is forbidden: User "alice" cannot impersonate-on:user-info:list resource "namespaces" '
        'in API group "" at the cluster scope'
    )
    with pytest.raises(Forbidden) as refusal:
        impersonate_as(cluster, ALICE, {"user": "system:serviceaccount:default:x", "group": "g"})
    assert refusal.value.message == (
        'serviceaccounts "x" is forbidden: User "alice" cannot impersonate resource "serviceaccounts" '
        'in API group "" in the namespace "default"'
    )


async def test_user_groups_uid_and_extras_each_require_a_permission(cluster: FakeCluster) -> None:
    await cluster.cluster_role("impersonator", rule("impersonate", "users", names="bob"))
    await cluster.bind("impersonator", user("alice"))
    assert impersonate_as(cluster, ALICE, {"user": "bob"}).name == "bob"
    for more in ({"group": "system:masters"}, {"uid": "u"}, {"extra-scopes": "all"}, {"group": "a, system:masters"}):
        with pytest.raises(Forbidden):
            impersonate_as(cluster, ALICE, {"user": "bob"} | more)
    with pytest.raises(Forbidden):
        impersonate_as(cluster, ALICE, {"user": "carol"})


async def test_uids_and_extras_are_authorized_in_the_authentication_api_group(cluster: FakeCluster) -> None:
    await cluster.cluster_role(
        "impersonator",
        rule("impersonate", "users groups"),
        rule("impersonate", "uids userextras/scopes", AUTHENTICATION),
    )
    await cluster.bind("impersonator", user("alice"))
    acting = impersonate_as(cluster, ALICE, {"user": "bob", "uid": "u", "group": "g", "extra-scopes": "all"})
    assert (acting.uid, acting.extra) == ("u", {"scopes": ("all",)})
    with pytest.raises(Forbidden):
        impersonate_as(cluster, ALICE, {"user": "bob", "extra-other": "all"})


async def test_constrained_impersonation_allows_only_the_granted_actions(cluster: FakeCluster) -> None:
    await cluster.cluster_role(
        "constrained",
        rule("impersonate:user-info", "users", AUTHENTICATION, names="bob"),
        rule("impersonate-on:user-info:list", "namespaces"),
    )
    await cluster.bind("constrained", user("alice"))
    assert impersonate_as(cluster, ALICE, {"user": "bob"}).name == "bob"
    with pytest.raises(Forbidden):
        impersonate_as(cluster, ALICE, {"user": "bob"}, AccessAttributes("delete", "", "v1", "namespaces", name="x"))
    with pytest.raises(Forbidden):
        impersonate_as(cluster, ALICE, {"user": "carol"})


async def test_constrained_impersonation_of_superusers_is_forbidden(cluster: FakeCluster) -> None:
    await cluster.cluster_role(
        "constrained",
        rule("impersonate:user-info", "users groups", AUTHENTICATION),
        rule("impersonate-on:user-info:list", "namespaces"),
    )
    await cluster.bind("constrained", user("alice"))
    assert impersonate_as(cluster, ALICE, {"user": "bob", "group": "g"}).groups == ("g", "system:authenticated")
    with pytest.raises(Forbidden, match="impersonating the system:masters group is not allowed"):
        impersonate_as(cluster, ALICE, {"user": "bob", "group": "system:masters"})


async def test_constrained_impersonation_of_a_node_adds_the_nodes_group(cluster: FakeCluster) -> None:
    await cluster.cluster_role(
        "constrained",
        rule("impersonate:arbitrary-node", "nodes", AUTHENTICATION, names="worker-1"),
        rule("impersonate-on:arbitrary-node:list", "namespaces"),
    )
    await cluster.bind("constrained", user("alice"))
    assert impersonate_as(cluster, ALICE, {"user": "system:node:worker-1"}).groups == (
        "system:nodes",
        "system:authenticated",
    )
    with pytest.raises(Forbidden):
        impersonate_as(cluster, ALICE, {"user": "system:node:worker-2"})


async def test_an_agent_may_impersonate_the_node_it_runs_on(cluster: FakeCluster) -> None:
    await cluster.cluster_role(
        "agent",
        rule("impersonate:associated-node", "nodes", AUTHENTICATION),
        rule("impersonate-on:associated-node:list", "namespaces"),
    )
    await cluster.bind("agent", user("system:serviceaccount:ci:agent"))
    agent = User("system:serviceaccount:ci:agent", extra={"authentication.kubernetes.io/node-name": ("here",)})
    assert impersonate_as(cluster, agent, {"user": "system:node:here"}).name == "system:node:here"
    with pytest.raises(Forbidden):
        impersonate_as(cluster, agent, {"user": "system:node:there"})
