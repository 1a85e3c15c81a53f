"""Drain a Node: cordon it, then evict its Pods in the order that MachineDrainRules define."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from functools import partial

from herder.api.capi.conditions import Condition, legacy, timestamp
from herder.api.capi.drain_records import full_name
from herder.api.capi.kinds import MACHINE, NODE
from herder.api.capi.names import EXCLUDE_NODE_DRAINING, annotations_of
from herder.api.events import normal
from herder.controllers.capi.machine.deletion.drain.filters import UnknownNamespace, drain_status, expired_at
from herder.controllers.capi.machine.deletion.drain.observation import NotObserved, PodsObserved, observe_pods
from herder.controllers.capi.machine.deletion.drain.plan import Evictions, Plan, PodDrain, evictions, plan
from herder.controllers.capi.machine.deletion.drain.report import drain_message
from herder.controllers.capi.machine.deletion.drain.rules import InvalidRule
from herder.controllers.capi.machine.deletion.node import why_unreachable
from herder.controllers.capi.machine.deletion.scope import Clock, DeletionScope, earlier
from herder.controllers.capi.machine.deletion.stage import STARTED, Stage, StageDone, StagePending, succeeded
from herder.controllers.drain.evictions import (
    EVICTIONS_AT_ONCE,
    ROUND,
    eviction,
    eviction_key,
    next_round,
    round_number,
)
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import (
    Decision,
    Effect,
    EffectKey,
    EffectResult,
    Event,
    Observe,
    Patch,
    Ref,
    waiting,
)

DRAINING = "DrainingNode"
SUCCEEDED = "DrainingSucceeded"
START = "nodeDrainStartTime"


UNREACHABLE_GRACE = 1  # Seconds. The kubelet is unreachable and would not use a longer grace period.


def drain(scope: DeletionScope) -> Stage:
    clock = scope.clock(START, "nodeDrainTimeoutSeconds")
    if is_drain_skipped(scope) or clock.ran_out(scope.view.now):
        return StageDone()
    node = scope.node
    if node.pending:
        return StagePending(*STARTED)
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


def is_drain_skipped(scope: DeletionScope) -> bool:
    return EXCLUDE_NODE_DRAINING in annotations_of(scope.machine) or scope.skips_workloads()


def drained_event(scope: DeletionScope) -> Event:
    """The Event about the end of the drain; recorded with the write that follows it."""
    message = f'success draining Machine\'s node "{scope.node.name}"'
    return normal(MACHINE, scope.machine, "SuccessfulDrainNode", message)


def _cordon(scope: DeletionScope) -> StagePending:
    """Cordon the Node; Pods are listed only once no new ones can be scheduled."""
    unschedulable = {"spec": {"unschedulable": True}}
    patch = Patch(
        Ref(NODE, scope.node.name), unschedulable, "cordon the Node before draining it", target=scope.workload
    )
    return StagePending(DRAINING, f"Cordoning Node {scope.node.name}", Decision(writes=(patch,)))


def _empty(scope: DeletionScope, clock: Clock, node: Object) -> Stage:
    found = observe_pods(scope, node)
    if isinstance(found, NotObserved):
        if found.why:
            return _cannot_drain(scope, clock, found.why, found.observe)
        return StagePending(DRAINING, f"Looking at the Pods of Node {scope.node.name}", Decision(observe=found.observe))
    planned = plan(PodDrain(pod, drain_status(pod, found.context)) for pod in found.pods)
    if planned.done:
        return succeeded(SUCCEEDED, found.observe)
    if clock.started is None:
        return _start(scope, found.observe)
    return _evict(scope, clock, clock.started, planned, found)


def _start(scope: DeletionScope, observe: tuple[Observe, ...]) -> StagePending:
    """Record the start time before anything is measured from it."""
    now = scope.view.now
    message = drain_message(now, Plan(), Evictions())
    return StagePending(
        DRAINING,
        message,
        Decision(observe=observe, wake_at=now),
        (_draining("Draining the node before deletion"),),
        {START: timestamp(now)},
        debounce=0.0,
    )


def _evict(scope: DeletionScope, clock: Clock, started: datetime, planned: Plan, found: PodsObserved) -> Stage:
    current = round_number(scope.view.now, started)
    known = evictions(planned.evict, partial(_result, scope, current), partial(_result, scope, current - 1))
    if known.over and replace(planned, evict=()).done:
        return succeeded(SUCCEEDED, found.observe)
    unreachable = found.context.node_unreachable
    wakes = [clock.deadline]
    if planned.evict:
        wakes.append(next_round(started, current))
    if unreachable:
        wakes += [expired_at(each.pod) for each in planned.terminating]
    message = drain_message(started, planned, known)
    asked = known.open[:EVICTIONS_AT_ONCE]
    decision = Decision(
        effects=tuple(_eviction(scope, each, current, UNREACHABLE_GRACE if unreachable else None) for each in asked),
        observe=found.observe,
    ) + waiting(message, Ref(NODE, scope.node.name), wake_at=min((at for at in wakes if at), default=None))
    return StagePending(DRAINING, message, decision, (_draining(message),))


def _eviction(scope: DeletionScope, pod_drain: PodDrain, number: int, grace_seconds: int | None) -> Effect:
    warning = f" ({pod_drain.status.warning})" if pod_drain.status.warning else ""
    reason = f"Pod {full_name(pod_drain.pod)} must leave Node {scope.node.name}{warning}"
    return eviction(scope.workload, pod_drain.pod, _eviction_key(scope, pod_drain.pod, number), grace_seconds, reason)


def _eviction_key(scope: DeletionScope, pod: Object, number: int) -> EffectKey:
    return eviction_key(scope.machine["metadata"]["uid"], pod, number)


def _result(scope: DeletionScope, number: int, pod: Object) -> EffectResult | None:
    return scope.view.result(_eviction_key(scope, pod, number))


def _cannot_drain(scope: DeletionScope, clock: Clock, why: str, observe: tuple[Observe, ...] = ()) -> StagePending:
    """Report the failure while the drain timeout runs.

    A cluster that never answers must not block the Machine forever. It is also checked again without events, because it
    may no longer exist.
    """
    now = scope.view.now
    running = Clock(clock.started or now, clock.limit)
    message = f"Error draining Node {scope.node.name}: {why}"
    condition = legacy(SUCCEEDED, "False", "DrainingFailed", "Warning", why)
    started = {} if clock.started else {START: timestamp(now)}
    decision = Decision(observe=observe) + waiting(message, wake_at=earlier(now + ROUND, running.deadline))
    return StagePending(DRAINING, message, decision, (condition,), started, debounce=0.0)


def _draining(message: str) -> Condition:
    return legacy(SUCCEEDED, "False", "Draining", "Info", message)
