from __future__ import annotations

import pytest

from herder.engine.apiserver.auth.access import AccessAttributes, forbidden
from herder.engine.apiserver.auth.rbac import RbacAuthorizer
from herder.engine.apiserver.auth.users import ANONYMOUS, service_account_user
from herder.engine.wire import User
from tests.unit.engine.apiserver.auth.world import ADMIN, ALICE, BOB, World, account, group, paths, rule, user


def wants(verb: str, resource: str, namespace: str = "", *, name: str = "", group: str = "") -> AccessAttributes:
    plural, _, subresource = resource.partition("/")
    return AccessAttributes(verb, group, "v1", plural, subresource=subresource, namespace=namespace, name=name)


def may(world: World, who: User, attributes: AccessAttributes) -> bool:
    return world.authorizer.authorize(who, attributes).allowed


async def test_superusers_may_do_anything_without_any_policy(world: World) -> None:
    assert may(world, ADMIN, wants("delete", "nodes"))
    assert may(world, ADMIN, AccessAttributes("get", path="/anything"))


async def test_a_cluster_role_binding_holds_in_every_namespace_and_at_the_cluster_scope(world: World) -> None:
    await world.cluster_role("reader", rule("get list", "pods"))
    await world.bind("reader", user("alice"))
    assert may(world, ALICE, wants("list", "pods"))
    assert may(world, ALICE, wants("list", "pods", "default"))
    assert not may(world, ALICE, wants("delete", "pods", "default"))
    assert not may(world, BOB, wants("list", "pods"))


async def test_a_role_binding_holds_in_its_own_namespace_only(world: World) -> None:
    await world.cluster_role("reader", rule("get", "pods"))
    await world.bind("reader", group("dev"), namespace="team")
    assert may(world, ALICE, wants("get", "pods", "team"))
    assert not may(world, ALICE, wants("get", "pods", "other"))
    assert not may(world, ALICE, wants("get", "pods"))


async def test_a_role_is_found_in_the_namespace_of_its_binding(world: World) -> None:
    await world.role("team", "reader", rule("get", "pods"))
    await world.role("other", "reader", rule("get", "secrets"))
    await world.bind("reader", user("alice"), namespace="team", kind="Role")
    assert may(world, ALICE, wants("get", "pods", "team"))
    assert not may(world, ALICE, wants("get", "secrets", "team"))


async def test_a_service_account_without_namespace_is_one_of_the_binding_s_namespace(world: World) -> None:
    await world.cluster_role("reader", rule("get", "pods"))
    await world.bind("reader", account("builder"), namespace="team")
    assert may(world, service_account_user("team", "builder"), wants("get", "pods", "team"))
    assert not may(world, service_account_user("other", "builder"), wants("get", "pods", "team"))


async def test_a_service_account_without_namespace_in_a_cluster_role_binding_is_nobody(world: World) -> None:
    await world.cluster_role("reader", rule("get", "pods"))
    await world.bind("reader", account("builder"))
    assert not may(world, service_account_user("team", "builder"), wants("get", "pods", "team"))
    assert not may(world, User("system:serviceaccount::builder"), wants("get", "pods", "team"))


@pytest.mark.parametrize(
    ("resources", "wanted", "allowed"),
    [
        ("pods", "pods", True),
        ("pods", "pods/log", False),
        ("pods/log", "pods/log", True),
        ("pods/log", "pods", False),
        ("*/scale", "deployments/scale", True),
        ("*/scale", "deployments/status", False),
        ("*/scale", "scale", False),
        ("*", "pods", True),
        ("*", "pods/log", True),
        ("pods/*", "pods/log", False),
    ],
)
async def test_subresources_are_granted_by_name_or_wildcard(
    world: World, resources: str, wanted: str, allowed: bool
) -> None:
    await world.cluster_role("role", rule("get", resources))
    await world.bind("role", user("alice"))
    assert may(world, ALICE, wants("get", wanted, "default")) is allowed


async def test_resource_names_limit_a_rule_and_never_match_a_request_without_name(world: World) -> None:
    await world.cluster_role("one", rule("get list update", "secrets", names="mine"))
    await world.bind("one", user("alice"))
    assert may(world, ALICE, wants("get", "secrets", "default", name="mine"))
    assert may(world, ALICE, wants("list", "secrets", "default", name="mine"))  # by metadata.name=mine
    assert not may(world, ALICE, wants("get", "secrets", "default", name="yours"))
    assert not may(world, ALICE, wants("list", "secrets", "default"))


async def test_api_groups_are_distinguished(world: World) -> None:
    await world.cluster_role("role", rule("*", "deployments", "apps"))
    await world.bind("role", user("alice"))
    assert may(world, ALICE, wants("get", "deployments", "x", group="apps"))
    assert not may(world, ALICE, wants("get", "deployments", "x", group="extensions"))


@pytest.mark.parametrize(
    ("url", "path", "allowed"),
    [
        ("/healthz", "/healthz", True),
        ("/healthz", "/healthz/etcd", False),
        ("/apis/*", "/apis/apps", True),
        ("/apis/*", "/apis", False),
        ("*", "/anything", True),
    ],
)
async def test_paths_match_exactly_or_by_a_trailing_star(world: World, url: str, path: str, allowed: bool) -> None:
    await world.cluster_role("role", paths("get", url))
    await world.bind("role", user("alice"))
    assert may(world, ALICE, AccessAttributes("get", path=path)) is allowed


async def test_a_rule_for_all_paths_grants_no_resource(world: World) -> None:
    await world.cluster_role("role", paths("*", "*"))
    await world.bind("role", user("alice"))
    assert not may(world, ALICE, wants("get", "pods"))
    assert not may(world, ALICE, AccessAttributes("get", resource="", path=""))


async def test_the_reason_names_the_binding_the_role_and_the_subject(world: World) -> None:
    await world.cluster_role("reader", rule("get", "pods"))
    await world.bind("reader", user("nobody"), group("dev"))
    await world.bind("reader", account("builder", "ci"), namespace="team")
    reason = world.authorizer.authorize(ALICE, wants("get", "pods")).reason
    assert reason == 'RBAC: allowed by ClusterRoleBinding "reader" of ClusterRole "reader" to Group "dev"'
    reason = world.authorizer.authorize(service_account_user("ci", "builder"), wants("get", "pods", "team")).reason
    assert reason == (
        'RBAC: allowed by RoleBinding "reader/team" of ClusterRole "reader" to ServiceAccount "builder/ci"'
    )


async def test_denials_name_missing_roles(world: World) -> None:
    await world.bind("gone", user("bob"))
    await world.bind("gone2", user("bob"), namespace="default", kind="Role")
    attributes = wants("list", "pods", "default")
    decision = world.authorizer.authorize(BOB, attributes)
    assert not decision.allowed
    assert forbidden(BOB, attributes, decision.reason).message == (
        'pods is forbidden: User "bob" cannot list resource "pods" in API group "" in the namespace "default": '
        'RBAC: [clusterrole.rbac.authorization.k8s.io "gone" not found, '
        'role.rbac.authorization.k8s.io "gone2" not found]'
    )


def test_denials_have_kube_apiservers_messages() -> None:
    error = forbidden(ANONYMOUS, wants("get", "pods/log", name="x"))
    assert error.message == (
        'pods "x" is forbidden: User "system:anonymous" cannot get resource "pods/log" in API group "" '
        "at the cluster scope"
    )
    assert error.details == {"name": "x", "kind": "pods"}
    error = forbidden(ALICE, AccessAttributes("get", path="/foo/bar"))
    assert error.message == 'forbidden: User "alice" cannot get path "/foo/bar"'
    assert error.to_status()["code"] == 403


async def test_the_index_follows_the_store(world: World) -> None:
    wanted = wants("get", "pods", "team")
    assert not may(world, ALICE, wanted)
    await world.bind("reader", user("alice"), namespace="team")
    await world.cluster_role("reader", rule("get", "pods"))
    assert may(world, ALICE, wanted), "a binding holds as soon as its write is answered"
    await world.cluster_role("reader", rule("get", "secrets"))
    assert not may(world, ALICE, wanted)
    await world.cluster_role("reader", rule("get", "pods"))
    await world.bind("reader", user("bob"), namespace="team")
    assert not may(world, ALICE, wanted)
    assert may(world, BOB, wanted)
    await world.delete("rolebindings", "reader", "team", group="rbac.authorization.k8s.io")
    assert not may(world, BOB, wanted)


async def test_policy_that_was_there_before_the_start_counts(world: World) -> None:
    await world.cluster_role("reader", rule("get", "pods"))
    await world.bind("reader", user("alice"))
    later = RbacAuthorizer(world.store)
    assert later.authorize(ALICE, wants("get", "pods")).allowed


async def test_many_changes_at_once_are_all_taken_in(world: World) -> None:
    await world.cluster_role("reader", rule("get", "pods"))
    for number in range(500):
        await world.bind("reader", user(f"user-{number}"), namespace=f"ns-{number}")
    assert may(world, User("user-499"), wants("get", "pods", "ns-499"))
    assert may(world, User("user-0"), wants("get", "pods", "ns-0"))
    assert not may(world, User("user-0"), wants("get", "pods", "ns-1"))
