"""Control loop: workers take keys from a queue, reconcile them, and retry failures with back-off.

A worker cannot die. Every exception of a reconcile is logged with its object and counted, and the key is retried
without delaying other keys. Log lines written during a reconcile carry the controller, the object and a reconcile ID,
also in tasks that the reconcile starts.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

from herder.engine.control.metrics import LoopMetrics, process_loop_metrics
from herder.engine.control.queue import BACKOFF_FIRST, BACKOFF_LIMIT, WorkQueue
from herder.engine.logs import LogContext, get_logger, set_log_context
from herder.engine.meta.errors import AlreadyExists, Conflict, StatusError

log = get_logger(__name__)

K = TypeVar("K", bound=Hashable)

SLOW_SECONDS = 10.0
"""A reconcile that takes longer, including waits, is logged."""
ORDINARY_CONFLICTS = 5
"""Consecutive conflicts of a key that are attributed to a stale cache; more indicate two writers that disagree."""

_RECONCILE_IDS = itertools.count(1)


class Result(NamedTuple):
    """What a reconcile requests from the loop. None is the same as `Result()`."""

    requeue_after: float | None = None  # seconds until the key is reconciled again, even without a change


class ControlLoop(Generic[K]):
    """A queue of keys and the workers that reconcile them."""

    def __init__(
        self,
        name: str,
        reconcile: Callable[[K], Awaitable[Result | None]],
        *,
        workers: int = 1,
        group_of: Callable[[K], str] | None = None,
        failed: Callable[[K, BaseException], None] | None = None,
        pause_after: Callable[[K], float] | None = None,
        initial_retry: float = BACKOFF_FIRST,
        max_retry: float = BACKOFF_LIMIT,
        metrics: LoopMetrics | None = None,
        stopwatch: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Create a loop.

        `name` labels metrics and log lines; it must be a constant. `group_of` shares the workers fairly between groups
        of keys; without it all workers serve any key. `failed` is called after each failure except ordinary conflicts.
        `pause_after` returns for how many seconds a reconciled key must not be reconciled again. `stopwatch` measures
        reconciles; a simulation passes a virtual one.
        """
        self.name = name
        self.workers = workers
        self.queue: WorkQueue[K] = WorkQueue(
            group_of, workers=workers if group_of is not None else 0, first=initial_retry, limit=max_retry
        )
        self._reconcile = reconcile
        self._failed = failed
        self._pause_after = pause_after
        self._metrics = metrics or process_loop_metrics(name)
        self._metrics.track(self.queue)
        self._stopwatch = stopwatch

    def add(self, key: K) -> None:
        self.queue.add(key)

    async def run(self) -> None:
        """Run all workers until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(self.workers):
                tasks.create_task(self.work(), name=f"{self.name} {number}")

    async def work(self) -> None:
        """Run one worker until cancelled or until the queue is closed."""
        while True:
            key = await self.queue.take()
            set_log_context(LogContext(self.name, key, next(_RECONCILE_IDS)))
            try:
                await self._process(key)
            finally:
                self.queue.finished(key, self._pause_after(key) if self._pause_after is not None else 0.0)
            # A reconcile without I/O never yields: let other tasks run while thousands of keys are queued.
            await asyncio.sleep(0)

    async def _process(self, key: K) -> None:
        started = self._stopwatch()
        try:
            result = await self._reconcile(key) or Result()
        except (Conflict, AlreadyExists) as error:
            self._metrics.observe("requeue", self._stopwatch() - started)
            self._retry_conflict(key, error)
            return
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _is_own_cancellation():
                raise
            self._metrics.observe("error", self._stopwatch() - started)
            self._retry(key, error)
            return
        seconds = self._stopwatch() - started
        self._metrics.observe("success", seconds)
        if seconds >= SLOW_SECONDS:
            log.warning("slow reconcile", seconds=round(seconds, 3))
        self.queue.succeeded(key)
        if result.requeue_after is not None:
            self.queue.add_after(key, result.requeue_after)

    def _retry_conflict(self, key: K, error: StatusError) -> None:
        """Requeue after a conflict, which normally means that the cache was stale."""
        if self.queue.failures(key) < ORDINARY_CONFLICTS:
            self.queue.retry(key)
            log.debug("requeued after a conflict", error=error.reason)
        else:
            self._retry(key, error)

    def _retry(self, key: K, error: BaseException) -> None:
        delay = self.queue.retry(key)
        expected = isinstance(error, StatusError | OSError)
        log.warning(
            "reconcile failed",
            error=describe(error),
            attempt=self.queue.failures(key),
            retry_in=round(delay, 3),
            exc_info=None if expected else error,
        )
        if self._failed is not None:
            try:
                self._failed(key, error)
            except Exception as fault:
                log.error("failure not recorded", exc_info=fault)


def describe(error: BaseException) -> str:
    """Return the error in one line; only its type if its message cannot be built."""
    if isinstance(error, StatusError):
        return error.message
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def _is_own_cancellation() -> bool:
    """Return whether the worker itself is being cancelled, not something that the reconcile waited for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
