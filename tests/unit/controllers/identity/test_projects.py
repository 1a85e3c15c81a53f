"""Projects: the namespaces of a cluster that share who may do what in them, and the bindings that say so."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.kinds import NAMESPACE
from herder.api.identity import projects as names
from herder.api.identity.impersonators import IMPERSONATOR
from herder.api.identity.projects import DEFAULT_PROJECT, PROJECT_ID, SYSTEM_PROJECT, ProjectKey
from herder.api.identity.roles import CLUSTER_ROLE
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROJECT, PROJECT_BINDING, PROVISIONING_CLUSTER
from herder.api.management.names import PROVISIONING_CLUSTER_OF
from herder.controllers.identity import cluster_bindings, default_projects, project_bindings, projects
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Apply, Create, Decision, Patch
from tests.unit.controllers.identity.test_bindings import cluster, crtb, decided, obj, told, writes

HOME = "c-m-1-p-abcde"
KEY = f"{HOME}/b"
GOING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


def project(name: str = "p-abcde", cluster_name: str = "c-m-1", **fields: Any) -> Object:
    meta = {"finalizers": [projects.FINALIZER], **fields.pop("meta", {})}
    return obj(PROJECT, name, "c-m-1", meta=meta, spec={"clusterName": cluster_name}, **fields)


def prtb(template: str = "project-member", namespace: str = HOME, **fields: Any) -> Object:
    meta = {"finalizers": [project_bindings.FINALIZER], **fields.pop("meta", {})}
    body = {"projectName": "c-m-1:p-abcde", "roleTemplateName": template, "userName": "u-1", **fields}
    return obj(PROJECT_BINDING, "b", namespace, meta=meta, **body)


OWNER = {"apiVersion": "x", "kind": "Cluster", "name": "c-m-1", "uid": "Cluster-c-m-1", "controller": True}


def namespace(name: str, project_id: str = "", **meta: Any) -> Object:
    return obj(NAMESPACE, name, meta={"annotations": {PROJECT_ID: project_id} if project_id else {}, **meta})


def own_namespace() -> Object:
    """Of the cluster itself."""
    return namespace("c-m-1", ownerReferences=[OWNER])


# --- where a project's bindings are ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("namespace_", "place"),
    [
        ("c-m-1-p-abcde", ProjectKey("c-m-1", "p-abcde")),
        ("local-p-x", ProjectKey("local", "p-x")),
        ("c-m-1-p-x-p-y", ProjectKey("c-m-1-p-x", "p-y")),
        ("c-m-1", None),
        ("p-abcde", None),
        ("c-m-1-p-", None),
    ],
)
def test_a_namespace_is_of_one_project_at_most(namespace_: str, place: ProjectKey | None) -> None:
    assert names.project_key_of_namespace(namespace_) == place
    assert place is None or place.namespace == namespace_


def test_a_project_gets_a_namespace_that_goes_with_its_cluster() -> None:
    decision = decided(projects.CONTROLLER, "c-m-1/p-abcde", project(), cluster())
    (made,) = writes(decision)
    assert isinstance(made, Create)
    assert made.obj["metadata"]["name"] == HOME
    assert made.obj["metadata"]["ownerReferences"][0]["uid"] == "Cluster-c-m-1"


def home() -> Object:
    return namespace(HOME, ownerReferences=[OWNER])


def test_it_tells_where_its_bindings_are() -> None:
    decision = decided(projects.CONTROLLER, "c-m-1/p-abcde", project(), cluster(), home())
    (write,) = writes(decision)
    assert isinstance(write, Patch)
    assert write.patch["status"]["backingNamespace"] == HOME


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (project(cluster_name="c-m-2"), "spec.clusterName must be c-m-1"),
        (project("mine"), "must be p-"),
        (project("p-a-b"), "must be p-"),
        (project(f"p-{'a' * 60}"), "too long"),
    ],
)
def test_what_is_wrong_with_a_project_is_told(wrong: Object, why: str) -> None:
    decision = decided(projects.CONTROLLER, f"c-m-1/{wrong['metadata']['name']}", wrong, cluster())
    assert not decision.writes
    assert decision.wait is not None
    assert why in decision.wait.reason


def test_a_namespace_that_somebody_else_has_is_not_taken_over() -> None:
    decision = decided(projects.CONTROLLER, "c-m-1/p-abcde", project(), cluster(), namespace(HOME))
    assert decision.wait is not None
    assert "belongs to another cluster" in decision.wait.reason
    going = project(meta=GOING | {"finalizers": [projects.FINALIZER]})
    gone = decided(projects.CONTROLLER, "c-m-1/p-abcde", going, cluster(), namespace(HOME))
    assert told(gone) == ["Patch Project p-abcde"], "nor deleted with the project"


def test_bindings_go_before_their_project() -> None:
    going = project(meta=GOING | {"finalizers": [projects.FINALIZER]})
    steps = [
        decided(projects.CONTROLLER, "c-m-1/p-abcde", going, cluster(), home(), prtb()),
        decided(projects.CONTROLLER, "c-m-1/p-abcde", going, cluster(), home(), prtb(meta=GOING)),
        decided(projects.CONTROLLER, "c-m-1/p-abcde", going, cluster(), home()),
        decided(projects.CONTROLLER, "c-m-1/p-abcde", going),
    ]
    assert [told(step) for step in steps] == [
        ["Delete ProjectRoleTemplateBinding b"],
        [],
        [f"Delete Namespace {HOME}", "Patch Project p-abcde"],
        ["Patch Project p-abcde"],
    ]


# --- the first two --------------------------------------------------------------------------------------------------


def with_projects(**fields: Any) -> Object:
    made = cluster(**fields)
    made["metadata"]["annotations"] |= {DEFAULT_PROJECT: "p-abcde", SYSTEM_PROJECT: "p-fghij"}
    return made


def test_every_cluster_has_two_projects_from_the_start() -> None:
    decision = decided(default_projects.CONTROLLER, "/c-m-1", cluster(), own_namespace())
    default, system, noted = writes(decision)
    assert isinstance(default, Create)
    assert isinstance(system, Create)
    assert isinstance(noted, Patch)
    assert default.obj["metadata"]["labels"] == {"authz.management.cattle.io/default-project": "true"}
    assert system.obj["metadata"]["labels"] == {"authz.management.cattle.io/system-project": "true"}
    assert [each.obj["spec"]["displayName"] for each in (default, system)] == ["Default", "System"]
    assert [names.unusable(each.obj) for each in (default, system)] == ["", ""]
    assert sorted(noted.patch["metadata"]["annotations"]) == sorted((DEFAULT_PROJECT, SYSTEM_PROJECT))


def test_none_are_made_where_an_earlier_cluster_of_the_same_name_lived() -> None:
    """They would go with its namespace, and not come back."""
    owner = {"apiVersion": MANAGEMENT_CLUSTER.api_version, "kind": "Cluster", "name": "c-m-1", "uid": "of-the-earlier"}
    left = namespace("c-m-1", ownerReferences=[owner])
    assert not decided(default_projects.CONTROLLER, "/c-m-1", cluster(), left).writes
    assert not decided(projects.CONTROLLER, "c-m-1/p-abcde", project(), cluster(), left).writes


def test_what_was_deleted_does_not_come_back() -> None:
    decision = decided(default_projects.CONTROLLER, "/c-m-1", with_projects(), own_namespace(), seen=[])
    assert not decision.writes


def test_namespaces_in_no_project_come_into_the_one_that_they_are_of() -> None:
    seen = [
        namespace("default"),
        namespace("kube-system"),
        namespace("cattle-system", "c-m-1:p-other"),
        namespace("kube-public", deletionTimestamp="2026-01-01T00:00:00Z"),
        namespace("meadow"),
    ]
    first = [project(), project("p-fghij")]
    decision = decided(default_projects.CONTROLLER, "/c-m-1", with_projects(), own_namespace(), *first, seen=seen)
    assert told(decision) == ["Patch Namespace default in c-m-1", "Patch Namespace kube-system in c-m-1"]
    (default, _) = writes(decision)
    assert isinstance(default, Patch)
    meta = default.patch["metadata"]
    assert (meta["annotations"], meta["labels"]) == ({PROJECT_ID: "c-m-1:p-abcde"}, {PROJECT_ID: "p-abcde"})


# --- bindings -------------------------------------------------------------------------------------------------------


def bound(binding: Object, *seen: Object, others: tuple[Object, ...] = (), of: Object | None = None) -> Decision:
    return decided(project_bindings.CONTROLLER, KEY, binding, project(), of or cluster(), *others, seen=list(seen))


def paired() -> Object:
    """The cluster, made for a provisioning Cluster."""
    managed = cluster(spec={"fleetWorkspaceName": "fleet-default"})
    managed["metadata"]["annotations"][PROVISIONING_CLUSTER_OF] = "fleet-default/barn"
    return managed


MEADOW = namespace("meadow", "c-m-1:p-abcde")
HILL = namespace("hill", "c-m-1:p-abcde")
ELSEWHERE = namespace("elsewhere", "c-m-2:p-abcde")


def test_a_binding_lets_its_subject_reach_the_cluster_and_gives_it_rights_in_the_projects_namespaces() -> None:
    pair = obj(PROVISIONING_CLUSTER, "barn", "fleet-default", status={"clusterName": "c-m-1"})
    decision = bound(prtb(), MEADOW, HILL, ELSEWHERE, others=(pair,), of=paired())
    here = [write.obj for write in writes(decision) if isinstance(write, Apply) and not write.target]
    there = [write.obj for write in writes(decision) if isinstance(write, Apply) and write.target == "c-m-1"]
    assert [each["kind"] for each in here] == ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]
    assert here[0]["metadata"]["name"] == here[1]["roleRef"]["name"] == "c-m-1-clustermember"
    assert here[0]["rules"][0]["verbs"] == ["get"]
    assert [each["kind"] for each in there] == ["ClusterRole", "RoleBinding", "RoleBinding"]
    assert [each["metadata"].get("namespace") for each in there] == [None, "meadow", "hill"]
    assert {each["roleRef"]["name"] for each in there[1:]} == {"cattle-roletemplate-project-member"}
    assert {each["subjects"][0]["name"] for each in there[1:]} == {"u-1"}


def there(binding: Object | None = None) -> list[Object]:
    """What such a binding makes in the cluster."""
    found = [
        write.obj
        for write in writes(bound(binding or prtb(), MEADOW, HILL))
        if isinstance(write, Apply) and write.target
    ]
    return [{**each, "metadata": {"uid": each["metadata"]["name"], **each["metadata"]}} for each in found]


def test_what_is_there_is_not_written_again() -> None:
    decision = bound(prtb(), MEADOW, HILL, *there())
    assert not [line for line in told(decision) if " in c-m-1" in line]


def test_rights_follow_namespaces_that_join_and_leave() -> None:
    decision = bound(prtb(), HILL, namespace("dale", "c-m-1:p-abcde"), *there())
    changed = [write for write in writes(decision) if getattr(write, "target", "")]
    places = [
        (type(write).__name__, write.obj["metadata"]["namespace"] if isinstance(write, Apply) else write.ref.namespace)  # type: ignore[union-attr]
        for write in changed
    ]
    assert places == [("Delete", "meadow"), ("Apply", "dale")]


def test_a_project_other_than_that_of_the_system_has_no_rights_in_its_namespaces() -> None:
    """Tokens of the cluster's owners and of its agent are there. Not every cluster enforces who moves namespaces."""
    claimed = [namespace(name, "c-m-1:p-abcde") for name in ("kube-system", "cattle-impersonation-system")]

    def places(of: Object) -> list[str]:
        made = [write.obj for write in writes(bound(prtb(), MEADOW, *claimed, of=of)) if isinstance(write, Apply)]
        return [each["metadata"]["namespace"] for each in made if each["kind"] == "RoleBinding"]

    system = cluster()
    system["metadata"]["annotations"][SYSTEM_PROJECT] = "p-abcde"
    assert places(cluster()) == ["meadow"]
    assert places(system) == ["meadow", "kube-system", "cattle-impersonation-system"]


@pytest.mark.parametrize(
    ("binding", "why"),
    [
        (prtb(projectName="c-m-1:p-other"), "projectName: must be c-m-1:p-abcde"),
        (prtb(projectName="c-m-2:p-abcde"), "projectName: must be c-m-1:p-abcde"),
        (prtb("cluster-owner"), "is for whole clusters"),
        (prtb("nothing"), "RoleTemplate nothing does not exist"),
        (prtb(userName="system:admin"), "reserved for Kubernetes"),
        (prtb(groupName="g"), "exactly one of"),
    ],
)
def test_a_binding_that_cannot_be_understood_gives_nobody_anything(binding: Object, why: str) -> None:
    """Who may write in one project's namespace names another project, and gets nowhere."""
    decision = bound(binding, MEADOW, HILL, *there())
    assert [line.split()[0:2] for line in told(decision)] == [["Delete", "RoleBinding"]] * 2
    assert decision.wait is not None
    assert why in decision.wait.reason


@pytest.mark.parametrize("others", [(), (project(meta=GOING),), (project(cluster_name="c-m-2"),)])
def test_without_its_project_it_is_about_nothing(others: tuple[Object, ...]) -> None:
    decision = decided(project_bindings.CONTROLLER, KEY, prtb(), cluster(), *others, seen=[MEADOW])
    assert not decision.writes
    assert decision.wait is not None
    assert "project c-m-1:p-abcde does not exist" in decision.wait.reason


def test_in_the_managers_own_cluster_the_rights_are_written_here() -> None:
    binding = prtb(projectName="local:p-abcde", namespace="local-p-abcde")
    own = {**project(cluster_name="local"), "metadata": {"name": "p-abcde", "namespace": "local"}}
    inside, outside = namespace("meadow", "local:p-abcde"), namespace("hill")
    internal = cluster("local", spec={"internal": True})
    decision = decided(project_bindings.CONTROLLER, "local-p-abcde/b", binding, own, internal, inside, outside)
    assert [line.split()[1] for line in told(decision)] == [
        "ClusterRole",
        "ClusterRoleBinding",
        "ClusterRole",
        "RoleBinding",
    ]
    assert decision.observe == ()


# --- the end --------------------------------------------------------------------------------------------------------

LEAVING = GOING | {"finalizers": [project_bindings.FINALIZER]}


def acting_as(user: str) -> Object:
    name = f"cattle-impersonation-{user}"
    return obj(CLUSTER_ROLE, name, meta={"uid": name, "labels": {IMPERSONATOR: "true"}}, rules=[])


def test_rights_end_before_the_binding_does() -> None:
    steps = [bound(prtb(meta=LEAVING), MEADOW, HILL, *there()), bound(prtb(meta=LEAVING), MEADOW, HILL)]
    assert [[line.split()[0:2] for line in told(step)] for step in steps] == [
        [["Delete", "RoleBinding"], ["Delete", "RoleBinding"]],
        [["Patch", "ProjectRoleTemplateBinding"]],
    ]


def test_with_a_users_last_binding_goes_what_let_the_user_be_acted_as() -> None:
    """An account that may still act as somebody is more than nothing."""
    seen = [acting_as("u-1"), acting_as("u-2")]
    decision = bound(prtb(meta=LEAVING), MEADOW, *seen)
    assert told(decision) == ["Delete ClusterRole cattle-impersonation-u-1 in c-m-1"]
    of_cluster = crtb(meta=GOING | {"finalizers": [cluster_bindings.FINALIZER]})
    last = decided(cluster_bindings.CONTROLLER, "c-m-1/b", of_cluster, cluster(), seen=seen)
    assert told(last) == ["Delete ClusterRole cattle-impersonation-u-1 in c-m-1"]


@pytest.mark.parametrize(
    "left",
    [
        crtb(),
        {**prtb(), "metadata": {"name": "c", "namespace": "c-m-1-p-other"}},
    ],
    ids=["in the cluster", "in another project"],
)
def test_while_the_user_has_another_in_that_cluster_it_stays(left: Object) -> None:
    decision = bound(prtb(meta=LEAVING), acting_as("u-1"), others=(left,))
    assert told(decision) == ["Patch ProjectRoleTemplateBinding b"]


@pytest.mark.parametrize(
    "left",
    [
        crtb(meta=GOING),
        crtb(userName="u-2"),
        {**crtb(), "metadata": {"name": "c", "namespace": "c-m-2"}},
        {**prtb(), "metadata": {"name": "c", "namespace": "c-m-2-p-other"}},
    ],
    ids=["going too", "another user's", "in another cluster", "in another cluster's project"],
)
def test_others_do_not_keep_it(left: Object) -> None:
    decision = bound(prtb(meta=LEAVING), acting_as("u-1"), others=(left,))
    assert told(decision) == ["Delete ClusterRole cattle-impersonation-u-1 in c-m-1"]


def test_bindings_of_groups_leave_users_alone() -> None:
    decision = bound(prtb(meta=LEAVING, userName="", groupPrincipalName="flock"), acting_as("flock"))
    assert told(decision) == ["Patch ProjectRoleTemplateBinding b"]
