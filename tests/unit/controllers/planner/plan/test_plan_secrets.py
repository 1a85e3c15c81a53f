"""Reports of agents in plan Secrets: results are stored and reported, and failed plans are retried."""

from __future__ import annotations

import base64
import random
import time
from datetime import timedelta
from typing import Any

import pytest

from herder.api.capi.kinds import MACHINE
from herder.api.capi.names import PAUSED
from herder.api.rke import names
from herder.api.rke.kinds import PLAN_SECRET
from herder.api.rke.node.plan import PeriodicInstruction, Plan, checksum
from herder.api.rke.node.plan_secret import PlanSecret, encoded, zipped
from herder.controllers.planner.plan.secret import CONTROLLER
from herder.engine.control.cache import Cache, Change, Key, key_of
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision
from tests.support.builders import NOW, patched, patches_of, reconcile
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.objects import NAMESPACE, plan_of

PLAN = plan_of()
SUM = checksum(PLAN.to_json())
TURN_SECONDS = 0.1  # twice the limit for a turn of the event loop, for slow machines
FAILED_AT = "2026-01-01T12:00:00Z"


def decide(
    secret: Object, *others: Object, now: Any = NOW, cluster_objects: tuple[Object, ...] | None = None
) -> Decision:
    context = cluster_objects or (objects.cluster(), objects.control_plane(), objects.beacon())
    name = f"{NAMESPACE}/{secret['metadata']['name']}"
    return reconcile(CONTROLLER, name, secret, objects.machine("a"), *context, *others, now=now)


def after(secret: Object, decision: Decision) -> PlanSecret:
    return PlanSecret(patched(secret, decision))


def plan_applied(decision: Decision) -> tuple[str, str]:
    """Status and message of the PlanApplied condition of the Machine."""
    for patch in patches_of(decision, MACHINE):
        found = next(each for each in patch.patch["status"]["conditions"] if each["type"] == "PlanApplied")
        return found["status"], found["message"]
    return "", ""


def secret(
    state: str = "succeeded", *, plan: Plan = PLAN, annotations: dict[str, str] | None = None, **data: str
) -> Object:
    plan_data = {"plan": plan.to_json().decode(), "plan-state": state}
    all_data = plan_data | {name.replace("_", "-"): value for name, value in data.items()}
    return objects.plan_secret("a", annotations=annotations, data=all_data)


# --- results --------------------------------------------------------------------------------------------------------


def test_an_applied_plan_is_copied() -> None:
    plan_secret = secret(applied_checksum=SUM)
    decision = decide(plan_secret)
    assert after(plan_secret, decision).applied_plan == PLAN
    assert plan_applied(decision) == ("True", "")


def test_known_results_are_not_written_again() -> None:
    plan_secret = objects.plan_secret("a", plan=PLAN, data={"applied-checksum": SUM})
    decision = decide(plan_secret)
    assert not patches_of(decision, PLAN_SECRET)


def test_a_failed_plan_does_not_count_as_applied() -> None:
    """The Go agent reports the checksum of a failed plan as applied when it reads the plan again."""
    plan_secret = secret("failed", applied_checksum=SUM)
    assert not after(plan_secret, decide(plan_secret)).has_applied_plan


def test_probes_that_passed_once_are_recorded() -> None:
    plan_secret = secret(probe_statuses='{"kubelet":{"healthy":true}}')
    assert after(plan_secret, decide(plan_secret)).probes_passed
    unhealthy = secret(probe_statuses='{"kubelet":{"healthy":true},"etcd":{}}')
    assert not after(unhealthy, decide(unhealthy)).probes_passed


def test_outputs_of_removed_instructions_are_deleted() -> None:
    outputs = {"old": {"name": "old"}, "new": {"name": "new", "exitCode": 1}}
    plan = Plan(periodic_instructions=(PeriodicInstruction(name="new"),), instructions=PLAN.instructions)
    plan_secret = secret(plan=plan)
    plan_secret["data"]["applied-periodic-output"] = encoded(zipped(outputs))
    remaining = after(plan_secret, decide(plan_secret)).periodic_outputs
    assert {name: output.exit_code for name, output in remaining.items()} == {"new": 1}


def slow_to_compress(size: int) -> str:
    return "".join(random.Random(size).choices("abcd", k=size))


HOSTILE_OUTPUTS = {
    "many": {f"{number:x}": {} for number in range(380_000)},
    "large": {"new": {"stdout": slow_to_compress(3_600_000)}, "old": {}},
    "other fields": {"new": {f"{number:x}": 0 for number in range(300_000)}, "old": {}},
    "names and times": {
        "new": {"name": slow_to_compress(1_500_000), "lastFailedRunTime": slow_to_compress(2_000_000)},
        "old": {},
    },
}


@pytest.mark.parametrize("outputs", HOSTILE_OUTPUTS.values(), ids=HOSTILE_OUTPUTS)
@pytest.mark.parametrize("key", ["applied-periodic-output", "failed-output"])
def test_no_output_of_a_node_keeps_the_event_loop_busy(key: str, outputs: dict[str, Any]) -> None:
    plan = Plan(periodic_instructions=(PeriodicInstruction(name="new"),), instructions=PLAN.instructions)
    plan_secret = secret("failed", plan=plan)
    plan_secret["data"][key] = encoded(zipped(outputs))
    assert min(cpu_seconds(plan_secret) for _ in range(3)) < TURN_SECONDS


def cpu_seconds(plan_secret: Object) -> float:
    started = time.thread_time()
    decide(plan_secret)
    return time.thread_time() - started


def test_a_plan_that_another_client_changed_is_rendered_again() -> None:
    foreign = secret(annotations={names.PLAN_INPUTS: "inputs another"})
    assert names.PLAN_INPUTS not in after(foreign, decide(foreign)).annotations
    current = secret(annotations={names.PLAN_INPUTS: f"inputs {SUM}"})
    assert after(current, decide(current)).annotations[names.PLAN_INPUTS] == f"inputs {SUM}"


# --- failures -------------------------------------------------------------------------------------------------------

UNITS = "error applying plan -- check rancher-system-agent.service and k3s.service logs on node for more information"


def test_a_failure_is_reported_with_the_evidence_of_the_agent() -> None:
    data = {"serverToken": encoded("joined-with-this")}
    tokens = objects.secret(names.tokens_secret("demo"), type=names.TOKENS_SECRET_TYPE, data=data)
    evidence = '{"instruction":"install","exitCode":7,"error":"","tail":"x\\nno route for joined-with-this"}'
    plan_secret = secret("failed", failed_evidence=evidence)
    decision = decide(plan_secret, tokens)
    assert plan_applied(decision) == (
        "False",
        f'{UNITS}; instruction "install" failed; exit code 7; attempt 1, the next at 2026-01-01T12:00:30Z: '
        "x\nno route for ***",
    )
    assert after(plan_secret, decision).annotations[names.PLAN_FAILED] == FAILED_AT
    assert decision.wake_at == NOW + timedelta(seconds=30)


def test_a_failure_of_the_go_agent_is_reported_with_its_last_output() -> None:
    plan_secret = secret("failed")
    plan_secret["data"]["failed-output"] = encoded(zipped({"install": base64.b64encode(b"no space left\n").decode()}))
    assert plan_applied(decide(plan_secret))[1].endswith(": no space left")


@pytest.mark.parametrize(
    ("attempts", "later", "retried"),
    [(1, 29, False), (1, 30, True), (2, 30, False), (2, 60, True), (30, 299, False), (30, 300, True)],
)
def test_a_failed_plan_is_retried_with_backoff(attempts: int, later: int, retried: bool) -> None:
    plan_secret = secret("failed", annotations={names.PLAN_FAILED: FAILED_AT, names.PLAN_ATTEMPTS: str(attempts)})
    result = after(plan_secret, decide(plan_secret, now=NOW + timedelta(seconds=later)))
    assert result.state == ("pending" if retried else "failed")
    if retried:
        assert result.annotations[names.PLAN_ATTEMPTS] == str(attempts + 1)
        assert names.PLAN_FAILED not in result.annotations
        assert "applied-checksum" not in result.secret["data"]


def test_resuming_a_paused_machine_wakes_its_plan_secret() -> None:
    paused, resumed = objects.machine("a"), objects.machine("a")
    paused["metadata"]["annotations"] = {PAUSED: "true"}
    watch = next(each for each in CONTROLLER.watches if each.kind == MACHINE)
    cache = Cache(PLAN_SECRET, CONTROLLER.indexers(PLAN_SECRET))
    cache.upsert(secret("failed"))
    change = Change(key_of(paused), paused, resumed)
    assert watch.affected(change, cache.indexed) == [Key(NAMESPACE, names.plan_secret("a"))]
    assert not watch.predicate(Change(key_of(paused), resumed, resumed | {"status": {}}))


@pytest.mark.parametrize(
    "cluster_objects",
    [
        (objects.cluster(paused=True), objects.control_plane(), objects.beacon()),
        (objects.cluster(), objects.control_plane(annotations={PAUSED: ""}), objects.beacon()),
        (objects.cluster(), objects.control_plane(), objects.beacon("restore")),
        (objects.cluster(),),
    ],
    ids=["cluster paused", "control plane paused", "another controller has the beacon", "the cluster is deleted"],
)
def test_a_failed_plan_is_not_retried(cluster_objects: tuple[Object, ...]) -> None:
    plan_secret = secret("failed", annotations={names.PLAN_FAILED: FAILED_AT})
    result = decide(plan_secret, now=NOW + timedelta(hours=1), cluster_objects=cluster_objects)
    assert after(plan_secret, result).state == "failed"
    assert result.wait is not None


def test_a_plan_is_not_retried_beyond_its_limit() -> None:
    annotations = {names.PLAN_FAILED: FAILED_AT, names.PLAN_ATTEMPTS: "3"}
    plan_secret = secret("failed", annotations=annotations, max_failures="3")
    decision = decide(plan_secret, now=NOW + timedelta(hours=1))
    assert after(plan_secret, decision).state == "failed"
    assert "attempt 3, the last that it may have" in plan_applied(decision)[1]


def test_a_failure_stays_reported_until_the_plan_succeeds() -> None:
    assert plan_applied(decide(secret("pending", annotations={names.PLAN_ATTEMPTS: "2"}))) == ("", "")
    assert plan_applied(decide(secret("succeeded", annotations={names.PLAN_ATTEMPTS: "2"}))) == ("True", "")


def test_an_agent_without_plan_states_retries_by_itself() -> None:
    plan_secret = secret("pending", failed_checksum=SUM, failure_count="1", annotations={names.PLAN_FAILED: FAILED_AT})
    decision = decide(plan_secret, now=NOW + timedelta(hours=1))
    assert plan_applied(decision)[0] == "False"
    assert not patches_of(decision, PLAN_SECRET)
