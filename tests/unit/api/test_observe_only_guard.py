"""While a cluster is observe-only, no decision changes it, its machines or its downstream objects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from herder.api import observe_only
from herder.api.capi.kinds import CLUSTER, MACHINE, NODE, SECRET
from herder.api.guards.observe_only import deny_while_observe_only
from herder.api.identity.roles import CLUSTER_ROLE_BINDING
from herder.api.machines.archive import CONFIG_MAP
from herder.api.machines.jobs import JOB, ROLE, ROLE_BINDING
from herder.api.management.kinds import (
    CLUSTER_BINDING,
    MANAGEMENT_CLUSTER,
    PROJECT_BINDING,
    PROVISIONING_CLUSTER,
    ROLE_TEMPLATE,
)
from herder.api.rke import names
from herder.api.rke.kinds import CONTROL_PLANE, PLAN_SECRET
from herder.app.manager import Roles, controllers
from herder.controllers.identity import cluster_bindings, project_bindings
from herder.controllers.planner import controller as planner
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import Apply, Create, Delete, Effect, Patch, Ref, Update
from herder.engine.runtime.executor import Action, Reconciled
from herder.engine.runtime.handlers import Watches
from tests.support.builders import new_object
from tests.support.views import view_of
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.objects import NAME, NAMESPACE, machine, plan_secret

MARK = {observe_only.OBSERVE_ONLY: "restored from the backup of 2026-01-01T00:00:00Z"}
ID = "c-m-12345678"
MARKED = (
    new_object(PROVISIONING_CLUSTER, NAME, NAMESPACE, annotations=MARK),
    new_object(MANAGEMENT_CLUSTER, ID, annotations=MARK, spec={"displayName": NAME}),
    new_object(PROVISIONING_CLUSTER, "other", NAMESPACE),
)
INDEXES = dict(observe_only.INDEXES)
READER = Controller(
    name="reader",
    kind=CONTROL_PLANE,
    reconcile=planner.reconcile,
    watches=(*planner.CONTROLLER.watches, Watches(PROVISIONING_CLUSTER)),
    indexes={**planner.CONTROLLER.indexes, **dict.fromkeys(observe_only.MARKED_KINDS, INDEXES)},
    groupings=planner.CONTROLLER.groupings,
)
OWN = Reconciled(CONTROL_PLANE, f"{NAMESPACE}/{NAME}")
ELSEWHERE = Reconciled(CONTROL_PLANE, "")


def refusal(action: Action, reconciled: Reconciled = OWN, *existing: Any, marked: tuple[Any, ...] = MARKED) -> str:
    view = view_of(READER, f"{NAMESPACE}/{NAME}", (*marked, objects.control_plane(), *existing))
    found = deny_while_observe_only(action, view, reconciled)
    return found.reason if found else ""


def obj(kind: Any, name: str = "x", **fields: Any) -> Any:
    return new_object(kind, name, NAMESPACE, **fields)


def status(kind: Any, name: str) -> Patch:
    return Patch(Ref(kind, name, NAMESPACE), {"status": {}}, "progress", "status")


DENIED: dict[str, Action] = {
    "create a Machine": Create(MACHINE, machine("new"), "scale up"),
    "delete a Machine": Delete(Ref(MACHINE, "a", NAMESPACE), "uid", "scale down"),
    "start a Job": Create(JOB, obj(JOB), "create the machine"),
    "write a plan": Patch(Ref(PLAN_SECRET, names.plan_secret("a"), NAMESPACE), {"data": {"plan": ""}}, "plan"),
    "change a spec": Update(CONTROL_PLANE, objects.control_plane(), "endpoint"),
    "remove a finalizer": Patch(Ref(CONTROL_PLANE, NAME, NAMESPACE), {"metadata": {"finalizers": []}}, "done"),
    "judge another object": status(MACHINE, "a"),
    "write downstream": Apply(NODE, new_object(NODE, "a"), "labels", target=ID),
    "write a downstream Role": Apply(ROLE, obj(ROLE), "role", target=f"{NAMESPACE}/{NAME}"),
    "evict": Effect("evict", ("uid",), {"namespace": "default", "name": "pod"}, "drain"),
    "make keys": Effect(names.MAKE_TOKENS, ("uid",), {}, "join tokens"),
    "a performer that nobody has thought of": Effect("new", ("uid",), {}, "new"),
}
ALLOWED: dict[str, Action] = {
    "report its own status": status(CONTROL_PLANE, NAME),
    "read a Secret": Effect(names.READ_OBJECT, ("uid",), {}, "input"),
    "write a log": Apply(CONFIG_MAP, obj(CONFIG_MAP), "log"),
    "grant rights at the manager": Apply(ROLE, obj(ROLE), "role"),
}


@pytest.mark.parametrize("action", DENIED.values(), ids=DENIED)
def test_what_could_reach_a_machine_is_denied(action: Action) -> None:
    reason = refusal(action)
    assert reason.startswith(f"{action.reason}: observe-only (restored from the backup of 2026-01-01T00:00:00Z)")
    assert reason.endswith(f"herder resume cluster {NAME}")
    assert refusal(action, marked=()) == ""


@pytest.mark.parametrize("action", ALLOWED.values(), ids=ALLOWED)
def test_what_only_observes_is_allowed(action: Action) -> None:
    assert refusal(action) == ""


@pytest.mark.parametrize(
    "action",
    [
        Create(MACHINE, machine("new"), "scale up"),
        Delete(Ref(MACHINE, "a", NAMESPACE), "uid", "scale down"),
        Patch(Ref(PLAN_SECRET, names.plan_secret("a"), NAMESPACE), {"data": {"plan": ""}}, "plan"),
        Patch(Ref(CLUSTER, NAME, NAMESPACE), {"spec": {"paused": True}}, "pause"),
        Patch(Ref(MANAGEMENT_CLUSTER, ID), {"spec": {}}, "edit"),
        Apply(NODE, new_object(NODE, "a"), "labels", target=ID),
        Effect("sync-secret", ("uid",), {"cluster": ID}, "sync"),
    ],
    ids=["machine", "deletion", "plan", "cluster", "management cluster", "target", "effect"],
)
def test_the_cluster_of_the_written_object_counts_too(action: Action) -> None:
    """The controller may not know the cluster of the reconciled object, such as one that is deleted."""
    assert refusal(action, ELSEWHERE, machine("a"), plan_secret("a"))


def test_other_clusters_are_not_affected() -> None:
    other = Reconciled(CONTROL_PLANE, f"{NAMESPACE}/other")
    assert refusal(Create(SECRET, obj(SECRET), "a Secret"), other) == ""


def test_a_cluster_of_cluster_api_alone_can_be_observe_only() -> None:
    cluster = new_object(CLUSTER, NAME, NAMESPACE, annotations=MARK)
    assert refusal(Create(JOB, obj(JOB), "create the machine"), marked=(cluster,))


# --- rights that end --------------------------------------------------------------------------------------------------

REVOKED: dict[str, Action] = {
    "in the cluster": Delete(Ref(CLUSTER_ROLE_BINDING, "x"), "uid", "revoke", target=ID),
    "in a namespace of the cluster": Delete(Ref(ROLE_BINDING, "x", "default"), "uid", "revoke", target=ID),
    "at the manager": Delete(Ref(CLUSTER_ROLE_BINDING, "x"), "uid", "revoke"),
    "the finalizer": Patch(Ref(CLUSTER_BINDING, "rita", ID), {"metadata": {"finalizers": []}}, "revoked"),
}
NOT_REVOKED: dict[str, Action] = {
    "grant rights": Apply(CLUSTER_ROLE_BINDING, new_object(CLUSTER_ROLE_BINDING, "x"), "bind", target=ID),
    "delete something else": Delete(Ref(NODE, "x"), "uid", "delete", target=ID),
    "another binding": Patch(Ref(CLUSTER_BINDING, "bob", ID), {"metadata": {"finalizers": []}}, "revoke"),
}


TEMPLATE = new_object(ROLE_TEMPLATE, "reader")
LIVING, DELETED = (
    new_object(CLUSTER_BINDING, "rita", ID, deleting=deleted, roleTemplateName="reader") for deleted in (False, True)
)
OF_DELETED: dict[str, tuple[Any, ...]] = {
    "binding": (DELETED, TEMPLATE),
    "binding without its finalizer": (TEMPLATE,),
    "RoleTemplate": (LIVING,),
}


def of_binding(action: Action, *existing: Any, unwatched: tuple[Any, ...] = ()) -> bool:
    """Whether the action is denied that the controller of a binding decides. `unwatched`: kinds that it cannot read."""
    declared_watches = (*cluster_bindings.CONTROLLER.watches, Watches(PROVISIONING_CLUSTER))
    watches = tuple(each for each in declared_watches if each.kind not in unwatched)
    declared = {**cluster_bindings.CONTROLLER.indexes, **dict.fromkeys(observe_only.MARKED_KINDS, INDEXES)}
    reader = replace(cluster_bindings.CONTROLLER, watches=watches, indexes=declared)
    view = view_of(reader, f"{ID}/rita", (*MARKED, *existing))
    return deny_while_observe_only(action, view, Reconciled(CLUSTER_BINDING, ID)) is not None


@pytest.mark.parametrize("deleted", OF_DELETED)
@pytest.mark.parametrize("action", REVOKED.values(), ids=REVOKED)
def test_rights_end_with_what_is_deleted(action: Action, deleted: str) -> None:
    assert not of_binding(action, *OF_DELETED[deleted])


@pytest.mark.parametrize("deleted", OF_DELETED)
@pytest.mark.parametrize("action", NOT_REVOKED.values(), ids=NOT_REVOKED)
def test_what_is_deleted_allows_nothing_else(action: Action, deleted: str) -> None:
    assert of_binding(action, *OF_DELETED[deleted])


def test_rights_do_not_end_for_another_reason() -> None:
    """A restored manager does not know bindings that were created after the backup."""
    assert of_binding(REVOKED["in the cluster"], LIVING, TEMPLATE)


def test_rights_do_not_end_where_templates_are_not_watched() -> None:
    """Nothing says that the template was deleted."""
    assert of_binding(REVOKED["in the cluster"], LIVING, unwatched=(ROLE_TEMPLATE,))
    assert not of_binding(REVOKED["in the cluster"], DELETED, unwatched=(ROLE_TEMPLATE,))


@pytest.mark.parametrize("template", ["", None])
def test_a_binding_without_a_template_grants_nothing(template: str | None) -> None:
    assert not of_binding(REVOKED["in the cluster"], {**LIVING, "roleTemplateName": template}, TEMPLATE)


@pytest.mark.parametrize("deleted", [True, False])
def test_rights_end_with_the_binding_of_a_project_too(deleted: bool) -> None:
    reader = replace(
        project_bindings.CONTROLLER,
        watches=(*project_bindings.CONTROLLER.watches, Watches(PROVISIONING_CLUSTER)),
        indexes={**project_bindings.CONTROLLER.indexes, **dict.fromkeys(observe_only.MARKED_KINDS, INDEXES)},
    )
    binding = new_object(PROJECT_BINDING, "rita", ID, deleting=deleted, roleTemplateName="reader")
    view = view_of(reader, f"{ID}/rita", (*MARKED, TEMPLATE, binding))
    found = deny_while_observe_only(REVOKED["in the cluster"], view, Reconciled(PROJECT_BINDING, ID))
    assert (found is None) is deleted


def test_the_deletion_of_anything_else_ends_no_rights() -> None:
    view = view_of(READER, f"{NAMESPACE}/gone", MARKED)
    gone = Reconciled(MACHINE, f"{NAMESPACE}/{NAME}")
    for where in ("in the cluster", "in a namespace of the cluster"):
        assert deny_while_observe_only(REVOKED[where], view, gone) is not None


GLOBAL = {
    "node-driver", "dynamic-schema", "secret", "machine-archive", "user", "global-role", "global-role-binding",
    "provisioning-log-archive", "bootstrap-token", "flock",
}  # fmt: skip
"""Controllers whose objects belong to no cluster, or that only expire what is old."""


def test_every_other_controller_names_the_cluster_of_its_objects() -> None:
    """Otherwise its decisions about an observe-only cluster would be executed."""
    all_roles = Roles(core=True, in_memory=True, machines=True, gateway=True, example=True)
    assert {each.name for each in controllers(all_roles) if each.cluster_of is None} == GLOBAL
