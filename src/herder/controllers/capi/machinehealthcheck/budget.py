"""Remediation budget (`triggerIf`): with too many unhealthy Machines, nothing is remediated."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from herder.api.capi.rollout import scaled
from herder.controllers.capi.machinehealthcheck.health import State
from herder.engine.meta.kinds import Object

DEFAULT_LIMIT = "100%"
LIMIT_FIELD = "spec.remediation.triggerIf.unhealthyLessThanOrEqualTo"


class Budget(NamedTuple):
    """Whether remediation is allowed."""

    allowed: bool
    left: int  # how many more Machines may become unhealthy
    message: str = ""  # why remediation is not allowed


def budget(check: Object, states: Collection[State]) -> Budget:
    """Count the unhealthy Machines and compare with the limit.

    Starting Machines do not count as unhealthy, or a growing pool could not be remediated. Machines being deleted or
    about to time out do: otherwise the first ones to time out in an outage would be replaced while the others follow.
    """
    unhealthy = sum(state in (State.UNHEALTHY, State.SUSPECT, State.DELETING) for state in states)
    trigger = (check["spec"].get("remediation") or {}).get("triggerIf") or {}
    in_range: str = trigger.get("unhealthyInRange") or ""
    if in_range:
        lowest, highest = map(int, in_range.strip("[]").split("-"))
        allowed = lowest <= unhealthy <= highest
        why = (
            f"does not fall within the range (total: {len(states)}, unhealthy: {unhealthy}, unhealthyRange: {in_range})"
        )
    else:
        limit = trigger.get("unhealthyLessThanOrEqualTo", DEFAULT_LIMIT)
        try:
            highest = scaled(limit, len(states), round_up=False, field=LIMIT_FIELD)
        except ValueError as error:
            return Budget(False, 0, str(error))
        allowed = unhealthy <= highest
        why = f"exceeds maxUnhealthy (total: {len(states)}, unhealthy: {unhealthy}, maxUnhealthy: {limit})"
    if allowed:
        return Budget(True, highest - unhealthy)
    return Budget(False, 0, f"Remediation is not allowed, the number of unhealthy machines {why}")
