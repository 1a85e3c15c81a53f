"""The work queue: each key at most once, never two workers on one key, fair between groups, urgent first.

A key that comes again while it is being worked on is remembered and handed out once more afterwards; that is what
makes level-triggered reconciliation safe. Groups (one per cluster) take turns, so a busy cluster does not starve a
quiet one; and none of them takes all the workers, so one that hangs does not hold up the rest. Time is the event
loop's, so a virtual clock drives it in simulation.
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
    """Keys of one priority: a queue per group, and whose turn it is."""

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
    def __init__(
        self,
        group_of: Callable[[K], str] | None = None,
        *,
        workers: int = 0,
        first: float = BACKOFF_FIRST,
        limit: float = BACKOFF_LIMIT,
    ) -> None:
        """`workers` is how many workers groups share; 0 means that they are not shared out.

        `first` and `limit` are the shortest and the longest back-off in seconds.
        """
        self._group_of = group_of or _one_group
        self._first, self._limit = first, limit
        self._workers = workers or sys.maxsize
        self._share = max(self._workers // 2, 1)
        self._lanes: dict[int, _Lane[K]] = {URGENT: _Lane(), NORMAL: _Lane(), BACKGROUND: _Lane()}
        self._queued: dict[K, tuple[int, str]] = {}  # where each waiting key stands
        self._working: dict[K, str] = {}  # with their groups
        self._busy: Counter[str] = Counter()  # keys being worked on, by group
        self._again: dict[K, int] = {}  # came back while being worked on, with the priority it asked for
        self._failures: dict[K, int] = {}
        self._later: list[tuple[float, int, K, int]] = []
        self._held: dict[K, float] = {}  # worked on just now: not to be handed out again before then
        self._due: dict[K, float] = {}  # the earliest delayed time of a key; later entries in the heap are stale
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._takers: deque[asyncio.Future[None]] = deque()
        self.closed = False
        self.added = 0
        self.retried = 0

    def __len__(self) -> int:
        return len(self._queued)

    def add(self, key: K, priority: int = NORMAL) -> None:
        if self.closed:
            return
        self.added += 1
        if key in self._working:
            self._again[key] = min(priority, self._again.get(key, BACKGROUND))
            return
        if self._held and (hold := self._still_held(key)) > 0:
            self.add_after(key, hold, priority)
            return
        standing = self._queued.get(key)
        if standing is not None:
            if standing[0] <= priority:
                return
            self._lanes[standing[0]].discard(key, standing[1])
        group = self._group_of(key)
        self._queued[key] = (priority, group)
        self._lanes[priority].put(key, group)
        self._wake()

    def add_after(self, key: K, delay: float, priority: int = NORMAL) -> None:
        """Add the key in `delay` seconds; of several such wishes the earliest holds."""
        if delay <= 0:
            self.add(key, priority)
            return
        at = asyncio.get_running_loop().time() + delay
        if self.closed or self._due.get(key, at + 1) <= at:
            return
        self._due[key] = at
        heapq.heappush(self._later, (at, next(self._order), key, priority))
        self._arm()

    def retry(self, key: K) -> float:
        """Add the key after its backoff: exponential in the failures since it last succeeded."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self.retried += 1
        delay = min(self._first * 2.0 ** min(failures, 30), self._limit)
        self.add_after(key, delay)
        return delay

    def failures(self, key: K) -> int:
        """How often in a row the key was retried."""
        return self._failures.get(key, 0)

    def succeeded(self, key: K) -> None:
        self._failures.pop(key, None)

    def forget(self, key: K) -> None:
        """The object is gone: nothing about it is remembered."""
        self._failures.pop(key, None)
        self._held.pop(key, None)
        self._due.pop(key, None)

    async def take(self) -> K:
        """The next key; raises CancelledError to the worker when the queue is closed, whatever still waits in it."""
        while (turn := self._turn()) is None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._takers.append(future)
            try:
                await future
            except asyncio.CancelledError:
                if future.done() and not future.cancelled():
                    self._wake()  # the wake-up was ours: pass it on
                raise
        lane, group = turn
        key = lane.take(group)
        del self._queued[key]
        self._working[key] = group
        self._busy[group] += 1
        return key

    def _turn(self) -> tuple[_Lane[K], str] | None:
        """Whose key is handed out next. A group with half of the workers comes after all others, and never has the
        last free worker: whoever comes while it hangs finds one."""
        if self.closed:
            raise asyncio.CancelledError
        for lane in self._lanes.values():
            for group in lane.turns:  # no more than a few have their share
                if self._busy[group] < self._share:
                    return lane, group
        if len(self._working) < self._workers - 1:
            return next(((lane, lane.turns[0]) for lane in self._lanes.values() if lane.turns), None)
        return None

    def finished(self, key: K, pace: float = 0.0) -> None:
        """The worker is done with the key, whatever came of it; it is not handed out again within `pace` seconds."""
        group = self._working.pop(key)
        self._busy[group] -= 1
        if not self._busy[group]:
            del self._busy[group]
        if pace:
            self._held[key] = asyncio.get_running_loop().time() + pace
        again = self._again.pop(key, None)
        if again is not None:
            self.add(key, again)
        if self._queued:
            self._wake()  # what waited for its share, not for a worker

    def close(self) -> None:
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        for future in self._takers:
            if not future.done():
                future.cancel()

    def _still_held(self, key: K) -> float:
        """For how many seconds yet; an entry that has run out is dropped."""
        left = self._held.get(key, 0.0) - asyncio.get_running_loop().time()
        if left <= 0:
            self._held.pop(key, None)
        return left

    def _wake(self) -> None:
        while self._takers:
            future = self._takers.popleft()
            if not future.done():
                future.set_result(None)
                return

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._later and not self.closed:
            self._timer = asyncio.get_running_loop().call_at(self._later[0][0], self._deliver)

    def _deliver(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._later and self._later[0][0] <= now:
            at, _, key, priority = heapq.heappop(self._later)
            if self._due.get(key) == at:  # else an earlier wish was granted, or the key was forgotten
                del self._due[key]
                self.add(key, priority)
        self._arm()


def _one_group(_key: Hashable) -> str:
    return ""
