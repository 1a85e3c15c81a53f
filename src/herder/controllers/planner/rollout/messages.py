"""Messages of a rollout, for conditions and waits.

Most are Rancher's: users, dashboards and tests match them, so they must stay byte-compatible.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from herder.api.capi.conditions import find
from herder.api.machines.failure import creation_blocker, creation_failure, without_name
from herder.api.rke.names import PLAN_UPDATED
from herder.api.rke.node.plan_secret import IN_PROGRESS, PENDING
from herder.api.times import parse_time
from herder.controllers.planner.rollout.machines import PlanEntry
from herder.engine.meta.kinds import Object

INFRASTRUCTURE = "waiting for infrastructure ready"
NO_MACHINES = "waiting for at least one control plane, etcd, and worker node to be registered"
NO_JOIN_URL = "waiting for join url to be available on bootstrap node"
NO_CONTROL_PLANE = "waiting for control plane to be available"
INITIALIZING = "marking control plane as initialized"
PAUSED = "CAPI cluster or RKEControlPlane is paused"

NOT_CHECKED_IN = "waiting for agent to check in and apply initial plan"
NOT_APPLIED = "waiting for plan to be applied"
FAILED = "failure while applying plan"
NOT_CONNECTED = "waiting for cluster agent to connect"
NOT_PRE_BOOTSTRAPPED = "waiting for cluster pre-bootstrap to complete"

SILENT_AFTER = timedelta(minutes=5)
"""A machine whose agent has not started its plan after this time is reported with a hint."""
LONG_AFTER = timedelta(minutes=30)
"""A plan that is in progress for longer is reported with a hint."""


def name_machines(doing: str, entries: Sequence[PlanEntry], details: Mapping[str, Sequence[str]]) -> str:
    """Append at most three machine names, and the details if there is only one machine."""
    machines = sorted(entry.name for entry in entries)
    shown = ",".join(machines[:3]) + (f" and {len(machines) - 3} more" if len(machines) > 3 else "")
    detail = ", ".join(details.get(machines[0], ())) if len(machines) == 1 else ""
    return f"{doing} {shown}" + (f": {detail}" if detail else "")


def plan_status(entry: PlanEntry, now: datetime) -> str:
    """What the machine's current plan waits for; empty if it is applied and its probes are healthy."""
    plan = entry.plan
    if plan.is_done:
        return ""
    if not plan.has_plan or not (plan.plan and plan.plan.instructions):
        return _no_plan(entry)
    if plan.plan.error:
        return plan.plan.error
    if plan.failed:
        return FAILED
    if not plan.has_applied_plan:
        return NOT_CHECKED_IN + _overdue_hint(entry, now)
    if not plan.healthy:
        return f"waiting for probes: {', '.join(plan.unhealthy_probes)}" + _probe_errors(entry)
    return NOT_APPLIED + _overdue_hint(entry, now)


def _probe_errors(entry: PlanEntry) -> str:
    messages = [f"{name}: {error}" for name, error in sorted(entry.plan.probe_errors.items())]
    return f" ({'; '.join(messages)})" if messages else ""


def reminder_time(entry: PlanEntry) -> datetime | None:
    """When a hint is added to the message because the plan takes too long."""
    written = parse_time(entry.annotations.get(PLAN_UPDATED))
    threshold = {PENDING: SILENT_AFTER, IN_PROGRESS: LONG_AFTER}.get(entry.plan.state)
    return written + threshold if written and threshold and not entry.plan.in_sync else None


def silent_since(entry: PlanEntry) -> datetime | None:
    """When a machine whose agent does not start its plan counts as silent; None if it has started it.

    Agents without plan-state support never report a start.
    """
    return reminder_time(entry) if entry.plan.state == PENDING and entry.plan.revision else None


def is_silent(entry: PlanEntry, now: datetime) -> bool:
    due = silent_since(entry)
    return due is not None and now >= due


def _overdue_hint(entry: PlanEntry, now: datetime) -> str:
    due = reminder_time(entry)
    if due is None or now < due:
        return ""
    if entry.plan.state == IN_PROGRESS:
        return f" (plan in progress for more than {_minutes(LONG_AFTER)}; see the log of rancher-system-agent.service)"
    return (
        f" (no report from its agent for {_minutes(SILENT_AFTER)}; check that rancher-system-agent.service is running "
        "and reaches this server)"
    )


def pre_bootstrap_message(problem: str) -> str:
    """The wait of a cluster for its pre-bootstrap Secrets."""
    return NOT_PRE_BOOTSTRAPPED + (f": {problem}" if problem else "")


def agent_message(problem: str) -> str:
    """The wait for the cluster agent, with the state of its pod if it is known."""
    return NOT_CONNECTED + (f": {problem}" if problem else "")


def _minutes(span: timedelta) -> str:
    return f"{int(span.total_seconds()) // 60} minutes"


def _no_plan(entry: PlanEntry) -> str:
    if entry.roles.etcd:
        return "waiting for bootstrap etcd to be available"
    return "waiting for etcd to be available" if entry.roles.control_plane else NO_CONTROL_PLANE


# --- Machine conditions -----------------------------------------------------------------------------------------------


def machine_problem(machine: Object) -> str:
    """Why a machine failed; empty if it has not."""
    if why := creation_failure(machine):
        return f"machine could not be created: {why}"
    if (machine.get("status") or {}).get("phase") != "Failed":
        return ""
    conditions = [find(machine, name) for name in ("InfrastructureReady", "BootstrapConfigReady", "Ready")]
    messages = [str(each["message"]) for each in conditions if each and each.get("message")]
    return messages[0] if messages else "the machine has failed"


def failure_of(entries: Iterable[PlanEntry]) -> str:
    """Why machines cannot be created; empty if all can.

    Without their names: a machine that is replaced and fails again must not be news.
    """
    reasons = {without_name(why, entry.name) for entry in entries if (why := _creation_problem(entry.machine))}
    return min(reasons, default="")


def _creation_problem(machine: Object) -> str:
    blocker = creation_blocker(machine)
    return machine_problem(machine) or (f"machine cannot be created: {blocker}" if blocker else "")


def with_failure(waiting: str, entries: Iterable[PlanEntry]) -> str:
    """Append why machines cannot be created to what the cluster waits for."""
    why = failure_of(entries)
    return f"{waiting}: {why}" if why else waiting


def machine_wait(machine: Object) -> str:
    """What a machine's infrastructure waits for; empty if it is ready."""
    infrastructure = find(machine, "InfrastructureReady")
    if infrastructure is not None and infrastructure.get("status") == "True":
        return ""
    return str((infrastructure or {}).get("message") or "waiting for infrastructure ready")
