"""Is a Machine well? By its own conditions, its Node's, and the time it may take to come up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from herder.api.capi.conditions import Condition, condition, find, is_true, legacy
from herder.api.capi.names import CONTROL_PLANE, REMEDIATE_MACHINE, annotations_of, is_deleting, labels_of
from herder.api.capi.nodes import node_condition
from herder.engine.meta.kinds import Object

SUCCEEDED = "HealthCheckSucceeded"
DEFAULT_STARTUP_SECONDS = 600
LATER = timedelta(seconds=1)  # times in objects are whole seconds: looked at again when surely past


class State(StrEnum):
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    SUSPECT = "suspect"  # something is wrong, but not for long enough
    STARTING = "starting"  # it has no Node yet, and still time to get one
    GOING = "going"  # it is being deleted


class Target(NamedTuple):
    machine: Object
    node: Object | None = None
    node_gone: bool = False  # it had one


@dataclass(frozen=True, slots=True)
class Health:
    state: State
    told: Condition | None = None  # None: nothing new to say
    legacy_condition: Condition | None = None
    look_again: datetime | None = None


class Complaint(NamedTuple):
    reason: str
    message: str


class _Findings(NamedTuple):
    complaints: tuple[Complaint, ...] = ()
    look_again: datetime | None = None
    starting: bool = False


def examine(target: Target, check: Object, cluster: Object, now: datetime) -> Health:
    """Machine and Node are both looked at, so that all that is wrong is told; the Machine's reason goes first."""
    machine = target.machine
    if REMEDIATE_MACHINE in annotations_of(machine):
        return _marked()
    if not _counts_yet(machine, cluster):
        return Health(State.STARTING)
    checks = check["spec"].get("checks") or {}
    by_machine = _held(checks.get("unhealthyMachineConditions"), lambda type_: find(machine, type_), "Machine", now)
    by_node = _examine_node(target, checks, cluster, now)
    complaints = by_machine.complaints + by_node.complaints
    if complaints:
        return _unhealthy(complaints)
    look_again = min((at for at in (by_machine.look_again, by_node.look_again) if at), default=None)
    if look_again is not None:
        only_starting = by_node.starting and by_machine.look_again is None
        return Health(State.STARTING if only_starting else State.SUSPECT, look_again=look_again)
    if is_deleting(machine):
        return Health(State.GOING)
    if target.node is None:
        return Health(State.STARTING)
    return Health(State.HEALTHY, condition(SUCCEEDED, "True", SUCCEEDED), legacy(SUCCEEDED, "True"))


def _marked() -> Health:
    words = f"Health check failed: marked for remediation via {REMEDIATE_MACHINE} annotation"
    older = "Marked for remediation via remediate-machine annotation"
    return Health(
        State.UNHEALTHY,
        condition(SUCCEEDED, "False", "HasRemediateAnnotation", words),
        legacy(SUCCEEDED, "False", "HasRemediateMachineAnnotation", "Warning", older),
    )


def _counts_yet(machine: Object, cluster: Object) -> bool:
    """Nobody can be well in a cluster that is not there yet; only its control plane must be replaceable even then."""
    initialized = is_true(cluster, "ControlPlaneInitialized") or CONTROL_PLANE in labels_of(machine)
    return initialized and is_true(cluster, "InfrastructureReady")


def _unhealthy(complaints: tuple[Complaint, ...]) -> Health:
    reason = complaints[0].reason
    messages = [complaint.message for complaint in complaints]
    message = "Health check failed:\n" + "\n".join(f"  * {each}" for each in messages)
    older = ("NodeNotFound", "") if reason == "NodeDeleted" else (reason, "; ".join(messages))
    return Health(
        State.UNHEALTHY,
        condition(SUCCEEDED, "False", reason, message),
        legacy(SUCCEEDED, "False", older[0], "Warning", older[1]),
    )


def _examine_node(target: Target, checks: Object, cluster: Object, now: datetime) -> _Findings:
    if target.node_gone:
        name = target.machine["status"]["nodeRef"]["name"]
        return _Findings((Complaint("NodeDeleted", f"Node {name} has been deleted"),))
    node = target.node
    if node is None:
        return _examine_start(target.machine, checks, cluster, now)
    return _held(checks.get("unhealthyNodeConditions"), lambda type_: node_condition(node, type_), "Node", now)


def _examine_start(machine: Object, checks: Object, cluster: Object, now: datetime) -> _Findings:
    seconds = checks.get("nodeStartupTimeoutSeconds")
    limit = timedelta(seconds=DEFAULT_STARTUP_SECONDS if seconds is None else seconds)
    if not limit:
        return _Findings(starting=True)
    due = _could_start(machine, cluster) + limit
    if due < now:
        message = f"Node failed to report startup in {in_words(limit)}"
        return _Findings((Complaint("NodeStartupTimeout", message),))
    return _Findings(look_again=due + LATER, starting=True)


def _could_start(machine: Object, cluster: Object) -> datetime:
    """Since when nothing has been in the way of the Machine's start but itself."""
    moments = [datetime.fromisoformat(machine["metadata"]["creationTimestamp"])]
    for obj, type_ in (
        (cluster, "ControlPlaneInitialized"),
        (cluster, "InfrastructureReady"),
        (machine, "InfrastructureReady"),
    ):
        found = find(obj, type_)
        if found is not None and found["status"] == "True":
            moments.append(datetime.fromisoformat(found["lastTransitionTime"]))
    return max(moments)


def _held(
    wanted: Iterable[Object] | None, find_condition: Callable[[str], Condition | None], where: str, now: datetime
) -> _Findings:
    """Which of the conditions have had a bad status for too long; if none, when the first one will have."""
    complaints, dues = [], []
    for each in wanted or ():
        found = find_condition(each["type"])
        if found is None or found.get("status") != each["status"]:
            continue
        limit = timedelta(seconds=each.get("timeoutSeconds") or 0)
        due = datetime.fromisoformat(found["lastTransitionTime"]) + limit
        if due < now:
            said = f"is reporting status {each['status']} with reason {found.get('reason', '')}"
            message = f"Condition {each['type']} on {where} {said} for more than {in_words(limit)}"
            complaints.append(Complaint(f"Unhealthy{where}", message))
        else:
            dues.append(due + LATER)
    return _Findings(tuple(complaints), None if complaints else min(dues, default=None))


def in_words(duration: timedelta) -> str:
    """As Go writes it, since people compare: 5m0s, 1h0m0s, 30s."""
    minutes, seconds = divmod(int(duration.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}s"
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
