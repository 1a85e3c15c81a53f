"""Controller declaration, and the worker that reconciles its keys and executes the decisions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from herder.engine.control.cache import Change, Indexer, Key, controller_uid
from herder.engine.control.loop import ControlLoop, describe
from herder.engine.control.metrics import Metrics
from herder.engine.logs import get_logger
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Decision, Events, Outcome, Refusal, waiting
from herder.engine.runtime.events.recorder import ControllerEvents
from herder.engine.runtime.executor import DecisionExecutor, Reconciled
from herder.engine.runtime.groups import Grouping
from herder.engine.runtime.handlers import DynamicWatches, Lookup, Watches, any_change, itself
from herder.engine.runtime.view import KindNotWatched, View

log = get_logger(__name__)

REFUSED_RETRY_SECONDS = 30.0
MIN_REQUEUE_SECONDS = 0.001
"""Minimum requeue delay: a wake time in the past requeues immediately, but not within the same event loop iteration."""
PACE_FACTOR = 10
"""A paced controller pauses an object for this multiple of the time that its last decision took."""
SLOW_DECISION_SECONDS = 0.1
"""Decisions that take longer are logged, because a reconciler blocks the event loop."""


@dataclass(frozen=True)
class Controller:
    """Declaration of a controller: the reconciler and everything that the manager needs to run it."""

    name: str
    kind: Kind
    """Kind whose objects the controller reconciles; queue keys name objects of this kind."""
    reconcile: Callable[[View], Decision]
    """Pure function from a view to a decision. It performs no I/O."""
    watches: tuple[Watches, ...] = ()
    """Other kinds that the reconciler reads, and how their changes enqueue keys."""
    predicate: Callable[[Change], bool] = any_change
    """Filters changes of `kind` before they enqueue a key."""
    labels: str = ""
    """Label selector for objects of `kind`; empty selects all."""
    indexes: Mapping[Kind, Mapping[str, Indexer]] = field(default_factory=dict)
    """Cache indexes by kind and name, for `View.select` and `Indexed`."""
    groupings: tuple[Grouping[Any], ...] = ()
    """Groupings over watched kinds, for `View.groups`."""
    workers: int = 8
    """Maximum number of concurrent reconciles."""
    cluster_of: Callable[[Object], str] | None = None
    """Returns the cluster of an object: NAMESPACE/NAME, or the ID of its management Cluster. Workers are shared fairly
    between clusters instead of namespaces, and decisions about an observe-only cluster are withheld."""
    dynamic_watches: DynamicWatches | None = None
    """Allows reading kinds that are discovered at run time, and maps their changes to keys."""
    pace: float = 0.0
    """Minimum seconds between two reconciles of an object, so that a burst of changes is reconciled once."""

    def kinds(self) -> tuple[Watches, ...]:
        """Return all declared watches, that of the controller's own kind first."""
        return (Watches(self.kind, itself, self.predicate, labels=self.labels), *self.watches)

    def indexers(self, kind: Kind) -> dict[str, Indexer]:
        return {"controller": controller_uid, **self.indexes.get(kind, {})}


class ControllerWorker:
    """A running controller: its queue, its workers and the last outcome per key."""

    def __init__(
        self,
        controller: Controller,
        *,
        now: Callable[[], datetime],
        view_of: Callable[[Key, Refusal | None, str], View],
        executor: DecisionExecutor,
        object_of: Callable[[Key], Object | None],
        indexed: Lookup,
        observe: Callable[[Decision, Key], None],
        watch_kind: Callable[[Kind, Key], None],
        metrics: Metrics,
        events: ControllerEvents | None = None,
        stopwatch: Callable[[], float] = time.perf_counter,
        strict: bool = False,
    ) -> None:
        self.controller = controller
        self.outcomes: dict[Key, Outcome] = {}
        self._deciding: dict[Key, float] = {}  # duration of the decision, for reconciles in progress
        self._refused: dict[Key, Refusal] = {}  # guard refusal of the last decision
        self._reported: dict[Key, Events] = {}  # Events of the last decision
        self._now = now
        self._view_of = view_of
        self._executor = executor
        self._object_of = object_of
        self._indexed = indexed
        self._observe = observe
        self._watch_kind = watch_kind
        self._events = events
        self._watches = _by_kind(controller)
        self._stopwatch = stopwatch
        self._strict = strict
        self._loop: ControlLoop[Key] = ControlLoop(
            controller.name,
            self._reconcile,
            workers=controller.workers,
            group_of=self._group,
            failed=self._failed,
            pause_after=self._pause,
            metrics=metrics.of(controller.name),
            stopwatch=stopwatch,
        )
        self.queue = self._loop.queue

    def _group(self, key: Key) -> str:
        return key.namespace if self.controller.cluster_of is None else self._cluster(key)

    def _cluster(self, key: Key) -> str:
        obj = self._object_of(key)
        try:
            return self.controller.cluster_of(obj) if obj is not None and self.controller.cluster_of else ""
        except Exception as error:
            # Timers add keys too: an exception here would lose every delayed key.
            log.error("cluster of object unknown", controller=self.controller.name, key=str(key), exc_info=error)
            return ""

    def changed(self, kind: Kind, change: Change) -> None:
        """Enqueue the keys affected by a change of a declared kind."""
        for watch in self._watches.get(kind, ()):
            for key in watch.affected(change, self._indexed):
                self.queue.add(key, watch.priority)

    def changed_dynamic(self, kind: Kind, change: Change) -> None:
        """Enqueue the keys affected by a change of a kind that was discovered at run time."""
        if self.controller.dynamic_watches is not None and kind not in self._watches:
            for key in self.controller.dynamic_watches.affected(kind, change, self._indexed):
                self.queue.add(key)

    async def work(self) -> None:
        """Run one worker until cancelled."""
        await self._loop.work()

    async def _reconcile(self, key: Key) -> None:
        await self._executor.resolve_uncertain()
        view = self._view_of(key, self._refused.get(key), self._executor.rejected(key))
        try:
            outcome = await self._execute(self._decide(view), view)
        except KindNotWatched as met:
            self.outcomes[key] = Outcome(waiting(f"{met.kind}: waiting for the first list"), view.now)
            self._watch_kind(met.kind, key)
        else:
            self._record_outcome(key, view, outcome)

    def _decide(self, view: View) -> Decision:
        started = self._stopwatch()
        decision = self.controller.reconcile(view)
        seconds = self._deciding[view.key] = self._stopwatch() - started
        if seconds >= SLOW_DECISION_SECONDS:
            log.warning("slow decision", seconds=round(seconds, 3))
        if self._strict:
            view.check_unchanged()
        return decision

    async def _execute(self, decision: Decision, view: View) -> Outcome:
        self._observe(decision, view.key)
        reconciled = Reconciled(self.controller.kind, self._cluster(view.key))
        outcome = await self._executor.execute(
            decision, view, manager=self.controller.name, now=view.now, reconciled=reconciled
        )
        _check_wake_at(decision)
        return outcome

    def _pause(self, key: Key) -> float:
        """Return the pause before the key is reconciled again. Reconcilers that aggregate thousands of objects are
        slow: pacing keeps them from monopolizing the event loop."""
        pace, deciding = self.controller.pace, self._deciding.pop(key, 0.0)
        return max(pace, deciding * PACE_FACTOR) if pace else 0.0

    def _failed(self, key: Key, error: BaseException) -> None:
        self.outcomes[key] = Outcome(Decision(), self._now(), error=describe(error))

    def _record_outcome(self, key: Key, view: View, outcome: Outcome) -> None:
        if self._object_of(key) is None:
            self.outcomes.pop(key, None)
            self._executor.forget(key)
            self._refused.pop(key, None)
            self._reported.pop(key, None)
            self.queue.forget(key)
        else:
            self.outcomes[key] = outcome
            self._record_events(key, outcome.decision.events)
        self._record_refusal(key, outcome.refusal)
        for wake in (outcome.decision.wake_at, outcome.deferred_until):
            if wake is not None:
                self.queue.add_after(key, max((wake - view.now).total_seconds(), MIN_REQUEUE_SECONDS))

    def _record_events(self, key: Key, events: Events) -> None:
        """Record the Events that the previous decision for the object did not have."""
        reported = self._reported.pop(key, ())
        if events:
            self._reported[key] = events
        for event in events:
            if self._events is not None and event not in reported:
                self._events.record(event)

    def _record_refusal(self, key: Key, refusal: Refusal | None) -> None:
        """Requeue a new or cleared refusal immediately, so that the reconciler reports it; retry a lasting one after
        a delay."""
        previous = self._refused.pop(key, None)
        if refusal is not None:
            self._refused[key] = refusal
            self.queue.add_after(key, REFUSED_RETRY_SECONDS)
        if refusal == previous:
            return
        self.queue.add_after(key, MIN_REQUEUE_SECONDS)
        if refusal is not None:
            log.warning("decision refused by guard", guard=refusal.guard, reason=refusal.reason)
            if self._events is not None:
                self._events.refused(key, refusal)


def _check_wake_at(decision: Decision) -> None:
    """Reject a naive time as a bug of the controller: the reconcile fails and is retried."""
    if decision.wake_at is not None and decision.wake_at.utcoffset() is None:
        raise ValueError(f"wake_at {decision.wake_at} has no time zone")


def _by_kind(controller: Controller) -> dict[Kind, list[Watches]]:
    watches: dict[Kind, list[Watches]] = {}
    for watch in controller.kinds():
        watches.setdefault(watch.kind, []).append(watch)
    return watches
