"""One controller: what it watches, how it decides, and the loop that turns keys into carried-out decisions."""

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
from herder.engine.runtime.decision import Decision, Outcome, Refusal, waiting
from herder.engine.runtime.executor import DecisionExecutor
from herder.engine.runtime.groups import Grouping
from herder.engine.runtime.handlers import Follows, Lookup, Watches, any_change, itself
from herder.engine.runtime.view import KindNotWatched, View

log = get_logger(__name__)

REFUSED_RETRY_SECONDS = 30.0
SOONEST_SECONDS = 0.001  # a waking in the past is at once, but not within the same turn of the loop
PASSES_APART = 10
"""So many times as long as it took to decide, a paced controller leaves an object alone afterwards."""
SLOW_DECISION_SECONDS = 0.1
"""A reconciler that computes for longer is logged: it keeps the whole event loop waiting."""


@dataclass(frozen=True)
class Controller:
    """A declaration: everything the runtime needs to run a reconciler, and nothing that runs."""

    name: str
    kind: Kind  # keys name objects of this kind
    reconcile: Callable[[View], Decision]
    watches: tuple[Watches, ...] = ()
    predicate: Callable[[Change], bool] = any_change  # which changes of the kind itself matter
    labels: str = ""  # only these objects of the kind
    indexes: Mapping[Kind, Mapping[str, Indexer]] = field(default_factory=dict)
    groupings: tuple[Grouping[Any], ...] = ()  # of kinds that it watches
    workers: int = 8
    cluster_of: Callable[[Object], str] | None = None  # turns are shared between clusters
    follows: Follows | None = None  # kinds met at run time may be read, and their changes set this off
    pace: float = 0.0  # seconds between two passes over the same object, so that what comes in a burst is seen once

    def kinds(self) -> tuple[Watches, ...]:
        return (Watches(self.kind, itself, self.predicate, labels=self.labels), *self.watches)

    def indexers(self, kind: Kind) -> dict[str, Indexer]:
        return {"controller": controller_uid, **self.indexes.get(kind, {})}


class ControllerWorker:
    """A controller at work."""

    def __init__(
        self,
        controller: Controller,
        *,
        now: Callable[[], datetime],
        view_of: Callable[[Key, Refusal | None], View],
        executor: DecisionExecutor,
        object_of: Callable[[Key], Object | None],
        indexed: Lookup,
        observe: Callable[[Decision, Key], None],
        follow: Callable[[Kind, Key], None],
        metrics: Metrics,
        stopwatch: Callable[[], float] = time.perf_counter,
        strict: bool = False,
    ) -> None:
        self.controller = controller
        self.outcomes: dict[Key, Outcome] = {}
        self._deciding: dict[Key, float] = {}  # seconds that the decision took, of reconciles under way
        self._refused: dict[Key, Refusal] = {}  # what guards said of the last decision, where they said no
        self._now = now
        self._view_of = view_of
        self._executor = executor
        self._object_of = object_of
        self._indexed = indexed
        self._observe = observe
        self._follow = follow
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
        if self.controller.cluster_of is None:
            return key.namespace
        obj = self._object_of(key)
        try:
            return self.controller.cluster_of(obj) if obj is not None else ""
        except Exception as error:
            # Keys are also added by timers: one that raised would lose every key that waits for a later time.
            log.error("cluster of object unknown", controller=self.controller.name, key=str(key), exc_info=error)
            return ""

    def changed(self, kind: Kind, change: Change) -> None:
        for watch in self._watches.get(kind, ()):
            for key in watch.affected(change, self._indexed):
                self.queue.add(key, watch.priority)

    def changed_followed(self, kind: Kind, change: Change) -> None:
        """A change of an object whose kind was met at run time."""
        if self.controller.follows is not None and kind not in self._watches:
            for key in self.controller.follows.affected(kind, change, self._indexed):
                self.queue.add(key)

    async def work(self) -> None:
        """One worker, until cancelled."""
        await self._loop.work()

    async def _reconcile(self, key: Key) -> None:
        await self._executor.settle()
        view = self._view_of(key, self._refused.get(key))
        try:
            outcome = await self._carry_out(self._decide(view), view)
        except KindNotWatched as met:
            self.outcomes[key] = Outcome(waiting(f"{met.kind} is being read for the first time"), view.now)
            self._follow(met.kind, key)
        else:
            self._settled(key, view, outcome)

    def _decide(self, view: View) -> Decision:
        began = self._stopwatch()
        decision = self.controller.reconcile(view)
        seconds = self._deciding[view.key] = self._stopwatch() - began
        if seconds >= SLOW_DECISION_SECONDS:
            log.warning("slow decision", seconds=round(seconds, 3))
        if self._strict:
            view.check_unchanged()
        return decision

    async def _carry_out(self, decision: Decision, view: View) -> Outcome:
        self._observe(decision, view.key)
        outcome = await self._executor.carry_out(decision, view, manager=self.controller.name, now=view.now)
        _check_wake_at(decision)
        return outcome

    def _pause(self, key: Key) -> float:
        """What adds up thousands of objects takes long to decide: it is paced so that it never keeps the loop busy."""
        pace, deciding = self.controller.pace, self._deciding.pop(key, 0.0)
        return max(pace, deciding * PASSES_APART) if pace else 0.0

    def _failed(self, key: Key, error: BaseException) -> None:
        self.outcomes[key] = Outcome(Decision(), self._now(), error=describe(error))

    def _settled(self, key: Key, view: View, outcome: Outcome) -> None:
        if self._object_of(key) is None:
            self.outcomes.pop(key, None)
            self._executor.forget(key)
            self._refused.pop(key, None)
            self.queue.forget(key)
        else:
            self.outcomes[key] = outcome
        self._remember(key, outcome.refusal)
        for wake in (outcome.decision.wake_at, outcome.put_off_until):
            if wake is not None:
                self.queue.add_after(key, max((wake - view.now).total_seconds(), SOONEST_SECONDS))

    def _remember(self, key: Key, refusal: Refusal | None) -> None:
        """One that is new, or over, is told in the next pass; one that stays is tried again after a while."""
        known = self._refused.pop(key, None)
        if refusal is not None:
            self._refused[key] = refusal
            self.queue.add_after(key, REFUSED_RETRY_SECONDS)
        if refusal == known:
            return
        self.queue.add_after(key, SOONEST_SECONDS)
        if refusal is not None:
            log.warning("guard refuses", guard=refusal.guard, reason=refusal.reason)


def _check_wake_at(decision: Decision) -> None:
    """A time that cannot be compared is a fault of the controller: the pass counts as failed and is retried."""
    if decision.wake_at is not None and decision.wake_at.utcoffset() is None:
        raise ValueError(f"wake_at {decision.wake_at} has no time zone")


def _by_kind(controller: Controller) -> dict[Kind, list[Watches]]:
    watches: dict[Kind, list[Watches]] = {}
    for watch in controller.kinds():
        watches.setdefault(watch.kind, []).append(watch)
    return watches
