"""The life of an RKEControlPlane around its planner: whether its agent is connected, how many machines it has, how it
goes."""

from __future__ import annotations

from collections.abc import Iterable

from herder.api.capi.conditions import Condition
from herder.api.capi.kinds import MACHINE
from herder.api.capi.names import is_deleting, labels_of
from herder.api.machines.conditions import merged_with_updates
from herder.api.management import clusters
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.rke import names
from herder.api.rke.kinds import CONTROL_PLANE, CUSTOM_MACHINE
from herder.api.rke.removal import BY_CLUSTER, cluster_of, machine_leaving, of_cluster
from herder.api.writing import PROGRESS_PATIENCE, delete, object_patch, status_patch
from herder.engine.control.cache import Change, Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Write, waiting
from herder.engine.runtime.handlers import Indexed, Watches, changed
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
    writes = status_patch(CONTROL_PLANE, plane, status, "what is known of its cluster")
    return Decision(writes=(*writes, *_count(view, management)))


def _count(view: View, management: Object | None) -> tuple[Write, ...]:
    """For the management Cluster: machines that are no Nodes yet count too."""
    if management is None or is_deleting(management) or clusters.made_for(management) != str(view.key):
        return ()
    before = management.get("status") or {}
    info = {**(before.get("info") or {}), "nodeCount": len(of_cluster(view, MACHINE, view.name))}
    status = {**before, "info": info}
    return status_patch(MANAGEMENT_CLUSTER, management, status, "how many machines it has", patience=PROGRESS_PATIENCE)


# --- removal --------------------------------------------------------------------------------------------------------


def _remove(view: View, plane: Object) -> Decision:
    """Its machines first. Those that people registered belong to no pool, so nobody else deletes them."""
    if names.REMOVE_CONTROL_PLANE not in (plane["metadata"].get("finalizers") or ()):
        return DONE
    machines = [each for each in of_cluster(view, MACHINE, view.name) if names.CONTROL_PLANE_ROLE in labels_of(each)]
    leaving = machine_leaving(machines)
    if leaving is None:
        return Decision(writes=_finalizer(plane, add=False))
    registered = [each for each in machines if _is_registered(each) and not is_deleting(each)]
    deletes = tuple(delete(MACHINE, each, "its cluster is deleted") for each in registered)
    return Decision(writes=(*deletes, *_report_status(view, plane, leaving))) + waiting(leaving["message"])


def _is_registered(machine: Object) -> bool:
    reference = (machine.get("spec") or {}).get("infrastructureRef") or {}
    return (reference.get("apiGroup"), reference.get("kind")) == CUSTOM_MACHINE.group_kind


def _report_status(view: View, plane: Object, leaving: Condition) -> tuple[Write, ...]:
    before = plane.get("status") or {}
    status = {**before, "conditions": merged_with_updates(before.get("conditions"), [leaving], view.now)}
    return status_patch(CONTROL_PLANE, plane, status, "how far its removal has got")


def _finalizer(plane: Object, *, add: bool) -> tuple[Write, ...]:
    others = [each for each in plane["metadata"].get("finalizers") or () if each != names.REMOVE_CONTROL_PLANE]
    wanted = [*others, names.REMOVE_CONTROL_PLANE] if add else others
    changed_ = {**plane, "metadata": {**plane["metadata"], "finalizers": wanted}}
    reason = "its machines are to go before it" if add else "none of its machines is left"
    return object_patch(CONTROL_PLANE, plane, changed_, reason)


# --- what sets it off -----------------------------------------------------------------------------------------------


def _management_name(plane: Object) -> Iterable[str]:
    """Indexer."""
    return (plane["spec"]["managementClusterName"],)


def _name(obj: Object) -> Iterable[str]:
    return (obj["metadata"]["name"],)


def _planes_of(machine: Object) -> Iterable[Key]:
    return (Key(*place.split("/", 1)) for place in cluster_of(machine))


def _comes_or_leaves(change: Change) -> bool:
    """A Machine that is new, that goes, or cannot."""
    return change.old is None or change.new is None or is_deleting(change.new)


CONTROLLER = Controller(
    name="rke-control-plane",
    kind=CONTROL_PLANE,
    reconcile=reconcile,
    predicate=changed("metadata.generation", "metadata.finalizers", "metadata.deletionTimestamp"),
    watches=(
        Watches(
            MANAGEMENT_CLUSTER,
            Indexed(BY_MANAGEMENT, _name),
            # By the first the gateway tells that an agent is connected.
            changed("metadata.annotations", "status.info.nodeCount"),
        ),
        Watches(MACHINE, _planes_of, _comes_or_leaves),
    ),
    indexes={CONTROL_PLANE: {BY_MANAGEMENT: _management_name}, MACHINE: {BY_CLUSTER: cluster_of}},
)
