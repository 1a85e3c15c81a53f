"""Summary conditions of a Machine: Ready, Available, and Ready in v1beta1."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from herder.api.capi.conditions import (
    Condition,
    Priority,
    Reasons,
    condition,
    default_priority,
    legacy_summary,
    summary,
)
from herder.controllers.capi.machine.scope import MachineScope, status_of

SLOW_DELETION = timedelta(minutes=15)
SLOW_DRAIN = timedelta(minutes=5)

_SUMMARIZED = (
    "Deleting",
    "Updating",
    "BootstrapConfigReady",
    "InfrastructureReady",
    "NodeHealthy",
    "HealthCheckSucceeded",
)
_NEGATIVE = ("Deleting", "Updating")
_LEGACY_SUMMARIZED = (
    "InfrastructureReady",
    "BootstrapReady",
    "HealthCheckSucceeded",
    "OwnerRemediated",
    "DrainingSucceeded",
)
_LEGACY_STEPS = ("BootstrapReady", "InfrastructureReady")


class Timed(NamedTuple):
    """A condition, and when it changes through the passage of time alone."""

    condition: Condition
    wake_at: datetime | None = None


def ready(scope: MachineScope, conditions: Iterable[Condition], drain_start: str, now: datetime) -> Timed:
    """Compute Ready; `conditions` are all others of the Machine, including those of other controllers."""
    parts = {part["type"]: part for part in conditions}
    wake_at = None
    if scope.deleting:
        parts["Deleting"], wake_at = _short_deleting(scope, parts["Deleting"], drain_start, now)
    gates = scope.machine["spec"].get("readinessGates") or ()
    negative = {*_NEGATIVE, *(gate["conditionType"] for gate in gates if gate.get("polarity") == "Negative")}

    def priority(part: Condition) -> Priority:
        gone_as_expected = scope.deleting and part.get("reason") in _DELETED_REASONS.get(part["type"], ())
        return Priority.INFO if gone_as_expected else default_priority(part, negative)

    made = summary(
        "Ready",
        parts.values(),
        types=[*_SUMMARIZED, *(gate["conditionType"] for gate in gates)],
        reasons=Reasons(issue="NotReady", unknown="ReadyUnknown", info="Ready"),
        negative=negative,
        ignore_if_missing=("HealthCheckSucceeded",),
        priority=priority,
        transform=_merge_control_plane_bullets,
    )
    return Timed(made, wake_at)


_DELETED_REASONS = {
    "BootstrapConfigReady": ("ObjectDeleted", "ObjectDoesNotExist"),
    "InfrastructureReady": ("ObjectDeleted", "ObjectDoesNotExist"),
    "NodeHealthy": ("NodeDeleted", "NodeDoesNotExist"),
}
"""Reasons that are not an issue while the Machine itself is being deleted."""


def _short_deleting(scope: MachineScope, deleting: Condition, drain_start: str, now: datetime) -> Timed:
    """Deleting without per-Machine details, so that aggregates over many Machines can deduplicate the message."""
    began = datetime.fromisoformat(scope.machine["metadata"]["deletionTimestamp"])
    marks = [began + SLOW_DELETION]
    message = "Machine deletion in progress"
    if now > marks[0]:
        message += " since more than 15m"
    message += f", stage: {deleting['reason']}"
    if deleting["reason"] == "DrainingNode" and drain_start:
        marks.append(datetime.fromisoformat(drain_start) + SLOW_DRAIN)
        causes = [cause for phrase, cause in _DRAIN_CAUSES.items() if phrase in deleting.get("message", "")]
        if causes and now > max(marks):
            message += f", delay likely due to {', '.join(causes)}"
    coming = [mark for mark in marks if mark >= now]
    return Timed(
        condition("Deleting", "True", "Deleting", message),
        min(coming) + timedelta(seconds=1) if coming else None,
    )


_DRAIN_CAUSES = {
    "cannot evict pod as it would violate the pod's disruption budget.": "PodDisruptionBudgets",
    "deletionTimestamp set, but still not removed from the Node": "Pods not terminating",
    "failed to evict Pod": "Pod eviction errors",
    "waiting for completion": "Pods not completed yet",
}
"""Phrases of the Deleting message and their short form."""


def _merge_control_plane_bullets(bullets: list[str]) -> list[str]:
    """Merge equal messages of control plane components into one bullet."""
    theirs = [bullet for bullet in bullets if _of_control_plane(bullet)]
    said = {bullet.partition(":")[2] for bullet in theirs}
    if len(theirs) < 2 or len(said) > 1:
        return bullets
    one = f"* Control plane components:{said.pop()}"
    return [one if bullet == theirs[0] else bullet for bullet in bullets if bullet not in theirs[1:]]


def _of_control_plane(bullet: str) -> bool:
    name, colon, _ = bullet.partition(":")
    return bool(colon) and (
        name.startswith(("* APIServer", "* ControllerManager", "* Scheduler")) or name == "* EtcdPodHealthy"
    )


def available(scope: MachineScope, ready_now: Condition, now: datetime) -> Timed:
    """Compute Available; `ready_now` is Ready with its lastTransitionTime."""
    if ready_now["status"] != "True":
        return Timed(condition("Available", "False", "NotReady"))
    wanted = timedelta(seconds=scope.machine["spec"].get("minReadySeconds") or 0)
    due = datetime.fromisoformat(ready_now["lastTransitionTime"]) + wanted
    if now >= due or not wanted:
        return Timed(condition("Available", "True", "Available"))
    return Timed(condition("Available", "False", "WaitingForMinReadySeconds"), due)


def legacy_ready(scope: MachineScope, conditions: Iterable[Condition], provider_id: str) -> Condition | None:
    """v1beta1 Ready; counts finished steps while the Machine is being provisioned."""
    provisioning = not scope.deleting and not provider_id
    return legacy_summary(conditions, _LEGACY_SUMMARIZED, counted=_LEGACY_STEPS if provisioning else ())


def drain_start(scope: MachineScope) -> str:
    return str(status_of(scope.machine, "deletion", {}).get("nodeDrainStartTime", ""))
