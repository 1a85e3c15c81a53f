"""Correlate Events as client-go does: count repeats, combine similar Events, and limit those about one object.

The three steps and their limits are those of client-go's `EventCorrelator`, so that Events of both look alike
in `kubectl describe`. The state is in memory: after a restart, a repeated Event is a new one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Generic, NamedTuple, TypeVar

from herder.engine.runtime.decision import Event

MAX_ENTRIES = 4096
"""Entries of each of the three caches; the least recently used one is dropped."""
SIMILAR_EVENTS = 10
SIMILAR_WINDOW = timedelta(minutes=10)
"""Events that differ only in their message are combined from this number on, while they follow within the window."""
BURST = 25
REFILL_SECONDS = 300.0
"""A source may record this many Events about an object, and one more each time a token is refilled."""
COMBINED = "(combined from similar events): "

V = TypeVar("V")


class SourcedEvent(NamedTuple):
    """An Event with the component that reports it."""

    event: Event
    component: str

    @property
    def subject(self) -> tuple[Hashable, ...]:
        """Source and object: the key of the rate limit."""
        about = self.event.about
        return (self.component, about.kind.api_version, about.kind.kind, about.namespace, about.name, self.event.uid)

    @property
    def similarity(self) -> tuple[Hashable, ...]:
        """Everything but the message: the key of similar Events."""
        return (*self.subject, self.event.type, self.event.reason)


@dataclass(frozen=True, slots=True)
class Observation:
    """An Event to write: create it if `count` is 1, else update the Event of this name."""

    sourced: SourcedEvent
    message: str
    name: str
    count: int
    first: datetime
    last: datetime


@dataclass(slots=True)
class _Similar:
    messages: dict[str, None] = field(default_factory=dict)
    last: datetime | None = None


@dataclass(frozen=True, slots=True)
class _Known:
    name: str
    count: int
    first: datetime


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: datetime

    def take(self, now: datetime) -> bool:
        refilled = max((now - self.at).total_seconds(), 0.0) / REFILL_SECONDS
        self.tokens, self.at = min(self.tokens + refilled, float(BURST)), now
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True


class Correlator:
    """State of the correlation of one recorder."""

    def __init__(self) -> None:
        self._similar: _LeastRecentlyUsed[_Similar] = _LeastRecentlyUsed()
        self._known: _LeastRecentlyUsed[_Known] = _LeastRecentlyUsed()
        self._buckets: _LeastRecentlyUsed[_Bucket] = _LeastRecentlyUsed()

    def correlate(self, sourced: SourcedEvent, name: str, now: datetime) -> Observation | None:
        """Return what to write; None if the object has had too many Events. `name` is for a new Event.

        A suppressed Event counts: the next one that is written shows how many there were.
        """
        message, key = self._combine(sourced, now)
        known = self._known.get(key)
        known = _Known(name, 1, now) if known is None else replace(known, count=known.count + 1)
        self._known.put(key, known)
        bucket = self._buckets.get(sourced.subject) or _Bucket(float(BURST), now)
        self._buckets.put(sourced.subject, bucket)
        if not bucket.take(now):
            return None
        return Observation(sourced, message, known.name, known.count, known.first, now)

    def _combine(self, sourced: SourcedEvent, now: datetime) -> tuple[str, Hashable]:
        """Return the message and the identity of the Event to write."""
        message = sourced.event.message
        similar = self._similar.get(sourced.similarity)
        if similar is None or similar.last is None or now - similar.last > SIMILAR_WINDOW:
            similar = _Similar()
        similar.messages[message] = None
        similar.last = now
        self._similar.put(sourced.similarity, similar)
        if len(similar.messages) < SIMILAR_EVENTS:
            return message, (*sourced.similarity, message)
        similar.messages.pop(next(iter(similar.messages)))
        return COMBINED + message, sourced.similarity


class _LeastRecentlyUsed(Generic[V]):
    def __init__(self) -> None:
        self._entries: OrderedDict[Hashable, V] = OrderedDict()

    def get(self, key: Hashable) -> V | None:
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key]

    def put(self, key: Hashable, value: V) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > MAX_ENTRIES:
            self._entries.popitem(last=False)
