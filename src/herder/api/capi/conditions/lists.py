"""One condition, and the list of them in an object's status."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from herder.engine.meta.kinds import Object

Condition = Object
"""`{type, status, reason, message}`, with observedGeneration and lastTransitionTime where they are known."""


def condition(type_: str, status: str, reason: str, message: str = "", *, generation: int = 0) -> Condition:
    """A condition as it should be; the time of its last transition is set by `merged`."""
    made: Condition = {"type": type_, "status": status, "reason": reason, "message": message}
    return made | {"observedGeneration": generation} if generation else made


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
    """Said to be unknown; a condition that nobody reports is not."""
    return _status(obj, type_) == "Unknown"


def merged(
    existing: Iterable[Condition] | None,
    wanted: Iterable[Condition],
    now: datetime,
    *,
    drop: Iterable[str] = (),
    generation: int = 0,
) -> list[Condition]:
    """The list with the wanted conditions in it and the dropped ones gone; conditions of others stay as they are.

    A condition's time is kept while its status is the same. When that changes it is the time that the condition
    brings along, as a mirrored one does, else now. `generation` is the one that the wanted conditions were seen at.
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
    # Is it there for those who use it?
    *("Available", "Ready", "UpToDate", "RemoteConnectionProbe", "BootstrapConfigReady", "InfrastructureReady"),
    *("ControlPlaneInitialized", "ControlPlaneAvailable", "WorkersAvailable"),
    *("CertificatesAvailable", "Initialized", "EtcdClusterHealthy", "ControlPlaneComponentsHealthy"),
    *("NodeHealthy", "NodeReady", "NodeKubeadmLabelsAndTaintsSet", "EtcdPodHealthy", "EtcdMemberHealthy"),
    *("APIServerPodHealthy", "ControllerManagerPodHealthy", "SchedulerPodHealthy"),
    *("HealthCheckSucceeded", "OwnerRemediated"),
    # What is going on?
    *("TopologyReconciled", "Updating", "RollingOut", "Remediating", "ScalingDown", "ScalingUp"),
    # What do the machines say?
    *("MachinesReady", "ControlPlaneMachinesReady", "WorkerMachinesReady"),
    *("MachinesUpToDate", "ControlPlaneMachinesUpToDate", "WorkerMachinesUpToDate"),
)
_LAST = ("Paused", "Deleting")
_PLACE_OF_OTHERS = len(_FIRST)
_PLACES = {type_: place for place, type_ in enumerate((*_FIRST, "", *_LAST))}
