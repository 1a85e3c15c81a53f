"""A condition, and the list of conditions in an object's status."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from herder.engine.meta.kinds import Object

Condition = Object
"""`{type, status, reason, message}`, with observedGeneration and lastTransitionTime where known."""


def condition(type_: str, status: str, reason: str, message: str = "", *, generation: int = 0) -> Condition:
    """Build a condition; `merged` sets its lastTransitionTime."""
    fields: Condition = {"type": type_, "status": status, "reason": reason, "message": message}
    return fields | {"observedGeneration": generation} if generation else fields


def find(obj: Object | None, type_: str) -> Condition | None:
    if obj is None:
        return None
    conditions: list[Condition] = (obj.get("status") or {}).get("conditions") or []
    return next((known for known in conditions if known.get("type") == type_), None)


def is_true(obj: Object | None, type_: str) -> bool:
    return _status(obj, type_) == "True"


def is_false(obj: Object | None, type_: str) -> bool:
    return _status(obj, type_) == "False"


def is_unknown(obj: Object | None, type_: str) -> bool:
    """Whether the condition is reported as Unknown; false for a condition that is not reported."""
    return _status(obj, type_) == "Unknown"


def merged(
    existing: Iterable[Condition] | None,
    wanted: Iterable[Condition],
    now: datetime,
    *,
    drop: Iterable[str] = (),
    generation: int = 0,
) -> list[Condition]:
    """Merge the wanted conditions into the existing list and remove those in `drop`; other conditions stay.

    lastTransitionTime is kept while the status is the same. Otherwise it is that of the new condition, if it has one
    (mirrored conditions do), else now. `generation` is the generation that the wanted conditions were computed for.
    """
    observed = {"observedGeneration": generation} if generation else {}
    known = {old["type"]: old for old in existing or ()}
    dropped = set(drop)
    result = {type_: old for type_, old in known.items() if type_ not in dropped}
    for new in wanted:
        old = known.get(new["type"])
        if old is not None and old.get("status") == new["status"] and old.get("lastTransitionTime"):
            since = old["lastTransitionTime"]
        else:
            since = new.get("lastTransitionTime") or timestamp(now)
        result[new["type"]] = {**new, **observed, "lastTransitionTime": since}
    return sorted(result.values(), key=_rank)


def timestamp(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _status(obj: Object | None, type_: str) -> str:
    found = find(obj, type_)
    return str(found.get("status", "")) if found else ""


def _rank(known: Condition) -> tuple[int, str]:
    return _PLACES.get(known["type"], _PLACE_OF_OTHERS), known["type"]


_FIRST = (
    # Availability
    *("Available", "Ready", "UpToDate", "RemoteConnectionProbe", "BootstrapConfigReady", "InfrastructureReady"),
    *("ControlPlaneInitialized", "ControlPlaneAvailable", "WorkersAvailable"),
    *("CertificatesAvailable", "Initialized", "EtcdClusterHealthy", "ControlPlaneComponentsHealthy"),
    *("NodeHealthy", "NodeReady", "NodeKubeadmLabelsAndTaintsSet", "EtcdPodHealthy", "EtcdMemberHealthy"),
    *("APIServerPodHealthy", "ControllerManagerPodHealthy", "SchedulerPodHealthy"),
    *("HealthCheckSucceeded", "OwnerRemediated"),
    # Operations in progress
    *("TopologyReconciled", "Updating", "RollingOut", "Remediating", "ScalingDown", "ScalingUp"),
    # Machines
    *("MachinesReady", "ControlPlaneMachinesReady", "WorkerMachinesReady"),
    *("MachinesUpToDate", "ControlPlaneMachinesUpToDate", "WorkerMachinesUpToDate"),
)
_LAST = ("Paused", "Deleting")
_PLACE_OF_OTHERS = len(_FIRST)
_PLACES = {type_: place for place, type_ in enumerate((*_FIRST, "", *_LAST))}
