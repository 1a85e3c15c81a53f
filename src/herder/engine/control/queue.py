"""Work queue with deduplication, fairness between groups, priorities and rate-limited retries.

A key is queued at most once and never processed by two workers. A key that is added while it is processed is queued
again afterwards, which makes level-triggered reconciliation safe. Groups (one per cluster) take turns, so a busy
cluster does not starve a quiet one. No group can occupy all workers, so one that hangs does not block the rest. The
queue uses the event loop's clock, so a virtual clock drives it in simulation.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import sys
from collections import Counter, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

BACKOFF_FIRST = 0.005
BACKOFF_LIMIT = 300.0
URGENT, NORMAL, BACKGROUND = 0, 1, 2


@dataclass(slots=True)
class _Lane(Generic[K]):
    """Queued keys of one priority: a queue per group, and the order of groups."""

    groups: dict[str, deque[K]] = field(default_factory=dict)
    turns: deque[str] = field(default_factory=deque)

    def put(self, key: K, group: str) -> None:
        waiting = self.groups.get(group)
        if waiting is None:
            waiting = self.groups[group] = deque()
            self.turns.append(group)
        waiting.append(key)

    def take(self, group: str) -> K:
        self.turns.remove(group)
        waiting = self.groups[group]
        key = waiting.popleft()
        if waiting:
            self.turns.append(group)
        else:
            del self.groups[group]
        return key

    def discard(self, key: K, group: str) -> None:
        waiting = self.groups[group]
        waiting.remove(key)
        if not waiting:
            del self.groups[group]
            self.turns.remove(group)


class WorkQueue(Generic[K]):
    """Rate-limiting priority queue, as in client-go, with fairness between groups."""

    def __init__(
        self,
        group_of: Callable[[K], str] | None = None,
        *,
        workers: int = 0,
        first: float = BACKOFF_FIRST,
        limit: float = BACKOFF_LIMIT,
    ) -> None:
        """Create a queue.

        `workers` is the number of workers that groups share; 0 disables the limit per group. `first` and `limit` are
        the initial and the maximum back-off in seconds.
        """
        self._group_of = group_of or _one_group
        self._first, self._limit = first, limit
        self._workers = workers or sys.maxsize
        self._share = max(self._workers // 2, 1)
        self._lanes: dict[int, _Lane[K]] = {URGENT: _Lane(), NORMAL: _Lane(), BACKGROUND: _Lane()}
        self._queued: dict[K, tuple[int, str]] = {}  # priority and group
        self._working: dict[K, str] = {}  # keys in progress, with their group
        self._busy: Counter[str] = Counter()  # number of keys in progress by group
        self._readded: dict[K, int] = {}  # added while in progress, with priority
        self._failures: dict[K, int] = {}
        self._delayed: list[tuple[float, int, K, int]] = []
        self._paused_until: dict[K, float] = {}  # paced keys: not processed before this time
        self._due: dict[K, float] = {}  # earliest delayed time of a key; later heap entries are stale
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: deque[asyncio.Future[None]] = deque()
        self.closed = False
        self.added = 0
        self.retried = 0

    def __len__(self) -> int:
        return len(self._queued)

    @property
    def in_progress(self) -> int:
        """Number of keys that workers have taken."""
        return len(self._working)

    def add(self, key: K, priority: int = NORMAL) -> None:
        if self.closed:
            return
        self.added += 1
        if key in self._working:
            self._readded[key] = min(priority, self._readded.get(key, BACKGROUND))
            return
        if self._paused_until and (pause := self._remaining_pause(key)) > 0:
            self.add_after(key, pause, priority)
            return
        queued = self._queued.get(key)
        if queued is not None:
            if queued[0] <= priority:
                return
            self._lanes[queued[0]].discard(key, queued[1])
        group = self._group_of(key)
        self._queued[key] = (priority, group)
        self._lanes[priority].put(key, group)
        self._wake()

    def add_after(self, key: K, delay: float, priority: int = NORMAL) -> None:
        """Add the key in `delay` seconds; the earliest of several pending delays wins."""
        if delay <= 0:
            self.add(key, priority)
            return
        at = asyncio.get_running_loop().time() + delay
        if self.closed or self._due.get(key, at + 1) <= at:
            return
        self._due[key] = at
        heapq.heappush(self._delayed, (at, next(self._order), key, priority))
        self._arm()

    def retry(self, key: K) -> float:
        """Add the key after its back-off, which is exponential in the failures since its last success."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self.retried += 1
        delay = min(self._first * 2.0 ** min(failures, 30), self._limit)
        self.add_after(key, delay)
        return delay

    def failures(self, key: K) -> int:
        """Return the number of consecutive retries of the key."""
        return self._failures.get(key, 0)

    def succeeded(self, key: K) -> None:
        self._failures.pop(key, None)

    def forget(self, key: K) -> None:
        """Drop the retry state of a deleted object."""
        self._failures.pop(key, None)
        self._paused_until.pop(key, None)
        self._due.pop(key, None)

    async def take(self) -> K:
        """Wait for the next key. Raises CancelledError once the queue is closed, even if keys are queued."""
        while (turn := self._next_turn()) is None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(future)
            try:
                await future
            except asyncio.CancelledError:
                if future.done() and not future.cancelled():
                    self._wake()  # pass the wake-up on to the next waiter
                raise
        lane, group = turn
        key = lane.take(group)
        del self._queued[key]
        self._working[key] = group
        self._busy[group] += 1
        return key

    def _next_turn(self) -> tuple[_Lane[K], str] | None:
        """Return the lane and group to serve next.

        A group that occupies half of the workers comes after all others and never gets the last free worker, so that
        other groups always find one.
        """
        if self.closed:
            raise asyncio.CancelledError
        for lane in self._lanes.values():
            for group in lane.turns:  # only a few groups can have reached their share
                if self._busy[group] < self._share:
                    return lane, group
        if len(self._working) < self._workers - 1:
            return next(((lane, lane.turns[0]) for lane in self._lanes.values() if lane.turns), None)
        return None

    def finished(self, key: K, pace: float = 0.0) -> None:
        """Mark the key as processed; it is not handed out again within `pace` seconds."""
        group = self._working.pop(key)
        self._busy[group] -= 1
        if not self._busy[group]:
            del self._busy[group]
        if pace:
            self._paused_until[key] = asyncio.get_running_loop().time() + pace
        again = self._readded.pop(key, None)
        if again is not None:
            self.add(key, again)
        if self._queued:
            self._wake()  # a key may have waited for its group's share

    def close(self) -> None:
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        for future in self._waiters:
            if not future.done():
                future.cancel()

    def _remaining_pause(self, key: K) -> float:
        """Return the remaining pause of the key in seconds, and drop an expired entry."""
        remaining = self._paused_until.get(key, 0.0) - asyncio.get_running_loop().time()
        if remaining <= 0:
            self._paused_until.pop(key, None)
        return remaining

    def _wake(self) -> None:
        while self._waiters:
            future = self._waiters.popleft()
            if not future.done():
                future.set_result(None)
                return

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._delayed and not self.closed:
            self._timer = asyncio.get_running_loop().call_at(self._delayed[0][0], self._deliver)

    def _deliver(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._delayed and self._delayed[0][0] <= now:
            at, _, key, priority = heapq.heappop(self._delayed)
            if self._due.get(key) == at:  # otherwise it was delivered earlier or forgotten
                del self._due[key]
                self.add(key, priority)
        self._arm()


def _one_group(_key: Hashable) -> str:
    return ""
