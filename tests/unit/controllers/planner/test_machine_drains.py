"""Drain requests: the planner requests a drain on a plan Secret, and the drain controller performs and reports it."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from herder.api.capi.drain_records import MIRROR
from herder.api.capi.kinds import NODE, POD
from herder.api.rke import names
from herder.api.rke.kinds import PLAN_SECRET
from herder.controllers.planner.drain.controller import CONTROLLER
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision, Delete, EffectResult, Observe, Patch, Refusal
from herder.engine.runtime.view import Observed, Unreachable
from tests.support.builders import NOW, new_object, patches_of, reconcile
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.objects import NAMESPACE, plan_of

STARTED_AT = "2026-01-01T12:00:00Z"


def options(**drain_options: Any) -> str:
    return json.dumps({"enabled": True, **drain_options}, sort_keys=True, separators=(",", ":"))


def pod(
    name: str, *, owner: str = "ReplicaSet", empty_dir: bool = False, phase: str = "Running", **meta: Any
) -> Object:
    owners = [{"kind": owner, "name": "x", "controller": True}] if owner else []
    volumes = [{"name": "v", "emptyDir": {}}] if empty_dir else []
    metadata = {"uid": f"uid-{name}", "ownerReferences": owners, **meta}
    return new_object(POD, name, "default", metadata=metadata, spec={"volumes": volumes}, status={"phase": phase})


def decide(
    annotations: dict[str, str],
    *,
    cordoned: bool | None = True,
    pods: tuple[Object, ...] = (),
    results: dict[tuple[str, ...], EffectResult] | None = None,
    now: Any = NOW,
    unreachable: bool = False,
    machine: Object | None = None,
    refused: Refusal | None = None,
) -> Decision:
    secret = objects.plan_secret("a", plan=plan_of(), annotations=annotations)
    node = [{"metadata": {"name": "a"}, "spec": {"unschedulable": cordoned}}] if cordoned is not None else []

    def observed(request: Observe) -> Observed | Unreachable | None:
        if unreachable:
            return Unreachable("no route", NOW)
        return Observed(tuple(node) if request.kind == NODE else pods, now)

    existing = (secret, machine or objects.machine("a", address="10.0.0.1"), objects.cluster())
    name = f"{NAMESPACE}/{secret['metadata']['name']}"
    return reconcile(CONTROLLER, name, *existing, observed=observed, results=results, now=now, refused=refused)


def annotation_changes(decision: Decision) -> dict[str, Any]:
    """The annotations that change on the plan Secret."""
    changed: dict[str, Any] = {}
    for patch in patches_of(decision, PLAN_SECRET):
        changed |= patch.patch["metadata"]["annotations"]
    return changed


def cordons(decision: Decision) -> list[bool | None]:
    return [patch.patch["spec"]["unschedulable"] for patch in patches_of(decision, NODE)]


# --- order of the steps ---------------------------------------------------------------------------------------------


def test_nothing_is_done_without_a_request() -> None:
    assert decide({}) == Decision()


def test_the_node_is_cordoned_first() -> None:
    decision = decide({names.DRAIN_OPTIONS: options()}, cordoned=False, pods=(pod("p"),))
    assert cordons(decision) == [True]
    assert not decision.effects


def test_pre_drain_hooks_are_awaited_before_pods_are_evicted() -> None:
    requested_options = options(preDrainHooks=[{"annotation": "hook.example/pre"}])
    requested = {names.DRAIN_OPTIONS: requested_options}
    assert annotation_changes(decide(requested)) == {names.PRE_DRAIN: requested_options}
    waiting = decide(requested | {names.PRE_DRAIN: requested_options})
    assert waiting.wait is not None
    assert waiting.wait.reason == "waiting for preDrainHooks: hook.example/pre"
    answered = requested | {names.PRE_DRAIN: requested_options, "hook.example/pre": requested_options}
    assert annotation_changes(decide(answered)) == {names.DRAIN_STARTED: STARTED_AT}
    assert annotation_changes(decide(answered | {names.DRAIN_STARTED: STARTED_AT})) == {
        names.DRAIN_DONE: requested_options
    }


def test_without_a_drain_only_hooks_are_awaited() -> None:
    requested_options = options(enabled=False, preDrainHooks=[{"annotation": "h"}])
    annotations = {names.DRAIN_OPTIONS: requested_options, names.PRE_DRAIN: requested_options, "h": requested_options}
    assert annotation_changes(decide(annotations, pods=(pod("p"),))) == {names.DRAIN_DONE: requested_options}


def test_a_machine_without_a_node_is_drained_already() -> None:
    requested_options = options()
    requested = {names.DRAIN_OPTIONS: requested_options}
    assert annotation_changes(decide(requested, machine=objects.machine("a"))) == {names.DRAIN_DONE: requested_options}
    assert annotation_changes(decide(requested, cordoned=None)) == {names.DRAIN_DONE: requested_options}


def test_an_unreachable_cluster_is_a_transient_drain_error() -> None:
    decision = decide({names.DRAIN_OPTIONS: options()}, unreachable=True)
    assert annotation_changes(decision) == {names.DRAIN_ERROR: "error trying to reach service: no route"}
    assert decision.wake_at is not None


def test_at_the_end_the_node_is_uncordoned_and_all_annotations_are_removed() -> None:
    requested_options = options(postDrainHooks=[{"annotation": "h"}])
    annotations = {
        names.DRAIN_OPTIONS: requested_options,
        names.DRAIN_DONE: requested_options,
        names.UNCORDON: requested_options,
        names.DRAIN_STARTED: STARTED_AT,
    }
    assert annotation_changes(decide(annotations)) == {names.POST_DRAIN: requested_options}
    annotations |= {names.POST_DRAIN: requested_options, "h": requested_options}
    assert cordons(decide(annotations)) == [None]
    cleared = annotation_changes(decide(annotations, cordoned=False))
    assert set(cleared) == set(annotations)
    assert set(cleared.values()) == {None}


def test_invalid_options_are_reported() -> None:
    assert "not a JSON object" in annotation_changes(decide({names.DRAIN_OPTIONS: "no"}))[names.DRAIN_ERROR]


# --- evictions ------------------------------------------------------------------------------------------------------


def drain_pods(
    *pods: Object, now: Any = NOW, results: Any = None, refused: Refusal | None = None, **drain_options: Any
) -> Decision:
    annotations = {names.DRAIN_OPTIONS: options(**drain_options), names.DRAIN_STARTED: STARTED_AT}
    return decide(annotations, pods=pods, now=now, results=results, refused=refused)


def evicted(decision: Decision) -> list[str]:
    return [str(effect.arguments["name"]) for effect in decision.effects]


@pytest.mark.parametrize(
    ("drain_options", "candidate", "evicted_pods", "error"),
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
def test_the_options_decide_which_pods_are_evicted(
    drain_options: dict[str, Any], candidate: Object, evicted_pods: list[str], error: str
) -> None:
    decision = drain_pods(candidate, **drain_options)
    assert evicted(decision) == evicted_pods
    assert error in (annotation_changes(decision).get(names.DRAIN_ERROR) or "")
    if not evicted_pods and not error:
        assert names.DRAIN_DONE in annotation_changes(decision)


def test_the_message_about_many_pods_fits_into_an_annotation() -> None:
    """The API limits all annotations of an object to 256 KiB, and would reject the message."""
    decision = drain_pods(*(pod(f"{number:04}-{'p' * 240}", owner="") for number in range(1000)))
    message = annotation_changes(decision)[names.DRAIN_ERROR]
    assert len(message) < 8 << 10
    assert message.endswith("; 990 more")


def test_a_blocked_eviction_is_reported_and_retried() -> None:
    blocked = EffectResult({"outcome": "blocked", "message": "budget says no", "causes": []})
    uid = f"Secret-{names.plan_secret('a')}"
    first = drain_pods(pod("p"), results={(uid, "evict", "uid-p", "0"): blocked})
    assert evicted(first) == []
    assert annotation_changes(first) == {names.DRAIN_ERROR: "default/p: budget says no"}
    assert first.wake_at == NOW + timedelta(seconds=20)
    assert evicted(drain_pods(pod("p"), results={}, now=NOW + timedelta(seconds=20))) == ["p"]


@pytest.mark.parametrize("by_deletion", [False, True])
def test_a_refusal_by_a_guard_is_reported_before_the_retry(by_deletion: bool) -> None:
    decision = drain_pods(pod("p"), refused=Refusal("some-guard", "it stays"), disableEviction=by_deletion)
    assert annotation_changes(decision) == {names.DRAIN_ERROR: "refused: some-guard: it stays"}
    assert isinstance(decision.writes[0], Patch)
    assert bool(decision.effects) is not by_deletion
    assert annotation_changes(drain_pods(refused=Refusal("some-guard", "it stays")))[
        names.DRAIN_DONE
    ]  # a resolved refusal is not reported


def test_a_terminating_pod_is_awaited_until_the_timeout() -> None:
    terminating = pod("p", deletionTimestamp="2026-01-01T11:59:00Z")
    waiting = drain_pods(terminating)
    assert (evicted(waiting), annotation_changes(waiting)) == ([], {})
    assert names.DRAIN_DONE in annotation_changes(drain_pods(terminating, skipWaitForDeleteTimeoutSeconds=30))


def test_a_drain_timeout_is_reported_and_the_drain_continues() -> None:
    decision = drain_pods(pod("p"), now=NOW + timedelta(seconds=61), timeout=60)
    assert annotation_changes(decision)[names.DRAIN_ERROR] == "global timeout reached: 60s; still there: default/p"
    assert evicted(decision) == ["p"]


def test_pods_are_deleted_if_eviction_is_disabled() -> None:
    decision = drain_pods(pod("p"), disableEviction=True)
    deleted = [write for write in decision.writes if isinstance(write, Delete)]
    assert [(write.ref.kind, write.ref.name, write.uid) for write in deleted] == [(POD, "p", "uid-p")]
    assert not decision.effects


@pytest.mark.parametrize(("drain_options", "grace"), [({}, None), ({"gracePeriod": -1}, None), ({"gracePeriod": 5}, 5)])
def test_the_options_set_the_grace_period(drain_options: dict[str, Any], grace: int | None) -> None:
    (effect,) = drain_pods(pod("p"), **drain_options).effects
    assert effect.arguments["grace_seconds"] == grace
