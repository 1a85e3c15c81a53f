"""Emptying a Node before its machine goes: no new Pods, then one order after the other is asked to leave."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from herder.api.capi.conditions import Condition, legacy, timestamp
from herder.api.capi.drained import full_name
from herder.api.capi.kinds import NODE
from herder.api.capi.names import EXCLUDE_NODE_DRAINING, annotations_of
from herder.controllers.capi.machine.deletion.drain.filters import UnknownNamespace, gone_at, judge
from herder.controllers.capi.machine.deletion.drain.looking import Seen, Unseen, look_at_pods
from herder.controllers.capi.machine.deletion.drain.plan import Evictions, Judged, Plan, evictions, plan
from herder.controllers.capi.machine.deletion.drain.report import drain_message
from herder.controllers.capi.machine.deletion.drain.rules import InvalidRule
from herder.controllers.capi.machine.deletion.node import why_unreachable
from herder.controllers.capi.machine.deletion.reports import STARTED, Held, Passed, Stage, succeeded
from herder.controllers.capi.machine.deletion.scope import Clock, Scope, earlier
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision, Effect, EffectKey, EffectResult, Observe, Patch, Ref, waiting

DRAINING = "DrainingNode"
SUCCEEDED = "DrainingSucceeded"
START = "nodeDrainStartTime"

ROUND = timedelta(seconds=20)
"""A Pod whose eviction is refused is asked again in the next round; rounds count from the start of the drain."""

EVICTIONS_AT_ONCE = 20
UNREACHABLE_GRACE = 1  # seconds; nobody there would use more


def drain(scope: Scope) -> Stage:
    clock = scope.clock(START, "nodeDrainTimeoutSeconds")
    if _is_skipped(scope) or clock.ran_out(scope.view.now):
        return Passed()
    node = scope.node
    if node.looking:
        return Held(*STARTED)
    if node.unreachable is not None:
        return _cannot_drain(scope, clock, why_unreachable(node))
    if node.record is None:
        return succeeded(SUCCEEDED)
    if not node.record["spec"].get("unschedulable"):
        return _cordon(scope)
    try:
        return _empty(scope, clock, node.record)
    except (InvalidRule, UnknownNamespace) as error:
        return _cannot_drain(scope, clock, str(error))


def _is_skipped(scope: Scope) -> bool:
    return EXCLUDE_NODE_DRAINING in annotations_of(scope.machine) or scope.leaves_workloads_alone()


def _cordon(scope: Scope) -> Held:
    """The Pods are looked at only when no new ones can come."""
    unschedulable = {"spec": {"unschedulable": True}}
    patch = Patch(Ref(NODE, scope.node.name), unschedulable, "its Pods must move", target=scope.workload)
    return Held(DRAINING, f"Cordoning Node {scope.node.name}", Decision(writes=(patch,)))


def _empty(scope: Scope, clock: Clock, node: Object) -> Stage:
    found = look_at_pods(scope, node)
    if isinstance(found, Unseen):
        if found.why:
            return _cannot_drain(scope, clock, found.why, found.observe)
        return Held(DRAINING, f"Looking at the Pods of Node {scope.node.name}", Decision(observe=found.observe))
    planned = plan(Judged(pod, judge(pod, found.surroundings)) for pod in found.pods)
    if planned.done:
        return succeeded(SUCCEEDED, found.observe)
    if clock.started is None:
        return _start(scope, found.observe)
    return _evict(scope, clock, clock.started, planned, found)


def _start(scope: Scope, observe: tuple[Observe, ...]) -> Held:
    """The start is kept before anything counts from it."""
    now = scope.view.now
    message = drain_message(now, Plan(), Evictions())
    return Held(
        DRAINING,
        message,
        Decision(observe=observe, wake_at=now),
        (_draining("Draining the node before deletion"),),
        {START: timestamp(now)},
        patience=0.0,
    )


def _evict(scope: Scope, clock: Clock, started: datetime, planned: Plan, found: Seen) -> Stage:
    current = int((scope.view.now - started) / ROUND)
    known = evictions(planned.evict, partial(_result, scope, current), partial(_result, scope, current - 1))
    if known.over and replace(planned, evict=()).done:
        return succeeded(SUCCEEDED, found.observe)
    unreachable = found.surroundings.node_unreachable
    wakes = [clock.deadline]
    if planned.evict:
        wakes.append(started + (current + 1) * ROUND)
    if unreachable:
        wakes += [gone_at(each.pod) for each in planned.going]
    message = drain_message(started, planned, known)
    asked = known.open[:EVICTIONS_AT_ONCE]
    decision = Decision(
        effects=tuple(_eviction(scope, each, current, UNREACHABLE_GRACE if unreachable else None) for each in asked),
        observe=found.observe,
    ) + waiting(message, Ref(NODE, scope.node.name), wake_at=min((at for at in wakes if at), default=None))
    return Held(DRAINING, message, decision, (_draining(message),))


def _eviction(scope: Scope, judged: Judged, number: int, grace_seconds: int | None) -> Effect:
    meta = judged.pod["metadata"]
    arguments = {
        "cluster": scope.workload,
        "namespace": meta["namespace"],
        "name": meta["name"],
        "uid": meta["uid"],
        "grace_seconds": grace_seconds,
    }
    warning = f" ({judged.verdict.warning})" if judged.verdict.warning else ""
    reason = f"Pod {full_name(judged.pod)} must leave Node {scope.node.name}{warning}"
    return Effect("evict", _eviction_key(scope, judged.pod, number), arguments, reason)


def _eviction_key(scope: Scope, pod: Object, number: int) -> EffectKey:
    return scope.machine["metadata"]["uid"], "evict", pod["metadata"]["uid"], str(number)


def _result(scope: Scope, number: int, pod: Object) -> EffectResult | None:
    return scope.view.result(_eviction_key(scope, pod, number))


def _cannot_drain(scope: Scope, clock: Clock, why: str, observe: tuple[Observe, ...] = ()) -> Held:
    """The time for the drain runs meanwhile: a cluster that never answers must not hold the Machine for ever. It is
    looked at again also without news, since there may be no cluster left to drain for."""
    now = scope.view.now
    running = Clock(clock.started or now, clock.limit)
    message = f"Error draining Node {scope.node.name}: {why}"
    condition = legacy(SUCCEEDED, "False", "DrainingFailed", "Warning", why)
    started = {} if clock.started else {START: timestamp(now)}
    decision = Decision(observe=observe) + waiting(message, wake_at=earlier(now + ROUND, running.deadline))
    return Held(DRAINING, message, decision, (condition,), started, patience=0.0)


def _draining(message: str) -> Condition:
    return legacy(SUCCEEDED, "False", "Draining", "Info", message)
