"""The conditions of a Cluster, each from what it is about to what is said."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from herder.api.capi.conditions import (
    Condition,
    InvalidCondition,
    Priority,
    Reasons,
    aggregate,
    condition,
    default_priority,
    find,
    mirror,
    paused_condition,
    reported,
    summary,
)
from herder.api.capi.contract import control_plane, infra_cluster
from herder.controllers.capi.cluster import members
from herder.controllers.capi.cluster.connection import probe
from herder.controllers.capi.cluster.scene import Scene
from herder.controllers.capi.externals import External
from herder.engine.meta.kinds import Object

NAMES_SHOWN = 3
SETTLING = timedelta(seconds=10)
"""What a new Machine has to say for itself before its silence is told: else conditions flicker at each creation."""

TOPOLOGY_PENDING = "Waiting for cluster topology to be reconciled"

_GONE = ("ObjectDeleted", "ObjectDoesNotExist")


def conditions_of(scene: Scene, deleting: Condition) -> list[Condition]:
    parts = [
        deleting,
        probe(scene),
        _infrastructure_ready(scene),
        _control_plane_initialized(scene),
        _control_plane_available(scene),
        _workers_available(scene),
        _machines_ready(scene, "ControlPlaneMachinesReady", members.CONTROL_PLANE_MACHINE),
        _machines_ready(scene, "WorkerMachinesReady", members.WORKER),
        _machines_up_to_date(scene, "ControlPlaneMachinesUpToDate", members.CONTROL_PLANE_MACHINE),
        _machines_up_to_date(scene, "WorkerMachinesUpToDate", members.WORKER),
        _activity(scene, "RollingOut", scene.members.deployments),
        _activity(scene, "ScalingUp", [*scene.members.deployments, *scene.members.standalone_sets]),
        _activity(scene, "ScalingDown", [*scene.members.deployments, *scene.members.standalone_sets]),
        _remediating(scene),
        paused_condition(scene.cluster, scene.cluster),
    ]
    return [_available(scene, parts), *parts]


def settled_at(scene: Scene) -> datetime | None:
    """When the next new Machine that says nothing of UpToDate stops being excused."""
    roles = (members.CONTROL_PLANE_MACHINE, members.WORKER)
    young = [machine for role in roles for machine in _settling(scene, role)]
    return min((_created(machine) + SETTLING for machine in young), default=None)


# --- what the Cluster names -----------------------------------------------------------------------------------------


def _infrastructure_ready(scene: Scene) -> Condition:
    type_ = "InfrastructureReady"
    external = scene.infrastructure
    if external is None:
        return _topology_pending(scene, type_, "False") or condition(type_, "True", "Ready")
    kind = scene.cluster["spec"]["infrastructureRef"]["kind"]
    if external.obj is None:
        return _absent(scene, type_, external, kind, was_there=scene.provisioned)
    if scene.provisioned:
        fallback = condition(type_, "True", "Ready")
    else:
        fallback = condition(type_, "False", "NotReady", f"{kind} status.initialization.provisioned is false")
    return mirror(external.obj, infra_cluster.READY, type_, fallback=fallback, reason_if_true="Ready")


def _control_plane_available(scene: Scene) -> Condition:
    type_ = "ControlPlaneAvailable"
    external = scene.control_plane
    if external is None:
        return _topology_pending(scene, type_, "False") or _standalone_control_plane_available(scene, type_)
    kind = scene.cluster["spec"]["controlPlaneRef"]["kind"]
    if external.obj is None:
        return _absent(scene, type_, external, kind, was_there=scene.initialized)
    if scene.initialized:
        fallback = condition(type_, "True", "Available")
    else:
        message = f"{kind} status.initialization.controlPlaneInitialized is false"
        fallback = condition(type_, "False", "NotAvailable", message)
    return mirror(external.obj, control_plane.AVAILABLE, type_, fallback=fallback, reason_if_true="Available")


def _standalone_control_plane_available(scene: Scene, type_: str) -> Condition:
    if scene.initialized:
        return condition(type_, "True", "Available")
    return condition(type_, "False", "NotAvailable", "Control plane not yet initialized")


def _control_plane_initialized(scene: Scene) -> Condition:
    """Kept once it is true; but who sets it to false, as a restore of etcd does, has it found out anew."""
    type_ = "ControlPlaneInitialized"
    known = find(scene.cluster, type_)
    if known is not None and known["status"] == "True":
        return known
    if scene.initialized_now:
        return condition(type_, "True", "Initialized")
    external = scene.control_plane
    if external is None:
        message = "Waiting for the first control plane machine to have status.nodeRef set"
        return _topology_pending(scene, type_, "Unknown") or condition(type_, "False", "NotInitialized", message)
    if external.problem:
        return condition(type_, "Unknown", "InternalError", external.problem)
    if external.obj is None:
        kind = scene.cluster["spec"]["controlPlaneRef"]["kind"]
        return condition(type_, "Unknown", "ObjectDoesNotExist", f"{kind} does not exist")
    return condition(type_, "False", "NotInitialized", "Control plane not yet initialized")


def _absent(scene: Scene, type_: str, external: External, kind: str, *, was_there: bool) -> Condition:
    if external.problem:
        return condition(type_, "Unknown", "InternalError", external.problem)
    if not was_there:
        return condition(type_, "False", "ObjectDoesNotExist", f"{kind} does not exist")
    while_running = "" if scene.deleting else " while the cluster still exists"
    return condition(type_, "False", "ObjectDeleted", f"{kind} has been deleted{while_running}")


def _topology_pending(scene: Scene, type_: str, status: str) -> Condition | None:
    if not scene.has_topology:
        return None
    return condition(type_, status, "ObjectDoesNotExist", "" if scene.deleting else TOPOLOGY_PENDING)


# --- what is in the cluster -----------------------------------------------------------------------------------------


def _workers_available(scene: Scene) -> Condition:
    return aggregate(
        "WorkersAvailable",
        scene.members.deployments,
        "Available",
        reasons=Reasons("NotAvailable", "AvailableUnknown", "Available"),
        none=condition("WorkersAvailable", "True", "NoWorkers"),
    )


def _machines_ready(scene: Scene, type_: str, role: str) -> Condition:
    total = scene.members.count(role, members.JUDGED)
    unready = scene.members.machines(role, members.UNREADY)
    return _judgement(type_, total, unready, "Ready", Reasons("NotReady", "ReadyUnknown", "Ready"))


def _machines_up_to_date(scene: Scene, type_: str, role: str) -> Condition:
    settling = {machine["metadata"]["name"] for machine in _settling(scene, role)}
    total = scene.members.count(role, members.JUDGED) - len(settling)
    outdated = [
        obj for obj in scene.members.machines(role, members.OUTDATED) if obj["metadata"]["name"] not in settling
    ]
    return _judgement(type_, total, outdated, "UpToDate", Reasons("NotUpToDate", "UpToDateUnknown", "UpToDate"))


def _judgement(type_: str, total: int, reports: Sequence[Object], source: str, reasons: Reasons) -> Condition:
    """An aggregate over all Machines, of which only those that have something to tell need be read."""
    none = condition(type_, "True", reasons.info if total else "NoReplicas")
    return aggregate(type_, reports, source, reasons=reasons, none=none)


def _settling(scene: Scene, role: str) -> list[Object]:
    return [
        machine
        for machine in scene.members.machines(role, members.OUTDATED)
        if find(machine, "UpToDate") is None and scene.view.now - _created(machine) < SETTLING
    ]


def _created(machine: Object) -> datetime:
    return datetime.fromisoformat(machine["metadata"]["creationTimestamp"])


def _activity(scene: Scene, type_: str, objects: Sequence[Object]) -> Condition:
    """Something that goes on in the control plane or the workers; nothing does is the good state."""
    plane = scene.control_plane
    if plane is not None and plane.problem:
        return condition(type_, "Unknown", "InternalError", plane.problem)
    return aggregate(
        type_,
        [*_if_reporting(plane, type_), *objects],
        type_,
        reasons=Reasons(type_, f"{type_}Unknown", f"Not{type_}"),
        negative=True,
        none=condition(type_, "False", f"Not{type_}"),
        find_in=reported,
    )


def _if_reporting(plane: External | None, type_: str) -> list[Object]:
    """Control planes need not have the condition: those that do not have it have nothing to say."""
    try:
        has_it = plane is not None and reported(plane.obj, type_) is not None
    except InvalidCondition:
        has_it = False
    return [plane.obj] if has_it and plane is not None and plane.obj is not None else []


def _remediating(scene: Scene) -> Condition:
    type_ = "Remediating"
    quiet = condition(type_, "False", "NotRemediating", _unhealthy(scene.members.machine_names(members.UNHEALTHY)))
    machines = scene.members.machines(members.TO_REMEDIATE)
    reasons = Reasons("Remediating", "Remediating", "Remediating")
    found = aggregate(type_, machines, "OwnerRemediated", reasons=reasons, none=quiet)
    return {**found, "status": "True"} if machines else quiet


def _unhealthy(names: list[str]) -> str:
    if not names:
        return ""
    shown = ", ".join(names[:NAMES_SHOWN])
    if len(names) > NAMES_SHOWN:
        shown += f", ... ({len(names) - NAMES_SHOWN} more)"
    some = f"Machine {shown} is" if len(names) == 1 else f"Machines {shown} are"
    return f"{some} not healthy (not to be remediated)"


# --- all of it ------------------------------------------------------------------------------------------------------


def _available(scene: Scene, parts: Sequence[Condition]) -> Condition:
    gates = scene.cluster["spec"].get("availabilityGates") or []
    negative = {"Deleting", *(gate["conditionType"] for gate in gates if gate.get("polarity") == "Negative")}

    def priority(part: Condition) -> Priority:
        if scene.deleting and part["type"] in _OF_EXTERNALS and part["reason"] in _GONE:
            return Priority.INFO
        if part["type"] == "TopologyReconciled" and part["reason"] not in _TOPOLOGY_FAILURES:
            return Priority.UNKNOWN if part["status"] == "Unknown" else Priority.INFO
        return default_priority(part, negative)

    others = scene.status("conditions", [])
    return summary(
        "Available",
        [*others, *parts],
        types=[*_NEEDED, *(gate["conditionType"] for gate in gates)],
        reasons=Reasons("NotAvailable", "AvailableUnknown", "Available"),
        ignore_if_missing=() if scene.has_topology else ("TopologyReconciled",),
        priority=priority,
    )


_OF_EXTERNALS = ("InfrastructureReady", "ControlPlaneAvailable")
_TOPOLOGY_FAILURES = ("ReconcileFailed", "ClusterClassNotReconciled")
_NEEDED = (
    "Deleting",
    "RemoteConnectionProbe",
    "InfrastructureReady",
    "ControlPlaneAvailable",
    "WorkersAvailable",
    "TopologyReconciled",
)
