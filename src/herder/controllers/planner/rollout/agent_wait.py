"""The wait for the cluster agent: which machine reports why its pod does not start, and from when on.

One control plane machine gets the instruction, once it has waited for some time. It keeps the instruction until the
agent is connected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from herder.api.capi.conditions import find
from herder.api.rke.names import PROBES_PASSED
from herder.api.rke.node.plan import AGENT_STATUS
from herder.api.times import parse_time
from herder.controllers.planner.distributions.agent_status import describe_agent
from herder.controllers.planner.rollout.machines import RECONCILED, PlanEntry

REPORTED_AFTER = timedelta(minutes=2)
"""Time to pull the image and to connect. An agent that takes longer is reported with the state of its pod."""


@dataclass(frozen=True)
class AgentWait:
    """The state of the wait; empty if the agent is connected."""

    reporter: str = ""  # machine whose plan has the instruction
    due: datetime | None = None  # when a machine gets the instruction
    problem: str = ""  # what the reporter says about the pod


def wait_for_agent(entries: Sequence[PlanEntry], *, connected: bool, now: datetime) -> AgentWait:
    """Choose the reporter among the machines, which are not being deleted."""
    entry = _reporter(entries)
    if entry is None:
        return AgentWait()
    if _reports(entry):
        # The plan of a paused machine does not change, so it is not required to.
        is_kept = entry.is_paused or not connected
        problem = "" if connected else describe_agent(entry.plan.periodic_outputs.get(AGENT_STATUS))
        return AgentWait(entry.name if is_kept else "", problem=problem)
    since = _waiting_since(entry)
    if connected or entry.is_paused or since is None:
        return AgentWait()
    due = since + REPORTED_AFTER
    return AgentWait(entry.name) if now >= due else AgentWait(due=due)


def _reporter(entries: Sequence[PlanEntry]) -> PlanEntry | None:
    """The init node, else the first machine by name."""
    planes = [entry for entry in entries if entry.roles.control_plane]
    return min(planes, key=lambda entry: (not entry.is_init, entry.name), default=None)


def _reports(entry: PlanEntry) -> bool:
    """Most plans do not contain the name, and need not be parsed."""
    plan = entry.plan.plan if AGENT_STATUS.encode() in entry.plan.plan_bytes else None
    return plan is not None and plan.reports_agent


def _waiting_since(entry: PlanEntry) -> datetime | None:
    """When the machine began to wait for the agent; None if it does not, or if the wait is not reported yet.

    The plan may be applied for long when the agent disconnects. The condition changes then.
    """
    reported = find(entry.machine, RECONCILED)
    passed = parse_time(entry.annotations.get(PROBES_PASSED))
    if not entry.plan.is_done or passed is None or reported is None or reported.get("status") == "True":
        return None
    changed = parse_time(reported.get("lastTransitionTime"))
    return max(passed, changed) if changed else passed
