"""Plans that were unfinished when a backup was made do not reach agents."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.rke import names
from herder.api.rke.node.held_plan import HELD_PLAN, withdrawal
from herder.api.rke.node.plan import checksum
from herder.api.rke.node.plan_secret import PlanSecret
from herder.engine.patch import apply_merge_patch
from tests.unit.controllers.planner.objects import plan_of, plan_secret

OLD, NEW = plan_of("v1.33.4"), plan_of("v1.33.5")


def unfinished(state: str, **data: str) -> Any:
    marks = {names.PLAN_INPUTS: "digests", names.PLAN_TASK: "snapshot-1"}
    return plan_secret("a", plan=NEW, state=state, annotations=marks, data=data)


@pytest.mark.parametrize("state", ["pending", "in-progress"])
def test_an_unfinished_plan_is_replaced_by_the_applied_one(state: str) -> None:
    patch = withdrawal(unfinished(state, appliedPlan=OLD.to_json().decode()))
    assert patch is not None
    after: Any = apply_merge_patch(unfinished(state), patch)
    plan = PlanSecret(after)
    assert plan.plan == OLD
    assert plan.in_sync, "an agent with plan-state does not run it"
    assert plan.text("applied-checksum") == plan.checksum, "neither does one without"
    assert plan.annotations == {HELD_PLAN: checksum(NEW.to_json())}, "the planner compares the plan itself"


def test_a_first_plan_is_removed() -> None:
    patch = withdrawal(unfinished("pending"))
    assert patch is not None
    assert not PlanSecret(apply_merge_patch(unfinished("pending"), patch)).has_plan  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "secret",
    [
        plan_secret("a"),
        plan_secret("a", plan=NEW),
        plan_secret("a", plan=NEW, state="failed"),
        plan_secret("a", plan=NEW, state="pending", data={"applied-checksum": checksum(NEW.to_json())}),
    ],
    ids=["no plan", "applied", "failed", "applied by an agent without plan-state"],
)
def test_a_finished_plan_is_kept(secret: Any) -> None:
    assert withdrawal(secret) is None
