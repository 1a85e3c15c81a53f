"""Mirror a provider's condition on the object it works for (`InfrastructureReady`, `BootstrapConfigReady`)."""

from __future__ import annotations

from typing import Any

from herder.api.capi.conditions.lists import Condition, condition
from herder.engine.meta.kinds import Object

INVALID = "InvalidConditionReported"
NO_REASON = "NoReasonReported"
NOT_YET_REPORTED = "NotYetReported"

_STATUSES = ("True", "False", "Unknown")


class InvalidCondition(ValueError):
    """A provider's condition list has an invalid entry."""


def mirror(
    source: Object | None, source_type: str, target_type: str, *, fallback: Condition, reason_if_true: str = ""
) -> Condition:
    """Return the source's condition under another type, keeping its lastTransitionTime.

    `fallback` is used if the source does not report the condition. `reason_if_true` replaces the missing reason of true
    v1beta1 conditions.
    """
    try:
        found = reported(source, source_type)
    except InvalidCondition as error:
        return condition(target_type, "Unknown", INVALID, str(error))
    if found is None:
        return {**fallback, "type": target_type}
    if found["reason"] == NO_REASON and found["status"] == "True" and reason_if_true:
        found = {**found, "reason": reason_if_true}
    return {**found, "type": target_type}


def reported(source: Object | None, type_: str) -> Condition | None:
    """Find a condition of an object whose schema is not ours: it may follow any contract version, or be malformed."""
    status = (source or {}).get("status") or {}
    for conditions in ((status.get("v1beta2") or {}).get("conditions"), status.get("conditions")):
        if isinstance(conditions, list):
            checked = [_checked(known) for known in conditions if isinstance(known, dict)]
            return next((known for known in checked if known["type"] == type_), None)
    return None


def _checked(raw: dict[str, Any]) -> Condition:
    type_, status = str(raw.get("type") or ""), str(raw.get("status") or "")
    if not type_:
        raise InvalidCondition("type must be set for all conditions")
    if not status:
        raise InvalidCondition(f"status must be set for the {type_} condition")
    if status not in _STATUSES:
        raise InvalidCondition(f"status for the {type_} condition must be one of {', '.join(_STATUSES)}")
    checked = condition(type_, status, str(raw.get("reason") or NO_REASON), str(raw.get("message") or ""))
    since = raw.get("lastTransitionTime")
    return checked | {"lastTransitionTime": str(since)} if since else checked
