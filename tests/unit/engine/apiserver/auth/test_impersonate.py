from __future__ import annotations

import pytest

from herder.engine.apiserver.auth.access import AccessAttributes
from herder.engine.apiserver.auth.impersonate import impersonated
from herder.engine.meta.errors import BadRequest, Forbidden
from herder.engine.wire import Request, User
from tests.unit.engine.apiserver.auth.world import ADMIN, ALICE, World, rule, user

LIST_NAMESPACES = AccessAttributes("list", "", "v1", "namespaces")
AUTHENTICATION = "authentication.k8s.io"


def act(world: World, who: User, headers: dict[str, str], wanted: AccessAttributes = LIST_NAMESPACES) -> User:
    named = {f"impersonate-{name}": value for name, value in headers.items()}
    request = Request("GET", "/api/v1/namespaces", headers={"accept": "*/*"} | named)
    acting = impersonated(request, who, world.authorizer, wanted)
    assert request.headers == {"accept": "*/*"}, "nothing behind may see the headers again"
    return acting


async def test_without_headers_the_user_is_unchanged(world: World) -> None:
    assert act(world, ALICE, {}) is ALICE


async def test_a_superuser_can_impersonate_anyone(world: World) -> None:
    headers = {"user": "bob", "uid": "7", "group": "a, b", "extra-foo%2fbar": "x, y"}
    assert act(world, ADMIN, headers) == User("bob", "7", ("a", "b", "system:authenticated"), {"foo/bar": ("x", "y")})


async def test_a_service_account_gets_its_own_groups(world: World) -> None:
    acting = act(world, ADMIN, {"user": "system:serviceaccount:ci:builder"})
    assert acting.groups == ("system:serviceaccounts", "system:serviceaccounts:ci", "system:authenticated")


async def test_the_anonymous_user_stays_unauthenticated(world: World) -> None:
    assert act(world, ADMIN, {"user": "system:anonymous"}).groups == ("system:unauthenticated",)


@pytest.mark.parametrize(
    ("headers", "shown"),
    [
        ({"group": "a"}, 'Name:"", UID:"", Groups:[]string{"a"}, Extra:map[string][]string(nil)'),
        ({"uid": "a"}, 'Name:"", UID:"a", Groups:[]string(nil), Extra:map[string][]string(nil)'),
        (
            {"extra-foo%2fbar": "a"},
            'Name:"", UID:"", Groups:[]string(nil), Extra:map[string][]string{"foo/bar":[]string{"a"}}',
        ),
    ],
)
async def test_groups_without_a_user_are_a_bad_request(world: World, headers: dict[str, str], shown: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        act(world, ADMIN, headers)
    assert refusal.value.message == (f"requested &user.DefaultInfo{{{shown}}} without impersonating a user name")


async def test_denials_name_the_missing_permission(world: World) -> None:
    with pytest.raises(Forbidden) as refusal:
        act(world, ALICE, {"user": "bob"})
    assert refusal.value.message == (
        'namespaces is forbidden: User "alice" cannot impersonate-on:user-info:list resource "namespaces" '
        'in API group "" at the cluster scope'
    )
    with pytest.raises(Forbidden) as refusal:
        act(world, ALICE, {"user": "system:serviceaccount:default:x", "group": "g"})
    assert refusal.value.message == (
        'serviceaccounts "x" is forbidden: User "alice" cannot impersonate resource "serviceaccounts" '
        'in API group "" in the namespace "default"'
    )


async def test_every_part_needs_its_own_right(world: World) -> None:
    await world.cluster_role("impersonator", rule("impersonate", "users", names="bob"))
    await world.bind("impersonator", user("alice"))
    assert act(world, ALICE, {"user": "bob"}).name == "bob"
    for more in ({"group": "system:masters"}, {"uid": "u"}, {"extra-scopes": "all"}, {"group": "a, system:masters"}):
        with pytest.raises(Forbidden):
            act(world, ALICE, {"user": "bob"} | more)
    with pytest.raises(Forbidden):
        act(world, ALICE, {"user": "carol"})


async def test_uids_and_extras_are_rights_of_the_authentication_group(world: World) -> None:
    await world.cluster_role(
        "impersonator",
        rule("impersonate", "users groups"),
        rule("impersonate", "uids userextras/scopes", AUTHENTICATION),
    )
    await world.bind("impersonator", user("alice"))
    acting = act(world, ALICE, {"user": "bob", "uid": "u", "group": "g", "extra-scopes": "all"})
    assert (acting.uid, acting.extra) == ("u", {"scopes": ("all",)})
    with pytest.raises(Forbidden):
        act(world, ALICE, {"user": "bob", "extra-other": "all"})


async def test_constrained_impersonation_allows_only_what_it_names(world: World) -> None:
    await world.cluster_role(
        "constrained",
        rule("impersonate:user-info", "users", AUTHENTICATION, names="bob"),
        rule("impersonate-on:user-info:list", "namespaces"),
    )
    await world.bind("constrained", user("alice"))
    assert act(world, ALICE, {"user": "bob"}).name == "bob"
    with pytest.raises(Forbidden):
        act(world, ALICE, {"user": "bob"}, AccessAttributes("delete", "", "v1", "namespaces", name="x"))
    with pytest.raises(Forbidden):
        act(world, ALICE, {"user": "carol"})


async def test_constrained_impersonation_never_reaches_the_superusers(world: World) -> None:
    await world.cluster_role(
        "constrained",
        rule("impersonate:user-info", "users groups", AUTHENTICATION),
        rule("impersonate-on:user-info:list", "namespaces"),
    )
    await world.bind("constrained", user("alice"))
    assert act(world, ALICE, {"user": "bob", "group": "g"}).groups == ("g", "system:authenticated")
    with pytest.raises(Forbidden, match="impersonating the system:masters group is not allowed"):
        act(world, ALICE, {"user": "bob", "group": "system:masters"})


async def test_nodes_get_the_group_of_nodes_when_constrained(world: World) -> None:
    await world.cluster_role(
        "constrained",
        rule("impersonate:arbitrary-node", "nodes", AUTHENTICATION, names="worker-1"),
        rule("impersonate-on:arbitrary-node:list", "namespaces"),
    )
    await world.bind("constrained", user("alice"))
    assert act(world, ALICE, {"user": "system:node:worker-1"}).groups == ("system:nodes", "system:authenticated")
    with pytest.raises(Forbidden):
        act(world, ALICE, {"user": "system:node:worker-2"})


async def test_an_agent_may_act_as_the_node_it_runs_on(world: World) -> None:
    await world.cluster_role(
        "agent",
        rule("impersonate:associated-node", "nodes", AUTHENTICATION),
        rule("impersonate-on:associated-node:list", "namespaces"),
    )
    await world.bind("agent", user("system:serviceaccount:ci:agent"))
    agent = User("system:serviceaccount:ci:agent", extra={"authentication.kubernetes.io/node-name": ("here",)})
    assert act(world, agent, {"user": "system:node:here"}).name == "system:node:here"
    with pytest.raises(Forbidden):
        act(world, agent, {"user": "system:node:there"})
