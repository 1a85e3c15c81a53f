"""Machines: never more than were asked for, never fewer at work than the strategy says, never one that is paused.

These hold whatever a controller computes. Each counts what is there by itself, from the Machines' controlling owners.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from herder.api.capi.conditions import is_false, is_true
from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET
from herder.api.capi.names import DELETE_MACHINE, REMEDIATE_MACHINE, annotations_of, is_deleting, is_paused
from herder.api.capi.rollout import limits_of
from herder.engine.control.cache import Indexer, controller_in_namespace, owned_by
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Apply, Create, Delete, Refusal
from herder.engine.runtime.executor import Act
from herder.engine.runtime.view import View

AVAILABLE = "available-by-owner"


def _available(machine: Object) -> Iterable[str]:
    return controller_in_namespace(machine) if is_true(machine, "Available") and not is_deleting(machine) else ()


INDEXES: Mapping[str, Indexer] = {AVAILABLE: _available}
"""Whoever declares that it reads Machines under these guards declares these indexes with them."""


# --- creation -------------------------------------------------------------------------------------------------------


def no_machine_in_a_cluster_that_goes(act: Act, view: View, _before: Sequence[Act]) -> Refusal | None:
    machine = _created(act, view)
    cluster = _cluster(machine, view) if machine else None
    if machine is None or cluster is None:
        return None
    if is_deleting(cluster):
        return _refuse("no-machine-in-a-cluster-that-goes", machine, "is not made: its Cluster is being deleted")
    return None


def never_above_the_ceiling(act: Act, view: View, before: Sequence[Act]) -> Refusal | None:
    machine = _created(act, view)
    machine_set = _owner(machine, MACHINE_SET, view) if machine else None
    if machine is None or machine_set is None:
        return None
    owner = _as_owner(machine_set)
    there = view.count(MACHINE, ("controller", owner)) + _made(before, {owner}, view)
    wanted = machine_set["spec"].get("replicas")
    if wanted is not None and there >= wanted:
        message = f"is not made: {there} of {wanted} replicas of MachineSet {machine_set['metadata']['name']} are there"
        return _refuse("never-above-the-ceiling", machine, message)
    deployment = _owner(machine_set, MACHINE_DEPLOYMENT, view)
    if deployment is None or deployment["spec"].get("replicas") is None:
        return None
    owners = _sets(deployment, view)
    there = sum(view.count(MACHINE, ("controller", one)) for one in owners) + _made(before, owners, view)
    ceiling = limits_of(deployment["spec"]).ceiling
    if there < ceiling:
        return None
    name = deployment["metadata"]["name"]
    message = f"is not made: MachineDeployment {name} has {there} Machines, and may have {ceiling}"
    return _refuse("never-above-the-ceiling", machine, message)


# --- deletion -------------------------------------------------------------------------------------------------------


def no_machine_that_is_paused(act: Act, view: View, _before: Sequence[Act]) -> Refusal | None:
    machine = _deleted(act, view)
    if machine is None or not is_paused(_cluster(machine, view), machine):
        return None
    return _refuse("no-machine-that-is-paused", machine, "stays: it is paused")


def never_below_the_minimum(act: Act, view: View, before: Sequence[Act]) -> Refusal | None:
    machine = _deleted(act, view)
    if machine is None or not is_true(machine, "Available") or _is_to_go(machine):
        return None
    machine_set = _owner(machine, MACHINE_SET, view)
    deployment = _owner(machine_set, MACHINE_DEPLOYMENT, view) if machine_set else None
    if machine_set is None or deployment is None or deployment["spec"].get("replicas") is None:
        return None
    cluster = _cluster(machine, view)
    if any(is_deleting(obj) for obj in (machine_set, deployment, cluster or {"metadata": {}})):
        return None
    owners = _sets(deployment, view)
    leaving = 1 + sum(_leaves(other, owners, view) for other in before)
    left = sum(view.count(MACHINE, (AVAILABLE, owner)) for owner in owners) - leaving
    minimum = limits_of(deployment["spec"]).minimum
    if left >= minimum:
        return None
    message = f"stays: {left} available Machines would be left of MachineDeployment {deployment['metadata']['name']}"
    return _refuse("never-below-the-minimum", machine, f"{message}, and {minimum} must be")


def _is_to_go(machine: Object) -> bool:
    """A user, or a health check, wants this very Machine gone."""
    marks = annotations_of(machine)
    return DELETE_MACHINE in marks or REMEDIATE_MACHINE in marks or is_false(machine, "HealthCheckSucceeded")


# --- what acts are about --------------------------------------------------------------------------------------------


def _created(act: Act, view: View) -> Object | None:
    """The Machine that the act would bring into being."""
    if not isinstance(act, (Apply, Create)) or act.kind != MACHINE or act.target:
        return None
    meta = act.obj["metadata"]
    there = view.get(MACHINE, meta["name"], meta.get("namespace", ""))
    return act.obj if there is None else None


def _deleted(act: Act, view: View) -> Object | None:
    """The Machine that the act would take away; one that goes already is not taken away again."""
    if not isinstance(act, Delete) or act.ref.kind != MACHINE or act.target:
        return None
    machine = view.get(MACHINE, act.ref.name, act.ref.namespace)
    return None if machine is None or is_deleting(machine) else machine


def _made(before: Sequence[Act], owners: Iterable[str], view: View) -> int:
    wanted = set(owners)
    return sum(
        (machine := _created(act, view)) is not None and not wanted.isdisjoint(controller_in_namespace(machine))
        for act in before
    )


def _leaves(act: Act, owners: Iterable[str], view: View) -> bool:
    machine = _deleted(act, view)
    return (
        machine is not None
        and is_true(machine, "Available")
        and not set(owners).isdisjoint(controller_in_namespace(machine))
    )


def _owner(obj: Object | None, kind: Kind, view: View) -> Object | None:
    for reference in _controllers(obj or {"metadata": {}}):
        if reference["kind"] == kind.kind and reference["apiVersion"].rpartition("/")[0] == kind.group:
            found = view.get(kind, reference["name"], (obj or {})["metadata"].get("namespace", ""))
            return found if found is not None and found["metadata"]["uid"] == reference["uid"] else None
    return None


def _controllers(obj: Object) -> Iterator[Object]:
    return (each for each in obj["metadata"].get("ownerReferences") or () if each.get("controller"))


def _sets(deployment: Object, view: View) -> set[str]:
    sets = view.select(MACHINE_SET, index=("controller", _as_owner(deployment)))
    return {_as_owner(each) for each in sets}


def _as_owner(obj: Object) -> str:
    return owned_by(obj["metadata"].get("namespace", ""), obj["metadata"]["uid"])


def _cluster(machine: Object, view: View) -> Object | None:
    return view.get(CLUSTER, machine["spec"]["clusterName"], machine["metadata"].get("namespace", ""))


def _refuse(guard: str, machine: Object, message: str) -> Refusal:
    return Refusal(guard, f"Machine {machine['metadata'].get('namespace', '')}/{machine['metadata']['name']} {message}")
