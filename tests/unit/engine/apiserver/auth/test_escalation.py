from __future__ import annotations

from typing import Any

import pytest

from herder.engine.apiserver.admission.chain import CREATE, UPDATE, Attributes
from herder.engine.apiserver.auth.escalation import EscalationCheck
from herder.engine.meta.errors import Forbidden, NotFound
from herder.engine.meta.kinds import Object
from herder.engine.meta.rules import missing_rules
from herder.engine.wire import User
from tests.unit.engine.apiserver.auth.fake_cluster import ADMIN, ALICE, RBAC, FakeCluster, paths, rule, user
from tests.unit.engine.apiserver.resources import resource

GROUPS = '(groups=["dev" "system:authenticated"])'


@pytest.fixture
async def writer(cluster: FakeCluster) -> FakeCluster:
    """A cluster in which Alice may write roles and bindings, and read pods."""
    await cluster.cluster_role("rbacwriter", rule("create update", "*", RBAC), rule("get list", "pods"))
    await cluster.bind("rbacwriter", user("alice"))
    return cluster


async def write(
    cluster: FakeCluster,
    plural: str,
    obj: Object,
    *,
    who: User = ALICE,
    old: Object | None = None,
    namespace: str = "",
) -> None:
    attributes = Attributes(
        CREATE if old is None else UPDATE,
        resource(plural, group=RBAC, namespaced=bool(namespace)),
        "v1",
        who,
        name=obj["metadata"]["name"],
        namespace=namespace,
        obj=obj,
        old=old,
    )
    await EscalationCheck(cluster.authorizer).validate(attributes)


def role(*rules: Object, **body: Any) -> Object:
    return {"metadata": {"name": "x"}, "rules": list(rules)} | body


def binding(name: str, kind: str = "ClusterRole") -> Object:
    return {"metadata": {"name": "x"}, "roleRef": {"apiGroup": RBAC, "kind": kind, "name": name}}


async def test_a_role_may_contain_permissions_that_its_author_holds(writer: FakeCluster) -> None:
    await write(writer, "clusterroles", role(rule("get", "pods"), rule("list", "pods", names="a")))
    await write(writer, "roles", role(rule("get", "pods")), namespace="team")


async def test_a_role_with_more_permissions_is_forbidden_and_they_are_listed(writer: FakeCluster) -> None:
    wanted = role(rule("get create delete", "pods"), rule("get", "secrets configmaps", names="a b"), paths("get", "/x"))
    with pytest.raises(Forbidden) as refusal:
        await write(writer, "clusterroles", wanted)
    assert refusal.value.message == (
        f'clusterroles.rbac.authorization.k8s.io "x" is forbidden: user "alice" {GROUPS} is attempting to grant RBAC '
        "permissions not currently held:\n"
        '{APIGroups:[""], Resources:["configmaps"], ResourceNames:["a"], Verbs:["get"]}\n'
        '{APIGroups:[""], Resources:["configmaps"], ResourceNames:["b"], Verbs:["get"]}\n'
        '{APIGroups:[""], Resources:["pods"], Verbs:["create" "delete"]}\n'
        '{APIGroups:[""], Resources:["secrets"], ResourceNames:["a"], Verbs:["get"]}\n'
        '{APIGroups:[""], Resources:["secrets"], ResourceNames:["b"], Verbs:["get"]}\n'
        '{NonResourceURLs:["/x"], Verbs:["get"]}'
    )


async def test_permissions_in_one_namespace_do_not_apply_to_another(writer: FakeCluster) -> None:
    await writer.cluster_role("secrets", rule("get", "secrets"))
    await writer.bind("secrets", user("alice"), namespace="team")
    await write(writer, "roles", role(rule("get", "secrets")), namespace="team")
    with pytest.raises(Forbidden):
        await write(writer, "roles", role(rule("get", "secrets")), namespace="other")
    with pytest.raises(Forbidden):
        await write(writer, "clusterroles", role(rule("get", "secrets")))


async def test_a_permission_limited_to_names_does_not_cover_all_names(writer: FakeCluster) -> None:
    await writer.cluster_role("one", rule("get", "secrets", names="mine"))
    await writer.bind("one", user("alice"))
    await write(writer, "clusterroles", role(rule("get", "secrets", names="mine")))
    with pytest.raises(Forbidden):
        await write(writer, "clusterroles", role(rule("get", "secrets")))


async def test_superusers_and_users_with_the_escalate_verb_may_write_any_role(writer: FakeCluster) -> None:
    everything = role(rule("*", "*", "*"))
    await write(writer, "clusterroles", everything, who=ADMIN)
    await writer.cluster_role("escalator", rule("escalate", "clusterroles", RBAC))
    await writer.bind("escalator", user("alice"))
    await write(writer, "clusterroles", everything)
    with pytest.raises(Forbidden):
        await write(writer, "roles", everything, namespace="team")


async def test_an_aggregation_rule_requires_all_permissions(writer: FakeCluster) -> None:
    gathering = role(aggregationRule={"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]})
    with pytest.raises(Forbidden, match="must have cluster-admin privileges to use the aggregationRule"):
        await write(writer, "clusterroles", gathering)
    with pytest.raises(Forbidden, match="must have cluster-admin"):
        await write(writer, "clusterroles", role(), old=gathering)


async def test_metadata_changes_by_garbage_collection_are_not_checked_for_escalation(writer: FakeCluster) -> None:
    old = role(rule("*", "*"))
    new = old | {"metadata": {"name": "x", "finalizers": ["a"], "ownerReferences": [{"name": "o"}]}}
    await write(writer, "clusterroles", new, old=old)
    with pytest.raises(Forbidden):
        await write(writer, "clusterroles", new | {"metadata": {"name": "x", "labels": {"a": "b"}}}, old=old)


async def test_a_binding_may_reference_a_role_whose_permissions_its_author_holds(writer: FakeCluster) -> None:
    await writer.cluster_role("reader", rule("get", "pods"))
    await write(writer, "clusterrolebindings", binding("reader"))
    await write(writer, "rolebindings", binding("reader"), namespace="team")


async def test_a_binding_that_grants_more_permissions_is_forbidden(writer: FakeCluster) -> None:
    await writer.cluster_role("cluster-admin", rule("*", "*", "*"), paths("*", "*"))
    with pytest.raises(Forbidden) as refusal:
        await write(writer, "rolebindings", binding("cluster-admin"), namespace="team")
    assert refusal.value.message == (
        f'rolebindings.rbac.authorization.k8s.io "x" is forbidden: user "alice" {GROUPS} is attempting to grant RBAC '
        'permissions not currently held:\n{APIGroups:["*"], Resources:["*"], Verbs:["*"]}\n'
        '{NonResourceURLs:["*"], Verbs:["*"]}'
    )


async def test_a_user_with_the_bind_verb_needs_none_of_the_roles_permissions(writer: FakeCluster) -> None:
    await writer.cluster_role("secret-reader", rule("get", "secrets"))
    await writer.cluster_role("binder", rule("bind", "clusterroles", RBAC, names="secret-reader"))
    await writer.bind("binder", user("alice"), namespace="team")
    await write(writer, "rolebindings", binding("secret-reader"), namespace="team")
    with pytest.raises(Forbidden):
        await write(writer, "rolebindings", binding("secret-reader"), namespace="other")


async def test_binding_a_missing_role_is_not_found(writer: FakeCluster) -> None:
    with pytest.raises(NotFound) as refusal:
        await write(writer, "rolebindings", binding("nope"), namespace="team")
    assert refusal.value.message == 'rolebindings.rbac.authorization.k8s.io "nope" not found'
    await write(writer, "rolebindings", binding("nope"), namespace="team", who=ADMIN)


def test_missing_rules_are_grouped_by_resource() -> None:
    assert missing_rules([rule("get", "pods")], [rule("get list watch", "pods"), paths("get", "/x")]) == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
        {"nonResourceURLs": ["/x"], "verbs": ["get"]},
    ]
