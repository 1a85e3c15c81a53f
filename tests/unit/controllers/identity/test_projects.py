"""Projects group namespaces of a cluster, and their bindings grant rights in these namespaces."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.identity import projects as names
from herder.api.identity.impersonators import IMPERSONATOR
from herder.api.identity.projects import DEFAULT_PROJECT, PROJECT_ID, SYSTEM_PROJECT, ProjectKey
from herder.api.identity.roles import CLUSTER_ROLE
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROJECT, PROVISIONING_CLUSTER
from herder.api.management.names import PROVISIONING_CLUSTER_OF
from herder.controllers.identity import cluster_bindings, default_projects, project_bindings, projects
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Apply, Create, Decision, Patch
from tests.support.builders import DELETED_AT, new_object, owner_reference, writes_of
from tests.unit.controllers.identity.objects import (
    BACKING_NAMESPACE,
    DELETING,
    cluster,
    crtb,
    decide,
    namespace,
    prtb,
    summaries_with_targets,
)

KEY = f"{BACKING_NAMESPACE}/b"


def project(
    name: str = "p-abcde", cluster_name: str = "c-m-1", *, metadata: Object | None = None, **fields: Any
) -> Object:
    spec, finalizers = {"clusterName": cluster_name}, [projects.FINALIZER]
    return new_object(PROJECT, name, "c-m-1", finalizers=finalizers, metadata=metadata, spec=spec, **fields)


OWNER = owner_reference(MANAGEMENT_CLUSTER, "c-m-1")


def own_namespace() -> Object:
    """The namespace of the cluster itself."""
    return namespace("c-m-1", ownerReferences=[OWNER])


# --- namespaces of projects -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("c-m-1-p-abcde", ProjectKey("c-m-1", "p-abcde")),
        ("local-p-x", ProjectKey("local", "p-x")),
        ("c-m-1-p-x-p-y", ProjectKey("c-m-1-p-x", "p-y")),
        ("c-m-1", None),
        ("p-abcde", None),
        ("c-m-1-p-", None),
    ],
)
def test_a_namespace_belongs_to_at_most_one_project(name: str, key: ProjectKey | None) -> None:
    assert names.project_key_of_namespace(name) == key
    assert key is None or key.namespace == name


def test_a_project_gets_a_namespace_that_its_cluster_owns() -> None:
    decision = decide(projects.CONTROLLER, "c-m-1/p-abcde", project(), cluster())
    (created,) = writes_of(decision)
    assert isinstance(created, Create)
    assert created.obj["metadata"]["name"] == BACKING_NAMESPACE
    assert created.obj["metadata"]["ownerReferences"][0]["uid"] == "Cluster-c-m-1"


def backing_namespace() -> Object:
    return namespace(BACKING_NAMESPACE, ownerReferences=[OWNER])


def test_a_project_reports_its_backing_namespace() -> None:
    decision = decide(projects.CONTROLLER, "c-m-1/p-abcde", project(), cluster(), backing_namespace())
    (write,) = writes_of(decision)
    assert isinstance(write, Patch)
    assert write.patch["status"]["backingNamespace"] == BACKING_NAMESPACE


@pytest.mark.parametrize(
    ("invalid", "reason"),
    [
        (project(cluster_name="c-m-2"), "spec.clusterName must be c-m-1"),
        (project("mine"), "must be p-"),
        (project("p-a-b"), "must be p-"),
        (project(f"p-{'a' * 60}"), "too long"),
    ],
)
def test_an_invalid_project_is_reported(invalid: Object, reason: str) -> None:
    decision = decide(projects.CONTROLLER, f"c-m-1/{invalid['metadata']['name']}", invalid, cluster())
    assert not decision.writes
    assert decision.wait is not None
    assert reason in decision.wait.reason


def test_a_namespace_of_another_owner_is_not_adopted() -> None:
    decision = decide(projects.CONTROLLER, "c-m-1/p-abcde", project(), cluster(), namespace(BACKING_NAMESPACE))
    assert decision.wait is not None
    assert "belongs to another cluster" in decision.wait.reason
    deleting = project(metadata=DELETING)
    deleting_decision = decide(projects.CONTROLLER, "c-m-1/p-abcde", deleting, cluster(), namespace(BACKING_NAMESPACE))
    assert summaries_with_targets(deleting_decision) == ["Patch Project p-abcde"], (
        "it is not deleted with the project either"
    )


def test_bindings_are_deleted_before_their_project() -> None:
    deleting = project(metadata=DELETING)
    steps = [
        decide(projects.CONTROLLER, "c-m-1/p-abcde", deleting, cluster(), backing_namespace(), prtb()),
        decide(projects.CONTROLLER, "c-m-1/p-abcde", deleting, cluster(), backing_namespace(), prtb(metadata=DELETING)),
        decide(projects.CONTROLLER, "c-m-1/p-abcde", deleting, cluster(), backing_namespace()),
        decide(projects.CONTROLLER, "c-m-1/p-abcde", deleting),
    ]
    assert [summaries_with_targets(step) for step in steps] == [
        ["Delete ProjectRoleTemplateBinding b"],
        [],
        [f"Delete Namespace {BACKING_NAMESPACE}", "Patch Project p-abcde"],
        ["Patch Project p-abcde"],
    ]


# --- default projects -----------------------------------------------------------------------------------------------


def with_projects(**fields: Any) -> Object:
    managed = cluster(**fields)
    managed["metadata"]["annotations"] |= {DEFAULT_PROJECT: "p-abcde", SYSTEM_PROJECT: "p-fghij"}
    return managed


def test_every_cluster_gets_two_projects() -> None:
    decision = decide(default_projects.CONTROLLER, "/c-m-1", cluster(), own_namespace())
    default, system, patch = writes_of(decision)
    assert isinstance(default, Create)
    assert isinstance(system, Create)
    assert isinstance(patch, Patch)
    assert default.obj["metadata"]["labels"] == {"authz.management.cattle.io/default-project": "true"}
    assert system.obj["metadata"]["labels"] == {"authz.management.cattle.io/system-project": "true"}
    assert [each.obj["spec"]["displayName"] for each in (default, system)] == ["Default", "System"]
    assert [names.unusable(each.obj) for each in (default, system)] == ["", ""]
    assert sorted(patch.patch["metadata"]["annotations"]) == sorted((DEFAULT_PROJECT, SYSTEM_PROJECT))


def test_no_projects_are_created_in_a_namespace_of_an_earlier_cluster() -> None:
    """They would be deleted with that namespace, and not recreated."""
    owner = owner_reference(MANAGEMENT_CLUSTER, "c-m-1", controller=False) | {"uid": "of-the-earlier"}
    stale = namespace("c-m-1", ownerReferences=[owner])
    assert not decide(default_projects.CONTROLLER, "/c-m-1", cluster(), stale).writes
    assert not decide(projects.CONTROLLER, "c-m-1/p-abcde", project(), cluster(), stale).writes


def test_deleted_default_projects_are_not_recreated() -> None:
    decision = decide(default_projects.CONTROLLER, "/c-m-1", with_projects(), own_namespace(), remote_objects=[])
    assert not decision.writes


def test_namespaces_without_a_project_are_assigned_to_the_default_projects() -> None:
    remote_objects = [
        namespace("default"),
        namespace("kube-system"),
        namespace("cattle-system", "c-m-1:p-other"),
        namespace("kube-public", deletionTimestamp=DELETED_AT),
        namespace("meadow"),
    ]
    existing_projects = [project(), project("p-fghij")]
    decision = decide(
        default_projects.CONTROLLER,
        "/c-m-1",
        with_projects(),
        own_namespace(),
        *existing_projects,
        remote_objects=remote_objects,
    )
    assert summaries_with_targets(decision) == [
        "Patch Namespace default in c-m-1",
        "Patch Namespace kube-system in c-m-1",
    ]
    (default, _) = writes_of(decision)
    assert isinstance(default, Patch)
    meta = default.patch["metadata"]
    assert (meta["annotations"], meta["labels"]) == ({PROJECT_ID: "c-m-1:p-abcde"}, {PROJECT_ID: "p-abcde"})


# --- bindings -------------------------------------------------------------------------------------------------------


def decide_binding(
    binding: Object, *remote_objects: Object, others: tuple[Object, ...] = (), management_cluster: Object | None = None
) -> Decision:
    return decide(
        project_bindings.CONTROLLER,
        KEY,
        binding,
        project(),
        management_cluster or cluster(),
        *others,
        remote_objects=list(remote_objects),
    )


def paired() -> Object:
    """The cluster, created for a provisioning Cluster."""
    managed = cluster(spec={"fleetWorkspaceName": "fleet-default"})
    managed["metadata"]["annotations"][PROVISIONING_CLUSTER_OF] = "fleet-default/barn"
    return managed


MEADOW = namespace("meadow", "c-m-1:p-abcde")
HILL = namespace("hill", "c-m-1:p-abcde")
ELSEWHERE = namespace("elsewhere", "c-m-2:p-abcde")


def test_a_binding_grants_access_to_the_cluster_and_rights_in_the_namespaces() -> None:
    pair = new_object(PROVISIONING_CLUSTER, "barn", "fleet-default", status={"clusterName": "c-m-1"})
    decision = decide_binding(prtb(), MEADOW, HILL, ELSEWHERE, others=(pair,), management_cluster=paired())
    local = [write.obj for write in writes_of(decision) if isinstance(write, Apply) and not write.target]
    remote_rbac = [write.obj for write in writes_of(decision) if isinstance(write, Apply) and write.target == "c-m-1"]
    assert [each["kind"] for each in local] == ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]
    assert local[0]["metadata"]["name"] == local[1]["roleRef"]["name"] == "c-m-1-clustermember"
    assert local[0]["rules"][0]["verbs"] == ["get"]
    assert [each["kind"] for each in remote_rbac] == ["ClusterRole", "RoleBinding", "RoleBinding"]
    assert [each["metadata"].get("namespace") for each in remote_rbac] == [None, "meadow", "hill"]
    assert {each["roleRef"]["name"] for each in remote_rbac[1:]} == {"cattle-roletemplate-project-member"}
    assert {each["subjects"][0]["name"] for each in remote_rbac[1:]} == {"u-1"}


def remote_rbac(binding: Object | None = None) -> list[Object]:
    """The objects that such a binding creates in the cluster."""
    found = [
        write.obj
        for write in writes_of(decide_binding(binding or prtb(), MEADOW, HILL))
        if isinstance(write, Apply) and write.target
    ]
    return [{**each, "metadata": {"uid": each["metadata"]["name"], **each["metadata"]}} for each in found]


def test_existing_rbac_is_not_written_again() -> None:
    decision = decide_binding(prtb(), MEADOW, HILL, *remote_rbac())
    assert not [line for line in summaries_with_targets(decision) if " in c-m-1" in line]


def test_rights_follow_namespaces_that_join_and_leave() -> None:
    decision = decide_binding(prtb(), HILL, namespace("dale", "c-m-1:p-abcde"), *remote_rbac())
    changed = [write for write in writes_of(decision) if getattr(write, "target", "")]
    places = [
        (type(write).__name__, write.obj["metadata"]["namespace"] if isinstance(write, Apply) else write.ref.namespace)  # type: ignore[union-attr]
        for write in changed
    ]
    assert places == [("Delete", "meadow"), ("Apply", "dale")]


def test_only_the_system_project_grants_rights_in_system_namespaces() -> None:
    """These namespaces contain tokens of the owners and of the agent, and not every cluster controls who moves
    namespaces."""
    claimed = [namespace(name, "c-m-1:p-abcde") for name in ("kube-system", "cattle-impersonation-system")]

    def places(managed: Object) -> list[str]:
        created = [
            write.obj
            for write in writes_of(decide_binding(prtb(), MEADOW, *claimed, management_cluster=managed))
            if isinstance(write, Apply)
        ]
        return [each["metadata"]["namespace"] for each in created if each["kind"] == "RoleBinding"]

    system = cluster()
    system["metadata"]["annotations"][SYSTEM_PROJECT] = "p-abcde"
    assert places(cluster()) == ["meadow"]
    assert places(system) == ["meadow", "kube-system", "cattle-impersonation-system"]


@pytest.mark.parametrize(
    ("binding", "reason"),
    [
        (prtb(projectName="c-m-1:p-other"), "projectName: must be c-m-1:p-abcde"),
        (prtb(projectName="c-m-2:p-abcde"), "projectName: must be c-m-1:p-abcde"),
        (prtb("cluster-owner"), "is for whole clusters"),
        (prtb("nothing"), "RoleTemplate nothing does not exist"),
        (prtb(userName="system:admin"), "reserved for Kubernetes"),
        (prtb(groupName="g"), "exactly one of"),
    ],
)
def test_an_invalid_binding_grants_nothing(binding: Object, reason: str) -> None:
    """A user who may write in the namespace of one project names another project, and gets no rights."""
    decision = decide_binding(binding, MEADOW, HILL, *remote_rbac())
    assert [line.split()[0:2] for line in summaries_with_targets(decision)] == [["Delete", "RoleBinding"]] * 2
    assert decision.wait is not None
    assert reason in decision.wait.reason


@pytest.mark.parametrize("others", [(), (project(metadata=DELETING),), (project(cluster_name="c-m-2"),)])
def test_a_binding_without_its_project_grants_nothing(others: tuple[Object, ...]) -> None:
    decision = decide(project_bindings.CONTROLLER, KEY, prtb(), cluster(), *others, remote_objects=[MEADOW])
    assert not decision.writes
    assert decision.wait is not None
    assert "project c-m-1:p-abcde does not exist" in decision.wait.reason


def test_rights_in_the_local_cluster_are_written_locally() -> None:
    binding = prtb(projectName="local:p-abcde", namespace="local-p-abcde")
    local_project = {**project(cluster_name="local"), "metadata": {"name": "p-abcde", "namespace": "local"}}
    inside, outside = namespace("meadow", "local:p-abcde"), namespace("hill")
    internal = cluster("local", spec={"internal": True})
    decision = decide(project_bindings.CONTROLLER, "local-p-abcde/b", binding, local_project, internal, inside, outside)
    assert [line.split()[1] for line in summaries_with_targets(decision)] == [
        "ClusterRole",
        "ClusterRoleBinding",
        "ClusterRole",
        "RoleBinding",
    ]
    assert decision.observe == ()


# --- deletion -------------------------------------------------------------------------------------------------------


def impersonation_role(user: str) -> Object:
    name = f"cattle-impersonation-{user}"
    return new_object(CLUSTER_ROLE, name, metadata={"uid": name, "labels": {IMPERSONATOR: "true"}}, rules=[])


def test_rights_end_before_the_binding_is_deleted() -> None:
    steps = [
        decide_binding(prtb(metadata=DELETING), MEADOW, HILL, *remote_rbac()),
        decide_binding(prtb(metadata=DELETING), MEADOW, HILL),
    ]
    assert [[line.split()[0:2] for line in summaries_with_targets(step)] for step in steps] == [
        [["Delete", "RoleBinding"], ["Delete", "RoleBinding"]],
        [["Patch", "ProjectRoleTemplateBinding"]],
    ]


def test_the_impersonation_role_of_a_user_is_deleted_with_its_last_binding() -> None:
    """An account that may still impersonate a user is a risk."""
    remote_objects = [impersonation_role("u-1"), impersonation_role("u-2")]
    decision = decide_binding(prtb(metadata=DELETING), MEADOW, *remote_objects)
    assert summaries_with_targets(decision) == ["Delete ClusterRole cattle-impersonation-u-1 in c-m-1"]
    of_cluster = crtb(metadata=DELETING)
    last = decide(cluster_bindings.CONTROLLER, "c-m-1/b", of_cluster, cluster(), remote_objects=remote_objects)
    assert summaries_with_targets(last) == ["Delete ClusterRole cattle-impersonation-u-1 in c-m-1"]


@pytest.mark.parametrize(
    "other",
    [
        crtb(),
        {**prtb(), "metadata": {"name": "c", "namespace": "c-m-1-p-other"}},
    ],
    ids=["in the cluster", "in another project"],
)
def test_the_impersonation_role_stays_while_the_user_has_another_binding(other: Object) -> None:
    decision = decide_binding(prtb(metadata=DELETING), impersonation_role("u-1"), others=(other,))
    assert summaries_with_targets(decision) == ["Patch ProjectRoleTemplateBinding b"]


@pytest.mark.parametrize(
    "other",
    [
        crtb(metadata=DELETING),
        crtb(userName="u-2"),
        {**crtb(), "metadata": {"name": "c", "namespace": "c-m-2"}},
        {**prtb(), "metadata": {"name": "c", "namespace": "c-m-2-p-other"}},
    ],
    ids=["being deleted too", "of another user", "in another cluster", "in a project of another cluster"],
)
def test_bindings_of_others_do_not_keep_the_impersonation_role(other: Object) -> None:
    decision = decide_binding(prtb(metadata=DELETING), impersonation_role("u-1"), others=(other,))
    assert summaries_with_targets(decision) == ["Delete ClusterRole cattle-impersonation-u-1 in c-m-1"]


def test_bindings_of_groups_do_not_affect_users() -> None:
    decision = decide_binding(
        prtb(metadata=DELETING, userName="", groupPrincipalName="flock"), impersonation_role("flock")
    )
    assert summaries_with_targets(decision) == ["Patch ProjectRoleTemplateBinding b"]
