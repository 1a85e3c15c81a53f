"""RBAC: roles, bindings, resourceNames, aggregation, escalation and access reviews."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.objects import config_map, secret
from tests.support import rbac
from tests.support.api import Api
from tests.support.engines import unique
from tests.support.rbac import RBAC, binding, review, wait_for_rights

REVIEWS = "/apis/authorization.k8s.io/v1"


def rule(verbs: list[str], resources: list[str], groups: list[str] | None = None, **more: Any) -> dict[str, Any]:
    return {"verbs": verbs, "resources": resources, "apiGroups": groups or [""]} | more


async def grant(api: Api, user: str, *rules: Any) -> None:
    """Grant the rules in this namespace, with a role named `granted`."""
    await rbac.grant(api, "granted", user, list(rules))


async def test_ungranted_requests_are_forbidden(api: Api) -> None:
    answer = await api.as_user("alice").get(api.at("configmaps", "a"))
    assert answer.failure == (
        403,
        "Forbidden",
        f'configmaps "a" is forbidden: User "alice" cannot get resource "configmaps" in API group "" '
        f'in the namespace "{api.namespace}"',
    )
    assert answer.body["details"] == {"name": "a", "kind": "configmaps"}


async def test_forbidden_at_the_cluster_scope(api: Api) -> None:
    answer = await api.as_user("alice").get("/api/v1/nodes")
    message = 'nodes is forbidden: User "alice" cannot list resource "nodes" in API group "" at the cluster scope'
    assert answer.failure == (403, "Forbidden", message)


async def test_forbidden_paths(api: Api) -> None:
    answer = await api.as_user("alice").get("/metrics")
    assert answer.failure == (403, "Forbidden", 'forbidden: User "alice" cannot get path "/metrics"')


async def test_a_role_grants_its_verbs_only_in_its_namespace(api: Api) -> None:
    await grant(api, "alice", rule(["get", "list"], ["configmaps"]))
    alice = api.as_user("alice")
    assert (await alice.get(api.at("configmaps"))).status == 200
    assert (await alice.post(api.at("configmaps"), config_map("a"))).status == 403
    other = await api.in_new_namespace()
    assert (await alice.get(other.at("configmaps"))).status == 403
    assert (await alice.get("/api/v1/configmaps")).status == 403


async def test_watch_is_a_separate_verb(api: Api) -> None:
    await grant(api, "alice", rule(["list"], ["configmaps"]))
    answer = await api.as_user("alice").get(api.at("configmaps") + "?watch=true")
    assert answer.status == 403
    assert 'cannot watch resource "configmaps"' in answer.message


async def test_deletecollection_is_a_separate_verb(api: Api) -> None:
    await grant(api, "alice", rule(["delete"], ["configmaps"]))
    answer = await api.as_user("alice").delete(api.at("configmaps"))
    assert 'cannot deletecollection resource "configmaps"' in answer.message


async def test_subresources_are_granted_separately(api: Api) -> None:
    await grant(api, "alice", rule(["get"], ["pods"]))
    answer = await api.as_user("alice").get(api.at("pods", "a", "status"))
    assert answer.status == 403
    assert 'cannot get resource "pods/status"' in answer.message


async def test_creation_by_apply_needs_create(api: Api) -> None:
    await grant(api, "alice", rule(["patch"], ["configmaps"]))
    answer = await api.as_user("alice").apply(api.at("configmaps", "a"), config_map("a"))
    assert answer.status == 403
    assert 'cannot create resource "configmaps"' in answer.message


async def test_resource_names_limit_a_grant(api: Api) -> None:
    await api.create("secrets", secret("mine"))
    await api.create("secrets", secret("other"))
    await grant(api, "alice", rule(["get", "list", "watch"], ["secrets"], resourceNames=["mine"]))
    alice = api.as_user("alice")
    assert (await alice.get(api.at("secrets", "mine"))).status == 200
    assert (await alice.get(api.at("secrets", "other"))).status == 403
    assert (await alice.get(api.at("secrets"))).status == 403


async def test_resource_names_allow_list_and_watch_by_name(api: Api) -> None:
    await api.create("secrets", secret("mine"))
    await grant(api, "alice", rule(["list", "watch"], ["secrets"], resourceNames=["mine"]))
    alice = api.as_user("alice")
    url = api.at("secrets") + "?fieldSelector=metadata.name%3Dmine"
    assert await alice.names(url) == ["mine"]
    async with alice.watch(url) as events:
        assert await events.take(1) == [("ADDED", "mine")]
    assert (await alice.get(api.at("secrets") + "?fieldSelector=metadata.name%3Dother")).status == 403


async def test_resource_names_do_not_allow_deletecollection(api: Api) -> None:
    await api.create("secrets", secret("mine"))
    await grant(api, "alice", rule(["list", "deletecollection"], ["secrets"], resourceNames=["mine"]))
    answer = await api.as_user("alice").delete(api.at("secrets") + "?fieldSelector=metadata.name%3Dmine")
    assert answer.status == 403
    assert 'cannot deletecollection resource "secrets"' in answer.message


@pytest.mark.parametrize("selector", ["metadata.name%3Db", "metadata.name!%3Da", "metadata.namespace!%3Dx"])
async def test_no_selector_widens_a_watch_of_one_object(api: Api, selector: str) -> None:
    """The deprecated watch path contains the name that the watch is authorized for."""
    for name in ("a", "b"):
        await api.create("secrets", secret(name))
    await grant(api, "carol", rule(["watch"], ["secrets"], resourceNames=["a"]))
    path = f"/api/v1/watch/namespaces/{api.namespace}/secrets/a?timeoutSeconds=1&fieldSelector={selector}"
    answer = await api.as_user("carol").get(path)
    assert answer.failure == (400, "BadRequest", "fieldSelector metadata.name doesn't match requested name")


async def test_an_empty_selector_does_not_widen_a_watch_of_one_object(api: Api) -> None:
    for name in ("a", "b"):
        await api.create("secrets", secret(name))
    await grant(api, "carol", rule(["watch"], ["secrets"], resourceNames=["a"]))
    path = f"/api/v1/watch/namespaces/{api.namespace}/secrets/a?fieldSelector=&fieldSelector=metadata.name%3Db"
    async with api.as_user("carol").watch(path) as events:
        assert await events.take(1) == [("ADDED", "a")]


async def test_a_cluster_role_is_bound_in_one_namespace(api: Api) -> None:
    name = unique("role")
    await api.create_cluster(
        f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": [rule(["list"], ["secrets"])]}
    )
    await api.create(f"{RBAC}/rolebindings", binding(name, "ClusterRole", "alice"))
    await wait_for_rights(api, "alice", [rule(["list"], ["secrets"])])
    assert (await api.as_user("alice").get(api.at("secrets"))).status == 200
    assert (await api.as_user("alice").get("/api/v1/secrets")).status == 403


async def test_a_cluster_role_bound_for_all_grants_everywhere(api: Api) -> None:
    name, user = unique("role"), unique("user")
    rules = [rule(["list"], ["secrets"]), {"verbs": ["get"], "nonResourceURLs": ["/metrics", "/custom/*"]}]
    await api.create_cluster(f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": rules})
    await api.create_cluster(f"{RBAC}/clusterrolebindings", binding(name, "ClusterRole", user))
    await wait_for_rights(api, user, [rules[0]])
    assert (await api.as_user(user).get("/api/v1/secrets")).status == 200
    assert (await api.as_user(user).get("/custom/path")).status == 404
    assert (await api.as_user(user).get("/other")).status == 403


async def test_groups_and_service_accounts_are_subjects(api: Api) -> None:
    group = unique("crew")
    await api.create(f"{RBAC}/roles", {"metadata": {"name": "r"}, "rules": [rule(["list"], ["secrets"])]})
    bound = binding("r", "Role", "nobody")
    bound["subjects"] = [
        {"kind": "Group", "name": group, "apiGroup": "rbac.authorization.k8s.io"},
        {"kind": "ServiceAccount", "name": "robot", "namespace": api.namespace},
    ]
    await api.create(f"{RBAC}/rolebindings", bound)
    robot = f"system:serviceaccount:{api.namespace}:robot"
    await wait_for_rights(api, robot, [rule(["list"], ["secrets"])])
    assert (await api.as_user(robot).get(api.at("secrets"))).status == 200
    assert (await api.as_user("somebody", group).get(api.at("secrets"))).status == 200
    assert (await api.as_user("somebody").get(api.at("secrets"))).status == 403


async def test_cluster_roles_are_aggregated_by_label(api: Api) -> None:
    whole, part = unique("whole"), unique("part")
    selector = {"matchLabels": {"part-of": whole}}
    created = {"metadata": {"name": whole}, "aggregationRule": {"clusterRoleSelectors": [selector]}, "rules": []}
    await api.create_cluster(f"{RBAC}/clusterroles", created)
    piece = {"metadata": {"name": part, "labels": {"part-of": whole}}, "rules": [rule(["list"], ["secrets"])]}
    await api.create_cluster(f"{RBAC}/clusterroles", piece)
    url = api.cluster(f"{RBAC}/clusterroles", whole)
    found = await api.until_object(url, lambda role: bool(role.get("rules")))
    assert found["rules"] == [{"verbs": ["list"], "apiGroups": [""], "resources": ["secrets"]}]


@pytest.mark.parametrize("name", ["cluster-admin", "admin", "edit", "view", "system:discovery", "system:basic-user"])
async def test_default_roles_exist(api: Api, name: str) -> None:
    found = await api.read(api.cluster(f"{RBAC}/clusterroles", name))
    assert found["metadata"]["labels"]["kubernetes.io/bootstrapping"] == "rbac-defaults"
    assert found["metadata"]["annotations"]["rbac.authorization.kubernetes.io/autoupdate"] == "true"
    assert found["rules"]


async def test_viewers_see_no_secrets_and_editors_no_roles(api: Api) -> None:
    await api.create(f"{RBAC}/rolebindings", binding("view", "ClusterRole", "vera"))
    await api.create(f"{RBAC}/rolebindings", binding("edit", "ClusterRole", "ed"))
    await wait_for_rights(api, "vera", [rule(["get"], ["configmaps"])])
    await wait_for_rights(api, "ed", [rule(["create"], ["secrets"])])
    assert not (await review(api, "vera", verb="get", resource="secrets", namespace=api.namespace))["allowed"]
    assert not (await review(api, "vera", verb="create", resource="configmaps", namespace=api.namespace))["allowed"]
    attributes = {"verb": "create", "resource": "roles", "group": "rbac.authorization.k8s.io"}
    assert not (await review(api, "ed", namespace=api.namespace, **attributes))["allowed"]


# --- escalation ---------------------------------------------------------------------------------------------------


async def test_users_cannot_grant_permissions_they_lack(api: Api) -> None:
    await grant(api, "alice", rule(["create", "update"], ["roles"], ["rbac.authorization.k8s.io"]))
    created = {"metadata": {"name": "more"}, "rules": [rule(["get"], ["secrets"])]}
    answer = await api.as_user("alice").post(api.at(f"{RBAC}/roles"), created)
    assert (answer.status, answer.reason) == (403, "Forbidden")
    assert answer.message == (
        'roles.rbac.authorization.k8s.io "more" is forbidden: user "alice" (groups=["system:authenticated"]) is '
        "attempting to grant RBAC permissions not currently held:\n"
        '{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}'
    )


async def test_users_can_grant_permissions_they_have(api: Api) -> None:
    await grant(
        api, "alice", rule(["create"], ["roles"], ["rbac.authorization.k8s.io"]), rule(["get", "list"], ["secrets"])
    )
    created = {"metadata": {"name": "less"}, "rules": [rule(["get"], ["secrets"])]}
    (await api.as_user("alice").post(api.at(f"{RBAC}/roles"), created)).expect(201)


async def test_the_escalate_verb_allows_any_grant(api: Api) -> None:
    await grant(api, "alice", rule(["create", "escalate"], ["roles"], ["rbac.authorization.k8s.io"]))
    created = {"metadata": {"name": "more"}, "rules": [rule(["*"], ["*"], ["*"])]}
    (await api.as_user("alice").post(api.at(f"{RBAC}/roles"), created)).expect(201)


async def test_users_cannot_bind_roles_they_lack(api: Api) -> None:
    await grant(api, "alice", rule(["create"], ["rolebindings"], ["rbac.authorization.k8s.io"]))
    answer = await api.as_user("alice").post(
        api.at(f"{RBAC}/rolebindings"), binding("cluster-admin", "ClusterRole", "alice")
    )
    assert (answer.status, answer.reason) == (403, "Forbidden")
    assert "attempting to grant RBAC permissions not currently held:" in answer.message


async def test_the_bind_verb_allows_binding_a_role(api: Api) -> None:
    await grant(
        api,
        "alice",
        rule(["create"], ["rolebindings"], ["rbac.authorization.k8s.io"]),
        rule(["bind"], ["clusterroles"], ["rbac.authorization.k8s.io"], resourceNames=["view"]),
    )
    url = api.at(f"{RBAC}/rolebindings")
    (await api.as_user("alice").post(url, binding("view", "ClusterRole", "bob"))).expect(201)
    assert (await api.as_user("alice").post(url, binding("edit", "ClusterRole", "bob"))).status == 403


# --- validation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "cause"),
    [
        (
            [{"verbs": [], "resources": ["a"], "apiGroups": [""]}],
            "rules[0].verbs: Required value: verbs must contain at least one value",
        ),
        (
            [{"verbs": ["get"], "resources": ["a"]}],
            "rules[0].apiGroups: Required value: resource rules must supply at least one api group",
        ),
        (
            [{"verbs": ["get"], "apiGroups": [""]}],
            "rules[0].resources: Required value: resource rules must supply at least one resource",
        ),
        (
            [{"verbs": ["get"], "nonResourceURLs": ["/x"]}],
            'rules[0].nonResourceURLs: Invalid value: ["/x"]: namespaced rules cannot apply to non-resource URLs',
        ),
    ],
)
async def test_rules_are_validated(api: Api, rules: Any, cause: str) -> None:
    answer = await api.post(api.at(f"{RBAC}/roles"), {"metadata": {"name": "r"}, "rules": rules})
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert cause in answer.message


async def test_the_role_of_a_binding_is_immutable(api: Api) -> None:
    created = await api.create(f"{RBAC}/rolebindings", binding("view", "ClusterRole", "bob"))
    created["roleRef"]["name"] = "edit"
    answer = await api.put(api.at(f"{RBAC}/rolebindings", "view"), created)
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert "roleRef: Invalid value: " in answer.message
    assert "cannot change roleRef" in answer.message


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"roleRef": {"kind": "Nothing", "name": "x"}}, 'roleRef.kind: Unsupported value: "Nothing"'),
        ({"roleRef": {"kind": "Role", "name": ""}}, "roleRef.name: Required value"),
        ({"subjects": [{"kind": "Alien", "name": "x"}]}, 'subjects[0].kind: Unsupported value: "Alien"'),
    ],
)
async def test_bindings_are_validated(api: Api, change: Any, cause: str) -> None:
    answer = await api.post(api.at(f"{RBAC}/rolebindings"), binding("r", "Role", "bob") | change)
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert cause in answer.message


# --- reviews --------------------------------------------------------------------------------------------------------


async def test_subject_access_review(api: Api) -> None:
    await grant(api, "alice", rule(["get"], ["configmaps"]))
    allowed = await review(api, "alice", verb="get", resource="configmaps", namespace=api.namespace)
    assert allowed["allowed"] is True
    assert allowed["reason"] == (
        f'RBAC: allowed by RoleBinding "granted/{api.namespace}" of Role "granted" to User "alice"'
    )
    denied = await review(api, "alice", verb="delete", resource="configmaps", namespace=api.namespace)
    assert denied == {"allowed": False}


async def test_self_subject_access_review(api: Api) -> None:
    attributes = {"verb": "get", "resource": "pods", "namespace": api.namespace}
    url = f"{REVIEWS}/selfsubjectaccessreviews"
    created = await api.as_user("alice").post(url, {"spec": {"resourceAttributes": attributes}})
    assert created.expect(201)["status"] == {"allowed": False}
    own = await api.post(url, {"spec": {"resourceAttributes": attributes}})
    assert own.expect(201)["status"]["allowed"] is True


async def test_local_subject_access_review(api: Api) -> None:
    url = api.at("authorization.k8s.io/v1/localsubjectaccessreviews")
    attributes = {"verb": "get", "resource": "pods", "namespace": api.namespace}
    body = {"metadata": {"namespace": api.namespace}, "spec": {"user": "alice", "resourceAttributes": attributes}}
    assert (await api.post(url, body)).expect(201)["status"] == {"allowed": False}


async def test_subject_access_review_of_a_path(api: Api) -> None:
    body = {
        "spec": {
            "user": "alice",
            "groups": ["system:authenticated"],
            "nonResourceAttributes": {"path": "/version", "verb": "get"},
        }
    }
    status = (await api.post(f"{REVIEWS}/subjectaccessreviews", body)).expect(201)["status"]
    assert status["allowed"] is True


async def test_a_review_needs_a_subject_and_one_kind_of_attributes(api: Api) -> None:
    url = f"{REVIEWS}/subjectaccessreviews"
    neither = await api.post(url, {"spec": {"user": "alice"}})
    assert (neither.status, neither.reason) == (422, "Invalid")
    assert "exactly one of nonResourceAttributes or resourceAttributes must be specified" in neither.message
    without_user = await api.post(url, {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}})
    assert "at least one of user or group must be specified" in without_user.message


async def test_self_subject_rules_review(api: Api) -> None:
    await grant(api, "alice", rule(["get"], ["configmaps"], resourceNames=["x"]))
    url = f"{REVIEWS}/selfsubjectrulesreviews"
    status = (await api.as_user("alice").post(url, {"spec": {"namespace": api.namespace}})).expect(201)["status"]
    assert status["incomplete"] is False
    wanted = {"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["x"]}
    assert wanted in status["resourceRules"]
    assert any("/version" in each["nonResourceURLs"] for each in status["nonResourceRules"])
