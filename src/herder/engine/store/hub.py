"""Watches: who wants which events, the recent past from memory, and a bounded backlog for each reader.

Watches are indexed by what they ask for, so that an event costs only those who want it. A batch of commits is
handed to each watch in one step, which also wakes its reader once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from herder.engine.store.errors import Overflow
from herder.engine.store.records import Event

Wanted = tuple[str, str, str]
"""Resource, namespace and name, empty for any."""

Replay = Callable[[int, int], Awaitable[Sequence[Event]]]
"""Reads a first part of the events after one revision and up to another from disk; empty when there are no more."""

BACKLOG = 16_384
RECENT_EVENTS = 8_192
RECENT_BYTES = 32 << 20
CLIENT_BACKLOG_BYTES = 16 << 20
"""Events that wait for one client that reads too slowly."""
HELD_BYTES = 64 << 20
"""Events that wait for all such clients together, each event counted once."""
_TAKEN_BYTES = 1 << 20
PUSHED_AT_ONCE = 256
"""Watches whose reader is offered a batch in the turn that publishes it. Others are woken, and read it in turns of
their own: a thousand readers must not make everybody else wait."""


class Watch(AsyncIterator[list[Event]]):
    """An ordered stream of batches of events, for one reader. Ends with StopAsyncIteration once closed."""

    def __init__(self, hub: Hub, wanted: Wanted, after: int, backlog: int, backlog_bytes: int | None) -> None:
        self.wanted = wanted
        self._hub = hub
        self._after = after
        """All wanted events up to here were handed out, or are not wanted."""
        self._backlog = backlog
        self._backlog_bytes = backlog_bytes
        self._queue: list[Event] = []
        self.queued_bytes = 0  # counted where bytes are limited
        self._taken: list[Event] = []  # counted as held until the reader comes back for more
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self._error: Exception | None = None
        self._replay: Replay | None = None
        self._replay_to = 0
        self.listener: Callable[[Sequence[Event]], bool] | None = None
        """Offered what happens while the reader waits, before it is woken. True: taken, and nobody need wake."""

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
        """The next batch of what has happened already, from disk if need be; empty once all of it was handed out."""
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
        """What is waiting right now, without waiting for more. Nothing while the older past still comes from disk."""
        if self._replay is not None or not self._queue:
            return []
        if self._backlog_bytes is not None:
            batch = self._take_some()
        else:
            batch, self._queue = self._queue, []
        self._after = batch[-1].revision
        return batch

    def _take_some(self) -> list[Event]:
        count = size = 0
        while count < len(self._queue) and size < _TAKEN_BYTES:
            size += event_bytes(self._queue[count])
            count += 1
        self._hub.drop(self._taken)
        self._taken, self._queue = self._queue[:count], self._queue[count:]
        self.queued_bytes -= size
        return list(self._taken)

    def progress(self) -> int:
        """The revision up to which every wanted event has been handed to the reader: what a bookmark may say."""
        if self._replay is None and not self._queue and not self._ended:
            return max(self._after, self._hub.revision)
        return self._after

    def close(self) -> None:
        self._end(None)
        self._hub.drop(self._taken)
        self._taken = []
        self.listener = None  # it refers back to the reader, which would live until the next collection

    def _end(self, error: Exception | None) -> None:
        if self._ended:
            return
        self._ended = True
        self._error = error
        if self._backlog_bytes is not None:
            self._hub.drop(self._queue)
        self._queue = []
        self.queued_bytes = 0
        self._hub.forget(self)
        self._wake()

    def fall_behind(self) -> None:
        """End with Overflow: the reader lists again."""
        self._end(Overflow("too many events are waiting to be read"))

    def offer(self, events: Sequence[Event], *, push: bool = True) -> None:
        if len(self._queue) + len(events) > self._backlog:
            self._end(Overflow(f"more than {self._backlog} events are waiting to be read"))
            return
        if events[0].revision <= self._after:  # asked for from a revision that was still to come
            events = [event for event in events if event.revision > self._after]
        if push and self._listens() and self.listener(events):  # type: ignore[misc]
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

    def _listens(self) -> bool:
        """Only while the reader waits with nothing before it: so events stay in order, whoever takes them."""
        waiter = self._waiter
        return self.listener is not None and waiter is not None and not waiter.done() and not self._queue

    def replay_from_disk(self, replay: Replay, *, since: int, up_to: int) -> None:
        """Hand out what lies before the recent past first; what happens meanwhile queues up behind it."""
        self._after, self._replay, self._replay_to = since, replay, up_to

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Hub:
    """All watches, and the recent events that let most of them start without touching the disk."""

    def __init__(self, revision: int) -> None:
        self.revision = revision
        self.recent: deque[Event] = deque()
        self.recent_after = revision
        """Every event after this revision is among the recent ones."""
        self._recent_bytes = 0
        self._watches: dict[Wanted, dict[Watch, None]] = {}
        """Dictionaries and not sets: watches are served in the order in which they came, the same on every run."""
        self._held: dict[int, int] = {}  # by revision: how many slow clients an event waits for
        self.held_bytes = 0

    def watch(self, wanted: Wanted, *, since: int, backlog: int, backlog_bytes: int | None = None) -> Watch:
        watch = Watch(self, wanted, since, backlog, backlog_bytes)
        self._watches.setdefault(wanted, {})[watch] = None
        if recent := [event for event in self.since(since) if matches(event, wanted)]:
            watch.offer(recent)
        return watch

    def since(self, revision: int) -> list[Event]:
        """The recent events after that revision, oldest first; walks only over those."""
        events = []
        for event in reversed(self.recent):
            if event.revision <= revision:
                break
            events.append(event)
        events.reverse()
        return events

    def publish(self, events: Sequence[Event]) -> None:
        offers: dict[Wanted, list[Event]] = {}
        watches = self._watches
        for event in events:
            self._remember(event)
            if watches:
                for wanted in interested(event):
                    if wanted in watches:
                        offers.setdefault(wanted, []).append(event)
        self.revision = events[-1].revision
        for wanted, offered in offers.items():
            for position, watch in enumerate(tuple(watches.get(wanted, ()))):
                watch.offer(offered, push=position < PUSHED_AT_ONCE)

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
        while self.held_bytes > HELD_BYTES:
            largest = max((watch for group in self._watches.values() for watch in group), key=lambda w: w.queued_bytes)
            if not largest.queued_bytes:
                return
            largest.fall_behind()

    def _remember(self, event: Event) -> None:
        self.recent.append(event)
        self._recent_bytes += _held_by(event)
        while len(self.recent) > RECENT_EVENTS or self._recent_bytes > RECENT_BYTES:
            oldest = self.recent.popleft()
            self._recent_bytes -= _held_by(oldest)
            self.recent_after = oldest.revision

    def forget(self, watch: Watch) -> None:
        watches = self._watches.get(watch.wanted, {})
        watches.pop(watch, None)
        if not watches:
            self._watches.pop(watch.wanted, None)

    def close(self) -> None:
        for watches in list(self._watches.values()):
            for watch in list(watches):
                watch.close()


EVERYTHING: Wanted = ("", "", "")
"""A watch of every resource."""


def interested(event: Event) -> tuple[Wanted, ...]:
    resource, namespace, name = event.record.key
    if not namespace:
        return EVERYTHING, (resource, "", ""), (resource, "", name)
    everywhere = (EVERYTHING, (resource, "", ""), (resource, "", name))
    return (*everywhere, (resource, namespace, ""), (resource, namespace, name))


def matches(event: Event, wanted: Wanted) -> bool:
    key = event.record.key
    resource, namespace, name = wanted
    return (
        (not resource or key[0] == resource) and (not namespace or key[1] == namespace) and (not name or key[2] == name)
    )


def _held_by(event: Event) -> int:
    """Bytes that only the memory of recent events keeps: superseded and deleted values, not live ones."""
    held = len(event.previous.value) if event.previous is not None else 0
    return held + len(event.record.value) if event.deleted else held


def event_bytes(event: Event) -> int:
    """What an event keeps in memory while it waits."""
    return len(event.record.value) + (len(event.previous.value) if event.previous is not None else 0)
