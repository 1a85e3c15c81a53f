"""Bytes that responses keep in memory while they are sent: the objects of a list, or the initial state of a watch.

Readers share the objects with the store, until those change. So a user who changes many objects and reads their lists
slowly would fill the memory with earlier states of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Protocol, TypeVar

from herder.engine.front import limits
from herder.engine.front.flow import Holder
from herder.engine.wire import Retained


class Reader(Protocol):
    """A connection whose response is being sent."""

    @property
    def reader(self) -> Holder: ...

    @property
    def retained(self) -> Retained | None: ...

    @property
    def responding_since(self) -> float: ...


R = TypeVar("R", bound=Reader)


def retained_bytes(readers: Iterable[Reader]) -> Mapping[Holder, int]:
    """Return the bytes that the responses of each user retain. Responses of the same state share it."""
    states: dict[Holder, dict[Hashable, int]] = {}
    for each in readers:
        if each.retained is not None and each.retained.size:
            states.setdefault(each.reader, {})[each.retained.state] = each.retained.size
    return {holder: sum(sizes.values()) for holder, sizes in states.items()}


def over_limit(readers: Iterable[R], limit: limits.Limits, now: float) -> Iterator[R]:
    """Yield the connections to abort: the oldest ones of users whose responses retain too much.

    Objects of the store count only if they are read slowly; those of an earlier revision count at once.
    If all users together retain too much, the limit of each user is an equal share.
    """
    slow: dict[Holder, list[R]] = {}
    for each in readers:
        found, is_slow = each.retained, now - each.responding_since >= limits.SLOT_SECONDS
        if found is not None and found.size and (found.own or is_slow):
            slow.setdefault(each.reader, []).append(each)
    for holder, own in slow.items():
        slow[holder], excess = _split(own, limit.retained_bytes_per_user, keeps_newest=True)
        yield from excess
    if sum(retained_bytes(chain(*slow.values())).values()) <= limit.retained_bytes:
        return
    for own in slow.values():
        _, excess = _split(own, limit.retained_bytes // len(slow), keeps_newest=len(slow) == 1)
        yield from excess


def _split(readers: list[R], limit: int, *, keeps_newest: bool) -> tuple[list[R], list[R]]:
    """Return the newest connections whose responses fit into the limit, and the others."""
    kept: list[R] = []
    excess: list[R] = []
    states: set[Hashable] = set()
    held = 0
    for each in sorted(readers, key=lambda each: each.responding_since, reverse=True):
        assert each.retained is not None
        grown = 0 if each.retained.state in states else each.retained.size
        if held + grown > limit and (kept or not keeps_newest):
            excess.append(each)
            continue
        kept.append(each)
        states.add(each.retained.state)
        held += grown
    return kept, excess
