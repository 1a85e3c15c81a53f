"""Messages of the guards of Machines, and which writes and owners they count."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.kinds import MACHINE, MACHINE_SET
from herder.api.guards import GUARDS
from herder.api.guards.machines import INDEXES
from herder.api.machines.archive import CONFIG_MAP
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Apply, Create, Delete, Ref, Update
from tests.support.builders import new_condition, new_machine, owner_reference
from tests.support.views import view_of
from tests.unit.api.test_machine_guards import (
    READER,
    THREE,
    cluster,
    creates,
    deletes,
    deployment,
    machine,
    machine_set,
)

FOUR = [*THREE, machine("d")]
NEW_SET = machine_set("new")


def refusal(action: Any, *objects: Object, before: tuple[Any, ...] = (), key: str = "ns/x") -> str:
    """The first refusal, as GUARD: REASON; "" if the action is allowed. `key`: the object of the decision."""
    found = [each for guard in GUARDS if (each := guard(action, view_of(READER, key, objects), before))]
    return f"{found[0].guard}: {found[0].reason}" if found else ""


def without(obj: Object, *path: str) -> Object:
    """The object without this field."""
    head, *rest = path
    if not rest:
        return {name: value for name, value in obj.items() if name != head}
    return {**obj, head: without(obj[head], *rest)}


# --- creation ---------------------------------------------------------------------------------------------------------


def test_messages_about_creations() -> None:
    deleting = "deny-machine-in-deleting-cluster: Machine ns/a creation denied: its Cluster is being deleted"
    assert refusal(creates("a"), cluster(deleting=True), machine_set()) == deleting
    assert refusal(Create(MACHINE, machine("a"), "wanted"), cluster(deleting=True), machine_set()) == deleting
    assert refusal(creates("a"), machine_set()) == "", "a Cluster that is not known"
    full = "deny-machine-above-maximum: Machine ns/d creation denied: MachineSet ms has 3 of 3 replicas"
    assert refusal(creates("d"), cluster(), *THREE, machine_set()) == full
    assert refusal(creates("d"), cluster(), *THREE, machine_set(replicas=4)) == ""
    above = "deny-machine-above-maximum: Machine ns/e creation denied: MachineDeployment md has 4 of at most 4 Machines"
    old = machine_set(replicas=9)
    assert refusal(creates("e", "new"), cluster(), *FOUR, old, NEW_SET, deployment(3)) == above
    assert refusal(creates("e", "new"), cluster(), *FOUR, old, NEW_SET, deployment(3, surge=2)) == ""
    assert refusal(creates("e", "new"), cluster(), *FOUR, old, NEW_SET) == "", "a deployment that is not known"


def test_owners_without_replicas_limit_nothing() -> None:
    unset = without(machine_set(), "spec", "replicas")
    assert refusal(creates("d"), cluster(), *THREE, unset) == ""
    assert refusal(creates("d"), cluster(), *THREE, unset, without(deployment(3), "spec", "replicas")) == ""
    assert "MachineDeployment md has 3 of at most 3" in refusal(creates("d"), cluster(), *THREE, unset, deployment(2))
    none = machine_set(replicas=0)
    assert refusal(creates("d"), cluster(), none).endswith("MachineSet ms has 0 of 0 replicas")
    assert refusal(deletes("a"), cluster(), *THREE, machine_set(), without(deployment(3), "spec", "replicas")) == ""


@pytest.mark.parametrize(
    ("before", "denied"),
    [
        ((), False),
        ((creates("e"),), True),
        ((Create(MACHINE, machine("e"), "wanted"),), True),
        ((creates("a"),), False),
        ((creates("e", "other"),), False),
        ((Apply(MACHINE, machine("e", cluster="other"), "wanted"),), False),
        ((Apply(MACHINE, machine("e"), "wanted", target="downstream"),), False),
        ((Update(MACHINE, machine("e"), "wanted"),), False),
        ((deletes("a"),), False),
    ],
)
def test_creations_of_one_decision_count_together(before: tuple[Any, ...], denied: bool) -> None:
    found = refusal(creates("d"), cluster(), *THREE[:2], machine_set(), before=before)
    assert found == (
        "deny-machine-above-maximum: Machine ns/d creation denied: MachineSet ms has 3 of 3 replicas" if denied else ""
    )


def test_which_writes_create_a_machine() -> None:
    full = (cluster(), *THREE, machine_set())
    config_map = {**machine("d"), "kind": "ConfigMap", "apiVersion": "v1"}
    allowed: list[Any] = [
        creates("a"),
        Apply(MACHINE, machine("d"), "wanted", target="downstream"),
        Apply(CONFIG_MAP, config_map, "a log"),
        Update(MACHINE, machine("d"), "wanted"),
    ]
    assert [refusal(action, *full) for action in allowed] == [""] * len(allowed)


@pytest.mark.parametrize(
    "changes",
    [
        {"controller": False},
        {"uid": "another"},
        {"kind": "MachinePool"},
        {"apiVersion": "example.com/v1"},
        {"name": "unknown"},
    ],
)
def test_only_the_controller_owner_counts(changes: dict[str, Any]) -> None:
    """A write that names no MachineSet of this cluster has no limit here: the MachineSet does not count it either."""
    owner = {**owner_reference(MACHINE_SET, "ms"), **changes}
    other = new_machine("d", "ns", cluster="c", owners=[owner])
    assert refusal(Apply(MACHINE, other, "wanted"), cluster(), *THREE, machine_set()) == ""
    second = new_machine("d", "ns", cluster="c", owners=[owner, owner_reference(MACHINE_SET, "ms")])
    expected = changes in ({"controller": False}, {"kind": "MachinePool"}, {"apiVersion": "example.com/v1"})
    assert bool(refusal(Apply(MACHINE, second, "wanted"), cluster(), *THREE, machine_set())) is expected


def test_a_machine_without_owners_has_no_limit() -> None:
    alone = new_machine("d", "ns", cluster="c")
    assert refusal(Apply(MACHINE, alone, "wanted"), cluster(), *THREE, machine_set()) == ""
    available = new_machine("a", "ns", cluster="c", status={"conditions": [new_condition("Available", "True")]})
    assert refusal(deletes("a"), cluster(), available, machine_set(), deployment(3)) == ""


# --- deletion ---------------------------------------------------------------------------------------------------------


def test_messages_about_deletions() -> None:
    paused = "deny-deleting-paused-machine: Machine ns/a deletion denied: it is paused"
    assert refusal(deletes("a"), cluster(paused=True), machine("a")) == paused
    message = (
        "keep-minimum-available-machines: Machine ns/a deletion denied: 2 available Machines of MachineDeployment md "
        "would remain, minimum is 3"
    )
    assert refusal(deletes("a"), cluster(), *THREE, machine_set(), deployment(3)) == message
    assert refusal(deletes("a"), *THREE, machine_set(), deployment(3)) == message, "a Cluster that is not known"


@pytest.mark.parametrize(
    ("objects", "denied"),
    [
        ([cluster(deleting=True), machine_set(), deployment(3)], False),
        ([cluster(), machine_set(deleting=True), deployment(3)], False),
        ([cluster(), machine_set(), deployment(3, deleting=True)], False),
        ([cluster(), machine_set()], False),
        ([cluster(), deployment(3)], False),
        ([cluster(), machine_set(), deployment(0)], False),
        ([cluster(), machine_set(), deployment(3, unavailable=2)], False),
    ],
)
def test_whose_machines_are_counted(objects: list[Object], denied: bool) -> None:
    assert bool(refusal(deletes("a"), *THREE, *objects)) is denied


@pytest.mark.parametrize(
    ("changes", "denied"),
    [
        ({}, True),
        ({"annotations": {"cluster.x-k8s.io/delete-machine": ""}}, False),
        ({"annotations": {"cluster.x-k8s.io/remediate-machine": ""}}, False),
        ({"annotations": {"another": ""}}, True),
        ({"available": False}, False),
        ({"deleting": True}, False),
    ],
)
def test_requested_deletions_are_allowed(changes: dict[str, Any], denied: bool) -> None:
    found = refusal(deletes("a"), cluster(), machine("a", **changes), *THREE[1:], machine_set(), deployment(3))
    assert bool(found) is denied


@pytest.mark.parametrize(("status", "denied"), [("False", False), ("True", True), ("Unknown", True)])
def test_unhealthy_machines_are_deleted(status: str, denied: bool) -> None:
    own = machine("a")
    own["status"]["conditions"].append(new_condition("HealthCheckSucceeded", status))
    assert bool(refusal(deletes("a"), cluster(), own, *THREE[1:], machine_set(), deployment(3))) is denied


@pytest.mark.parametrize(
    ("before", "denied"),
    [
        ((), False),
        ((deletes("b"),), True),
        ((deletes("x"),), False),
        ((deletes("gone"),), False),
        ((deletes("unknown"),), False),
        ((deletes("broken"),), False),
        ((Delete(Ref(MACHINE, "b", "ns"), "uid", "too many", target="downstream"),), False),
        ((Delete(Ref(CONFIG_MAP, "b", "ns"), "uid", "a log"),), False),
        ((creates("e"),), False),
    ],
)
def test_deletions_of_one_decision_count_together(before: tuple[Any, ...], denied: bool) -> None:
    """Of available Machines of the same deployment."""
    others = [machine("x", "other"), machine("gone", deleting=True), machine("broken", available=False)]
    objects = (cluster(), *THREE, *others, machine_set(), machine_set("other"), deployment(2))
    objects = (*objects[:-2], without(machine_set("other"), "metadata", "ownerReferences"), objects[-1])
    assert bool(refusal(deletes("a"), *objects, before=before)) is denied


def test_which_writes_delete_a_machine() -> None:
    paused = (cluster(paused=True), *THREE, machine_set(), deployment(3))
    allowed: list[Any] = [
        Delete(Ref(MACHINE, "a", "ns"), "uid", "too many", target="downstream"),
        Delete(Ref(MACHINE_SET, "a", "ns"), "uid", "a set"),
        Delete(Ref(MACHINE, "unknown", "ns"), "uid", "too many"),
        creates("e", "unknown"),
    ]
    assert [refusal(action, *paused) for action in allowed] == [""] * len(allowed)
    assert refusal(deletes("a"), cluster(paused=True), machine("a", deleting=True)) == ""


def test_sets_and_clusters_are_those_of_the_namespace_and_cluster() -> None:
    foreign = machine_set("foreign")
    foreign["spec"]["clusterName"] = "other"
    stranger = machine("z", "foreign")
    objects = (cluster(), *THREE, stranger, machine_set(), foreign, deployment(3))
    assert "2 available Machines" in refusal(deletes("a"), *objects)
    elsewhere = [{**each, "metadata": {**each["metadata"], "namespace": "other"}} for each in (cluster(paused=True),)]
    assert refusal(deletes("a"), *elsewhere, *FOUR, machine_set(), deployment(3)) == ""


def test_indexes_of_available_machines() -> None:
    assert set(INDEXES) == {"available-by-owner", "members"}
    available = INDEXES["available-by-owner"]
    assert list(available(machine("a"))) == list(INDEXES["members"](machine("a"))) != []
    assert list(available(machine("a", available=False))) == []
    assert list(available(machine("a", deleting=True))) == []


@pytest.mark.parametrize("key", ["ns/x", "elsewhere/x", "x"])
def test_the_namespace_is_that_of_the_machine_wherever_the_decision_is_made(key: str) -> None:
    deleting = refusal(creates("a"), cluster(deleting=True), machine_set(), key=key)
    assert deleting.startswith("deny-machine-in-deleting-cluster: ")
    full = refusal(creates("d"), cluster(), *THREE, machine_set(), key=key)
    assert full.startswith("deny-machine-above-maximum: ")
    assert refusal(creates("c"), cluster(), *THREE, machine_set(), key=key) == "", "it exists"
    above = refusal(creates("e"), cluster(), *FOUR, machine_set(replicas=9), deployment(3), key=key)
    assert above.endswith("MachineDeployment md has 4 of at most 4 Machines")
    assert refusal(deletes("a"), cluster(paused=True), machine("a"), key=key).startswith("deny-deleting-paused-machine")
    few = refusal(deletes("a"), cluster(), *THREE, machine_set(), deployment(3), key=key)
    assert few.startswith("keep-minimum-available-machines: ")


def test_a_set_of_another_namespace_does_not_count() -> None:
    """Its author can name the UID of any deployment."""
    claimed = [{**each, "metadata": {**each["metadata"], "namespace": "other"}} for each in (*FOUR, machine_set())]
    objects = (cluster(), *THREE, machine_set(replicas=9), deployment(3))
    assert refusal(creates("e"), *objects, *claimed) == ""
    assert "2 available Machines" in refusal(deletes("a"), *objects, *claimed)
