"""Status of a MachineSet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from herder.api.capi.conditions import (
    Condition,
    condition,
    find,
    find_legacy,
    legacy,
    legacy_aggregate,
    legacy_summary,
    merged_legacy,
)
from herder.api.capi.kinds import MACHINE_SET
from herder.api.capi.names import is_deleting, labels_of
from herder.api.events import recorded, warning
from herder.api.writes import PROGRESS_DEBOUNCE, status_patch
from herder.controllers.capi.machineset.propagation import PROPAGATED_INDEX, wanted_digests
from herder.controllers.capi.replica_status import (
    counters,
    earliest,
    observed_conditions,
    selector_text,
    versions_in_use,
    with_bullets,
)
from herder.controllers.capi.set_members import (
    LEGACY_READY,
    LEGACY_UNREADY,
    NODE_READY,
    UNAVAILABLE,
    SetMembers,
    machines_ready,
    machines_up_to_date,
    remediating,
    slow_deletions,
)
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision, Event

AVAILABILITY_DELAY = 0.5
"""Seconds to collect further changes before newly available Machines are reported; rollouts wait for this status."""


PREFLIGHT_FAILED = "PreflightCheckFailed"


@dataclass(frozen=True, slots=True)
class Findings:
    """Results of a pass that cannot be derived from the objects."""

    paused: Condition
    missing_templates: str = ""  # message
    blocked: list[str] = field(default_factory=list)  # why no Machines are created although some are missing
    legacy_reason: str = ""  # reason for the v1beta1 condition
    refused: str = ""  # refusal by a guard, of an action that is retried now

    @property
    def causes(self) -> list[str]:
        return [*self.blocked, *([self.missing_templates] if self.missing_templates else [])]


def report_status(machine_set: Object, members: SetMembers, findings: Findings, now: datetime) -> Decision:
    """Write the status if it changed."""
    up_to_date, next_up_to_date_check = machines_up_to_date(members, now)
    desired = _desired(machine_set)
    surplus = desired is not None and members.total > desired
    slow_message, next_slow_deletion = slow_deletions(members, now) if surplus else ("", None)
    conditions = [
        _scaling_up(machine_set, members, findings),
        _scaling_down(machine_set, members, slow_message, findings.refused),
        machines_ready(members),
        up_to_date,
        _remediating(machine_set, members, findings.refused),
        _deleting(machine_set, members, slow_message, findings.refused),
        findings.paused,
    ]
    before = machine_set.get("status") or {}
    status = {
        **{name: value for name, value in before.items() if name != "versions"},
        **counters(members),
        **versions_in_use(machine_set, members),
        **selector_text(machine_set),
        "observedGeneration": machine_set["metadata"].get("generation", 0),
        "conditions": observed_conditions(machine_set, conditions, now),
        "deprecated": _deprecated(machine_set, members, findings, now),
    }
    debounce = _status_debounce(machine_set, before, status)
    patches = status_patch(MACHINE_SET, machine_set, status, "update the MachineSet status", debounce=debounce)
    writes = recorded(patches, _events(machine_set, findings))
    return Decision(writes=writes, wake_at=earliest(next_up_to_date_check, next_slow_deletion))


def _events(machine_set: Object, findings: Findings) -> Iterator[Event]:
    """Why no Machines can be created, if that is news. Preflight checks are waits, not failures."""
    known = str((find(machine_set, "ScalingUp") or {}).get("message", ""))
    is_failure = findings.legacy_reason != PREFLIGHT_FAILED
    if is_failure and any(cause not in known for cause in findings.causes):
        yield warning(MACHINE_SET, machine_set, "FailedCreate", "; ".join(findings.causes))


def _status_debounce(machine_set: Object, before: Object, after: Object) -> float:
    """Seconds the status write may be deferred.

    Rollouts wait for available and deleted Machines, and users for the final state; everything else is progress.
    """
    target = 0 if is_deleting(machine_set) else machine_set["spec"].get("replicas")
    if is_deleting(machine_set) and after["replicas"]:
        return PROGRESS_DEBOUNCE
    have = after["availableReplicas"], before.get("availableReplicas", 0)
    arrived = after["replicas"] == target and after["availableReplicas"] == target
    if arrived or after["replicas"] < before.get("replicas", 0) or have[0] < have[1]:
        return 0.0
    if before.get("observedGeneration") != after["observedGeneration"]:
        return 0.0
    return AVAILABILITY_DELAY if have[0] > have[1] else PROGRESS_DEBOUNCE


# --- conditions -----------------------------------------------------------------------------------------------------


def _scaling_up(machine_set: Object, members: SetMembers, findings: Findings) -> Condition:
    desired = _desired(machine_set)
    if desired is None:
        return condition("ScalingUp", "Unknown", "WaitingForReplicasSet", "Waiting for spec.replicas set")
    if members.total >= desired:
        missing = "" if is_deleting(machine_set) else findings.missing_templates
        message = f"Scaling up would be blocked because {missing}" if missing else ""
        return condition("ScalingUp", "False", "NotScalingUp", message)
    message = f"Scaling up from {members.total} to {desired} replicas"
    if causes := [*findings.causes, *([findings.refused] if findings.refused else [])]:
        message = with_bullets(f"{message} is blocked because:", *causes)
    return condition("ScalingUp", "True", "ScalingUp", message)


def _scaling_down(machine_set: Object, members: SetMembers, slow_message: str, refused: str) -> Condition:
    desired = _desired(machine_set)
    if desired is None:
        return condition("ScalingDown", "Unknown", "WaitingForReplicasSet", "Waiting for spec.replicas set")
    if members.total <= desired:
        return condition("ScalingDown", "False", "NotScalingDown")
    message = f"Scaling down from {members.total} to {desired} replicas"
    return condition("ScalingDown", "True", "ScalingDown", with_bullets(message, slow_message, refused))


def _remediating(machine_set: Object, members: SetMembers, refused: str) -> Condition:
    """Add a guard's refusal only if the set has the desired size: otherwise it concerns scaling."""
    found = remediating(members, "MachineSet")
    concerned = members.total == _desired(machine_set) and found["status"] == "True"
    return {**found, "message": with_bullets(found["message"], refused)} if concerned else found


def _deleting(machine_set: Object, members: SetMembers, slow_message: str, refused: str) -> Condition:
    if not is_deleting(machine_set):
        return condition("Deleting", "False", "NotDeleting")
    if not members.total:
        return condition("Deleting", "True", "Deleting", "Deletion completed")
    message = f"Deleting {members.total} Machine{'' if members.total == 1 else 's'}"
    return condition("Deleting", "True", "Deleting", with_bullets(message, slow_message, refused))


def _desired(machine_set: Object) -> int | None:
    replicas: int | None = machine_set["spec"].get("replicas")
    return 0 if replicas is not None and is_deleting(machine_set) else replicas


# --- status.deprecated.v1beta1 --------------------------------------------------------------------------------------


def _deprecated(machine_set: Object, members: SetMembers, findings: Findings, now: datetime) -> Object:
    before = (machine_set.get("status") or {}).get("deprecated") or {}
    v1beta1 = before.get("v1beta1") or {}
    waits = (machine_set["spec"]["template"]["spec"].get("minReadySeconds") or 0) > 0
    ready = members.count(NODE_READY)
    available = min(ready, members.total - members.count(UNAVAILABLE)) if waits else ready
    conditions = _legacy_conditions(machine_set, members, findings, ready)
    counts = {
        "fullyLabeledReplicas": _fully_labelled(machine_set, members),
        "readyReplicas": ready,
        "availableReplicas": available,
        "conditions": merged_legacy(v1beta1.get("conditions"), conditions, now),
    }
    return {**before, "v1beta1": {**v1beta1, **counts}}


def _legacy_conditions(machine_set: Object, members: SetMembers, findings: Findings, ready: int) -> list[Condition]:
    created, resized = find_legacy(machine_set, "MachinesCreated"), find_legacy(machine_set, "Resized")
    desired = _desired(machine_set)
    if desired is not None and members.total < desired:
        resized = _resizing("ScalingUp", "up", desired, members.total)
        if findings.legacy_reason:
            why = "; ".join(findings.causes)
            created = legacy("MachinesCreated", "False", findings.legacy_reason, "Error", why)
    elif desired is not None:
        created = legacy("MachinesCreated", "True")
        if members.total > desired:
            resized = _resizing("ScalingDown", "down", desired, members.total)
        elif ready == members.total:
            resized = legacy("Resized", "True")
    ready_ones = _legacy_machines_ready(members) or find_legacy(machine_set, "MachinesReady")
    parts = [each for each in (created, resized, ready_ones) if each]
    summary = legacy_summary(parts, ["MachinesCreated", "Resized", "MachinesReady"])
    return [*parts, *([summary] if summary else [])]


def _resizing(reason: str, direction: str, desired: int, current: int) -> Condition:
    message = f"Scaling {direction} MachineSet to {desired} replicas (actual {current})"
    return legacy("Resized", "False", reason, "Warning", message)


def _legacy_machines_ready(members: SetMembers) -> Condition | None:
    """Aggregate of the v1beta1 Ready conditions; ready Machines are only counted, so the count is filled in here."""
    ready, unready = members.count(LEGACY_READY), members.listed(LEGACY_UNREADY)
    if not unready:
        return legacy("MachinesReady", "True") if ready or not members.total else None
    worst = legacy_aggregate("MachinesReady", unready)
    return {**worst, "message": f"{ready} of {members.total} completed"} if worst else None


def _fully_labelled(machine_set: Object, members: SetMembers) -> int:
    if sum(members.count(PROPAGATED_INDEX, f"/{digest}") for digest in wanted_digests(machine_set)) == members.total:
        return members.total
    wanted = ((machine_set["spec"]["template"].get("metadata") or {}).get("labels") or {}).items()
    return sum(wanted <= labels_of(machine).items() for machine in members.listed())
