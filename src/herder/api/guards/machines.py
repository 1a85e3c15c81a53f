"""Guards of Machines: respect replicas, maxSurge, maxUnavailable and pausing, whatever a controller computes.

Each guard counts the existing Machines itself, by their controller owner references, in the Cluster of that owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from herder.api.capi.conditions import is_false, is_true
from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET
from herder.api.capi.membership import MEMBERS, cluster_name, member_keys, members_key, of_same_cluster
from herder.api.capi.names import DELETE_MACHINE, REMEDIATE_MACHINE, annotations_of, is_deleting, is_paused
from herder.api.capi.rollout import limits_of
from herder.engine.control.cache import Indexer, owned_by
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Apply, Create, Delete, Refusal
from herder.engine.runtime.executor import Action
from herder.engine.runtime.view import View

AVAILABLE = "available-by-owner"


def _available(machine: Object) -> Iterable[str]:
    return member_keys(machine) if is_true(machine, "Available") and not is_deleting(machine) else ()


INDEXES: Mapping[str, Indexer] = {AVAILABLE: _available, MEMBERS: member_keys}
"""Indexes that every controller reading Machines under these guards must declare."""


# --- creation -------------------------------------------------------------------------------------------------------


def deny_machine_in_deleting_cluster(act: Action, view: View, _before: Sequence[Action]) -> Refusal | None:
    machine = _created(act, view)
    if machine is None:
        return None
    cluster = _cluster(machine, view)
    if cluster is not None and is_deleting(cluster):
        return _refuse("deny-machine-in-deleting-cluster", machine, "creation denied: its Cluster is being deleted")
    return None


def deny_machine_above_maximum(act: Action, view: View, before: Sequence[Action]) -> Refusal | None:
    machine = _created(act, view)
    if machine is None:
        return None
    machine_set = _owner(machine, MACHINE_SET, view)
    if machine_set is None:
        return None
    owner = members_key(machine_set)
    existing = view.count(MACHINE, (MEMBERS, owner)) + _count_created(before, {owner}, view)
    wanted = machine_set["spec"].get("replicas")
    if wanted is not None and existing >= wanted:
        message = f"creation denied: MachineSet {machine_set['metadata']['name']} has {existing} of {wanted} replicas"
        return _refuse("deny-machine-above-maximum", machine, message)
    deployment = _owner(machine_set, MACHINE_DEPLOYMENT, view)
    if deployment is None or deployment["spec"].get("replicas") is None:
        return None
    owners = _sets(deployment, view)
    existing = sum(view.count(MACHINE, (MEMBERS, one)) for one in owners) + _count_created(before, owners, view)
    ceiling = limits_of(deployment["spec"]).ceiling
    if existing < ceiling:
        return None
    name = deployment["metadata"]["name"]
    message = f"creation denied: MachineDeployment {name} has {existing} of at most {ceiling} Machines"
    return _refuse("deny-machine-above-maximum", machine, message)


# --- deletion -------------------------------------------------------------------------------------------------------


def deny_deleting_paused_machine(act: Action, view: View, _before: Sequence[Action]) -> Refusal | None:
    machine = _deleted(act, view)
    if machine is None or not is_paused(_cluster(machine, view), machine):
        return None
    return _refuse("deny-deleting-paused-machine", machine, "deletion denied: it is paused")


def keep_minimum_available_machines(act: Action, view: View, before: Sequence[Action]) -> Refusal | None:
    machine = _deleted(act, view)
    if machine is None or not is_true(machine, "Available") or _deletion_requested(machine):
        return None
    machine_set = _owner(machine, MACHINE_SET, view)
    if machine_set is None:
        return None
    deployment = _owner(machine_set, MACHINE_DEPLOYMENT, view)
    if deployment is None or deployment["spec"].get("replicas") is None:
        return None
    cluster = _cluster(machine, view)
    if any(is_deleting(obj) for obj in (machine_set, deployment, cluster or {"metadata": {}})):
        return None
    owners = _sets(deployment, view)
    deleted = 1 + sum(_deletes_available(other, owners, view) for other in before)
    remaining = sum(view.count(MACHINE, (AVAILABLE, owner)) for owner in owners) - deleted
    minimum = limits_of(deployment["spec"]).minimum
    if remaining >= minimum:
        return None
    message = (
        f"deletion denied: {remaining} available Machines of MachineDeployment {deployment['metadata']['name']} would"
    )
    return _refuse("keep-minimum-available-machines", machine, f"{message} remain, minimum is {minimum}")


def _deletion_requested(machine: Object) -> bool:
    """Whether a user or a health check requests the deletion of this Machine."""
    marks = annotations_of(machine)
    return DELETE_MACHINE in marks or REMEDIATE_MACHINE in marks or is_false(machine, "HealthCheckSucceeded")


# --- subjects of writes ---------------------------------------------------------------------------------------------


def _created(act: Action, view: View) -> Object | None:
    """Return the Machine that the write would create."""
    if not isinstance(act, (Apply, Create)) or act.kind != MACHINE or act.target:
        return None
    meta = act.obj["metadata"]
    existing = view.get(MACHINE, meta["name"], meta["namespace"])
    return act.obj if existing is None else None


def _deleted(act: Action, view: View) -> Object | None:
    """Return the Machine that the write would delete; None if it is being deleted already."""
    if not isinstance(act, Delete) or act.ref.kind != MACHINE or act.target:
        return None
    machine = view.get(MACHINE, act.ref.name, act.ref.namespace)
    return None if machine is None or is_deleting(machine) else machine


def _count_created(before: Sequence[Action], owners: Iterable[str], view: View) -> int:
    wanted = set(owners)
    return sum(
        (machine := _created(act, view)) is not None and not wanted.isdisjoint(member_keys(machine)) for act in before
    )


def _deletes_available(act: Action, owners: Iterable[str], view: View) -> bool:
    machine = _deleted(act, view)
    return machine is not None and is_true(machine, "Available") and not set(owners).isdisjoint(member_keys(machine))


def _owner(obj: Object, kind: Kind, view: View) -> Object | None:
    for reference in _controllers(obj):
        if reference["kind"] == kind.kind and reference["apiVersion"].rpartition("/")[0] == kind.group:
            found = view.get(kind, reference["name"], obj["metadata"]["namespace"])
            return found if found is not None and found["metadata"]["uid"] == reference["uid"] else None
    return None


def _controllers(obj: Object) -> Iterator[Object]:
    return (each for each in obj["metadata"].get("ownerReferences") or () if each.get("controller"))


def _sets(deployment: Object, view: View) -> set[str]:
    meta = deployment["metadata"]
    sets = view.select(MACHINE_SET, index=("controller", owned_by(meta["namespace"], meta["uid"])))
    return {members_key(each) for each in of_same_cluster(sets, cluster_name(deployment))}


def _cluster(machine: Object, view: View) -> Object | None:
    return view.get(CLUSTER, machine["spec"]["clusterName"], machine["metadata"]["namespace"])


def _refuse(guard: str, machine: Object, message: str) -> Refusal:
    return Refusal(guard, f"Machine {machine['metadata']['namespace']}/{machine['metadata']['name']} {message}")
