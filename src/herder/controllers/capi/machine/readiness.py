"""The conditions that a Machine's other conditions add up to: Ready, Available, and the older list's Ready."""

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
from herder.controllers.capi.machine.scene import Scene, status_of

DELETION_IS_LONG = timedelta(minutes=15)
DRAIN_IS_LONG = timedelta(minutes=5)

_SUMMED = (
    "Deleting",
    "Updating",
    "BootstrapConfigReady",
    "InfrastructureReady",
    "NodeHealthy",
    "HealthCheckSucceeded",
)
_NEGATIVE = ("Deleting", "Updating")
_LEGACY_SUMMED = (
    "InfrastructureReady",
    "BootstrapReady",
    "HealthCheckSucceeded",
    "OwnerRemediated",
    "DrainingSucceeded",
)
_LEGACY_STEPS = ("BootstrapReady", "InfrastructureReady")


class Timed(NamedTuple):
    """A condition, and when the passing of time alone will change it."""

    condition: Condition
    wake_at: datetime | None = None


def ready(scene: Scene, conditions: Iterable[Condition], drain_began: str, now: datetime) -> Timed:
    """`conditions` are all others of the Machine, those of other controllers among them."""
    parts = {part["type"]: part for part in conditions}
    wake_at = None
    if scene.deleting:
        parts["Deleting"], wake_at = _deleting_in_short(scene, parts["Deleting"], drain_began, now)
    gates = scene.machine["spec"].get("readinessGates") or ()
    negative = {*_NEGATIVE, *(gate["conditionType"] for gate in gates if gate.get("polarity") == "Negative")}

    def priority(part: Condition) -> Priority:
        gone_as_expected = scene.deleting and part.get("reason") in _GONE.get(part["type"], ())
        return Priority.INFO if gone_as_expected else default_priority(part, negative)

    made = summary(
        "Ready",
        parts.values(),
        types=[*_SUMMED, *(gate["conditionType"] for gate in gates)],
        reasons=Reasons(issue="NotReady", unknown="ReadyUnknown", info="Ready"),
        negative=negative,
        ignore_if_missing=("HealthCheckSucceeded",),
        priority=priority,
        transform=_control_plane_in_one,
    )
    return Timed(made, wake_at)


_GONE = {
    "BootstrapConfigReady": ("ObjectDeleted", "ObjectDoesNotExist"),
    "InfrastructureReady": ("ObjectDeleted", "ObjectDoesNotExist"),
    "NodeHealthy": ("NodeDeleted", "NodeDoesNotExist"),
}
"""What is no issue while the Machine itself goes."""


def _deleting_in_short(scene: Scene, deleting: Condition, drain_began: str, now: datetime) -> Timed:
    """Without the details, which differ from Machine to Machine: those above list what many of them say once."""
    began = datetime.fromisoformat(scene.machine["metadata"]["deletionTimestamp"])
    marks = [began + DELETION_IS_LONG]
    message = "Machine deletion in progress"
    if now > marks[0]:
        message += " since more than 15m"
    message += f", stage: {deleting['reason']}"
    if deleting["reason"] == "DrainingNode" and drain_began:
        marks.append(datetime.fromisoformat(drain_began) + DRAIN_IS_LONG)
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
"""Phrases of the Deleting condition's message, and what they mean in short."""


def _control_plane_in_one(bullets: list[str]) -> list[str]:
    """The components of a control plane usually say the same: then once is enough."""
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


def available(scene: Scene, ready_now: Condition, now: datetime) -> Timed:
    """Ready for long enough; `ready_now` is Ready with the time since when it is so."""
    if ready_now["status"] != "True":
        return Timed(condition("Available", "False", "NotReady"))
    wanted = timedelta(seconds=scene.machine["spec"].get("minReadySeconds") or 0)
    due = datetime.fromisoformat(ready_now["lastTransitionTime"]) + wanted
    if now >= due or not wanted:
        return Timed(condition("Available", "True", "Available"))
    return Timed(condition("Available", "False", "WaitingForMinReadySeconds"), due)


def legacy_ready(scene: Scene, conditions: Iterable[Condition], provider_id: str) -> Condition | None:
    """While the Machine is being provisioned, it tells how many of the steps are done."""
    provisioning = not scene.deleting and not provider_id
    return legacy_summary(conditions, _LEGACY_SUMMED, counted=_LEGACY_STEPS if provisioning else ())


def drain_began(scene: Scene) -> str:
    return str(status_of(scene.machine, "deletion", {}).get("nodeDrainStartTime", ""))
