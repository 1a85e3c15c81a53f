"""What people read while they wait, in the words that they know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from herder.api.capi.conditions import find
from herder.api.moments import moment
from herder.api.rke.names import PLAN_UPDATED
from herder.api.rke.plan_secret import IN_PROGRESS, PENDING
from herder.controllers.planner.entries import Entry
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
NOT_PRE_BOOTSTRAPPED = "waiting for cluster pre-bootstrap to complete"

SILENT_AFTER = timedelta(minutes=5)
"""An agent that has not begun by then is asked about by name."""
LONG_AFTER = timedelta(minutes=30)


def naming(doing: str, entries: Sequence[Entry], details: Mapping[str, Sequence[str]]) -> str:
    """At most three names, and the detail where there is but one machine."""
    machines = sorted(entry.name for entry in entries)
    shown = ",".join(machines[:3]) + (f" and {len(machines) - 3} more" if len(machines) > 3 else "")
    detail = ", ".join(details.get(machines[0], ())) if len(machines) == 1 else ""
    return f"{doing} {shown}" + (f": {detail}" if detail else "")


def plan_status(entry: Entry, now: datetime) -> str:
    """What is still to happen with the plan that the machine has; empty where all of it has happened."""
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
        return NOT_CHECKED_IN + _since(entry, now)
    if not plan.healthy:
        return f"waiting for probes: {', '.join(plan.unhealthy_probes)}" + _probe_errors(entry)
    return NOT_APPLIED + _since(entry, now)


def _probe_errors(entry: Entry) -> str:
    messages = [f"{name}: {error}" for name, error in sorted(entry.plan.probe_errors.items())]
    return f" ({'; '.join(messages)})" if messages else ""


def speaks_up_at(entry: Entry) -> datetime | None:
    """When a wait has lasted so long that more is said about it."""
    written = moment(entry.annotations.get(PLAN_UPDATED))
    patience = {PENDING: SILENT_AFTER, IN_PROGRESS: LONG_AFTER}.get(entry.plan.state)
    return written + patience if written and patience and not entry.plan.in_sync else None


def _since(entry: Entry, now: datetime) -> str:
    due = speaks_up_at(entry)
    if due is None or now < due:
        return ""
    if entry.plan.state == IN_PROGRESS:
        return (
            f" (its agent is at it for more than {_minutes(LONG_AFTER)}: see the log of rancher-system-agent.service)"
        )
    return (
        f" (nothing was heard of its agent for {_minutes(SILENT_AFTER)}: is rancher-system-agent.service running, "
        "and does it reach this server?)"
    )


def outstanding(problem: str) -> str:
    """Of a cluster that is to have Secrets of ours before the rest of it is built."""
    return NOT_PRE_BOOTSTRAPPED + (f": {problem}" if problem else "")


def _minutes(span: timedelta) -> str:
    return f"{int(span.total_seconds()) // 60} minutes"


def _no_plan(entry: Entry) -> str:
    if entry.roles.etcd:
        return "waiting for bootstrap etcd to be available"
    return "waiting for etcd to be available" if entry.roles.control_plane else NO_CONTROL_PLANE


# --- the machine itself ---------------------------------------------------------------------------------------------


def machine_problem(machine: Object) -> str:
    """Why a machine failed; empty where it has not."""
    if (machine.get("status") or {}).get("phase") != "Failed":
        return ""
    conditions = [find(machine, name) for name in ("InfrastructureReady", "BootstrapConfigReady", "Ready")]
    messages = [str(each["message"]) for each in conditions if each and each.get("message")]
    return messages[0] if messages else "the machine has failed"


def machine_wait(machine: Object) -> str:
    """What a machine waits for before there is anything to plan for."""
    infrastructure = find(machine, "InfrastructureReady")
    if infrastructure is not None and infrastructure.get("status") == "True":
        return ""
    return str((infrastructure or {}).get("message") or "waiting for infrastructure ready")
