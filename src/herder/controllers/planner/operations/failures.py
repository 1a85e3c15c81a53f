"""Why a machine did not complete its task."""

from __future__ import annotations

from collections.abc import Callable

from herder.controllers.planner.rollout import messages
from herder.controllers.planner.rollout.machines import PlanEntry

MAX_CAUSE = 400  # characters of a task's output, or of a rejection, in a message


def failure_of(entry: PlanEntry, redact: Callable[[str], str]) -> str:
    """The instruction that failed and its cause. Redacted before it is cut: a part of a token is not recognized."""
    evidence = entry.plan.evidence
    if evidence is None:
        return messages.FAILED
    cause = redact(evidence.cause)[:MAX_CAUSE]
    parts = (f'instruction "{evidence.instruction}"', f"exit code {evidence.exit_code}", evidence.error, cause)
    return redact(": ".join(part for part in parts if part))
