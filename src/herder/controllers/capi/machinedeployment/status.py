"""Status of a MachineDeployment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from herder.api.capi.conditions import (
    Condition,
    condition,
    find,
    is_true,
    legacy,
    legacy_mirror,
    legacy_summary,
    merged_legacy,
)
from herder.api.capi.kinds import MACHINE_DEPLOYMENT
from herder.api.capi.names import is_deleting
from herder.api.capi.rollout import ROLLING_UPDATE, limits_of, strategy_of
from herder.api.writes import PROGRESS_DEBOUNCE, status_patch
from herder.controllers.capi.replica_status import (
    counters,
    earliest,
    observed_conditions,
    refusals_of,
    selector_text,
    versions_in_use,
    with_bullets,
)
from herder.controllers.capi.set_members import (
    NODE_READY,
    NOT_UP_TO_DATE,
    UNAVAILABLE,
    SetMembers,
    machines_ready,
    machines_up_to_date,
    remediating,
    slow_deletions,
)
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision

_COMPUTED = ("replicas", "readyReplicas", "availableReplicas", "upToDateReplicas", "versions")


@dataclass(frozen=True, slots=True)
class Findings:
    """Results of a pass that cannot be derived from the objects."""

    paused: Condition
    sets: Sequence[Object] = ()
    current: Object | None = None
    missing_templates: str = ""  # message


def report_status(deployment: Object, members: SetMembers, findings: Findings, now: datetime) -> Decision:
    """Write the status if it changed."""
    up_to_date, next_up_to_date_check = machines_up_to_date(members, now)
    desired = _desired(deployment)
    surplus = desired is not None and members.total > desired
    slow_message, next_slow_deletion = slow_deletions(members, now) if surplus else ("", None)
    refused = refusals_of(findings.sets)
    counts = counters(members) if findings.sets else {}
    conditions = [
        _available(deployment, counts.get("availableReplicas")),
        _rolling_out(members, refused),
        _scaling_up(deployment, members, findings.missing_templates, refused),
        _scaling_down(deployment, members, slow_message, refused),
        machines_ready(members),
        up_to_date,
        remediating(members, "MachineDeployment/MachineSet"),
        _deleting(deployment, members, findings.sets, slow_message, refused),
        findings.paused,
    ]
    before = deployment.get("status") or {}
    status = {
        **{name: value for name, value in before.items() if name not in _COMPUTED},
        **counts,
        **versions_in_use(deployment, members),
        **selector_text(deployment),
        "phase": _phase(deployment, members),
        "observedGeneration": deployment["metadata"].get("generation", 0),
        "conditions": observed_conditions(deployment, conditions, now),
        "deprecated": _deprecated(deployment, members, findings, now),
    }
    writes = status_patch(
        MACHINE_DEPLOYMENT,
        deployment,
        status,
        "update the MachineDeployment status",
        debounce=_status_debounce(deployment, status),
    )
    return Decision(writes=writes, wake_at=earliest(next_up_to_date_check, next_slow_deletion))


def _status_debounce(deployment: Object, after: Object) -> float:
    """Seconds the status write may be deferred: not at all for availability and phase, which users wait for."""
    before = deployment.get("status") or {}
    if is_deleting(deployment) and after.get("replicas") and before.get("phase") == after["phase"]:
        return PROGRESS_DEBOUNCE
    awaited = ("phase", "observedGeneration")
    if is_true(deployment, "Available") != is_true({"status": after}, "Available"):
        return 0.0
    if any(before.get(field) != after[field] for field in awaited):
        return 0.0
    target = deployment["spec"].get("replicas")
    arrived = all(after.get(field) == target for field in ("replicas", "availableReplicas", "upToDateReplicas"))
    return 0.0 if arrived else PROGRESS_DEBOUNCE


def _phase(deployment: Object, members: SetMembers) -> str:
    desired = deployment["spec"].get("replicas")
    if desired is None:
        return "Unknown"
    if is_deleting(deployment) or members.total > desired:
        return "ScalingDown"
    return "Running" if members.total == desired else "ScalingUp"


# --- conditions -----------------------------------------------------------------------------------------------------


def _available(deployment: Object, available: int | None) -> Condition:
    spec = deployment["spec"]
    if spec.get("replicas") is None:
        return condition("Available", "Unknown", "WaitingForReplicasSet", "Waiting for spec.replicas set")
    if available is None:
        waits = "Waiting for status.availableReplicas set"
        return condition("Available", "Unknown", "WaitingForAvailableReplicasSet", waits)
    limits = limits_of(spec)
    if available >= limits.minimum:
        return condition("Available", "True", "Available")
    message = f"{available} available replicas, at least {limits.minimum} required"
    if is_deleting(deployment):
        message = "Deletion in progress"
    elif strategy_of(spec) == ROLLING_UPDATE:
        rolling = ((spec.get("rollout") or {}).get("strategy") or {}).get("rollingUpdate") or {}
        given = rolling.get("maxUnavailable", 0)
        message += f" (spec.strategy.rollout.maxUnavailable is {given}, spec.replicas is {limits.replicas})"
    return condition(
        "Available", "False", "NotAvailable", "Deletion in progress" if is_deleting(deployment) else message
    )


def _rolling_out(members: SetMembers, refused: str) -> Condition:
    conditions = [find(machine, "UpToDate") or {} for machine in members.listed(NOT_UP_TO_DATE)]
    outdated = [each for each in conditions if each.get("status") == "False"]
    if not outdated:
        return condition("RollingOut", "False", "NotRollingOut")
    causes = {line for each in outdated if each.get("message") for line in each["message"].split("\n")}
    version_first = sorted(causes, key=lambda line: (not line.startswith("* Version"), line))
    message = "\n".join([f"Rolling out {len(outdated)} not up-to-date replicas", *version_first])
    return condition("RollingOut", "True", "RollingOut", with_bullets(message, refused))


def _scaling_up(deployment: Object, members: SetMembers, missing_templates: str, refused: str) -> Condition:
    desired = _desired(deployment)
    if desired is None:
        return condition("ScalingUp", "Unknown", "WaitingForReplicasSet", "Waiting for spec.replicas set")
    missing = "" if is_deleting(deployment) else missing_templates
    if members.total >= desired:
        message = f"Scaling up would be blocked because {missing}" if missing else ""
        return condition("ScalingUp", "False", "NotScalingUp", message)
    message = f"Scaling up from {members.total} to {desired} replicas"
    blocked = f"{message} is blocked because {missing}" if missing else message
    return condition("ScalingUp", "True", "ScalingUp", with_bullets(blocked, refused))


def _scaling_down(deployment: Object, members: SetMembers, slow_message: str, refused: str) -> Condition:
    desired = _desired(deployment)
    if desired is None:
        return condition("ScalingDown", "Unknown", "WaitingForReplicasSet", "Waiting for spec.replicas set")
    if members.total <= desired:
        return condition("ScalingDown", "False", "NotScalingDown")
    message = f"Scaling down from {members.total} to {desired} replicas"
    return condition("ScalingDown", "True", "ScalingDown", with_bullets(message, slow_message, refused))


def _deleting(deployment: Object, members: SetMembers, sets: Sequence[Object], *held_up: str) -> Condition:
    if not is_deleting(deployment):
        return condition("Deleting", "False", "NotDeleting")
    if members.total:
        message = with_bullets(f"Deleting {members.total} Machine{'' if members.total == 1 else 's'}", *held_up)
    else:
        message = f"Deleting {len(sets)} MachineSets" if sets else "Deletion completed"
    return condition("Deleting", "True", "Deleting", message)


def _desired(deployment: Object) -> int | None:
    replicas: int | None = deployment["spec"].get("replicas")
    return 0 if replicas is not None and is_deleting(deployment) else replicas


# --- status.deprecated.v1beta1 --------------------------------------------------------------------------------------


def _deprecated(deployment: Object, members: SetMembers, findings: Findings, now: datetime) -> Object:
    before = (deployment.get("status") or {}).get("deprecated") or {}
    v1beta1 = before.get("v1beta1") or {}
    ready = members.count(NODE_READY)
    waits = (deployment["spec"]["template"]["spec"].get("minReadySeconds") or 0) > 0
    available = min(ready, members.total - members.count(UNAVAILABLE)) if waits else ready
    wanted = sum(each["spec"].get("replicas") or 0 for each in findings.sets)
    conditions = _legacy_conditions(deployment, findings.current, available)
    counts = {
        "updatedReplicas": ((findings.current or {}).get("status") or {}).get("replicas") or 0,
        "readyReplicas": ready,
        "availableReplicas": available,
        "unavailableReplicas": max(wanted - available, 0),
        "conditions": merged_legacy(v1beta1.get("conditions"), conditions, now),
    }
    return {**before, "v1beta1": {**v1beta1, **counts}}


def _legacy_conditions(deployment: Object, current: Object | None, available: int) -> list[Condition]:
    parts = []
    if deployment["spec"].get("replicas") is not None:
        parts.append(_legacy_available(limits_of(deployment["spec"]).minimum, available))
    waiting = legacy(
        "MachineSetReady", "False", "WaitingForMachineSet", "Info", "" if current else "MachineSet not found"
    )
    parts.append(legacy_mirror(current, "MachineSetReady", fallback=waiting))
    summary = legacy_summary(parts, ["Available"])
    return [*parts, *([summary] if summary else [])]


def _legacy_available(needed: int, available: int) -> Condition:
    if available >= needed:
        return legacy("Available", "True")
    message = f"Minimum availability requires {needed} replicas, current {available} available"
    return legacy("Available", "False", "WaitingForAvailableMachines", "Warning", message)
