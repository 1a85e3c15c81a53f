"""What agents report is kept, told, and where it failed tried again."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Any

import pytest

from herder.api.capi.kinds import MACHINE
from herder.api.capi.names import PAUSED
from herder.api.rke import names
from herder.api.rke.kinds import PLAN_SECRET
from herder.api.rke.node.plan import PeriodicInstruction, Plan, checksum
from herder.api.rke.node.plan_secret import PlanSecret, encoded, zipped
from herder.controllers.planner.plan.secret import CONTROLLER, reconcile
from herder.engine.control.cache import Cache, Change, Key, key_of
from herder.engine.meta.kinds import Object
from herder.engine.patch import apply_merge_patch
from herder.engine.runtime.decision import Decision, Patch
from tests.support.views import NOW, view_of
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.objects import NAMESPACE, made, plan_of

PLAN = plan_of()
SUM = checksum(PLAN.to_json())
FAILED_AT = "2026-01-01T12:00:00Z"


def decide(secret: Object, *more: Object, now: Any = NOW, around: tuple[Object, ...] | None = None) -> Decision:
    there = around or (objects.cluster(), objects.control_plane(), objects.beacon())
    name = f"{NAMESPACE}/{secret['metadata']['name']}"
    return reconcile(view_of(CONTROLLER, name, (secret, objects.machine("a"), *there, *more), now=now))


def after(secret: Object, decision: Decision) -> PlanSecret:
    for write in decision.writes:
        if isinstance(write, Patch) and write.ref.kind == PLAN_SECRET:
            secret = apply_merge_patch(secret, write.patch)
    return PlanSecret(secret)


def told(decision: Decision) -> tuple[str, str]:
    """Status and message of PlanApplied on the Machine."""
    for write in decision.writes:
        if isinstance(write, Patch) and write.ref.kind != PLAN_SECRET:
            found = next(each for each in write.patch["status"]["conditions"] if each["type"] == "PlanApplied")
            return found["status"], found["message"]
    return "", ""


def secret(state: str = "succeeded", *, plan: Plan = PLAN, marks: dict[str, str] | None = None, **data: str) -> Object:
    held = {"plan": plan.to_json().decode(), "plan-state": state}
    written = held | {name.replace("_", "-"): value for name, value in data.items()}
    return objects.plan_secret("a", marks=marks, data=written)


# --- what is kept ---------------------------------------------------------------------------------------------------


def test_a_plan_that_was_applied_is_copied() -> None:
    given = secret(applied_checksum=SUM)
    decision = decide(given)
    assert after(given, decision).applied_plan == PLAN
    assert told(decision) == ("True", "")


def test_what_is_kept_already_is_not_written_again() -> None:
    given = objects.plan_secret("a", plan=PLAN, data={"applied-checksum": SUM})
    decision = decide(given)
    assert not [write for write in decision.writes if isinstance(write, Patch) and write.ref.kind == PLAN_SECRET]


def test_a_plan_that_failed_is_not_taken_for_applied() -> None:
    """The Go agent reports its checksum as applied when it looks at it for the second time."""
    given = secret("failed", applied_checksum=SUM)
    assert not after(given, decide(given)).has_applied_plan


def test_probes_that_passed_once_are_remembered() -> None:
    given = secret(probe_statuses='{"kubelet":{"healthy":true}}')
    assert after(given, decide(given)).probes_passed
    unwell = secret(probe_statuses='{"kubelet":{"healthy":true},"etcd":{}}')
    assert not after(unwell, decide(unwell)).probes_passed


def test_outputs_of_instructions_that_are_no_longer_there_go() -> None:
    outputs = {"old": {"name": "old"}, "new": {"name": "new", "exitCode": 1}}
    plan = Plan(periodic_instructions=(PeriodicInstruction(name="new"),), instructions=PLAN.instructions)
    given = secret(plan=plan)
    given["data"]["applied-periodic-output"] = encoded(zipped(outputs))
    left = after(given, decide(given)).periodic_outputs
    assert {name: output.exit_code for name, output in left.items()} == {"new": 1}


def test_a_plan_that_somebody_else_changed_is_made_anew() -> None:
    foreign = secret(marks={names.PLAN_INPUTS: "inputs another"})
    assert names.PLAN_INPUTS not in after(foreign, decide(foreign)).annotations
    own = secret(marks={names.PLAN_INPUTS: f"inputs {SUM}"})
    assert after(own, decide(own)).annotations[names.PLAN_INPUTS] == f"inputs {SUM}"


# --- what failed ----------------------------------------------------------------------------------------------------

UNITS = "error applying plan -- check rancher-system-agent.service and k3s.service logs on node for more information"


def test_a_failure_is_told_with_what_the_agent_says_of_it() -> None:
    tokens = made("v1", "Secret", names.tokens_secret("demo"), data={"serverToken": encoded("joined-with-this")})
    evidence = '{"instruction":"install","exitCode":7,"error":"","tail":"x\\nno route for joined-with-this"}'
    given = secret("failed", failed_evidence=evidence)
    decision = decide(given, {**tokens, "type": names.TOKENS_SECRET_TYPE})
    assert told(decision) == (
        "False",
        f'{UNITS}; instruction "install" failed; exit code 7; attempt 1, the next at 2026-01-01T12:00:30Z: '
        "x\nno route for ***",
    )
    assert after(given, decision).annotations[names.PLAN_FAILED] == FAILED_AT
    assert decision.wake_at == NOW + timedelta(seconds=30)


def test_of_the_go_agent_the_last_output_is_told() -> None:
    given = secret("failed")
    given["data"]["failed-output"] = encoded(zipped({"install": base64.b64encode(b"no space left\n").decode()}))
    assert told(decide(given))[1].endswith(": no space left")


@pytest.mark.parametrize(
    ("attempts", "later", "asked"),
    [(1, 29, False), (1, 30, True), (2, 30, False), (2, 60, True), (30, 299, False), (30, 300, True)],
)
def test_it_is_tried_again_after_a_pause_that_grows(attempts: int, later: int, asked: bool) -> None:
    given = secret("failed", marks={names.PLAN_FAILED: FAILED_AT, names.PLAN_ATTEMPTS: str(attempts)})
    result = after(given, decide(given, now=NOW + timedelta(seconds=later)))
    assert result.state == ("pending" if asked else "failed")
    if asked:
        assert result.annotations[names.PLAN_ATTEMPTS] == str(attempts + 1)
        assert names.PLAN_FAILED not in result.annotations
        assert "applied-checksum" not in result.secret["data"]


def test_a_machine_that_is_let_go_on_has_its_failed_plan_looked_at_again() -> None:
    paused, goes_on = objects.machine("a"), objects.machine("a")
    paused["metadata"]["annotations"] = {PAUSED: "true"}
    watch = next(each for each in CONTROLLER.watches if each.kind == MACHINE)
    cache = Cache(PLAN_SECRET, CONTROLLER.indexers(PLAN_SECRET))
    cache.upsert(secret("failed"))
    change = Change(key_of(paused), paused, goes_on)
    assert watch.affected(change, cache.indexed) == [Key(NAMESPACE, names.plan_secret("a"))]
    assert not watch.predicate(Change(key_of(paused), goes_on, goes_on | {"status": {}}))


@pytest.mark.parametrize(
    "around",
    [
        (objects.cluster(paused=True), objects.control_plane(), objects.beacon()),
        (objects.cluster(), objects.control_plane(annotations={PAUSED: ""}), objects.beacon()),
        (objects.cluster(), objects.control_plane(), objects.beacon("restore")),
        (objects.cluster(),),
    ],
    ids=["cluster paused", "control plane paused", "another's turn", "the cluster is gone"],
)
def test_nothing_is_asked_again_while(around: tuple[Object, ...]) -> None:
    given = secret("failed", marks={names.PLAN_FAILED: FAILED_AT})
    result = decide(given, now=NOW + timedelta(hours=1), around=around)
    assert after(given, result).state == "failed"
    assert result.wait is not None


def test_a_plan_is_tried_no_more_often_than_it_may() -> None:
    marks = {names.PLAN_FAILED: FAILED_AT, names.PLAN_ATTEMPTS: "3"}
    given = secret("failed", marks=marks, max_failures="3")
    decision = decide(given, now=NOW + timedelta(hours=1))
    assert after(given, decision).state == "failed"
    assert "attempt 3, the last that it may have" in told(decision)[1]


def test_a_failure_stays_told_until_the_plan_has_worked() -> None:
    assert told(decide(secret("pending", marks={names.PLAN_ATTEMPTS: "2"}))) == ("", "")
    assert told(decide(secret("succeeded", marks={names.PLAN_ATTEMPTS: "2"}))) == ("True", "")


def test_an_agent_that_knows_no_state_tries_again_by_itself() -> None:
    given = secret("pending", failed_checksum=SUM, failure_count="1", marks={names.PLAN_FAILED: FAILED_AT})
    decision = decide(given, now=NOW + timedelta(hours=1))
    assert told(decision)[0] == "False"
    assert not [w for w in decision.writes if isinstance(w, Patch) and w.ref.kind == PLAN_SECRET]
