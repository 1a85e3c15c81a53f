"""Roles and bindings become RBAC objects, locally and in their cluster, and rights end with their objects."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.kinds import NAMESPACE
from herder.api.identity import roles
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
from herder.api.management.names import PROVISIONING_CLUSTER_OF
from herder.controllers.identity import cluster_bindings, global_bindings, global_roles, leftover_bindings
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Apply, Create, Delete, Observe
from herder.engine.runtime.view import Observed
from tests.support.builders import DELETED_AT, NOW, new_object, owner_reference, reconcile, writes_of
from tests.unit.controllers.identity.objects import (
    DELETING,
    cluster,
    crtb,
    decide,
    grb,
    summaries_with_targets,
)

# --- global roles ---------------------------------------------------------------------------------------------------


def test_a_global_role_becomes_a_cluster_role_and_namespaced_roles() -> None:
    decision = decide(global_roles.CONTROLLER, "/clusters-create")
    assert summaries_with_targets(decision) == [
        "Apply ClusterRole cattle-globalrole-clusters-create",
        "Apply Role cattle-globalrole-clusters-create",
        "Apply Role cattle-globalrole-clusters-create",
    ]
    places = [write.obj["metadata"].get("namespace") for write in writes_of(decision) if isinstance(write, Apply)]
    assert places == [None, "cattle-global-data", "fleet-default"]
    assert all(
        write.obj["metadata"]["ownerReferences"][0]["kind"] == "GlobalRole"
        for write in writes_of(decision)
        if isinstance(write, Apply)
    )


def test_roles_in_namespaces_that_are_no_longer_listed_are_deleted() -> None:
    stale = new_object(ROLE, "cattle-globalrole-r", "old", owners=[owner_reference(GLOBAL_ROLE, "r")])
    decision = decide(global_roles.CONTROLLER, "/r", new_object(GLOBAL_ROLE, "r", rules=[]), stale)
    assert summaries_with_targets(decision)[-1] == "Delete Role cattle-globalrole-r"


def user_grb(role: str, **fields: Any) -> Object:
    return grb(role, **({"userName": "u-1"} | fields))


def test_a_global_binding_becomes_rbac_bindings_of_its_role() -> None:
    assert summaries_with_targets(decide(global_bindings.CONTROLLER, "/g", user_grb("clusters-create"))) == [
        "Apply ClusterRoleBinding cattle-globalrolebinding-g",
        "Apply RoleBinding cattle-globalrolebinding-g",
        "Apply RoleBinding cattle-globalrolebinding-g",
    ]


def test_an_admin_owns_every_cluster_except_the_local_one() -> None:
    objects = [
        user_grb("admin"),
        cluster("c-m-1"),
        cluster("c-m-2"),
        cluster("local", spec={"internal": True}),
        *(new_object(NAMESPACE, name) for name in ("c-m-1", "local")),
    ]
    decision = decide(global_bindings.CONTROLLER, "/g", *objects)
    created = [write for write in writes_of(decision) if isinstance(write, Create)]
    assert [write.obj["clusterName"] for write in created] == ["c-m-1"], (
        "a cluster without its namespace gets its binding later"
    )
    assert created[0].obj["metadata"]["namespace"] == "c-m-1"
    assert (created[0].obj["roleTemplateName"], created[0].obj["userName"]) == ("cluster-owner", "u-1")


@pytest.mark.parametrize(
    ("binding", "reason"),
    [
        (user_grb("nothing"), "GlobalRole nothing does not exist"),
        (user_grb("admin", userName=""), "exactly one of"),
        (user_grb("admin", userName="", groupPrincipalName="system:masters"), "reserved for Kubernetes"),
        (user_grb("admin", userName="", userPrincipalName="github://1"), "local://"),
    ],
)
def test_an_invalid_global_binding_grants_nothing_and_revokes_earlier_rights(binding: Object, reason: str) -> None:
    existing = roles.cluster_role_binding("cattle-globalrolebinding-g", "x", {"kind": "User", "name": "u-1"})
    existing["metadata"]["ownerReferences"] = [owner_reference(GLOBAL_ROLE_BINDING, "g")]
    decision = decide(global_bindings.CONTROLLER, "/g", binding, existing)
    assert summaries_with_targets(decision) == ["Delete ClusterRoleBinding cattle-globalrolebinding-g"]
    assert decision.wait is not None
    assert reason in decision.wait.reason


@pytest.mark.parametrize("exists", [True, False], ids=["being deleted", "deleted"])
def test_rights_end_with_the_global_binding(exists: bool) -> None:
    """The garbage collector would end them too, but only after all other objects in its queue."""
    owners = [owner_reference(GLOBAL_ROLE_BINDING, "g")]
    name, role = "cattle-globalrolebinding-g", {"kind": "Role", "name": "x"}
    stale = [
        new_object(CLUSTER_ROLE_BINDING, name, owners=owners, roleRef=role),
        new_object(ROLE_BINDING, name, "fleet-default", owners=owners, roleRef=role),
        new_object(CLUSTER_BINDING, "grb-g-cluster-owner", "c-m-1", owners=owners, clusterName="c-m-1"),
    ]
    deleting = user_grb("admin", metadata=DELETING)
    decision = decide(global_bindings.CONTROLLER, "/g", *stale, *((deleting,) if exists else ()))
    assert summaries_with_targets(decision) == [
        f"Delete ClusterRoleBinding {name}",
        f"Delete RoleBinding {name}",
        "Delete ClusterRoleTemplateBinding grb-g-cluster-owner",
    ]


# --- cluster bindings -----------------------------------------------------------------------------------------------


def test_a_binding_gets_its_finalizer_first() -> None:
    binding = crtb(metadata={"finalizers": []})
    assert summaries_with_targets(
        decide(cluster_bindings.CONTROLLER, "c-m-1/b", binding, cluster(), remote_objects=[])
    ) == ["Patch ClusterRoleTemplateBinding b"]


@pytest.mark.parametrize(
    ("template", "role", "verbs"),
    [
        ("cluster-member", "c-m-1-clustermember", 1),
        ("cluster-owner", "c-m-1-clusterowner", 7),
        ("mine", "c-m-1-clusterowner", 7),
    ],
)
def test_a_binding_grants_access_to_the_cluster_and_rights_in_it(template: str, role: str, verbs: int) -> None:
    """A template that inherits from the owner template makes owners too."""
    mine = new_object(ROLE_TEMPLATE, "mine", context="cluster", rules=[], roleTemplateNames=["cluster-owner"])
    decision = decide(cluster_bindings.CONTROLLER, "c-m-1/b", crtb(template), cluster(), mine, remote_objects=[])
    access, member, rights, binding = writes_of(decision)
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


def test_owners_may_change_the_provisioning_cluster_of_the_cluster() -> None:
    pair = new_object(PROVISIONING_CLUSTER, "meadow", "fleet-default", status={"clusterName": "c-m-1"})
    other = new_object(PROVISIONING_CLUSTER, "hill", "fleet-default", status={"clusterName": "c-m-2"})
    managed = cluster(spec={"fleetWorkspaceName": "fleet-default"})
    managed["metadata"]["annotations"][PROVISIONING_CLUSTER_OF] = "fleet-default/meadow"
    decision = decide(
        cluster_bindings.CONTROLLER, "c-m-1/b", crtb("cluster-owner"), managed, pair, other, remote_objects=[]
    )
    placed = [
        write.obj for write in writes_of(decision) if isinstance(write, Apply) and write.kind in (ROLE, ROLE_BINDING)
    ]
    role, binding = placed
    assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == "fleet-default"
    assert role["rules"][0]["resourceNames"] == ["meadow"]
    assert "update" in role["rules"][0]["verbs"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"] == "c-m-1-clusterowner"
    deleting_decision = decide(
        cluster_bindings.CONTROLLER, "c-m-1/b", crtb(metadata=DELETING), cluster(), binding, remote_objects=[]
    )
    assert summaries_with_targets(deleting_decision) == [f"Delete RoleBinding {binding['metadata']['name']}"]


def remote_rbac(template: str = "cluster-member", binding: Object | None = None) -> list[Object]:
    """The objects that such a binding creates in the cluster."""
    decision = decide(cluster_bindings.CONTROLLER, "c-m-1/b", binding or crtb(template), cluster(), remote_objects=[])
    found = [write.obj for write in writes_of(decision) if isinstance(write, Apply) and write.target]
    return [{**each, "metadata": {**each["metadata"], "uid": each["metadata"]["name"]}} for each in found]


def test_existing_rbac_is_not_written_again() -> None:
    decision = decide(cluster_bindings.CONTROLLER, "c-m-1/b", crtb(), cluster(), remote_objects=remote_rbac())
    assert not [write for write in writes_of(decision) if getattr(write, "target", "")]
    assert len(decision.observe) == 2


def test_tampered_rbac_in_the_cluster_is_repaired() -> None:
    remote_objects = remote_rbac()
    remote_objects[0]["rules"] = []
    remote_objects[1]["subjects"] = [{"kind": "User", "name": "mallory"}]
    decision = decide(cluster_bindings.CONTROLLER, "c-m-1/b", crtb(), cluster(), remote_objects=remote_objects)
    assert [line for line in summaries_with_targets(decision) if " in c-m-1" in line] == [
        "Apply ClusterRole cattle-roletemplate-cluster-member in c-m-1",
        f"Apply ClusterRoleBinding {remote_objects[1]['metadata']['name']} in c-m-1",
    ]


def test_bindings_to_former_roles_are_deleted() -> None:
    existing = remote_rbac("cluster-owner")
    decision = decide(cluster_bindings.CONTROLLER, "c-m-1/b", crtb(), cluster(), remote_objects=existing)
    assert f"Delete ClusterRoleBinding {existing[1]['metadata']['name']} in c-m-1" in summaries_with_targets(decision)


def test_an_external_template_binds_an_existing_role() -> None:
    created = remote_rbac("cluster-admin")
    assert [(each["kind"], each["roleRef"]["name"]) for each in created] == [("ClusterRoleBinding", "cluster-admin")]


@pytest.mark.parametrize(
    ("binding", "reason"),
    [
        (crtb(clusterName="c-m-2"), "clusterName: must be c-m-1"),
        (crtb("nothing"), "RoleTemplate nothing does not exist"),
        (crtb("project-owner"), "is for projects"),
        (crtb(userName="system:admin"), "reserved for Kubernetes"),
        (crtb(groupName="g"), "exactly one of"),
    ],
)
def test_an_invalid_binding_grants_nothing(binding: Object, reason: str) -> None:
    """CVE-2026-44945: a user who may write in the namespace of one cluster names another cluster, and gets no
    rights."""
    decision = decide(
        cluster_bindings.CONTROLLER, "c-m-1/b", binding, cluster(), cluster("c-m-2"), remote_objects=remote_rbac()
    )
    assert [line.split()[0] for line in summaries_with_targets(decision)] == ["Delete"]
    assert decision.wait is not None
    assert reason in decision.wait.reason


def test_without_an_agent_only_access_is_granted() -> None:
    decision = decide(cluster_bindings.CONTROLLER, "c-m-1/b", crtb(), cluster(connected=False))
    assert [line.split()[1] for line in summaries_with_targets(decision)] == ["ClusterRole", "ClusterRoleBinding"]
    assert decision.wait is not None
    assert "is not connected" in decision.wait.reason


def test_rights_in_the_local_cluster_are_written_locally() -> None:
    binding = {**crtb(), "clusterName": "local"}
    binding["metadata"] = {**binding["metadata"], "namespace": "local"}
    decision = decide(cluster_bindings.CONTROLLER, "local/b", binding, cluster("local", spec={"internal": True}))
    assert [line.split()[1] for line in summaries_with_targets(decision)] == ["ClusterRole", "ClusterRoleBinding"] * 2
    assert decision.observe == ()


def membership() -> Object:
    decision = decide(cluster_bindings.CONTROLLER, "c-m-1/b", crtb(), cluster(), remote_objects=[])
    found = [
        write.obj for write in writes_of(decision) if isinstance(write, Apply) and write.kind == CLUSTER_ROLE_BINDING
    ]
    return found[0]


def test_rights_end_here_and_in_the_cluster_before_the_binding_is_deleted() -> None:
    deleting = crtb(metadata=DELETING)
    steps = [
        decide(cluster_bindings.CONTROLLER, "c-m-1/b", deleting, cluster(), membership(), remote_objects=remote_rbac()),
        decide(cluster_bindings.CONTROLLER, "c-m-1/b", deleting, cluster(), remote_objects=remote_rbac()),
        decide(cluster_bindings.CONTROLLER, "c-m-1/b", deleting, cluster(), remote_objects="no route"),
        decide(cluster_bindings.CONTROLLER, "c-m-1/b", deleting, cluster(connected=False)),
        decide(cluster_bindings.CONTROLLER, "c-m-1/b", deleting, cluster(), remote_objects=[]),
    ]
    summaries = [[line.split()[0:2] for line in summaries_with_targets(step)] for step in steps]
    rights = ["Delete", "ClusterRoleBinding"]
    assert summaries == [[rights, rights], [rights], [], [], [["Patch", "ClusterRoleTemplateBinding"]]]
    assert steps[2].wait is not None
    assert "does not answer: no route" in steps[2].wait.reason
    assert steps[3].wait is not None
    assert "its rights are revoked when it reconnects" in steps[3].wait.reason


def test_a_binding_does_not_wait_for_a_deleted_cluster() -> None:
    decision = decide(cluster_bindings.CONTROLLER, "c-m-1/b", crtb(metadata=DELETING))
    assert summaries_with_targets(decision) == ["Patch ClusterRoleTemplateBinding b"]


def test_bindings_of_an_earlier_cluster_of_the_same_name_do_not_apply() -> None:
    """Otherwise its namespace would wait for an agent that cannot connect before a new namespace exists."""
    owner = owner_reference(MANAGEMENT_CLUSTER, "c-m-1", controller=False) | {"uid": "of-the-earlier"}
    existing = (cluster(connected=False), new_object(NAMESPACE, "c-m-1", owners=[owner]))
    assert summaries_with_targets(
        decide(cluster_bindings.CONTROLLER, "c-m-1/b", crtb(metadata=DELETING), *existing)
    ) == ["Patch ClusterRoleTemplateBinding b"]
    decision = decide(cluster_bindings.CONTROLLER, "c-m-1/b", crtb(), membership(), *existing)
    assert [line.split()[:2] for line in summaries_with_targets(decision)] == [["Delete", "ClusterRoleBinding"]]
    assert decision.wait is not None
    assert decision.wait.reason == "cluster c-m-1 does not exist"


def test_a_namespace_without_the_cluster_as_owner_holds_none_of_its_bindings() -> None:
    """This happens if an earlier cluster of the name was deleted with propagationPolicy=Orphan."""
    decision = decide(
        cluster_bindings.CONTROLLER, "c-m-1/b", crtb(), membership(), cluster(), new_object(NAMESPACE, "c-m-1")
    )
    assert not [write for write in writes_of(decision) if not isinstance(write, Delete)]
    assert decision.wait is not None
    assert decision.wait.reason == "cluster c-m-1 does not exist"


def pair(workspace: str = "fleet-default") -> tuple[Object, Object]:
    """A management Cluster of that workspace, and a provisioning Cluster whose status names it."""
    managed = cluster(connected=False, spec={"fleetWorkspaceName": workspace})
    managed["metadata"]["annotations"][PROVISIONING_CLUSTER_OF] = "fleet-default/barn"
    return managed, new_object(PROVISIONING_CLUSTER, "barn", "fleet-default", status={"clusterName": "c-m-1"})


def test_owners_get_no_rights_on_a_foreign_provisioning_cluster() -> None:
    """Its status may name a management Cluster that another user created under the name that it was about to get."""
    owned = decide(cluster_bindings.CONTROLLER, "c-m-1/b", crtb("cluster-owner"), *pair())
    assert [line.split()[:2] for line in summaries_with_targets(owned)].count(["Apply", "RoleBinding"]) == 1
    foreign = decide(cluster_bindings.CONTROLLER, "c-m-1/b", crtb("cluster-owner"), *pair("elsewhere"))
    assert ["Apply", "RoleBinding"] not in [line.split()[:2] for line in summaries_with_targets(foreign)]


def test_rights_on_a_provisioning_cluster_end_with_it() -> None:
    binding, (managed, provisioning) = crtb("cluster-owner"), pair()
    role = roles.provisioning_membership_role("c-m-1", provisioning, owner=True)
    existing = roles.provisioning_membership_binding(binding, {"kind": "User", "name": "u-1"}, role)
    assert f"Delete RoleBinding {existing['metadata']['name']}" in summaries_with_targets(
        decide(cluster_bindings.CONTROLLER, "c-m-1/b", binding, managed, existing)
    )
    decision = decide(cluster_bindings.CONTROLLER, "c-m-1/b", binding, managed, provisioning, existing)
    assert not [line for line in summaries_with_targets(decision) if line.startswith("Delete RoleBinding")]


def test_no_rights_are_granted_on_a_provisioning_cluster_that_is_being_deleted() -> None:
    """Its finalizer is removed once the rights by its name have ended, and the next cluster may belong to another
    user."""
    binding, (managed, provisioning) = crtb("cluster-owner"), pair()
    provisioning["metadata"]["deletionTimestamp"] = DELETED_AT
    decision = decide(cluster_bindings.CONTROLLER, "c-m-1/b", binding, managed, provisioning)
    assert ["Apply", "RoleBinding"] not in [line.split()[:2] for line in summaries_with_targets(decision)]


def test_objects_of_two_bindings_never_share_a_name() -> None:
    """Joined by a dash, `a-b` in `c` and `a` in `b-c` would overwrite each other."""
    subject = {"kind": "User", "name": "u"}
    one, other = new_object(CLUSTER_BINDING, "x-y", "c-m-1"), new_object(CLUSTER_BINDING, "y", "c-m-1-x")
    names = [
        *(each["metadata"]["name"] for each in roles.downstream_bindings(one, subject, ["r", "r-s"])),
        *(each["metadata"]["name"] for each in roles.downstream_bindings(other, subject, ["r"])),
        roles.membership_binding(one, subject, "r")["metadata"]["name"],
        roles.membership_binding(other, subject, "r")["metadata"]["name"],
    ]
    assert len(set(names)) == len(names)


# --- leftover bindings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "of_each"), [(12_000, 1), (3, 4_000)], ids=["many owners", "many per owner"])
def test_one_reconcile_deletes_a_bounded_number_of_leftover_bindings(count: int, of_each: int) -> None:
    def observed(request: Observe) -> Observed:
        if request.kind == ROLE_BINDING:
            return Observed((), NOW)
        if request.values_of:
            return Observed((), NOW, tuple(f"c-m-9_b{number}" for number in range(count)))
        assert request.focus is not None
        names = (f"{request.focus[1]}-{number}" for number in range(of_each))
        return Observed(tuple(new_object(CLUSTER_ROLE_BINDING, name, metadata={"uid": name}) for name in names), NOW)

    controller = leftover_bindings.CONTROLLER
    decision = reconcile(controller, "c-m-1", cluster(), observed=observed)
    assert 5_000 <= len(writes_of(decision)) <= 8_000
    assert decision.wake_at is not None
