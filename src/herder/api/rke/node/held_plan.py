"""Withdraw plans that were unfinished when a backup was made.

Agents read their plan Secrets as soon as a restored manager serves them, before any controller runs. An agent that
finds a pending plan applies it: by now, that would undo what later plans have done. So its Secret gets the last plan
that is known to be applied. The planner issues a new plan once the cluster is resumed.
"""

from __future__ import annotations

from herder.api.rke import names
from herder.api.rke.node import plan_secret as secrets
from herder.api.rke.node.plan import checksum
from herder.api.rke.node.plan_secret import PlanSecret, encoded
from herder.engine.meta.kinds import Object

HELD_PLAN = "plan.herder.io/held"
"""Annotation of a plan Secret: the checksum of the plan that was withdrawn."""


def withdrawal(secret: Object) -> Object | None:
    """Return the patch that withdraws an unfinished plan; None if the agent would not run the plan again."""
    plan = PlanSecret(secret)
    if not plan.has_plan or plan.in_sync or plan.state == secrets.FAILED:
        return None
    applied = plan.raw(secrets.APPLIED_PLAN)
    content: dict[str, str | None] = {
        secrets.PLAN: encoded(applied) if applied else None,
        secrets.STATE: encoded(secrets.SUCCEEDED) if applied else None,
        secrets.APPLIED_CHECKSUM: encoded(checksum(applied)) if applied else None,
    }
    # Without a record of its inputs, the planner compares the plan itself with what it would issue now.
    annotations = {HELD_PLAN: plan.checksum, names.PLAN_INPUTS: None, names.PLAN_TASK: None}
    return {"metadata": {"annotations": annotations}, "data": content}
