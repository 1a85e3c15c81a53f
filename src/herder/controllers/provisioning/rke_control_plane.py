"""Reconcile an RKEControlPlane apart from rollouts (see the planner): agent connection, finalizer and deletion."""

from __future__ import annotations

from collections.abc import Iterable

from herder.api.capi.conditions import Condition
from herder.api.capi.contract import refers_to
from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.capi.names import is_deleting, key_of_cluster, labels_of
from herder.api.machines.conditions import merged_with_updates
from herder.api.management import clusters
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.rke import names
from herder.api.rke.kinds import CONTROL_PLANE, CUSTOM_MACHINE
from herder.api.rke.machines.removal import BY_CLUSTER, cluster_of, machine_removal_condition, of_cluster
from herder.api.writes import delete, object_patch, status_patch
from herder.engine.control.cache import Change, Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Write, waiting
from herder.engine.runtime.handlers import Indexed, Watches, changed, itself
from herder.engine.runtime.view import View

BY_MANAGEMENT = "management-of-plane"


def reconcile(view: View) -> Decision:
    plane = view.get(CONTROL_PLANE, view.name)
    if plane is None:
        return DONE
    if is_deleting(plane):
        return _remove(view, plane)
    if names.REMOVE_CONTROL_PLANE not in (plane["metadata"].get("finalizers") or ()):
        return Decision(writes=_finalizer(plane, add=True))
    management = view.get(MANAGEMENT_CLUSTER, plane["spec"]["managementClusterName"])
    connected = management is not None and clusters.is_connected(management)
    status = {**(plane.get("status") or {}), "agentConnected": connected}
    writes = status_patch(CONTROL_PLANE, plane, status, "state of the agent connection")
    return Decision(writes=writes)


# --- removal ----------------------------------------------------------------------------------------------------------


def _remove(view: View, plane: Object) -> Decision:
    """Delete the machines first. Registered machines belong to no pool, so only this controller deletes them."""
    if names.REMOVE_CONTROL_PLANE not in (plane["metadata"].get("finalizers") or ()):
        return DONE
    found = of_cluster(view, MACHINE, view.name) if not _is_unused(view) else []
    machines = [each for each in found if names.CONTROL_PLANE_ROLE in labels_of(each)]
    removed = machine_removal_condition(machines)
    if removed is None:
        return Decision(writes=_finalizer(plane, add=False))
    registered = [each for each in machines if _is_registered(each) and not is_deleting(each)]
    deletes = tuple(delete(MACHINE, each, "its cluster is deleted") for each in registered)
    return Decision(writes=(*deletes, *_report_status(view, plane, removed))) + waiting(removed["message"])


def _is_unused(view: View) -> bool:
    """Whether the Cluster of this name has another control plane: its machines are not ours to delete."""
    cluster = view.get(CLUSTER, view.name)
    reference = ((cluster or {}).get("spec") or {}).get("controlPlaneRef")
    return cluster is not None and not refers_to(reference, CONTROL_PLANE, view.name)


def _is_registered(machine: Object) -> bool:
    reference = (machine.get("spec") or {}).get("infrastructureRef") or {}
    return (reference.get("apiGroup"), reference.get("kind")) == CUSTOM_MACHINE.group_kind


def _report_status(view: View, plane: Object, removed: Condition) -> tuple[Write, ...]:
    before = plane.get("status") or {}
    status = {**before, "conditions": merged_with_updates(before.get("conditions"), [removed], view.now)}
    return status_patch(CONTROL_PLANE, plane, status, "progress of the deletion")


def _finalizer(plane: Object, *, add: bool) -> tuple[Write, ...]:
    others = [each for each in plane["metadata"].get("finalizers") or () if each != names.REMOVE_CONTROL_PLANE]
    wanted = [*others, names.REMOVE_CONTROL_PLANE] if add else others
    changed_ = {**plane, "metadata": {**plane["metadata"], "finalizers": wanted}}
    reason = "its machines must be deleted first" if add else "all of its machines are deleted"
    return object_patch(CONTROL_PLANE, plane, changed_, reason)


# --- watches ----------------------------------------------------------------------------------------------------------


def _management_name(plane: Object) -> Iterable[str]:
    """Index by management Cluster."""
    return (plane["spec"]["managementClusterName"],)


def _name(obj: Object) -> Iterable[str]:
    return (obj["metadata"]["name"],)


def _control_plane_of(machine: Object) -> Iterable[Key]:
    return (Key(*place.split("/", 1)) for place in cluster_of(machine))


def _is_deleted(change: Change) -> bool:
    """Whether a Machine is gone, or being deleted: its conditions say why that takes time."""
    return change.new is None or is_deleting(change.new)


CONTROLLER = Controller(
    name="rke-control-plane",
    kind=CONTROL_PLANE,
    reconcile=reconcile,
    predicate=changed("metadata.generation", "metadata.finalizers", "metadata.deletionTimestamp"),
    watches=(
        Watches(
            MANAGEMENT_CLUSTER,
            Indexed(BY_MANAGEMENT, _name),
            # The gateway reports the agent's connection in an annotation.
            changed("metadata.annotations"),
        ),
        Watches(MACHINE, _control_plane_of, _is_deleted),
        Watches(CLUSTER, itself, changed("spec.controlPlaneRef"), optional=True),
    ),
    indexes={CONTROL_PLANE: {BY_MANAGEMENT: _management_name}, MACHINE: {BY_CLUSTER: cluster_of}},
    cluster_of=key_of_cluster,
)
