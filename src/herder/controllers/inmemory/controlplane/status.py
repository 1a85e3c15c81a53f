"""Status of an in-memory control plane: counters, versions and conditions, for both contracts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from herder.api.capi.conditions import Condition, Reasons, aggregate, condition, is_true, paused_condition
from herder.api.capi.names import CLUSTER_NAME, CONTROL_PLANE, is_deleting
from herder.api.durations import version_numbers
from herder.api.inmemory.behavior import behavior_of
from herder.controllers.inmemory.conditions import failure, simulated_failure, status_with
from herder.controllers.inmemory.controlplane.scale import Member
from herder.engine.meta.kinds import Object

SELECTOR = f"{CLUSTER_NAME}={{cluster}},{CONTROL_PLANE}"


def is_initialized(plane: Object) -> bool:
    return bool(((plane.get("status") or {}).get("initialization") or {}).get("controlPlaneInitialized"))


def status(
    plane: Object,
    cluster: Object | None,
    machines: Sequence[Object],
    up_to_date_conditions: Mapping[str, Condition],
    members: Sequence[Member],
    blocked: str,
    now: datetime,
) -> Object:
    """Compute the status. `up_to_date_conditions` are by Machine name; `blocked` says why no Machines can be
    created."""
    behavior = behavior_of(plane)
    condition = simulated_failure(behavior, "the control plane") if behavior.fail or not is_initialized(plane) else None
    joined = any((machine.get("status") or {}).get("nodeRef") for machine in machines)
    initialized = is_initialized(plane) or (joined and condition is None)
    available = _available(condition, machines, initialized, behavior.problem)
    conditions = [
        available,
        _either("Initialized", initialized, "Initialized", "NotInitialized"),
        _rolling_out(up_to_date_conditions.values()),
        *_scaling(plane, machines, blocked),
        _remediating(members),
        *_machines(machines, up_to_date_conditions),
        _deleting(plane, machines),
        paused_condition(cluster, plane),
    ]
    fields: Object = {
        "observedGeneration": plane["metadata"].get("generation", 1),
        **_counters(machines, up_to_date_conditions),
        **_versions(machines),
        **(failure(behavior, condition) if condition else {}),
        "initialized": initialized,
        "ready": available["status"] == "True",
    }
    if initialized:
        fields["initialization"] = {"controlPlaneInitialized": True}
    if cluster is not None:
        fields["selector"] = SELECTOR.format(cluster=cluster["metadata"]["name"])
    legacy = [available, {**available, "type": "Ready"}]
    return status_with(plane, fields, conditions, now, legacy_too=legacy)


def _available(conditions: Condition | None, machines: Sequence[Object], initialized: bool, message: str) -> Condition:
    if conditions is not None:
        return {**conditions, "type": "Available"}
    if not initialized:
        return condition("Available", "False", "NotAvailable", "Control plane not yet initialized")
    if not any(is_true(machine, "Ready") for machine in machines):
        return condition("Available", "False", "NotAvailable", "No Machine of the control plane is ready")
    return condition("Available", "True", "Available", message)


def _rolling_out(up_to_date_conditions: Iterable[Condition]) -> Condition:
    outdated = [known_condition for known_condition in up_to_date_conditions if known_condition["status"] == "False"]
    if not outdated:
        return condition("RollingOut", "False", "NotRollingOut")
    reasons = {line for known_condition in outdated for line in known_condition["message"].split("\n")}
    ordered = sorted(reasons, key=lambda line: (not line.startswith("* Version"), line))
    message = "\n".join([f"Rolling out {len(outdated)} not up-to-date replicas", *ordered])
    return condition("RollingOut", "True", "RollingOut", message)


def _scaling(plane: Object, machines: Sequence[Object], blocked: str) -> tuple[Condition, Condition]:
    current = len(machines)
    desired = 0 if is_deleting(plane) else plane["spec"].get("replicas", 1)
    up, down = f"Scaling up from {current} to {desired} replicas", f"Scaling down from {current} to {desired} replicas"
    if blocked:
        up = f"{up} is blocked because:\n* {blocked}"
    return (
        _either("ScalingUp", current < desired, "ScalingUp", "NotScalingUp", up),
        _either("ScalingDown", current > desired, "ScalingDown", "NotScalingDown", down),
    )


def _remediating(members: Sequence[Member]) -> Condition:
    unhealthy = [member.name for member in members if member.to_remediate]
    message = f"Machines to be replaced: {', '.join(unhealthy)}"
    return _either("Remediating", bool(unhealthy), "Remediating", "NotRemediating", message)


def _machines(
    machines: Sequence[Object], up_to_date_conditions: Mapping[str, Condition]
) -> tuple[Condition, Condition]:
    return (
        aggregate(
            "MachinesReady",
            machines,
            "Ready",
            reasons=Reasons("NotReady", "ReadyUnknown", "Ready"),
            none=condition("MachinesReady", "True", "NoReplicas"),
        ),
        aggregate(
            "MachinesUpToDate",
            machines,
            "UpToDate",
            reasons=Reasons("NotUpToDate", "UpToDateUnknown", "UpToDate"),
            none=condition("MachinesUpToDate", "True", "NoReplicas"),
            find_in=lambda machine, _type: up_to_date_conditions.get(machine["metadata"]["name"]),
        ),
    )


def _deleting(plane: Object, machines: Sequence[Object]) -> Condition:
    if not is_deleting(plane):
        return condition("Deleting", "False", "NotDeleting")
    if machines:
        names = ", ".join(machine["metadata"]["name"] for machine in machines[:3])
        return condition("Deleting", "True", "WaitingForMachineDeletion", f"Remaining Machines: {names}")
    return condition("Deleting", "True", "DeletionCompleted")


def _counters(machines: Sequence[Object], up_to_date_conditions: Mapping[str, Condition]) -> Object:
    ready = sum(is_true(machine, "Ready") for machine in machines)
    fresh = sum(known_condition["status"] == "True" for known_condition in up_to_date_conditions.values())
    return {
        "replicas": len(machines),
        "readyReplicas": ready,
        "availableReplicas": sum(is_true(machine, "Available") for machine in machines),
        "upToDateReplicas": fresh,
        "updatedReplicas": fresh,
        "unavailableReplicas": len(machines) - ready,
    }


def _versions(machines: Sequence[Object]) -> Object:
    counted = Counter(machine["spec"]["version"] for machine in machines if machine["spec"].get("version"))
    if not counted:
        return {}
    ordered = sorted(counted, key=_numbers)
    return {
        "version": ordered[0],
        "versions": [{"version": version, "replicas": counted[version]} for version in ordered],
    }


def _numbers(version: str) -> tuple[list[int], str]:
    return version_numbers(version.split("+")[0]), version


def _either(type_: str, holds: bool, reason: str, otherwise: str, message: str = "") -> Condition:
    return condition(type_, "True", reason, message) if holds else condition(type_, "False", otherwise)
