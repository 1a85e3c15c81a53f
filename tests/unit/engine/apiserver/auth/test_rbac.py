from __future__ import annotations

import pytest

from herder.engine.apiserver.auth.access import AccessAttributes, forbidden
from herder.engine.apiserver.auth.rbac import RbacAuthorizer
from herder.engine.apiserver.auth.users import ANONYMOUS, service_account_user
from herder.engine.wire import User
from tests.unit.engine.apiserver.auth.fake_cluster import (
    ADMIN,
    ALICE,
    BOB,
    FakeCluster,
    account,
    group,
    paths,
    rule,
    user,
)


def access_to(verb: str, resource: str, namespace: str = "", *, name: str = "", group: str = "") -> AccessAttributes:
    plural, _, subresource = resource.partition("/")
    return AccessAttributes(verb, group, "v1", plural, subresource=subresource, namespace=namespace, name=name)


def is_allowed(cluster: FakeCluster, who: User, attributes: AccessAttributes) -> bool:
    return cluster.authorizer.authorize(who, attributes).allowed


async def test_superusers_are_allowed_everything_without_any_policy(cluster: FakeCluster) -> None:
    assert is_allowed(cluster, ADMIN, access_to("delete", "nodes"))
    assert is_allowed(cluster, ADMIN, AccessAttributes("get", path="/anything"))


async def test_a_cluster_role_binding_applies_in_all_namespaces_and_at_cluster_scope(cluster: FakeCluster) -> None:
    await cluster.cluster_role("reader", rule("get list", "pods"))
    await cluster.bind("reader", user("alice"))
    assert is_allowed(cluster, ALICE, access_to("list", "pods"))
    assert is_allowed(cluster, ALICE, access_to("list", "pods", "default"))
    assert not is_allowed(cluster, ALICE, access_to("delete", "pods", "default"))
    assert not is_allowed(cluster, BOB, access_to("list", "pods"))


async def test_a_role_binding_applies_in_its_namespace_only(cluster: FakeCluster) -> None:
    await cluster.cluster_role("reader", rule("get", "pods"))
    await cluster.bind("reader", group("dev"), namespace="team")
    assert is_allowed(cluster, ALICE, access_to("get", "pods", "team"))
    assert not is_allowed(cluster, ALICE, access_to("get", "pods", "other"))
    assert not is_allowed(cluster, ALICE, access_to("get", "pods"))


async def test_a_role_is_resolved_in_the_namespace_of_its_binding(cluster: FakeCluster) -> None:
    await cluster.role("team", "reader", rule("get", "pods"))
    await cluster.role("other", "reader", rule("get", "secrets"))
    await cluster.bind("reader", user("alice"), namespace="team", kind="Role")
    assert is_allowed(cluster, ALICE, access_to("get", "pods", "team"))
    assert not is_allowed(cluster, ALICE, access_to("get", "secrets", "team"))


async def test_a_service_account_without_namespace_is_in_the_bindings_namespace(cluster: FakeCluster) -> None:
    await cluster.cluster_role("reader", rule("get", "pods"))
    await cluster.bind("reader", account("builder"), namespace="team")
    assert is_allowed(cluster, service_account_user("team", "builder"), access_to("get", "pods", "team"))
    assert not is_allowed(cluster, service_account_user("other", "builder"), access_to("get", "pods", "team"))


async def test_a_service_account_without_namespace_in_a_cluster_role_binding_matches_none(cluster: FakeCluster) -> None:
    await cluster.cluster_role("reader", rule("get", "pods"))
    await cluster.bind("reader", account("builder"))
    assert not is_allowed(cluster, service_account_user("team", "builder"), access_to("get", "pods", "team"))
    assert not is_allowed(cluster, User("system:serviceaccount::builder"), access_to("get", "pods", "team"))


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
    cluster: FakeCluster, resources: str, wanted: str, allowed: bool
) -> None:
    await cluster.cluster_role("role", rule("get", resources))
    await cluster.bind("role", user("alice"))
    assert is_allowed(cluster, ALICE, access_to("get", wanted, "default")) is allowed


async def test_resource_names_limit_a_rule_and_never_match_a_request_without_name(cluster: FakeCluster) -> None:
    await cluster.cluster_role("one", rule("get list update", "secrets", names="mine"))
    await cluster.bind("one", user("alice"))
    assert is_allowed(cluster, ALICE, access_to("get", "secrets", "default", name="mine"))
    assert is_allowed(cluster, ALICE, access_to("list", "secrets", "default", name="mine"))  # by metadata.name=mine
    assert not is_allowed(cluster, ALICE, access_to("get", "secrets", "default", name="yours"))
    assert not is_allowed(cluster, ALICE, access_to("list", "secrets", "default"))


async def test_api_groups_are_distinguished(cluster: FakeCluster) -> None:
    await cluster.cluster_role("role", rule("*", "deployments", "apps"))
    await cluster.bind("role", user("alice"))
    assert is_allowed(cluster, ALICE, access_to("get", "deployments", "x", group="apps"))
    assert not is_allowed(cluster, ALICE, access_to("get", "deployments", "x", group="extensions"))


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
async def test_paths_match_exactly_or_by_a_trailing_star(
    cluster: FakeCluster, url: str, path: str, allowed: bool
) -> None:
    await cluster.cluster_role("role", paths("get", url))
    await cluster.bind("role", user("alice"))
    assert is_allowed(cluster, ALICE, AccessAttributes("get", path=path)) is allowed


async def test_a_rule_for_all_paths_grants_no_resource(cluster: FakeCluster) -> None:
    await cluster.cluster_role("role", paths("*", "*"))
    await cluster.bind("role", user("alice"))
    assert not is_allowed(cluster, ALICE, access_to("get", "pods"))
    assert not is_allowed(cluster, ALICE, AccessAttributes("get", resource="", path=""))


async def test_the_reason_names_the_binding_the_role_and_the_subject(cluster: FakeCluster) -> None:
    await cluster.cluster_role("reader", rule("get", "pods"))
    await cluster.bind("reader", user("nobody"), group("dev"))
    await cluster.bind("reader", account("builder", "ci"), namespace="team")
    reason = cluster.authorizer.authorize(ALICE, access_to("get", "pods")).reason
    assert reason == 'RBAC: allowed by ClusterRoleBinding "reader" of ClusterRole "reader" to Group "dev"'
    reason = cluster.authorizer.authorize(
        service_account_user("ci", "builder"), access_to("get", "pods", "team")
    ).reason
    assert reason == (
        'RBAC: allowed by RoleBinding "reader/team" of ClusterRole "reader" to ServiceAccount "builder/ci"'
    )


async def test_denials_name_missing_roles(cluster: FakeCluster) -> None:
    await cluster.bind("gone", user("bob"))
    await cluster.bind("gone2", user("bob"), namespace="default", kind="Role")
    attributes = access_to("list", "pods", "default")
    decision = cluster.authorizer.authorize(BOB, attributes)
    assert not decision.allowed
    assert forbidden(BOB, attributes, decision.reason).message == (
        'pods is forbidden: User "bob" cannot list resource "pods" in API group "" in the namespace "default": '
        'RBAC: [clusterrole.rbac.authorization.k8s.io "gone" not found, '
        'role.rbac.authorization.k8s.io "gone2" not found]'
    )


def test_denials_have_kube_apiservers_messages() -> None:
    error = forbidden(ANONYMOUS, access_to("get", "pods/log", name="x"))
    assert error.message == (
        'pods "x" is forbidden: User "system:anonymous" cannot get resource "pods/log" in API group "" '
        "at the cluster scope"
    )
    assert error.details == {"name": "x", "kind": "pods"}
    error = forbidden(ALICE, AccessAttributes("get", path="/foo/bar"))
    assert error.message == 'forbidden: User "alice" cannot get path "/foo/bar"'
    assert error.to_status()["code"] == 403


async def test_the_index_is_updated_with_the_store(cluster: FakeCluster) -> None:
    wanted = access_to("get", "pods", "team")
    assert not is_allowed(cluster, ALICE, wanted)
    await cluster.bind("reader", user("alice"), namespace="team")
    await cluster.cluster_role("reader", rule("get", "pods"))
    assert is_allowed(cluster, ALICE, wanted), "a binding holds as soon as its write is answered"
    await cluster.cluster_role("reader", rule("get", "secrets"))
    assert not is_allowed(cluster, ALICE, wanted)
    await cluster.cluster_role("reader", rule("get", "pods"))
    await cluster.bind("reader", user("bob"), namespace="team")
    assert not is_allowed(cluster, ALICE, wanted)
    assert is_allowed(cluster, BOB, wanted)
    await cluster.delete("rolebindings", "reader", "team", group="rbac.authorization.k8s.io")
    assert not is_allowed(cluster, BOB, wanted)


async def test_policy_stored_before_the_start_applies(cluster: FakeCluster) -> None:
    await cluster.cluster_role("reader", rule("get", "pods"))
    await cluster.bind("reader", user("alice"))
    later = RbacAuthorizer(cluster.store)
    assert later.authorize(ALICE, access_to("get", "pods")).allowed


async def test_many_changes_in_one_transaction_are_all_applied(cluster: FakeCluster) -> None:
    await cluster.cluster_role("reader", rule("get", "pods"))
    for number in range(500):
        await cluster.bind("reader", user(f"user-{number}"), namespace=f"ns-{number}")
    assert is_allowed(cluster, User("user-499"), access_to("get", "pods", "ns-499"))
    assert is_allowed(cluster, User("user-0"), access_to("get", "pods", "ns-0"))
    assert not is_allowed(cluster, User("user-0"), access_to("get", "pods", "ns-1"))
