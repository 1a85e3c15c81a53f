"""Health of a Machine, from its conditions, its Node's conditions, and the node startup timeout."""

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
ROUNDING = timedelta(seconds=1)  # Timestamps are rounded to seconds: wake up when the deadline has surely passed.


class State(StrEnum):
    """Health state of a Machine."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    SUSPECT = "suspect"  # a condition is unhealthy, but its timeout has not expired
    STARTING = "starting"  # no Node yet, and the startup timeout has not expired
    DELETING = "deleting"  # being deleted


class Target(NamedTuple):
    """A Machine and its Node."""

    machine: Object
    node: Object | None = None
    node_gone: bool = False  # status.nodeRef is set, but the Node does not exist


@dataclass(frozen=True, slots=True)
class Health:
    """Health of a Machine and the conditions that report it."""

    state: State
    condition: Condition | None = None  # None keeps the previous one
    legacy_condition: Condition | None = None
    recheck_at: datetime | None = None


class Issue(NamedTuple):
    reason: str
    message: str


class _Findings(NamedTuple):
    issues: tuple[Issue, ...] = ()
    recheck_at: datetime | None = None
    starting: bool = False


def evaluate(target: Target, check: Object, cluster: Object, now: datetime) -> Health:
    """Evaluate Machine and Node, to report all issues; the Machine's reason comes first."""
    machine = target.machine
    if REMEDIATE_MACHINE in annotations_of(machine):
        return _marked()
    if not _can_be_evaluated(machine, cluster):
        return Health(State.STARTING)
    checks = check["spec"].get("checks") or {}
    by_machine = _timed_out(
        checks.get("unhealthyMachineConditions"), lambda type_: find(machine, type_), "Machine", now
    )
    by_node = _evaluate_node(target, checks, cluster, now)
    issues = by_machine.issues + by_node.issues
    if issues:
        return _unhealthy(issues)
    recheck_at = min((at for at in (by_machine.recheck_at, by_node.recheck_at) if at), default=None)
    if recheck_at is not None:
        only_starting = by_node.starting and by_machine.recheck_at is None
        return Health(State.STARTING if only_starting else State.SUSPECT, recheck_at=recheck_at)
    if is_deleting(machine):
        return Health(State.DELETING)
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


def _can_be_evaluated(machine: Object, cluster: Object) -> bool:
    """Before the cluster is up, no Machine can be healthy; only control plane Machines must be replaceable even
    then."""
    initialized = is_true(cluster, "ControlPlaneInitialized") or CONTROL_PLANE in labels_of(machine)
    return initialized and is_true(cluster, "InfrastructureReady")


def _unhealthy(issues: tuple[Issue, ...]) -> Health:
    reason = issues[0].reason
    messages = [issue.message for issue in issues]
    message = "Health check failed:\n" + "\n".join(f"  * {each}" for each in messages)
    older = ("NodeNotFound", "") if reason == "NodeDeleted" else (reason, "; ".join(messages))
    return Health(
        State.UNHEALTHY,
        condition(SUCCEEDED, "False", reason, message),
        legacy(SUCCEEDED, "False", older[0], "Warning", older[1]),
    )


def _evaluate_node(target: Target, checks: Object, cluster: Object, now: datetime) -> _Findings:
    if target.node_gone:
        name = target.machine["status"]["nodeRef"]["name"]
        return _Findings((Issue("NodeDeleted", f"Node {name} has been deleted"),))
    node = target.node
    if node is None:
        return _evaluate_startup(target.machine, checks, cluster, now)
    return _timed_out(checks.get("unhealthyNodeConditions"), lambda type_: node_condition(node, type_), "Node", now)


def startup_timeout(check: Object) -> int:
    """Seconds that a Node has to register, also if the check does not report Machines without a Node."""
    seconds = (check["spec"].get("checks") or {}).get("nodeStartupTimeoutSeconds")
    return int(seconds or DEFAULT_STARTUP_SECONDS)


def _evaluate_startup(machine: Object, checks: Object, cluster: Object, now: datetime) -> _Findings:
    seconds = checks.get("nodeStartupTimeoutSeconds")
    limit = timedelta(seconds=DEFAULT_STARTUP_SECONDS if seconds is None else seconds)
    if not limit:
        return _Findings(starting=True)
    due = _startup_begin(machine, cluster) + limit
    if due < now:
        message = f"Node failed to report startup in {go_duration(limit)}"
        return _Findings((Issue("NodeStartupTimeout", message),))
    return _Findings(recheck_at=due + ROUNDING, starting=True)


def _startup_begin(machine: Object, cluster: Object) -> datetime:
    """Time since when only the Machine itself could delay its startup."""
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


def _timed_out(
    wanted: Iterable[Object] | None, find_condition: Callable[[str], Condition | None], where: str, now: datetime
) -> _Findings:
    """Conditions that have been unhealthy for longer than their timeout; if none, when the first one will be."""
    issues, dues = [], []
    for each in wanted or ():
        found = find_condition(each["type"])
        if found is None or found.get("status") != each["status"]:
            continue
        limit = timedelta(seconds=each.get("timeoutSeconds") or 0)
        due = datetime.fromisoformat(found["lastTransitionTime"]) + limit
        if due < now:
            said = f"is reporting status {each['status']} with reason {found.get('reason', '')}"
            message = f"Condition {each['type']} on {where} {said} for more than {go_duration(limit)}"
            issues.append(Issue(f"Unhealthy{where}", message))
        else:
            dues.append(due + ROUNDING)
    return _Findings(tuple(issues), None if issues else min(dues, default=None))


def go_duration(duration: timedelta) -> str:
    """Duration in Go's format, as in upstream's messages: 5m0s, 1h0m0s, 30s."""
    minutes, seconds = divmod(int(duration.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}s"
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
