"""Conditions of a Cluster (v1beta2)."""

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
from herder.controllers.capi.cluster.scope import ClusterScope
from herder.controllers.capi.externals import External
from herder.engine.meta.kinds import Object

NAMES_SHOWN = 3
UP_TO_DATE_GRACE = timedelta(seconds=10)
"""Grace period in which a new Machine may lack the UpToDate condition; otherwise conditions flicker at each
creation."""

TOPOLOGY_PENDING = "Waiting for cluster topology to be reconciled"

_DELETED_REASONS = ("ObjectDeleted", "ObjectDoesNotExist")


def conditions_of(scope: ClusterScope, deleting: Condition) -> list[Condition]:
    parts = [
        deleting,
        probe(scope),
        _infrastructure_ready(scope),
        _control_plane_initialized(scope),
        _control_plane_available(scope),
        _workers_available(scope),
        _machines_ready(scope, "ControlPlaneMachinesReady", members.CONTROL_PLANE_MACHINE),
        _machines_ready(scope, "WorkerMachinesReady", members.WORKER),
        _machines_up_to_date(scope, "ControlPlaneMachinesUpToDate", members.CONTROL_PLANE_MACHINE),
        _machines_up_to_date(scope, "WorkerMachinesUpToDate", members.WORKER),
        _activity(scope, "RollingOut", scope.members.deployments),
        _activity(scope, "ScalingUp", [*scope.members.deployments, *scope.members.standalone_sets]),
        _activity(scope, "ScalingDown", [*scope.members.deployments, *scope.members.standalone_sets]),
        _remediating(scope),
        paused_condition(scope.cluster, scope.cluster),
    ]
    return [_available(scope, parts), *parts]


def next_up_to_date_check(scope: ClusterScope) -> datetime | None:
    """End of the earliest grace period of a Machine that lacks the UpToDate condition."""
    roles = (members.CONTROL_PLANE_MACHINE, members.WORKER)
    too_new_machines = [machine for role in roles for machine in _too_new(scope, role)]
    return min((_created(machine) + UP_TO_DATE_GRACE for machine in too_new_machines), default=None)


# --- infrastructure and control plane -------------------------------------------------------------------------------


def _infrastructure_ready(scope: ClusterScope) -> Condition:
    type_ = "InfrastructureReady"
    external = scope.infrastructure
    if external is None:
        return _topology_pending(scope, type_, "False") or condition(type_, "True", "Ready")
    kind = scope.cluster["spec"]["infrastructureRef"]["kind"]
    if external.obj is None:
        return _absent(scope, type_, external, kind, existed=scope.provisioned)
    if scope.provisioned:
        fallback = condition(type_, "True", "Ready")
    else:
        fallback = condition(type_, "False", "NotReady", f"{kind} status.initialization.provisioned is false")
    return mirror(external.obj, infra_cluster.READY, type_, fallback=fallback, reason_if_true="Ready")


def _control_plane_available(scope: ClusterScope) -> Condition:
    type_ = "ControlPlaneAvailable"
    external = scope.control_plane
    if external is None:
        return _topology_pending(scope, type_, "False") or _standalone_control_plane_available(scope, type_)
    kind = scope.cluster["spec"]["controlPlaneRef"]["kind"]
    if external.obj is None:
        return _absent(scope, type_, external, kind, existed=scope.initialized)
    if scope.initialized:
        fallback = condition(type_, "True", "Available")
    else:
        message = f"{kind} status.initialization.controlPlaneInitialized is false"
        fallback = condition(type_, "False", "NotAvailable", message)
    return mirror(external.obj, control_plane.AVAILABLE, type_, fallback=fallback, reason_if_true="Available")


def _standalone_control_plane_available(scope: ClusterScope, type_: str) -> Condition:
    if scope.initialized:
        return condition(type_, "True", "Available")
    return condition(type_, "False", "NotAvailable", "Control plane not yet initialized")


def _control_plane_initialized(scope: ClusterScope) -> Condition:
    """Keep the condition once it is True.

    If someone sets it to False, as an etcd restore does, compute it again.
    """
    type_ = "ControlPlaneInitialized"
    known = find(scope.cluster, type_)
    if known is not None and known["status"] == "True":
        return known
    if scope.initialized_now:
        return condition(type_, "True", "Initialized")
    external = scope.control_plane
    if external is None:
        message = "Waiting for the first control plane machine to have status.nodeRef set"
        return _topology_pending(scope, type_, "Unknown") or condition(type_, "False", "NotInitialized", message)
    if external.problem:
        return condition(type_, "Unknown", "InternalError", external.problem)
    if external.obj is None:
        kind = scope.cluster["spec"]["controlPlaneRef"]["kind"]
        return condition(type_, "Unknown", "ObjectDoesNotExist", f"{kind} does not exist")
    return condition(type_, "False", "NotInitialized", "Control plane not yet initialized")


def _absent(scope: ClusterScope, type_: str, external: External, kind: str, *, existed: bool) -> Condition:
    if external.problem:
        return condition(type_, "Unknown", "InternalError", external.problem)
    if not existed:
        return condition(type_, "False", "ObjectDoesNotExist", f"{kind} does not exist")
    while_running = "" if scope.deleting else " while the cluster still exists"
    return condition(type_, "False", "ObjectDeleted", f"{kind} has been deleted{while_running}")


def _topology_pending(scope: ClusterScope, type_: str, status: str) -> Condition | None:
    if not scope.has_topology:
        return None
    return condition(type_, status, "ObjectDoesNotExist", "" if scope.deleting else TOPOLOGY_PENDING)


# --- machines -------------------------------------------------------------------------------------------------------


def _workers_available(scope: ClusterScope) -> Condition:
    return aggregate(
        "WorkersAvailable",
        scope.members.deployments,
        "Available",
        reasons=Reasons("NotAvailable", "AvailableUnknown", "Available"),
        none=condition("WorkersAvailable", "True", "NoWorkers"),
    )


def _machines_ready(scope: ClusterScope, type_: str, role: str) -> Condition:
    total = scope.members.count(role, members.EVALUATED)
    unready = scope.members.machines(role, members.UNREADY)
    return _aggregate_machines(type_, total, unready, "Ready", Reasons("NotReady", "ReadyUnknown", "Ready"))


def _machines_up_to_date(scope: ClusterScope, type_: str, role: str) -> Condition:
    too_new = {machine["metadata"]["name"] for machine in _too_new(scope, role)}
    total = scope.members.count(role, members.EVALUATED) - len(too_new)
    outdated = [obj for obj in scope.members.machines(role, members.OUTDATED) if obj["metadata"]["name"] not in too_new]
    return _aggregate_machines(
        type_, total, outdated, "UpToDate", Reasons("NotUpToDate", "UpToDateUnknown", "UpToDate")
    )


def _aggregate_machines(type_: str, total: int, reports: Sequence[Object], source: str, reasons: Reasons) -> Condition:
    """Aggregate over all Machines, reading only those whose condition is not plainly True."""
    none = condition(type_, "True", reasons.info if total else "NoReplicas")
    return aggregate(type_, reports, source, reasons=reasons, none=none)


def _too_new(scope: ClusterScope, role: str) -> list[Object]:
    return [
        machine
        for machine in scope.members.machines(role, members.OUTDATED)
        if find(machine, "UpToDate") is None and scope.view.now - _created(machine) < UP_TO_DATE_GRACE
    ]


def _created(machine: Object) -> datetime:
    return datetime.fromisoformat(machine["metadata"]["creationTimestamp"])


def _activity(scope: ClusterScope, type_: str, objects: Sequence[Object]) -> Condition:
    """A condition about ongoing work in the control plane or the workers; False is the good status."""
    plane = scope.control_plane
    if plane is not None and plane.problem:
        return condition(type_, "Unknown", "InternalError", plane.problem)
    return aggregate(
        type_,
        [*_reporting_control_plane(plane, type_), *objects],
        type_,
        reasons=Reasons(type_, f"{type_}Unknown", f"Not{type_}"),
        negative=True,
        none=condition(type_, "False", f"Not{type_}"),
        find_in=reported,
    )


def _reporting_control_plane(plane: External | None, type_: str) -> list[Object]:
    """The control plane object if it reports this optional condition, else nothing."""
    try:
        has_it = plane is not None and reported(plane.obj, type_) is not None
    except InvalidCondition:
        has_it = False
    return [plane.obj] if has_it and plane is not None and plane.obj is not None else []


def _remediating(scope: ClusterScope) -> Condition:
    type_ = "Remediating"
    not_remediating = condition(
        type_, "False", "NotRemediating", _unhealthy(scope.members.machine_names(members.UNHEALTHY))
    )
    machines = scope.members.machines(members.TO_REMEDIATE)
    reasons = Reasons("Remediating", "Remediating", "Remediating")
    found = aggregate(type_, machines, "OwnerRemediated", reasons=reasons, none=not_remediating)
    return {**found, "status": "True"} if machines else not_remediating


def _unhealthy(names: list[str]) -> str:
    if not names:
        return ""
    shown = ", ".join(names[:NAMES_SHOWN])
    if len(names) > NAMES_SHOWN:
        shown += f", ... ({len(names) - NAMES_SHOWN} more)"
    some = f"Machine {shown} is" if len(names) == 1 else f"Machines {shown} are"
    return f"{some} not healthy (not to be remediated)"


# --- summary --------------------------------------------------------------------------------------------------------


def _available(scope: ClusterScope, parts: Sequence[Condition]) -> Condition:
    gates = scope.cluster["spec"].get("availabilityGates") or []
    negative = {"Deleting", *(gate["conditionType"] for gate in gates if gate.get("polarity") == "Negative")}

    def priority(part: Condition) -> Priority:
        if scope.deleting and part["type"] in _EXTERNAL_CONDITIONS and part["reason"] in _DELETED_REASONS:
            return Priority.INFO
        if part["type"] == "TopologyReconciled" and part["reason"] not in _TOPOLOGY_FAILURES:
            return Priority.UNKNOWN if part["status"] == "Unknown" else Priority.INFO
        return default_priority(part, negative)

    others = scope.status("conditions", [])
    return summary(
        "Available",
        [*others, *parts],
        types=[*_SUMMARIZED, *(gate["conditionType"] for gate in gates)],
        reasons=Reasons("NotAvailable", "AvailableUnknown", "Available"),
        ignore_if_missing=() if scope.has_topology else ("TopologyReconciled",),
        priority=priority,
    )


_EXTERNAL_CONDITIONS = ("InfrastructureReady", "ControlPlaneAvailable")
_TOPOLOGY_FAILURES = ("ReconcileFailed", "ClusterClassNotReconciled")
_SUMMARIZED = (
    "Deleting",
    "RemoteConnectionProbe",
    "InfrastructureReady",
    "ControlPlaneAvailable",
    "WorkersAvailable",
    "TopologyReconciled",
)
