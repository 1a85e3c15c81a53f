"""Writes to plan Secrets: one write delivers a plan with its state and clears reports of the previous plan."""

from __future__ import annotations

from datetime import datetime

from herder.api.capi.conditions import timestamp
from herder.api.rke import names
from herder.api.rke.kinds import PLAN_SECRET
from herder.api.rke.node import plan_secret as secrets
from herder.api.rke.node.plan import Plan, checksum
from herder.api.rke.node.plan_secret import PlanSecret, encoded
from herder.api.writes import ref
from herder.controllers.planner.plan.render import Desired, PlanRecord
from herder.controllers.planner.rollout.machines import PlanEntry
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Patch

UNLIMITED = -1
MAX_SECRET_BYTES = 1 << 20
"""Limit of the API for the data of a Secret."""
_SMALL_BYTES = 16 << 10  # larger reports are dropped if the Secret is full
_KEPT = (secrets.PLAN, secrets.APPLIED_PLAN, secrets.MAX_FAILURES, secrets.FAILURE_THRESHOLD)
_KEPT_IF_SMALL = (
    secrets.STATE, secrets.REVISION, secrets.APPLIED_CHECKSUM, secrets.FAILED_CHECKSUM, secrets.FAILURE_COUNT,
    secrets.SUCCESS_COUNT, secrets.LAST_APPLY, secrets.PROBE_STATUSES, secrets.PERIODIC_OUTPUT,
    secrets.AGENT_VERSION, secrets.AGENT_CHECKSUM,
)  # fmt: skip


def deliver(desired: Desired, now: datetime, *, max_failures: int = UNLIMITED, failure_threshold: int = 1) -> Patch:
    """Write a plan. The write conflicts if another client, such as the agent, has written since it was read."""
    if UNLIMITED not in (max_failures, failure_threshold) and max_failures < failure_threshold:
        raise ValueError(f"failure threshold {failure_threshold} is more than {max_failures} failures at most")
    annotations = {
        names.PLAN_INPUTS: str(desired.delivered_record),
        names.JOINED_TO: desired.joins,
        names.PLAN_TASK: None,
        **_restarted(now),
    }
    limits = (max_failures, failure_threshold)
    return _plan_patch(desired.entry, desired.delivered, limits, annotations, f"the plan of {desired.entry.name}")


def deliver_task(entry: PlanEntry, plan: Plan, mark: str, now: datetime, *, joins: str | None = None) -> Patch:
    """Write the plan of a task, which runs once; or, without a mark, the plan that the machine had before it."""
    content = plan.to_json()
    annotations = {
        names.PLAN_INPUTS: str(PlanRecord(checksum=checksum(content))),
        names.PLAN_TASK: mark or None,
        names.JOINED_TO: entry.joined_to if joins is None else joins,
        **_restarted(now),
    }
    reason = f"task {mark} of {entry.name}" if mark else f"the plan of {entry.name}"
    return _plan_patch(entry, content, (1 if mark else UNLIMITED, 1), annotations, reason)


def _plan_patch(entry: PlanEntry, content: bytes, limits: tuple[int, int], annotations: Object, reason: str) -> Patch:
    """`limits`: most failures, and the number of failures that counts as one."""
    plan, (max_failures, failure_threshold) = encoded(content), limits
    data = {
        secrets.PLAN: plan,
        secrets.MAX_FAILURES: _number(max_failures),
        secrets.FAILURE_THRESHOLD: _number(failure_threshold),
    }
    dropped = reports_to_drop(entry.plan, 2 * len(plan))  # also for the copy once it is applied
    patch = {"metadata": {"annotations": annotations}, "data": {**dropped, **data, **pending_state()}}
    return locked_patch(entry, patch, reason)


def _restarted(now: datetime) -> Object:
    """Annotations of a plan that was not run yet."""
    return {
        names.PLAN_UPDATED: timestamp(now),
        names.PROBES_PASSED: "",
        names.PLAN_ATTEMPTS: "1",
        names.PLAN_FAILED: None,
    }


def record_inputs(desired: Desired) -> Patch:
    """Record that other inputs lead to the same plan. Otherwise it would be rendered again in every pass."""
    annotations = {"metadata": {"annotations": {names.PLAN_INPUTS: str(desired.record)}}}
    return locked_patch(desired.entry, annotations, f"other inputs lead to the same plan of {desired.entry.name}")


def pending_state() -> Object:
    """Data that makes an agent start. Without the old checksum, agents without plan-state support are not done."""
    return {
        secrets.STATE: encoded(secrets.PENDING),
        secrets.APPLIED_CHECKSUM: None,
        secrets.PROBE_STATUSES: None,
    }


def reports_to_drop(plan: PlanSecret, added: int) -> Object:
    """Reports to drop so that a write of `added` more bytes fits into the Secret.

    A node that fills its Secret must not stop the planner from writing, which would stall the whole cluster.
    """
    sizes = {key: len(value or "") for key, value in (plan.secret.get("data") or {}).items()}
    if (sum(sizes.values()) + added) * 3 // 4 <= MAX_SECRET_BYTES:  # base64 encodes 3 bytes in 4
        return {}
    kept = {key for key in _KEPT_IF_SMALL if sizes.get(key, 0) <= _SMALL_BYTES} | set(_KEPT)
    return dict.fromkeys(sizes.keys() - kept)


def locked_patch(entry: PlanEntry, patch: Object, reason: str) -> Patch:
    secret = entry.plan.secret
    return Patch(ref(PLAN_SECRET, secret), patch, reason, "", secret["metadata"]["resourceVersion"])


def _number(value: int) -> str | None:
    return encoded(str(value)) if value > 0 or value == UNLIMITED else None
