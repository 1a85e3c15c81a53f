"""Roles and bindings become plain RBAC, here and in the cluster that they are about, and end with their objects."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from herder.api.capi.kinds import NAMESPACE
from herder.api.identity import roles
from herder.api.identity.builtin_roles import GLOBAL_ROLES, ROLE_TEMPLATES
from herder.api.identity.roles import CLUSTER_ROLE_BINDING
from herder.api.machines.jobs import ROLE, ROLE_BINDING
from herder.api.management.kinds import (
    CLUSTER_BINDING,
    GLOBAL_ROLE,
    GLOBAL_ROLE_BINDING,
    MANAGEMENT_CLUSTER,
    PROVISIONING_CLUSTER,
    ROLE_TEMPLATE,
)
from herder.api.management.names import CONNECTED_SINCE, PROVISIONING_CLUSTER_OF
from herder.controllers.identity import cluster_bindings, global_bindings, global_roles, leftover_bindings
from herder.controllers.identity.cluster_bindings import FINALIZER
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import Apply, Create, Decision, Delete, Observe, Patch, Write
from herder.engine.runtime.view import Observed, Unreachable
from tests.support.views import NOW, view_of

SHIPPED = (*GLOBAL_ROLES, *ROLE_TEMPLATES)


def obj(kind: Kind, name: str, namespace: str = "", **fields: Any) -> Object:
    meta = {"name": name, **({"namespace": namespace} if namespace else {}), **fields.pop("meta", {})}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, **fields}


def cluster(name: str = "c-m-1", *, connected: bool = True, **fields: Any) -> Object:
    annotations = {CONNECTED_SINCE: "2026-01-01T00:00:00Z"} if connected else {}
    return obj(MANAGEMENT_CLUSTER, name, meta={"annotations": annotations}, **fields)


def crtb(template: str = "cluster-member", **fields: Any) -> Object:
    meta = {"finalizers": [FINALIZER], **fields.pop("meta", {})}
    body = {"clusterName": "c-m-1", "roleTemplateName": template, "userName": "u-1", **fields}
    return obj(CLUSTER_BINDING, "b", "c-m-1", meta=meta, **body)


def decided(controller: Controller, key: str, *objects: Object, seen: list[Object] | str | None = None) -> Decision:
    def observed(wish: Observe) -> Observed | Unreachable | None:
        if isinstance(seen, str):
            return Unreachable(seen, NOW)
        if seen is None:
            return None
        assert wish.projection is not None
        assert wish.focus is not None
        kept = [wish.projection.project(each) for each in seen if each["kind"] == wish.kind.kind]
        index = wish.projection.indexes[wish.focus[0]]
        return Observed(tuple(each for each in kept if wish.focus[1] in index(each)), datetime.now(UTC))

    return controller.reconcile(view_of(controller, key, [*SHIPPED, *objects], observed=observed))


def writes(decision: Decision) -> list[Write]:
    found = list(decision.writes)
    assert all(isinstance(each, (Apply, Create, Delete, Patch)) for each in found)
    return found  # type: ignore[return-value]


def told(decision: Decision) -> list[str]:
    """Each write as: verb, kind, name, and where it goes."""
    lines = []
    for write in writes(decision):
        if isinstance(write, (Delete, Patch)):
            kind, name = write.ref.kind.kind, write.ref.name
        else:
            kind, name = write.kind.kind, write.obj["metadata"]["name"]
        target = getattr(write, "target", "")
        lines.append(f"{type(write).__name__} {kind} {name}" + (f" in {target}" if target else ""))
    return lines


# --- global roles ---------------------------------------------------------------------------------------------------


def test_a_global_role_is_a_cluster_role_and_a_role_in_each_namespace_it_names() -> None:
    decision = decided(global_roles.CONTROLLER, "/clusters-create")
    assert told(decision) == [
        "Apply ClusterRole cattle-globalrole-clusters-create",
        "Apply Role cattle-globalrole-clusters-create",
        "Apply Role cattle-globalrole-clusters-create",
    ]
    places = [write.obj["metadata"].get("namespace") for write in writes(decision) if isinstance(write, Apply)]
    assert places == [None, "cattle-global-data", "fleet-default"]
    assert all(
        write.obj["metadata"]["ownerReferences"][0]["kind"] == "GlobalRole"
        for write in writes(decision)
        if isinstance(write, Apply)
    )


def test_rights_in_a_namespace_that_were_taken_away_go() -> None:
    owner = {"apiVersion": "x", "kind": "GlobalRole", "name": "r", "uid": "GlobalRole-r", "controller": True}
    left = obj(ROLE, "cattle-globalrole-r", "old", meta={"ownerReferences": [owner]})
    decision = decided(global_roles.CONTROLLER, "/r", obj(GLOBAL_ROLE, "r", rules=[]), left)
    assert told(decision)[-1] == "Delete Role cattle-globalrole-r"


def grb(role: str, **fields: Any) -> Object:
    return obj(GLOBAL_ROLE_BINDING, "g", globalRoleName=role, **({"userName": "u-1"} | fields))


def test_a_global_binding_binds_here_and_in_the_namespaces_of_its_role() -> None:
    assert told(decided(global_bindings.CONTROLLER, "/g", grb("clusters-create"))) == [
        "Apply ClusterRoleBinding cattle-globalrolebinding-g",
        "Apply RoleBinding cattle-globalrolebinding-g",
        "Apply RoleBinding cattle-globalrolebinding-g",
    ]


def test_an_admin_owns_every_cluster_but_our_own_which_is_covered() -> None:
    objects = [
        grb("admin"),
        cluster("c-m-1"),
        cluster("c-m-2"),
        cluster("local", spec={"internal": True}),
        *(obj(NAMESPACE, name) for name in ("c-m-1", "local")),
    ]
    decision = decided(global_bindings.CONTROLLER, "/g", *objects)
    made = [write for write in writes(decision) if isinstance(write, Create)]
    assert [write.obj["clusterName"] for write in made] == ["c-m-1"], "a cluster without its namespace comes later"
    assert made[0].obj["metadata"]["namespace"] == "c-m-1"
    assert (made[0].obj["roleTemplateName"], made[0].obj["userName"]) == ("cluster-owner", "u-1")


@pytest.mark.parametrize(
    ("binding", "why"),
    [
        (grb("nothing"), "GlobalRole nothing does not exist"),
        (grb("admin", userName=""), "exactly one of"),
        (grb("admin", userName="", groupPrincipalName="system:masters"), "reserved for Kubernetes"),
        (grb("admin", userName="", userPrincipalName="github://1"), "local://"),
    ],
)
def test_a_binding_about_nothing_gives_nobody_anything_also_what_it_gave_before(binding: Object, why: str) -> None:
    owner = {"kind": "GlobalRoleBinding", "name": "g", "uid": "GlobalRoleBinding-g", "controller": True}
    before = roles.cluster_role_binding("cattle-globalrolebinding-g", "x", {"kind": "User", "name": "u-1"})
    before["metadata"]["ownerReferences"] = [owner]
    decision = decided(global_bindings.CONTROLLER, "/g", binding, before)
    assert told(decision) == ["Delete ClusterRoleBinding cattle-globalrolebinding-g"]
    assert decision.wait is not None
    assert why in decision.wait.reason


@pytest.mark.parametrize("there", [True, False], ids=["being deleted", "deleted"])
def test_rights_end_with_the_global_binding(there: bool) -> None:
    """The garbage collector would end them too, after everything else that it has to delete."""
    owner = {
        "apiVersion": "management.cattle.io/v3",
        "kind": "GlobalRoleBinding",
        "name": "g",
        "uid": "GlobalRoleBinding-g",
    }
    meta = {"ownerReferences": [owner | {"controller": True}]}
    name, role = "cattle-globalrolebinding-g", {"kind": "Role", "name": "x"}
    left = [
        obj(CLUSTER_ROLE_BINDING, name, meta=meta, roleRef=role),
        obj(ROLE_BINDING, name, "fleet-default", meta=meta, roleRef=role),
        obj(CLUSTER_BINDING, "grb-g-cluster-owner", "c-m-1", meta=meta, clusterName="c-m-1"),
    ]
    going = grb("admin", meta={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    decision = decided(global_bindings.CONTROLLER, "/g", *left, *((going,) if there else ()))
    assert told(decision) == [
        f"Delete ClusterRoleBinding {name}",
        f"Delete RoleBinding {name}",
        "Delete ClusterRoleTemplateBinding grb-g-cluster-owner",
    ]


# --- cluster bindings -----------------------------------------------------------------------------------------------


def test_first_of_all_a_binding_gets_its_finalizer() -> None:
    binding = crtb(meta={"finalizers": []})
    assert told(decided(cluster_bindings.CONTROLLER, "c-m-1/b", binding, cluster(), seen=[])) == [
        "Patch ClusterRoleTemplateBinding b"
    ]


@pytest.mark.parametrize(
    ("template", "role", "verbs"),
    [
        ("cluster-member", "c-m-1-clustermember", 1),
        ("cluster-owner", "c-m-1-clusterowner", 9),
        ("mine", "c-m-1-clusterowner", 9),
    ],
)
def test_a_binding_lets_its_subject_reach_the_cluster_and_gives_it_the_rights_there(
    template: str, role: str, verbs: int
) -> None:
    """A template that inherits from the owner's makes owners."""
    mine = obj(ROLE_TEMPLATE, "mine", context="cluster", rules=[], roleTemplateNames=["cluster-owner"])
    decision = decided(cluster_bindings.CONTROLLER, "c-m-1/b", crtb(template), cluster(), mine, seen=[])
    access, member, rights, binding = writes(decision)
    assert isinstance(access, Apply)
    assert isinstance(member, Apply)
    assert isinstance(rights, Apply)
    assert isinstance(binding, Apply)
    assert access.obj["metadata"]["name"] == member.obj["roleRef"]["name"] == role
    assert access.obj["rules"][0]["resourceNames"] == ["c-m-1"]
    assert len(access.obj["rules"][0]["verbs"]) == verbs
    assert (access.target, member.target, rights.target, binding.target) == ("", "", "c-m-1", "c-m-1")
    assert rights.obj["metadata"]["name"] == binding.obj["roleRef"]["name"] == f"cattle-roletemplate-{template}"
    subject = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "u-1"}]
    assert member.obj["subjects"] == binding.obj["subjects"] == subject


def test_owners_may_change_the_provisioning_cluster_that_stands_for_it() -> None:
    pair = obj(PROVISIONING_CLUSTER, "meadow", "fleet-default", status={"clusterName": "c-m-1"})
    other = obj(PROVISIONING_CLUSTER, "hill", "fleet-default", status={"clusterName": "c-m-2"})
    managed = cluster(spec={"fleetWorkspaceName": "fleet-default"})
    managed["metadata"]["annotations"][PROVISIONING_CLUSTER_OF] = "fleet-default/meadow"
    decision = decided(cluster_bindings.CONTROLLER, "c-m-1/b", crtb("cluster-owner"), managed, pair, other, seen=[])
    placed = [
        write.obj for write in writes(decision) if isinstance(write, Apply) and write.kind in (ROLE, ROLE_BINDING)
    ]
    role, binding = placed
    assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == "fleet-default"
    assert role["rules"][0]["resourceNames"] == ["meadow"]
    assert "update" in role["rules"][0]["verbs"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"] == "c-m-1-clusterowner"
    going = decided(cluster_bindings.CONTROLLER, "c-m-1/b", crtb(meta=GOING), cluster(), binding, seen=[])
    assert told(going) == [f"Delete RoleBinding {binding['metadata']['name']}"]


def in_cluster(template: str = "cluster-member", binding: Object | None = None) -> list[Object]:
    """What such a binding makes there."""
    made = decided(cluster_bindings.CONTROLLER, "c-m-1/b", binding or crtb(template), cluster(), seen=[])
    found = [write.obj for write in writes(made) if isinstance(write, Apply) and write.target]
    return [{**each, "metadata": {**each["metadata"], "uid": each["metadata"]["name"]}} for each in found]


def test_what_is_there_is_not_written_again() -> None:
    decision = decided(cluster_bindings.CONTROLLER, "c-m-1/b", crtb(), cluster(), seen=in_cluster())
    assert not [write for write in writes(decision) if getattr(write, "target", "")]
    assert len(decision.observe) == 2


def test_what_somebody_changed_in_the_cluster_is_put_right() -> None:
    seen = in_cluster()
    seen[0]["rules"] = []
    seen[1]["subjects"] = [{"kind": "User", "name": "mallory"}]
    decision = decided(cluster_bindings.CONTROLLER, "c-m-1/b", crtb(), cluster(), seen=seen)
    assert [line for line in told(decision) if " in c-m-1" in line] == [
        "Apply ClusterRole cattle-roletemplate-cluster-member in c-m-1",
        f"Apply ClusterRoleBinding {seen[1]['metadata']['name']} in c-m-1",
    ]


def test_bindings_to_roles_that_it_is_not_about_any_more_go() -> None:
    before = in_cluster("cluster-owner")
    decision = decided(cluster_bindings.CONTROLLER, "c-m-1/b", crtb(), cluster(), seen=before)
    assert f"Delete ClusterRoleBinding {before[1]['metadata']['name']} in c-m-1" in told(decision)


def test_an_external_template_binds_the_role_that_is_there_and_writes_none() -> None:
    made = in_cluster("cluster-admin")
    assert [(each["kind"], each["roleRef"]["name"]) for each in made] == [("ClusterRoleBinding", "cluster-admin")]


@pytest.mark.parametrize(
    ("binding", "why"),
    [
        (crtb(clusterName="c-m-2"), "clusterName: must be c-m-1"),
        (crtb("nothing"), "RoleTemplate nothing does not exist"),
        (crtb("project-owner"), "is for projects"),
        (crtb(userName="system:admin"), "reserved for Kubernetes"),
        (crtb(groupName="g"), "exactly one of"),
    ],
)
def test_a_binding_that_cannot_be_understood_gives_nobody_anything(binding: Object, why: str) -> None:
    """CVE-2026-44945: who may write in one cluster's namespace names another cluster, and gets nowhere."""
    decision = decided(cluster_bindings.CONTROLLER, "c-m-1/b", binding, cluster(), cluster("c-m-2"), seen=in_cluster())
    assert [line.split()[0] for line in told(decision)] == ["Delete"]
    assert decision.wait is not None
    assert why in decision.wait.reason


def test_while_the_agent_is_away_only_access_is_given() -> None:
    decision = decided(cluster_bindings.CONTROLLER, "c-m-1/b", crtb(), cluster(connected=False))
    assert [line.split()[1] for line in told(decision)] == ["ClusterRole", "ClusterRoleBinding"]
    assert decision.wait is not None
    assert "is not connected" in decision.wait.reason


def test_in_the_managers_own_cluster_the_rights_are_written_here() -> None:
    binding = {**crtb(), "clusterName": "local"}
    binding["metadata"] = {**binding["metadata"], "namespace": "local"}
    decision = decided(cluster_bindings.CONTROLLER, "local/b", binding, cluster("local", spec={"internal": True}))
    assert [line.split()[1] for line in told(decision)] == ["ClusterRole", "ClusterRoleBinding"] * 2
    assert decision.observe == ()


GOING = {"finalizers": [FINALIZER], "deletionTimestamp": "2026-01-01T00:00:00Z"}


def membership() -> Object:
    made = decided(cluster_bindings.CONTROLLER, "c-m-1/b", crtb(), cluster(), seen=[])
    found = [write.obj for write in writes(made) if isinstance(write, Apply) and write.kind == CLUSTER_ROLE_BINDING]
    return found[0]


def test_rights_end_here_and_there_before_the_binding_does() -> None:
    going = crtb(meta=GOING)
    steps = [
        decided(cluster_bindings.CONTROLLER, "c-m-1/b", going, cluster(), membership(), seen=in_cluster()),
        decided(cluster_bindings.CONTROLLER, "c-m-1/b", going, cluster(), seen=in_cluster()),
        decided(cluster_bindings.CONTROLLER, "c-m-1/b", going, cluster(), seen="no route"),
        decided(cluster_bindings.CONTROLLER, "c-m-1/b", going, cluster(connected=False)),
        decided(cluster_bindings.CONTROLLER, "c-m-1/b", going, cluster(), seen=[]),
    ]
    shown = [[line.split()[0:2] for line in told(step)] for step in steps]
    rights = ["Delete", "ClusterRoleBinding"]
    assert shown == [[rights, rights], [rights], [], [], [["Patch", "ClusterRoleTemplateBinding"]]]
    assert steps[2].wait is not None
    assert "does not answer: no route" in steps[2].wait.reason
    assert steps[3].wait is not None
    assert "its rights are revoked when it reconnects" in steps[3].wait.reason


def test_with_the_cluster_gone_nothing_is_waited_for() -> None:
    decision = decided(cluster_bindings.CONTROLLER, "c-m-1/b", crtb(meta=GOING))
    assert told(decision) == ["Patch ClusterRoleTemplateBinding b"]


def test_what_an_earlier_cluster_of_the_same_name_left_behind_is_not_about_the_new_one() -> None:
    """Else its namespace would wait for an agent that cannot come before there is a new one."""
    owner = {"apiVersion": MANAGEMENT_CLUSTER.api_version, "kind": "Cluster", "name": "c-m-1", "uid": "of-the-earlier"}
    home = obj(NAMESPACE, "c-m-1", meta={"ownerReferences": [owner]})
    there = (cluster(connected=False), home)
    assert told(decided(cluster_bindings.CONTROLLER, "c-m-1/b", crtb(meta=GOING), *there)) == [
        "Patch ClusterRoleTemplateBinding b"
    ]
    left = decided(cluster_bindings.CONTROLLER, "c-m-1/b", crtb(), membership(), *there)
    assert [line.split()[:2] for line in told(left)] == [["Delete", "ClusterRoleBinding"]]
    assert left.wait is not None
    assert left.wait.reason == "cluster c-m-1 does not exist"


def test_a_namespace_that_was_there_before_holds_no_binding_of_the_cluster() -> None:
    """Its owner is gone where an earlier cluster of the name was deleted with propagationPolicy=Orphan."""
    left = decided(cluster_bindings.CONTROLLER, "c-m-1/b", crtb(), membership(), cluster(), obj(NAMESPACE, "c-m-1"))
    assert not [write for write in writes(left) if not isinstance(write, Delete)]
    assert left.wait is not None
    assert left.wait.reason == "cluster c-m-1 does not exist"


def pair(workspace: str = "fleet-default") -> tuple[Object, Object]:
    """A management Cluster of that workspace, and a provisioning Cluster whose status names it."""
    managed = cluster(connected=False, spec={"fleetWorkspaceName": workspace})
    managed["metadata"]["annotations"][PROVISIONING_CLUSTER_OF] = "fleet-default/barn"
    return managed, obj(PROVISIONING_CLUSTER, "barn", "fleet-default", status={"clusterName": "c-m-1"})


def test_owners_get_no_rights_to_a_provisioning_cluster_that_is_not_theirs() -> None:
    """Its status may name a management Cluster that another user created under the name that it was about to get."""
    mine = decided(cluster_bindings.CONTROLLER, "c-m-1/b", crtb("cluster-owner"), *pair())
    assert [line.split()[:2] for line in told(mine)].count(["Apply", "RoleBinding"]) == 1
    theirs = decided(cluster_bindings.CONTROLLER, "c-m-1/b", crtb("cluster-owner"), *pair("elsewhere"))
    assert ["Apply", "RoleBinding"] not in [line.split()[:2] for line in told(theirs)]


def test_rights_to_a_provisioning_cluster_end_with_it() -> None:
    binding, (managed, provisioning) = crtb("cluster-owner"), pair()
    role = roles.provisioning_membership_role("c-m-1", provisioning, owner=True)
    left = roles.provisioning_membership_binding(binding, {"kind": "User", "name": "u-1"}, role)
    assert f"Delete RoleBinding {left['metadata']['name']}" in told(
        decided(cluster_bindings.CONTROLLER, "c-m-1/b", binding, managed, left)
    )
    kept = decided(cluster_bindings.CONTROLLER, "c-m-1/b", binding, managed, provisioning, left)
    assert not [line for line in told(kept) if line.startswith("Delete RoleBinding")]


def test_no_rights_are_granted_to_a_provisioning_cluster_that_is_being_deleted() -> None:
    """Its finalizer is removed once the rights by its name have ended, and the next one may be another user's."""
    binding, (managed, provisioning) = crtb("cluster-owner"), pair()
    provisioning["metadata"]["deletionTimestamp"] = "2026-01-01T12:00:00Z"
    again = decided(cluster_bindings.CONTROLLER, "c-m-1/b", binding, managed, provisioning)
    assert ["Apply", "RoleBinding"] not in [line.split()[:2] for line in told(again)]


def test_names_of_what_two_bindings_make_never_meet() -> None:
    """Joined by a dash, `a-b` in `c` and `a` in `b-c` would overwrite each other."""
    subject = {"kind": "User", "name": "u"}
    one, other = obj(CLUSTER_BINDING, "x-y", "c-m-1"), obj(CLUSTER_BINDING, "y", "c-m-1-x")
    names = [
        *(each["metadata"]["name"] for each in roles.downstream_bindings(one, subject, ["r", "r-s"])),
        *(each["metadata"]["name"] for each in roles.downstream_bindings(other, subject, ["r"])),
        roles.membership_binding(one, subject, "r")["metadata"]["name"],
        roles.membership_binding(other, subject, "r")["metadata"]["name"],
    ]
    assert len(set(names)) == len(names)


# --- bindings in a cluster that nobody stands behind -----------------------------------------------------------------


@pytest.mark.parametrize(("count", "of_each"), [(12_000, 1), (3, 4_000)], ids=["many owners", "many of an owner"])
def test_one_pass_deletes_a_bounded_number_of_leftover_bindings(count: int, of_each: int) -> None:
    def observed(wish: Observe) -> Observed:
        if wish.kind == ROLE_BINDING:
            return Observed((), NOW)
        if wish.values_of:
            return Observed((), NOW, tuple(f"c-m-9_b{number}" for number in range(count)))
        assert wish.focus is not None
        names = (f"{wish.focus[1]}-{number}" for number in range(of_each))
        return Observed(tuple(obj(CLUSTER_ROLE_BINDING, name, meta={"uid": name}) for name in names), NOW)

    controller = leftover_bindings.CONTROLLER
    decision = controller.reconcile(view_of(controller, "c-m-1", [cluster()], observed=observed))
    assert 5_000 <= len(writes(decision)) <= 8_000
    assert decision.wake_at is not None
