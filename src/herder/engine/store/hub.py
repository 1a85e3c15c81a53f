"""Watch fan-out: a registry of watches, a buffer of recent events, and a bounded backlog per reader.

Watches are indexed by scope, so an event costs only the watches that match it. Each watch receives a batch of commits
in one step, which wakes its reader once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from herder.engine.store.errors import Overflow
from herder.engine.store.records import Event

WatchScope = tuple[str, str, str]
"""Resource, namespace and name of the watched objects; empty for any."""

Replay = Callable[[int, int], Awaitable[Sequence[Event]]]
"""Reads the next chunk of events after one revision and up to another from disk; empty when there are no more."""

BACKLOG = 16_384
RECENT_EVENTS = 8_192
RECENT_BYTES = 32 << 20
CLIENT_BACKLOG_BYTES = 16 << 20
"""Maximum bytes of events buffered for one slow client."""
MAX_HELD_BYTES = 64 << 20
"""Maximum bytes of events buffered for all slow clients together; each event counts once."""
_BATCH_BYTES = 1 << 20
MAX_PUSHED_WATCHES = 256
"""Watches whose listener is called synchronously when a batch is published. The readers of the others are woken and
read the batch in their own event loop iterations, so that a thousand readers do not block everyone else."""


class Watch(AsyncIterator[list[Event]]):
    """Ordered stream of event batches for one reader. Iteration ends once the watch is closed."""

    def __init__(self, hub: Hub, scope: WatchScope, after: int, backlog: int, backlog_bytes: int | None) -> None:
        self.scope = scope
        self._hub = hub
        self._after = after
        """All matching events up to this revision were delivered."""
        self._backlog = backlog
        self._backlog_bytes = backlog_bytes
        self._queue: list[Event] = []
        self.queued_bytes = 0  # maintained only if backlog_bytes is set
        self._delivered: list[Event] = []  # counted as held until the reader asks for the next batch
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self._error: Exception | None = None
        self._replay: Replay | None = None
        self._replay_to = 0
        self.listener: Callable[[Sequence[Event]], bool] | None = None
        """Called with new events while the reader waits, before it is woken. Returns True if it consumed them; the
        reader is then not woken."""

    async def __anext__(self) -> list[Event]:
        while not (batch := await self.catch_up()):
            if self._ended:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return batch

    async def catch_up(self) -> list[Event]:
        """Return the next batch of past events, from disk if necessary; empty once all of them were delivered."""
        if self._replay is not None and not self._ended and (batch := await self._next_from_disk(self._replay)):
            return batch
        return self.take()

    async def _next_from_disk(self, replay: Replay) -> list[Event]:
        try:
            batch = await replay(self._after, self._replay_to)
        except Exception:
            self.close()
            raise
        if not batch:
            self._replay = None
            self._after = self._replay_to
        elif not self._ended:
            self._after = batch[-1].revision
        return [] if self._ended else list(batch)

    def take(self) -> list[Event]:
        """Return the queued events without waiting. Empty while older events are still being replayed from disk."""
        if self._replay is not None or not self._queue:
            return []
        if self._backlog_bytes is not None:
            batch = self._take_bounded()
        else:
            batch, self._queue = self._queue, []
        self._after = batch[-1].revision
        return batch

    def _take_bounded(self) -> list[Event]:
        count = size = 0
        while count < len(self._queue) and size < _BATCH_BYTES:
            size += event_bytes(self._queue[count])
            count += 1
        self._hub.drop(self._delivered)
        self._delivered, self._queue = self._queue[:count], self._queue[count:]
        self.queued_bytes -= size
        return list(self._delivered)

    def progress(self) -> int:
        """Return the revision up to which all matching events were delivered; a bookmark may report it."""
        if self._replay is None and not self._queue and not self._ended:
            return max(self._after, self._hub.revision)
        return self._after

    def close(self) -> None:
        self._end(None)
        self._hub.drop(self._delivered)
        self._delivered = []
        self.listener = None  # breaks a reference cycle: otherwise the reader lives until the next garbage collection

    def _end(self, error: Exception | None) -> None:
        if self._ended:
            return
        self._ended = True
        self._error = error
        if self._backlog_bytes is not None:
            self._hub.drop(self._queue)
        self._queue = []
        self.queued_bytes = 0
        self._hub.remove(self)
        self._wake()

    def end_with_overflow(self) -> None:
        """Close the watch with Overflow, so that the reader lists again."""
        self._end(Overflow("too many events are waiting to be read"))

    def offer(self, events: Sequence[Event], *, push: bool = True) -> None:
        if len(self._queue) + len(events) > self._backlog:
            self._end(Overflow(f"more than {self._backlog} events are waiting to be read"))
            return
        if events[0].revision <= self._after:  # the watch was requested from a future revision
            events = [event for event in events if event.revision > self._after]
        if push and self._can_push() and self.listener(events):  # type: ignore[misc]
            self._after = events[-1].revision
            return
        self._queue.extend(events)
        if self._backlog_bytes is not None:
            self._count(events, self._backlog_bytes)
        self._wake()

    def _count(self, events: Sequence[Event], limit: int) -> None:
        self.queued_bytes += sum(map(event_bytes, events))
        self._hub.hold(events)
        if self.queued_bytes > limit:
            self._end(Overflow(f"more than {limit} bytes of events are waiting to be read"))
        else:
            self._hub.end_largest_while_full()

    def _can_push(self) -> bool:
        """Return whether the listener may be called: only while the reader waits with an empty queue, to keep events
        in order."""
        waiter = self._waiter
        return self.listener is not None and waiter is not None and not waiter.done() and not self._queue

    def replay_from_disk(self, replay: Replay, *, since: int, up_to: int) -> None:
        """Deliver the events before the recent ones first; events that are published meanwhile queue up behind them."""
        self._after, self._replay, self._replay_to = since, replay, up_to

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Hub:
    """All watches, and the recent events with which most watches start without reading the disk."""

    def __init__(self, revision: int) -> None:
        self.revision = revision
        self.recent: deque[Event] = deque()
        self.recent_after = revision
        """Every event after this revision is in `recent`."""
        self._recent_bytes = 0
        self._watches: dict[WatchScope, dict[Watch, None]] = {}
        """Dictionaries instead of sets, so that watches are served in registration order and runs are deterministic."""
        self._held: dict[int, int] = {}  # by revision: number of slow clients that the event is buffered for
        self.held_bytes = 0

    def watch(self, scope: WatchScope, *, since: int, backlog: int, backlog_bytes: int | None = None) -> Watch:
        watch = Watch(self, scope, since, backlog, backlog_bytes)
        self._watches.setdefault(scope, {})[watch] = None
        if recent := [event for event in self.since(since) if matches(event, scope)]:
            watch.offer(recent)
        return watch

    def counts(self) -> dict[WatchScope, int]:
        """Number of watches by what they watch."""
        return {scope: len(group) for scope, group in self._watches.items()}

    def since(self, revision: int) -> list[Event]:
        """Return the recent events after a revision, oldest first."""
        events = []
        for event in reversed(self.recent):
            if event.revision <= revision:
                break
            events.append(event)
        events.reverse()
        return events

    def publish(self, events: Sequence[Event]) -> None:
        offers: dict[WatchScope, list[Event]] = {}
        watches = self._watches
        for event in events:
            self._append_recent(event)
            if watches:
                for scope in matching_scopes(event):
                    if scope in watches:
                        offers.setdefault(scope, []).append(event)
        self.revision = events[-1].revision
        for scope, offered in offers.items():
            for position, watch in enumerate(tuple(watches.get(scope, ()))):
                watch.offer(offered, push=position < MAX_PUSHED_WATCHES)

    def hold(self, events: Sequence[Event]) -> None:
        for event in events:
            holders = self._held.get(event.revision, 0)
            if not holders:
                self.held_bytes += event_bytes(event)
            self._held[event.revision] = holders + 1

    def drop(self, events: Sequence[Event]) -> None:
        for event in events:
            holders = self._held[event.revision] - 1
            if holders:
                self._held[event.revision] = holders
            else:
                del self._held[event.revision]
                self.held_bytes -= event_bytes(event)

    def end_largest_while_full(self) -> None:
        while self.held_bytes > MAX_HELD_BYTES:
            largest = max((watch for group in self._watches.values() for watch in group), key=lambda w: w.queued_bytes)
            if not largest.queued_bytes:
                return
            largest.end_with_overflow()

    def _append_recent(self, event: Event) -> None:
        self.recent.append(event)
        self._recent_bytes += _retained_bytes(event)
        while len(self.recent) > RECENT_EVENTS or self._recent_bytes > RECENT_BYTES:
            oldest = self.recent.popleft()
            self._recent_bytes -= _retained_bytes(oldest)
            self.recent_after = oldest.revision

    def remove(self, watch: Watch) -> None:
        watches = self._watches.get(watch.scope, {})
        watches.pop(watch, None)
        if not watches:
            self._watches.pop(watch.scope, None)

    def close(self) -> None:
        for watches in list(self._watches.values()):
            for watch in list(watches):
                watch.close()


EVERYTHING: WatchScope = ("", "", "")
"""Scope of a watch of all resources."""


def matching_scopes(event: Event) -> tuple[WatchScope, ...]:
    resource, namespace, name = event.record.key
    if not namespace:
        return EVERYTHING, (resource, "", ""), (resource, "", name)
    unscoped = (EVERYTHING, (resource, "", ""), (resource, "", name))
    return (*unscoped, (resource, namespace, ""), (resource, namespace, name))


def matches(event: Event, scope: WatchScope) -> bool:
    key = event.record.key
    resource, namespace, name = scope
    return (
        (not resource or key[0] == resource) and (not namespace or key[1] == namespace) and (not name or key[2] == name)
    )


def _retained_bytes(event: Event) -> int:
    """Bytes that only the buffer of recent events retains: superseded and deleted values, not live ones."""
    held = len(event.previous.value) if event.previous is not None else 0
    return held + len(event.record.value) if event.deleted else held


def event_bytes(event: Event) -> int:
    """Bytes that a buffered event retains."""
    return len(event.record.value) + (len(event.previous.value) if event.previous is not None else 0)
