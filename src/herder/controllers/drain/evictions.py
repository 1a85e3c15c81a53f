"""Rounds of evictions: refused evictions are retried in the next round, a limited number at a time.

Effect keys contain the round, so that each round evicts every remaining Pod at most once.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Effect, EffectKey, EffectResult

ROUND = timedelta(seconds=20)
"""Interval at which refused evictions are retried, counted from the start of the drain."""

EVICTIONS_AT_ONCE = 20

EVICT = "evict"
EVICTED, GONE, BLOCKED, FAILED = "evicted", "gone", "blocked", "failed"  # outcomes of the effect `evict`
REFUSED = (BLOCKED, FAILED)


class Outcome(NamedTuple):
    """Outcome of an eviction, with the API server's message."""

    kind: str
    message: str = ""
    causes: Sequence[str] = ()


def round_number(now: datetime, started: datetime) -> int:
    return int((now - started) / ROUND)


def next_round(started: datetime, number: int) -> datetime:
    """When the round after this one starts."""
    return started + (number + 1) * ROUND


def eviction_key(owner_uid: str, pod: Object, number: int) -> EffectKey:
    """`owner_uid`: of the object that is drained, a Machine or a plan Secret."""
    return owner_uid, EVICT, pod["metadata"]["uid"], str(number)


def eviction(cluster: str, pod: Object, key: EffectKey, grace_seconds: int | None, reason: str) -> Effect:
    meta = pod["metadata"]
    arguments = {
        "cluster": cluster,
        "namespace": meta["namespace"],
        "name": meta["name"],
        "uid": meta["uid"],
        "grace_seconds": grace_seconds,
    }
    return Effect(EVICT, key, arguments, reason)


def outcome_of(result: EffectResult) -> Outcome:
    """An eviction whose effect failed counts as failed; it is retried."""
    if not result.done:
        return Outcome(FAILED, result.error)
    value = result.value
    return Outcome(value["outcome"], value.get("message", ""), tuple(value.get("causes") or ()))
