"""How a plan is asked for: plan and state in one write, and what was reported of the last one gone with it."""

from __future__ import annotations

from datetime import datetime

from herder.api.capi.conditions import timestamp
from herder.api.rke import names
from herder.api.rke import plan_secret as secrets
from herder.api.rke.kinds import PLAN_SECRET
from herder.api.rke.plan_secret import PlanSecret, encoded
from herder.api.writing import ref
from herder.controllers.planner.entries import Entry
from herder.controllers.planner.rendering import Desired
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Patch

UNLIMITED = -1
MOST_BYTES = 1 << 20
"""Of the data of a Secret, by the API."""
_SMALL_BYTES = 16 << 10  # of a report that is kept where there is no room for all of them
_KEPT = (secrets.PLAN, secrets.APPLIED_PLAN, secrets.MAX_FAILURES, secrets.FAILURE_THRESHOLD)
_KEPT_IF_SMALL = (
    secrets.STATE, secrets.REVISION, secrets.APPLIED_CHECKSUM, secrets.FAILED_CHECKSUM, secrets.FAILURE_COUNT,
    secrets.SUCCESS_COUNT, secrets.LAST_APPLY, secrets.PROBE_STATUSES, secrets.PERIODIC_OUTPUT,
)  # fmt: skip


def deliver(desired: Desired, now: datetime, *, max_failures: int = UNLIMITED, failure_threshold: int = 1) -> Patch:
    """Refused if anybody, the agent above all, has written since it was read."""
    if UNLIMITED not in (max_failures, failure_threshold) and max_failures < failure_threshold:
        raise ValueError(f"failure threshold {failure_threshold} is more than {max_failures} failures at most")
    marks = {
        names.PLAN_INPUTS: str(desired.delivered_mark),
        names.JOINED_TO: desired.joins,
        names.PLAN_UPDATED: timestamp(now),
        names.PROBES_PASSED: "",
        names.PLAN_ATTEMPTS: "1",
        names.PLAN_FAILED: None,
    }
    data = {
        secrets.PLAN: encoded(desired.delivered),
        secrets.MAX_FAILURES: _number(max_failures),
        secrets.FAILURE_THRESHOLD: _number(failure_threshold),
    }
    room = room_for(desired.entry.plan, 2 * len(data[secrets.PLAN] or ""))  # also for the copy once it is applied
    patch = {"metadata": {"annotations": marks}, "data": {**room, **data, **asked()}}
    return locked(desired.entry, patch, f"the plan of {desired.entry.name}")


def marked(desired: Desired) -> Patch:
    """That other inputs have led to the plan that is there: else it would be rendered again at every look."""
    marks = {"metadata": {"annotations": {names.PLAN_INPUTS: str(desired.mark)}}}
    return locked(desired.entry, marks, f"the plan of {desired.entry.name} is the same, made of something else")


def asked() -> Object:
    """What makes an agent begin. The old checksum goes, so that agents that know no state are not taken to be done."""
    return {
        secrets.STATE: encoded(secrets.PENDING),
        secrets.APPLIED_CHECKSUM: None,
        secrets.PROBE_STATUSES: None,
    }


def room_for(plan: PlanSecret, more: int) -> Object:
    """Reports that go where the API would refuse a write of so much more for its size: a node that fills its Secret
    must not keep the planner from writing, which would stall its whole cluster."""
    sizes = {key: len(value or "") for key, value in (plan.secret.get("data") or {}).items()}
    if (sum(sizes.values()) + more) * 3 // 4 <= MOST_BYTES:  # of base64
        return {}
    kept = {key for key in _KEPT_IF_SMALL if sizes.get(key, 0) <= _SMALL_BYTES} | set(_KEPT)
    return dict.fromkeys(sizes.keys() - kept)


def locked(entry: Entry, patch: Object, reason: str) -> Patch:
    secret = entry.plan.secret
    return Patch(ref(PLAN_SECRET, secret), patch, reason, "", secret["metadata"]["resourceVersion"])


def _number(value: int) -> str | None:
    return encoded(str(value)) if value > 0 or value == UNLIMITED else None
