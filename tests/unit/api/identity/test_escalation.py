"""Nobody hands out rights that they do not have, on whatever path."""

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
        named("circle", context="cluster", rules=[READ_PODS], roleTemplateNames=["circle"]),
        named("unknown", context="cluster", external=True),
        named("told", context="cluster", external=True, externalRules=[READ_PODS]),
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


def actor(*here: Object, everywhere: tuple[Object, ...] = (), **clusters: Object) -> Actor:
    """`clusters`: what they may do in one, by its name with _ for -."""
    held = {name.replace("_", "-"): rules for name, rules in clusters.items()}

    def in_cluster(name: str) -> list[Object]:
        return [*everywhere, *([held[name]] if name in held else [])]

    def in_project(name: str) -> list[Object]:
        own = [READ_PODS] if name == "c-m-1:p-mine" else []
        return [*in_cluster(name.partition(":")[0]), *own]

    def owns(_cluster: str) -> bool:
        return bool(here) and [*here] == EVERYTHING

    return Actor(here, lambda place: [READ_PODS] if place == "mine" else [], in_cluster, in_project, everywhere, owns)


ADMIN = actor(*EVERYTHING, everywhere=tuple(EVERYTHING))
READER = actor(READ_PODS)
MEMBER = actor(c_m_1=READ_PODS)
OWNER = actor(c_m_1=EVERYTHING[0] | {})
EVERYWHERE = actor(everywhere=(READ_PODS,))


def bound(template: str, *, cluster: str = "c-m-1", namespace: str = "c-m-1", **who: str) -> Object:
    subject = who or {"userName": "u-1"}
    return named("crtb", namespace, clusterName=cluster, roleTemplateName=template, **subject)


def inside(template: str, *, project: str = "c-m-1:p-mine", namespace: str = "c-m-1-p-mine", **who: str) -> Object:
    return named("prtb", namespace, projectName=project, roleTemplateName=template, **(who or {"userName": "u-1"}))


def globally(role: str, **who: str) -> Object:
    return named("grb", globalRoleName=role, **(who or {"userName": "u-1"}))


CASES: list[tuple[str, Kind, Object | None, Object | None, Actor, type[StatusError] | None, str]] = [
    # Roles here.
    ("a role within one's own", GLOBAL_ROLE, None, named("r", rules=[READ_PODS]), READER, None, ""),
    ("a wider role", GLOBAL_ROLE, None, named("r", rules=[READ_PODS, WRITE_PODS]), READER, Forbidden, "create pods"),
    ("everything", GLOBAL_ROLE, None, named("r", rules=EVERYTHING), READER, Forbidden, "in the manager's cluster"),
    ("everything, by who has it", GLOBAL_ROLE, None, named("r", rules=EVERYTHING), ADMIN, None, ""),
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
        "a word about a role that one does not hold",
        GLOBAL_ROLE,
        named("r", rules=EVERYTHING),
        {**named("r", rules=EVERYTHING), "metadata": {"name": "r", "labels": {"a": "b"}}},
        READER,
        None,
        "",
    ),
    ("by a name", GLOBAL_ROLE, None, named("r", rules=[rule("get", "pods", resourceNames=["a"])]), READER, None, ""),
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
        "of nothing",
        GLOBAL_ROLE,
        None,
        named("r", inheritedClusterRoles=["no"]),
        ADMIN,
        Invalid,
        "RoleTemplate not found",
    ),
    ("a built-in role", GLOBAL_ROLE, GLOBALS["user"], {**GLOBALS["user"], "rules": []}, ADMIN, Forbidden, "built in"),
    ("a built-in role away", GLOBAL_ROLE, GLOBALS["user"], None, ADMIN, Forbidden, "cannot be deleted"),
    # Bindings here.
    ("to one's own role", GLOBAL_ROLE_BINDING, None, globally("podsonly"), READER, None, ""),
    ("oneself to admin", GLOBAL_ROLE_BINDING, None, globally("admin"), READER, Forbidden, "you do not have"),
    ("to rights by a namespace", GLOBAL_ROLE_BINDING, None, globally("placed"), actor(), Forbidden, "in namespace a"),
    ("to rights in clusters", GLOBAL_ROLE_BINDING, None, globally("inherits"), EVERYWHERE, Forbidden, "get nodes"),
    ("to no role", GLOBAL_ROLE_BINDING, None, globally("nothing"), ADMIN, Invalid, "GlobalRole not found"),
    (
        "to another role than before",
        GLOBAL_ROLE_BINDING,
        globally("podsonly"),
        globally("admin"),
        ADMIN,
        Invalid,
        "immutable",
    ),
    (
        "somebody else than before",
        GLOBAL_ROLE_BINDING,
        globally("podsonly"),
        globally("podsonly", userName="u-2"),
        ADMIN,
        Invalid,
        "immutable",
    ),
    (
        "the system's own",
        GLOBAL_ROLE_BINDING,
        None,
        globally("podsonly", groupPrincipalName="system:serviceaccounts"),
        ADMIN,
        Invalid,
        "reserved for Kubernetes",
    ),
    # Templates.
    ("a template held everywhere", ROLE_TEMPLATE, None, named("t", rules=[READ_PODS]), EVERYWHERE, None, ""),
    ("a template held in one", ROLE_TEMPLATE, None, named("t", rules=[READ_PODS]), OWNER, Forbidden, "every cluster"),
    ("by inheritance", ROLE_TEMPLATE, None, named("t", roleTemplateNames=["more"]), EVERYWHERE, Forbidden, "get nodes"),
    ("of nothing", ROLE_TEMPLATE, None, named("t", roleTemplateNames=["no"]), ADMIN, Invalid, "RoleTemplate not found"),
    ("a circle", ROLE_TEMPLATE, None, named("t", rules=[READ_PODS], roleTemplateNames=["t"]), EVERYWHERE, None, ""),
    (
        "a role of others, which is said to have nothing",
        ROLE_TEMPLATE,
        None,
        named("view", external=True, externalRules=[]),
        EVERYWHERE,
        Forbidden,
        "you do not have",
    ),
    (
        "a role of others, which is said to have what one has",
        ROLE_TEMPLATE,
        None,
        named("cluster-admin", external=True, externalRules=[READ_PODS]),
        EVERYWHERE,
        Forbidden,
        "you do not have",
    ),
    # Bindings in a cluster.
    ("to what one has there", CLUSTER_BINDING, None, bound("pods"), MEMBER, None, ""),
    ("to more", CLUSTER_BINDING, None, bound("more"), MEMBER, Forbidden, "get nodes"),
    ("a member makes an owner", CLUSTER_BINDING, None, bound("cluster-owner"), MEMBER, Forbidden, "in cluster c-m-1"),
    ("with rights of the manager's alone", CLUSTER_BINDING, None, bound("pods"), READER, Forbidden, "in cluster c-m-1"),
    ("in another cluster", CLUSTER_BINDING, None, bound("pods", cluster="c-m-2"), MEMBER, Invalid, "clusterName"),
    ("from elsewhere", CLUSTER_BINDING, None, bound("pods", namespace="default"), ADMIN, Invalid, "clusterName"),
    ("to a role of others", CLUSTER_BINDING, None, bound("unknown"), MEMBER, Forbidden, "you do not have"),
    ("to a role of others that is known", CLUSTER_BINDING, None, bound("told"), MEMBER, None, ""),
    ("to what is locked", CLUSTER_BINDING, None, bound("locked"), ADMIN, Invalid, "locked"),
    ("to what is for projects", CLUSTER_BINDING, None, bound("project-owner"), ADMIN, Invalid, "for projects"),
    ("a circle", CLUSTER_BINDING, None, bound("circle"), MEMBER, None, ""),
    ("two at once", CLUSTER_BINDING, None, bound("pods", userName="a", groupName="b"), ADMIN, Invalid, "exactly one"),
    (
        "masters",
        CLUSTER_BINDING,
        None,
        bound("pods", groupName="system:masters"),
        ADMIN,
        Invalid,
        "reserved for Kubernetes",
    ),
    ("away", CLUSTER_BINDING, bound("cluster-owner"), None, READER, None, ""),
    # Bindings in a project.
    ("to what one has there", PROJECT_BINDING, None, inside("in-project"), actor(), None, ""),
    ("to more", PROJECT_BINDING, None, inside("more-in-project"), actor(), Forbidden, "in project c-m-1:p-mine"),
    ("to more, by who has it in the cluster", PROJECT_BINDING, None, inside("project-owner"), OWNER, None, ""),
    (
        "in another project",
        PROJECT_BINDING,
        None,
        inside("in-project", project="c-m-1:p-other", namespace="c-m-1-p-other"),
        actor(),
        Forbidden,
        "in project c-m-1:p-other",
    ),
    (
        "in another project than that of its namespace",
        PROJECT_BINDING,
        None,
        inside("in-project", project="c-m-1:p-other"),
        OWNER,
        Invalid,
        "projectName",
    ),
    (
        "in another cluster",
        PROJECT_BINDING,
        None,
        inside("in-project", project="c-m-2:p-mine", namespace="c-m-2-p-mine"),
        OWNER,
        Forbidden,
        "in project c-m-2:p-mine",
    ),
    (
        "from a namespace of no project",
        PROJECT_BINDING,
        None,
        inside("in-project", namespace="c-m-1"),
        ADMIN,
        Invalid,
        "projectName",
    ),
    ("to what is for clusters", PROJECT_BINDING, None, inside("pods"), ADMIN, Invalid, "for whole clusters"),
    ("to what is locked", PROJECT_BINDING, None, inside("locked-in-project"), ADMIN, Invalid, "locked"),
    (
        "masters",
        PROJECT_BINDING,
        None,
        inside("in-project", groupName="system:masters"),
        ADMIN,
        Invalid,
        "reserved for Kubernetes",
    ),
    (
        "to another project than before",
        PROJECT_BINDING,
        inside("in-project", project="c-m-1:p-other"),
        inside("in-project"),
        ADMIN,
        Invalid,
        "immutable",
    ),
    ("away", PROJECT_BINDING, inside("project-owner"), None, actor(), None, ""),
]


@pytest.mark.parametrize(
    ("kind", "old", "new", "who", "refusal", "told"),
    [case[1:] for case in CASES],
    ids=[f"{case[1].kind}: {case[0]}" for case in CASES],
)
def test_nobody_hands_out_more_than_they_have(
    kind: Kind, old: Object | None, new: Object | None, who: Actor, refusal: type[StatusError] | None, told: str
) -> None:
    """CVE-2021-36784, CVE-2023-22647, CVE-2023-32196."""
    found = validate(kind, old, new, who, ROLES)
    assert (type(found) if found else None) is refusal, str(found)
    assert told in str(found)


def test_combinations_of_rules_have_a_limit() -> None:
    """Comparing them takes as long as the product of the lists of a rule is large."""
    names = [f"n{number}" for number in range(2_000)]
    wanted = rule(" ".join(names), " ".join(names), resourceNames=names)
    refusal = validate(GLOBAL_ROLE, None, named("large", rules=[wanted]), actor(READ_PODS), ROLES)
    assert isinstance(refusal, BadRequest)
