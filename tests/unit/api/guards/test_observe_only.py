"""Which clusters an action is about, and how an observe-only one is named in the refusal."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api import observe_only
from herder.api.capi.kinds import CLUSTER, MACHINE, NODE, SECRET
from herder.api.capi.names import CLUSTER_NAME
from herder.api.guards import observe_only as guards
from herder.api.machines.jobs import ROLE
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.rke import names
from herder.api.rke.kinds import CONTROL_PLANE
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Apply, Create, Delete, Effect, Patch, Ref, Update
from herder.engine.runtime.executor import Reconciled
from herder.engine.runtime.handlers import Watches
from tests.support.builders import new_object
from tests.support.views import view_of
from tests.unit.api.test_observe_only_guard import ELSEWHERE, ID, MARK, OWN, READER
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.objects import NAME, NAMESPACE, machine

CAUSE = "observe-only (restored from the backup of 2026-01-01T00:00:00Z)"
HINT = "nothing is changed; compare and resume with: herder resume cluster"
PROVISIONING = new_object(PROVISIONING_CLUSTER, NAME, NAMESPACE, annotations=MARK)
MANAGEMENT = new_object(MANAGEMENT_CLUSTER, ID, annotations=MARK, spec={"displayName": "shown"})
KEY = f"{NAMESPACE}/{NAME}"


def refusal(
    action: Any, *existing: Object, reconciled: Reconciled = ELSEWHERE, reader: Controller = READER, key: str = KEY
) -> str:
    found = guards.deny_while_observe_only(action, view_of(reader, key, existing), reconciled)
    return f"{found.guard}: {found.reason}" if found else ""


SYNC = Effect("sync", ("uid",), {}, "sync")


def test_the_refusal_names_the_cluster_as_users_know_it() -> None:
    known = f"observe-only: sync: {CAUSE}: {HINT}"
    assert refusal(SYNC, PROVISIONING, reconciled=OWN) == f"{known} {NAME}"
    by_id = Reconciled(CONTROL_PLANE, ID)
    assert refusal(SYNC, MANAGEMENT, reconciled=by_id) == f"{known} shown"
    for spec in ({}, None, {"displayName": ""}):
        assert refusal(SYNC, {**MANAGEMENT, "spec": spec}, reconciled=by_id) == f"{known} {ID}"
    assert refusal(SYNC, PROVISIONING, reconciled=by_id) == ""
    assert refusal(SYNC, MANAGEMENT, reconciled=OWN) == ""
    assert refusal(SYNC, PROVISIONING) == "", "an action on no cluster"


def labelled(label: str, name: str) -> Object:
    return new_object(SECRET, "x", NAMESPACE, labels={label: name})


def about(name: str, namespace: str = NAMESPACE) -> list[Any]:
    """Actions on this cluster."""
    ref = Ref(PROVISIONING_CLUSTER, name, namespace)
    return [
        Patch(ref, {"spec": {}}, "edit"),
        Delete(Ref(CLUSTER, name, namespace), "uid", "edit"),
        Update(CLUSTER, new_object(CLUSTER, name, namespace), "edit"),
        Apply(NODE, new_object(NODE, "a"), "edit", target=f"{namespace}/{name}"),
        Effect("evict", ("uid",), {"cluster": f"{namespace}/{name}"}, "edit"),
        *(
            [
                Create(SECRET, labelled(CLUSTER_NAME, name), "edit"),
                Apply(SECRET, labelled(names.CLUSTER_NAME, name), "edit"),
                Update(MACHINE, new_object(MACHINE, "a", NAMESPACE, spec={"clusterName": name}), "edit"),
            ]
            if namespace == NAMESPACE
            else []
        ),
    ]


@pytest.mark.parametrize("number", range(8))
def test_all_actions_on_a_cluster_are_denied(number: int) -> None:
    action = about(NAME)[number]
    assert refusal(action, PROVISIONING) == f"observe-only: edit: {CAUSE}: {HINT} {NAME}"
    assert refusal(about("other")[number], PROVISIONING) == ""
    cluster = new_object(CLUSTER, NAME, NAMESPACE, annotations=MARK)
    assert refusal(action, cluster) != ""
    if number < 5:
        assert refusal(about(NAME, "elsewhere")[number], PROVISIONING) == ""


@pytest.mark.parametrize("spec", [None, {}, {"clusterName": None}, {"clusterName": 7}, {"clusterName": ""}, "text"])
def test_objects_that_name_no_cluster(spec: Any) -> None:
    obj: Object = {**new_object(SECRET, "x", NAMESPACE, labels={CLUSTER_NAME: ""}), "spec": spec}
    assert refusal(Create(SECRET, obj, "a Secret"), PROVISIONING) == ""


def test_the_written_object_is_looked_up() -> None:
    patch = Patch(Ref(MACHINE, "a", NAMESPACE), {"spec": {}}, "edit")
    assert refusal(patch, PROVISIONING, machine("a")) != ""
    assert refusal(patch, PROVISIONING, machine("b")) == ""
    assert refusal(Patch(Ref(ROLE, "a", NAMESPACE), {}, "edit", target="other"), PROVISIONING) == "", "not watched"
    same_name = Patch(Ref(SECRET, ID, NAMESPACE), {"data": {}}, "edit")
    assert refusal(same_name, MANAGEMENT) == "", "a Secret that is called as the cluster"
    nameless = Create(SECRET, {"metadata": {}}, "a generated name")
    assert refusal(nameless, PROVISIONING) == ""
    assert (
        refusal(Patch(Ref(MANAGEMENT_CLUSTER, ID), {}, "edit"), MANAGEMENT)
        == f"observe-only: edit: {CAUSE}: {HINT} shown"
    )
    assert refusal(Effect("sync", ("uid",), {"cluster": 7}, "sync"), PROVISIONING) == ""


# --- harmless actions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "performer",
    [
        names.READ_OBJECT,
        names.READ_REQUEST,
        "read-secret",
        "list-names",
        "find",
        "pod-log",
        "driver-flags",
        "serve-workload",
        "cluster-kubeconfig",
    ],
)
def test_effects_that_change_nothing(performer: str) -> None:
    assert {performer} <= guards.READING | guards.SERVING
    assert len(guards.READING) + len(guards.SERVING) == 9
    assert refusal(Effect(performer, ("uid",), {}, "input"), PROVISIONING, reconciled=OWN) == ""


def status(kind: Any, name: str, namespace: str = NAMESPACE, subresource: str = "status") -> Patch:
    return Patch(Ref(kind, name, namespace), {"status": {}}, "progress", subresource)


@pytest.mark.parametrize(
    ("action", "denied"),
    [
        (status(CONTROL_PLANE, NAME), False),
        (status(CONTROL_PLANE, "another"), True),
        (status(CONTROL_PLANE, NAME, "elsewhere"), True),
        (status(CLUSTER, NAME), True),
        (status(CONTROL_PLANE, NAME, subresource=""), True),
        (status(CONTROL_PLANE, NAME, subresource="scale"), True),
        (Apply(CONTROL_PLANE, objects.control_plane(), "progress", "status"), False),
        (Update(CONTROL_PLANE, objects.control_plane(), "progress", "status"), False),
        (Update(CONTROL_PLANE, objects.control_plane(), "progress"), True),
        (Create(CONTROL_PLANE, objects.control_plane(), "progress"), True),
        (Delete(Ref(CONTROL_PLANE, NAME, NAMESPACE), "uid", "progress"), True),
        (Patch(Ref(CONTROL_PLANE, NAME, NAMESPACE), {}, "progress", "status", target=KEY), True),
    ],
)
def test_only_the_own_status_is_written(action: Any, denied: bool) -> None:
    assert bool(refusal(action, PROVISIONING, objects.control_plane(), reconciled=OWN)) is denied


# --- how many are observe-only ----------------------------------------------------------------------------------------


def test_marks_are_found_with_and_without_an_index() -> None:
    unwatched = Controller("reader", CONTROL_PLANE, lambda _view: DONE)
    assert refusal(SYNC, PROVISIONING, reconciled=OWN, reader=unwatched) == ""
    watches = (Watches(PROVISIONING_CLUSTER), Watches(CLUSTER))
    unindexed = Controller("reader", CONTROL_PLANE, lambda _view: DONE, watches=watches)
    assert refusal(SYNC, PROVISIONING, reconciled=OWN, reader=unindexed) != ""
    assert refusal(SYNC, reconciled=OWN, reader=unindexed) == ""
    indexes: Any = {PROVISIONING_CLUSTER: observe_only.INDEXES}
    indexed = Controller("reader", CONTROL_PLANE, lambda _view: DONE, watches=watches[:1], indexes=indexes)
    assert refusal(SYNC, PROVISIONING, reconciled=OWN, reader=indexed) != ""
