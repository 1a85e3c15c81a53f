"""How many Machines may be unhealthy before nothing is replaced any more: then it is not the Machines."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from herder.api.capi.rollout import scaled
from herder.controllers.capi.machinehealthcheck.health import State
from herder.engine.meta.kinds import Object

DEFAULT_LIMIT = "100%"
LIMIT_FIELD = "spec.remediation.triggerIf.unhealthyLessThanOrEqualTo"


class Budget(NamedTuple):
    allowed: bool
    left: int  # how many more may become unhealthy before it is used up
    message: str = ""  # why not


def budget(check: Object, states: Collection[State]) -> Budget:
    """Machines that are starting are not unhealthy, or a pool that grows could not be healed; those that are going
    or about to fail are, or the first to time out in a storm would be replaced while the others follow."""
    unhealthy = sum(state in (State.UNHEALTHY, State.SUSPECT, State.GOING) for state in states)
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
