"""Events about a rollout, from the difference between the status of the RKEControlPlane and the next one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from herder.api.capi.conditions import Condition, find, is_true
from herder.api.rke.events import cluster_events
from herder.controllers.planner.rollout.machines import RECONCILED
from herder.controllers.planner.rollout.scope import PlanScope, Result
from herder.engine.runtime.decision import WARNING, Event

MACHINES_FAIL = "MachineCreationFailed"


def rollout_events(scope: PlanScope, result: Result) -> Iterator[Event]:
    if result.failure and result.failure not in str((find(scope.control_plane, "Ready") or {}).get("message", "")):
        yield from cluster_events(scope.cluster, scope.control_plane, MACHINES_FAIL, result.failure, WARNING)
    plane, known = scope.control_plane, find(scope.control_plane, RECONCILED) or {}
    wanted = str(scope.spec.get("kubernetesVersion") or "")
    applied = str((scope.status.get("appliedSpec") or {}).get("kubernetesVersion") or "")
    if result.error:
        if known.get("message") != result.error:
            yield from cluster_events(scope.cluster, plane, "PlanningFailed", result.error, WARNING)
    elif result.waiting:
        if applied and applied != wanted and is_true(plane, RECONCILED):
            message = f"Upgrade from {applied} to {wanted} has started"
            yield from cluster_events(scope.cluster, plane, "UpgradeStarted", message)
    elif applied and applied != wanted:
        yield from cluster_events(
            scope.cluster, plane, "UpgradeFinished", f"Upgrade from {applied} to {wanted} has finished"
        )
    elif not is_true(plane, RECONCILED):
        yield from cluster_events(scope.cluster, plane, "Reconciled", "all machines have applied their plans")


def certificate_events(scope: PlanScope, conditions: Iterable[Condition]) -> Iterator[Event]:
    """Warn when the first certificate is about to expire, and once more when it has expired."""
    for each in conditions:
        known = find(scope.control_plane, each["type"]) or {}
        if each["status"] == "False" and known.get("reason") != each["reason"]:
            yield from cluster_events(scope.cluster, scope.control_plane, each["reason"], each["message"], WARNING)
