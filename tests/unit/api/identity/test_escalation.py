"""No user can grant rights that they do not have, on any path."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.identity.builtin_roles import EVERYTHING, GLOBAL_ROLES, ROLE_TEMPLATES
from herder.api.identity.escalation import Actor, Roles, validate
from herder.api.management.kinds import (
    CLUSTER_BINDING,
    GLOBAL_ROLE,
    GLOBAL_ROLE_BINDING,
    PROJECT_BINDING,
    ROLE_TEMPLATE,
)
from herder.engine.meta.errors import BadRequest, Forbidden, Invalid, StatusError
from herder.engine.meta.kinds import Kind, Object


def rule(verbs: str, resources: str, group: str = "", **more: Any) -> Object:
    return {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split(), **more}


READ_PODS, READ_NODES, WRITE_PODS = rule("get list", "pods"), rule("get", "nodes"), rule("create", "pods")


def named(name: str, namespace: str = "", **fields: Any) -> Object:
    return {"metadata": {"name": name, **({"namespace": namespace} if namespace else {})}, **fields}


TEMPLATES = {
    each["metadata"]["name"]: each
    for each in (
        *ROLE_TEMPLATES,
        named("pods", context="cluster", rules=[READ_PODS]),
        named("more", context="cluster", rules=[READ_NODES], roleTemplateNames=["pods"]),
        named("cycle", context="cluster", rules=[READ_PODS], roleTemplateNames=["cycle"]),
        named("unknown", context="cluster", external=True),
        named("with-rules", context="cluster", external=True, externalRules=[READ_PODS]),
        named("locked", context="cluster", rules=[READ_PODS], locked=True),
        named("in-project", context="project", rules=[READ_PODS]),
        named("more-in-project", context="project", rules=[WRITE_PODS], roleTemplateNames=["in-project"]),
        named("locked-in-project", context="project", rules=[READ_PODS], locked=True),
    )
}
GLOBALS = {
    each["metadata"]["name"]: each
    for each in (
        *GLOBAL_ROLES,
        named("podsonly", rules=[READ_PODS]),
        named("inherits", rules=[], inheritedClusterRoles=["more"]),
        named("placed", rules=[], namespacedRules={"a": [READ_PODS]}),
    )
}
ROLES = Roles(TEMPLATES.get, GLOBALS.get)


def actor(*local_rules: Object, everywhere: tuple[Object, ...] = (), **clusters: Object) -> Actor:
    """An actor with rules in the manager's cluster; `clusters` maps cluster names (with _ for -) to a rule there."""
    held = {name.replace("_", "-"): rules for name, rules in clusters.items()}

    def in_cluster(name: str) -> list[Object]:
        return [*everywhere, *([held[name]] if name in held else [])]

    def in_project(name: str) -> list[Object]:
        own = [READ_PODS] if name == "c-m-1:p-mine" else []
        return [*in_cluster(name.partition(":")[0]), *own]

    def owns(_cluster: str) -> bool:
        return bool(local_rules) and [*local_rules] == EVERYTHING

    return Actor(
        local_rules,
        lambda namespace: [READ_PODS] if namespace == "mine" else [],
        in_cluster,
        in_project,
        everywhere,
        owns,
    )


ADMIN = actor(*EVERYTHING, everywhere=tuple(EVERYTHING))
READER = actor(READ_PODS)
MEMBER = actor(c_m_1=READ_PODS)
OWNER = actor(c_m_1=EVERYTHING[0] | {})
EVERYWHERE = actor(everywhere=(READ_PODS,))


def cluster_binding(template: str, *, cluster: str = "c-m-1", namespace: str = "c-m-1", **subjects: str) -> Object:
    subject = subjects or {"userName": "u-1"}
    return named("crtb", namespace, clusterName=cluster, roleTemplateName=template, **subject)


def project_binding(
    template: str, *, project: str = "c-m-1:p-mine", namespace: str = "c-m-1-p-mine", **subjects: str
) -> Object:
    return named("prtb", namespace, projectName=project, roleTemplateName=template, **(subjects or {"userName": "u-1"}))


def global_binding(role: str, **subjects: str) -> Object:
    return named("grb", globalRoleName=role, **(subjects or {"userName": "u-1"}))


CASES: list[tuple[str, Kind, Object | None, Object | None, Actor, type[StatusError] | None, str]] = [
    # GlobalRoles.
    ("a role within one's own", GLOBAL_ROLE, None, named("r", rules=[READ_PODS]), READER, None, ""),
    ("a wider role", GLOBAL_ROLE, None, named("r", rules=[READ_PODS, WRITE_PODS]), READER, Forbidden, "create pods"),
    ("everything", GLOBAL_ROLE, None, named("r", rules=EVERYTHING), READER, Forbidden, "in the manager's cluster"),
    ("everything, by an administrator", GLOBAL_ROLE, None, named("r", rules=EVERYTHING), ADMIN, None, ""),
    (
        "widening a role that one holds",
        GLOBAL_ROLE,
        named("r", rules=[READ_PODS]),
        named("r", rules=[READ_PODS, READ_NODES]),
        READER,
        Forbidden,
        "get nodes",
    ),
    (
        "labels of a role that one does not hold",
        GLOBAL_ROLE,
        named("r", rules=EVERYTHING),
        {**named("r", rules=EVERYTHING), "metadata": {"name": "r", "labels": {"a": "b"}}},
        READER,
        None,
        "",
    ),
    (
        "limited to a name",
        GLOBAL_ROLE,
        None,
        named("r", rules=[rule("get", "pods", resourceNames=["a"])]),
        READER,
        None,
        "",
    ),
    (
        "in a namespace that is not theirs",
        GLOBAL_ROLE,
        None,
        named("r", namespacedRules={"other": [READ_PODS]}),
        actor(),
        Forbidden,
        "in namespace other",
    ),
    ("in one's namespace", GLOBAL_ROLE, None, named("r", namespacedRules={"mine": [READ_PODS]}), actor(), None, ""),
    (
        "into every cluster",
        GLOBAL_ROLE,
        None,
        named("r", inheritedClusterRoles=["pods"]),
        READER,
        Forbidden,
        "in every cluster",
    ),
    ("into every cluster, held", GLOBAL_ROLE, None, named("r", inheritedClusterRoles=["pods"]), EVERYWHERE, None, ""),
    (
        "of a missing template",
        GLOBAL_ROLE,
        None,
        named("r", inheritedClusterRoles=["no"]),
        ADMIN,
        Invalid,
        "RoleTemplate not found",
    ),
    ("a built-in role", GLOBAL_ROLE, GLOBALS["user"], {**GLOBALS["user"], "rules": []}, ADMIN, Forbidden, "built in"),
    ("deletion of a built-in role", GLOBAL_ROLE, GLOBALS["user"], None, ADMIN, Forbidden, "cannot be deleted"),
    # GlobalRoleBindings.
    ("to one's own role", GLOBAL_ROLE_BINDING, None, global_binding("podsonly"), READER, None, ""),
    ("oneself to admin", GLOBAL_ROLE_BINDING, None, global_binding("admin"), READER, Forbidden, "you do not have"),
    (
        "to rights by a namespace",
        GLOBAL_ROLE_BINDING,
        None,
        global_binding("placed"),
        actor(),
        Forbidden,
        "in namespace a",
    ),
    (
        "to rights in clusters",
        GLOBAL_ROLE_BINDING,
        None,
        global_binding("inherits"),
        EVERYWHERE,
        Forbidden,
        "get nodes",
    ),
    ("to no role", GLOBAL_ROLE_BINDING, None, global_binding("nothing"), ADMIN, Invalid, "GlobalRole not found"),
    (
        "to another role than before",
        GLOBAL_ROLE_BINDING,
        global_binding("podsonly"),
        global_binding("admin"),
        ADMIN,
        Invalid,
        "immutable",
    ),
    (
        "to another user than before",
        GLOBAL_ROLE_BINDING,
        global_binding("podsonly"),
        global_binding("podsonly", userName="u-2"),
        ADMIN,
        Invalid,
        "immutable",
    ),
    (
        "a group of Kubernetes",
        GLOBAL_ROLE_BINDING,
        None,
        global_binding("podsonly", groupPrincipalName="system:serviceaccounts"),
        ADMIN,
        Invalid,
        "reserved for Kubernetes",
    ),
    # RoleTemplates.
    ("a template held everywhere", ROLE_TEMPLATE, None, named("t", rules=[READ_PODS]), EVERYWHERE, None, ""),
    ("a template held in one", ROLE_TEMPLATE, None, named("t", rules=[READ_PODS]), OWNER, Forbidden, "every cluster"),
    ("by inheritance", ROLE_TEMPLATE, None, named("t", roleTemplateNames=["more"]), EVERYWHERE, Forbidden, "get nodes"),
    (
        "of a missing template",
        ROLE_TEMPLATE,
        None,
        named("t", roleTemplateNames=["no"]),
        ADMIN,
        Invalid,
        "RoleTemplate not found",
    ),
    ("a cycle", ROLE_TEMPLATE, None, named("t", rules=[READ_PODS], roleTemplateNames=["t"]), EVERYWHERE, None, ""),
    (
        "an external role that declares no rules",
        ROLE_TEMPLATE,
        None,
        named("view", external=True, externalRules=[]),
        EVERYWHERE,
        Forbidden,
        "you do not have",
    ),
    (
        "an external role that declares only held rules",
        ROLE_TEMPLATE,
        None,
        named("cluster-admin", external=True, externalRules=[READ_PODS]),
        EVERYWHERE,
        Forbidden,
        "you do not have",
    ),
    # ClusterRoleTemplateBindings.
    ("to what one has there", CLUSTER_BINDING, None, cluster_binding("pods"), MEMBER, None, ""),
    ("to more", CLUSTER_BINDING, None, cluster_binding("more"), MEMBER, Forbidden, "get nodes"),
    (
        "a member grants ownership",
        CLUSTER_BINDING,
        None,
        cluster_binding("cluster-owner"),
        MEMBER,
        Forbidden,
        "in cluster c-m-1",
    ),
    (
        "with rights in the manager's cluster alone",
        CLUSTER_BINDING,
        None,
        cluster_binding("pods"),
        READER,
        Forbidden,
        "in cluster c-m-1",
    ),
    (
        "in another cluster",
        CLUSTER_BINDING,
        None,
        cluster_binding("pods", cluster="c-m-2"),
        MEMBER,
        Invalid,
        "clusterName",
    ),
    (
        "from elsewhere",
        CLUSTER_BINDING,
        None,
        cluster_binding("pods", namespace="default"),
        ADMIN,
        Invalid,
        "clusterName",
    ),
    (
        "to an external role without rules",
        CLUSTER_BINDING,
        None,
        cluster_binding("unknown"),
        MEMBER,
        Forbidden,
        "you do not have",
    ),
    ("to an external role with rules", CLUSTER_BINDING, None, cluster_binding("with-rules"), MEMBER, None, ""),
    ("to a locked template", CLUSTER_BINDING, None, cluster_binding("locked"), ADMIN, Invalid, "locked"),
    (
        "to a template for projects",
        CLUSTER_BINDING,
        None,
        cluster_binding("project-owner"),
        ADMIN,
        Invalid,
        "for projects",
    ),
    ("a cycle", CLUSTER_BINDING, None, cluster_binding("cycle"), MEMBER, None, ""),
    (
        "two subjects",
        CLUSTER_BINDING,
        None,
        cluster_binding("pods", userName="a", groupName="b"),
        ADMIN,
        Invalid,
        "exactly one",
    ),
    (
        "system:masters",
        CLUSTER_BINDING,
        None,
        cluster_binding("pods", groupName="system:masters"),
        ADMIN,
        Invalid,
        "reserved for Kubernetes",
    ),
    ("deletion", CLUSTER_BINDING, cluster_binding("cluster-owner"), None, READER, None, ""),
    # ProjectRoleTemplateBindings.
    ("to what one has there", PROJECT_BINDING, None, project_binding("in-project"), actor(), None, ""),
    (
        "to more",
        PROJECT_BINDING,
        None,
        project_binding("more-in-project"),
        actor(),
        Forbidden,
        "in project c-m-1:p-mine",
    ),
    ("to more, by an owner of the cluster", PROJECT_BINDING, None, project_binding("project-owner"), OWNER, None, ""),
    (
        "in another project",
        PROJECT_BINDING,
        None,
        project_binding("in-project", project="c-m-1:p-other", namespace="c-m-1-p-other"),
        actor(),
        Forbidden,
        "in project c-m-1:p-other",
    ),
    (
        "in another project than that of its namespace",
        PROJECT_BINDING,
        None,
        project_binding("in-project", project="c-m-1:p-other"),
        OWNER,
        Invalid,
        "projectName",
    ),
    (
        "in another cluster",
        PROJECT_BINDING,
        None,
        project_binding("in-project", project="c-m-2:p-mine", namespace="c-m-2-p-mine"),
        OWNER,
        Forbidden,
        "in project c-m-2:p-mine",
    ),
    (
        "from a namespace of no project",
        PROJECT_BINDING,
        None,
        project_binding("in-project", namespace="c-m-1"),
        ADMIN,
        Invalid,
        "projectName",
    ),
    (
        "to a template for clusters",
        PROJECT_BINDING,
        None,
        project_binding("pods"),
        ADMIN,
        Invalid,
        "for whole clusters",
    ),
    ("to a locked template", PROJECT_BINDING, None, project_binding("locked-in-project"), ADMIN, Invalid, "locked"),
    (
        "system:masters",
        PROJECT_BINDING,
        None,
        project_binding("in-project", groupName="system:masters"),
        ADMIN,
        Invalid,
        "reserved for Kubernetes",
    ),
    (
        "to another project than before",
        PROJECT_BINDING,
        project_binding("in-project", project="c-m-1:p-other"),
        project_binding("in-project"),
        ADMIN,
        Invalid,
        "immutable",
    ),
    ("deletion", PROJECT_BINDING, project_binding("project-owner"), None, actor(), None, ""),
]


@pytest.mark.parametrize(
    ("kind", "old", "new", "requester", "refusal", "message"),
    [case[1:] for case in CASES],
    ids=[f"{case[1].kind}: {case[0]}" for case in CASES],
)
def test_no_user_grants_more_rights_than_they_have(
    kind: Kind,
    old: Object | None,
    new: Object | None,
    requester: Actor,
    refusal: type[StatusError] | None,
    message: str,
) -> None:
    """CVE-2021-36784, CVE-2023-22647, CVE-2023-32196."""
    found = validate(kind, old, new, requester, ROLES)
    assert (type(found) if found else None) is refusal, str(found)
    assert message in str(found)


def test_combinations_of_rules_have_a_limit() -> None:
    """The time of a comparison grows with the product of the lists of a rule."""
    names = [f"n{number}" for number in range(2_000)]
    wanted = rule(" ".join(names), " ".join(names), resourceNames=names)
    refusal = validate(GLOBAL_ROLE, None, named("large", rules=[wanted]), actor(READ_PODS), ROLES)
    assert isinstance(refusal, BadRequest)
