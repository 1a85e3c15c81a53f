"""The handshake of a drain: what the planner asks for on a plan Secret is done in the cluster, and answered there."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from herder.api.capi.drain_records import MIRROR
from herder.api.capi.kinds import NODE, POD
from herder.api.rke import names
from herder.api.rke.kinds import PLAN_SECRET
from herder.controllers.planner.drain.controller import CONTROLLER, STARTED, reconcile
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision, Delete, EffectResult, Observe, Patch, Refusal
from herder.engine.runtime.view import Observed, Unreachable
from tests.support.views import NOW, view_of
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.objects import NAMESPACE, plan_of

BEGUN = "2026-01-01T12:00:00Z"


def options(**given: Any) -> str:
    return json.dumps({"enabled": True, **given}, sort_keys=True, separators=(",", ":"))


def pod(
    name: str, *, owner: str = "ReplicaSet", empty_dir: bool = False, phase: str = "Running", **meta: Any
) -> Object:
    owners = [{"kind": owner, "name": "x", "controller": True}] if owner else []
    volumes = [{"name": "v", "emptyDir": {}}] if empty_dir else []
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "ownerReferences": owners, **meta},
        "spec": {"volumes": volumes},
        "status": {"phase": phase},
    }


def decide(
    marks: dict[str, str],
    *,
    cordoned: bool | None = True,
    pods: tuple[Object, ...] = (),
    results: dict[tuple[str, ...], EffectResult] | None = None,
    now: Any = NOW,
    unreachable: bool = False,
    machine: Object | None = None,
    refused: Refusal | None = None,
) -> Decision:
    secret = objects.plan_secret("a", plan=plan_of(), marks=marks)
    node = [{"metadata": {"name": "a"}, "spec": {"unschedulable": cordoned}}] if cordoned is not None else []

    def observed(wish: Observe) -> Observed | Unreachable | None:
        if unreachable:
            return Unreachable("no route", NOW)
        return Observed(tuple(node) if wish.kind == NODE else pods, now)

    there = (secret, machine or objects.machine("a", address="10.0.0.1"), objects.cluster())
    name = f"{NAMESPACE}/{secret['metadata']['name']}"
    return reconcile(view_of(CONTROLLER, name, there, observed=observed, results=results, now=now, refused=refused))


def answers(decision: Decision) -> dict[str, Any]:
    """The annotations that change on the plan Secret."""
    changed: dict[str, Any] = {}
    for write in decision.writes:
        if isinstance(write, Patch) and write.ref.kind == PLAN_SECRET:
            changed |= write.patch["metadata"]["annotations"]
    return changed


def cordons(decision: Decision) -> list[bool | None]:
    patches = [write for write in decision.writes if isinstance(write, Patch) and write.ref.kind == NODE]
    return [patch.patch["spec"]["unschedulable"] for patch in patches]


# --- the order of things --------------------------------------------------------------------------------------------


def test_nothing_is_done_where_nothing_is_asked() -> None:
    assert decide({}) == Decision()


def test_the_node_takes_no_new_pods_first() -> None:
    decision = decide({names.DRAIN_OPTIONS: options()}, cordoned=False, pods=(pod("p"),))
    assert cordons(decision) == [True]
    assert not decision.effects


def test_hooks_are_waited_for_before_pods_leave() -> None:
    wanted = options(preDrainHooks=[{"annotation": "hook.example/pre"}])
    asked = {names.DRAIN_OPTIONS: wanted}
    assert answers(decide(asked)) == {names.PRE_DRAIN: wanted}
    waits = decide(asked | {names.PRE_DRAIN: wanted})
    assert waits.wait is not None
    assert waits.wait.reason == "waiting for preDrainHooks: hook.example/pre"
    answered = asked | {names.PRE_DRAIN: wanted, "hook.example/pre": wanted}
    assert answers(decide(answered)) == {STARTED: BEGUN}
    assert answers(decide(answered | {STARTED: BEGUN})) == {names.DRAIN_DONE: wanted}


def test_without_a_drain_the_hooks_alone_count() -> None:
    wanted = options(enabled=False, preDrainHooks=[{"annotation": "h"}])
    marks = {names.DRAIN_OPTIONS: wanted, names.PRE_DRAIN: wanted, "h": wanted}
    assert answers(decide(marks, pods=(pod("p"),))) == {names.DRAIN_DONE: wanted}


def test_a_machine_that_has_no_node_is_drained_already() -> None:
    wanted = options()
    asked = {names.DRAIN_OPTIONS: wanted}
    assert answers(decide(asked, machine=objects.machine("a"))) == {names.DRAIN_DONE: wanted}
    assert answers(decide(asked, cordoned=None)) == {names.DRAIN_DONE: wanted}


def test_a_cluster_that_does_not_answer_is_told_in_words_that_are_not_worth_showing() -> None:
    decision = decide({names.DRAIN_OPTIONS: options()}, unreachable=True)
    assert answers(decision) == {names.DRAIN_ERROR: "error trying to reach service: no route"}
    assert decision.wake_at is not None


def test_in_the_end_pods_come_again_and_no_mark_is_left() -> None:
    wanted = options(postDrainHooks=[{"annotation": "h"}])
    marks = {names.DRAIN_OPTIONS: wanted, names.DRAIN_DONE: wanted, names.UNCORDON: wanted, STARTED: BEGUN}
    assert answers(decide(marks)) == {names.POST_DRAIN: wanted}
    marks |= {names.POST_DRAIN: wanted, "h": wanted}
    assert cordons(decide(marks)) == [None]
    left = answers(decide(marks, cordoned=False))
    assert set(left) == set(marks)
    assert set(left.values()) == {None}


def test_options_that_cannot_be_read_are_told() -> None:
    assert "not a JSON object" in answers(decide({names.DRAIN_OPTIONS: "no"}))[names.DRAIN_ERROR]


# --- which pods leave -----------------------------------------------------------------------------------------------


def emptied(
    *pods: Object, now: Any = NOW, results: Any = None, refused: Refusal | None = None, **given: Any
) -> Decision:
    marks = {names.DRAIN_OPTIONS: options(**given), STARTED: BEGUN}
    return decide(marks, pods=pods, now=now, results=results, refused=refused)


def evicted(decision: Decision) -> list[str]:
    return [str(effect.arguments["name"]) for effect in decision.effects]


@pytest.mark.parametrize(
    ("given", "of", "leaves", "told"),
    [
        ({}, pod("p"), ["p"], ""),
        ({}, pod("p", owner="DaemonSet"), [], ""),
        ({"ignoreDaemonSets": False}, pod("p", owner="DaemonSet"), [], "managed by a DaemonSet, which recreates it"),
        ({}, pod("p", annotations={MIRROR: "x"}), [], ""),
        ({}, pod("p", empty_dir=True), [], "emptyDir data would be lost"),
        ({"deleteEmptyDirData": True}, pod("p", empty_dir=True), ["p"], ""),
        ({}, pod("p", owner=""), [], "no controller recreates it"),
        ({"force": True}, pod("p", owner=""), ["p"], ""),
        ({}, pod("p", owner="", phase="Succeeded"), ["p"], ""),
        ({"ignoreErrors": True}, pod("p", owner=""), [], ""),
    ],
)
def test_pods_leave_by_the_options(given: dict[str, Any], of: Object, leaves: list[str], told: str) -> None:
    decision = emptied(of, **given)
    assert evicted(decision) == leaves
    assert told in (answers(decision).get(names.DRAIN_ERROR) or "")
    if not leaves and not told:
        assert names.DRAIN_DONE in answers(decision)


def test_a_pod_that_is_held_back_is_asked_again_in_the_next_round_and_told() -> None:
    held = EffectResult({"outcome": "blocked", "message": "budget says no", "causes": []})
    uid = f"Secret-{names.plan_secret('a')}"
    first = emptied(pod("p"), results={(uid, "evict", "uid-p", "0"): held})
    assert evicted(first) == []
    assert answers(first) == {names.DRAIN_ERROR: "default/p: budget says no"}
    assert first.wake_at == NOW + timedelta(seconds=20)
    assert evicted(emptied(pod("p"), results={}, now=NOW + timedelta(seconds=20))) == ["p"]


@pytest.mark.parametrize("by_deletion", [False, True])
def test_what_a_guard_refuses_is_told_before_it_is_tried_again(by_deletion: bool) -> None:
    decision = emptied(pod("p"), refused=Refusal("some-guard", "it stays"), disableEviction=by_deletion)
    assert answers(decision) == {names.DRAIN_ERROR: "refused: some-guard: it stays"}
    assert isinstance(decision.writes[0], Patch)
    assert bool(decision.effects) is not by_deletion
    assert answers(emptied(refused=Refusal("some-guard", "it stays")))[names.DRAIN_DONE]  # what is over is not told


def test_a_pod_that_goes_is_waited_for_unless_for_too_long() -> None:
    going = pod("p", deletionTimestamp="2026-01-01T11:59:00Z")
    waits = emptied(going)
    assert (evicted(waits), answers(waits)) == ([], {})
    assert names.DRAIN_DONE in answers(emptied(going, skipWaitForDeleteTimeoutSeconds=30))


def test_a_drain_that_takes_too_long_is_told_and_goes_on() -> None:
    decision = emptied(pod("p"), now=NOW + timedelta(seconds=61), timeout=60)
    assert answers(decision)[names.DRAIN_ERROR] == "global timeout reached: 60s; still there: default/p"
    assert evicted(decision) == ["p"]


def test_where_no_budget_is_to_be_asked_pods_are_deleted() -> None:
    decision = emptied(pod("p"), disableEviction=True)
    deleted = [write for write in decision.writes if isinstance(write, Delete)]
    assert [(write.ref.kind, write.ref.name, write.uid) for write in deleted] == [(POD, "p", "uid-p")]
    assert not decision.effects


@pytest.mark.parametrize(("given", "grace"), [({}, None), ({"gracePeriod": -1}, None), ({"gracePeriod": 5}, 5)])
def test_pods_have_the_time_that_the_options_give(given: dict[str, Any], grace: int | None) -> None:
    (effect,) = emptied(pod("p"), **given).effects
    assert effect.arguments["grace_seconds"] == grace
