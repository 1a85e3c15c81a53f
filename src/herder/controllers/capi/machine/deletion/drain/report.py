"""A drain in words: Pods grouped by what they wait for, a few of each named.

People and tools look for these phrases, also in the summaries that are made of them: they are part of the interface.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from herder.api.capi.conditions import timestamp
from herder.api.capi.drained import full_name
from herder.controllers.capi.machine.deletion.drain.plan import Evictions, Judged, Plan

PODS_NAMED = 3
REFUSALS_SHOWN = 5
BUDGET = "cannot evict pod as it would violate the pod's disruption budget."
AFTERWARDS = "After above Pods have been removed from the Node,"


def drain_message(started: datetime, plan: Plan, evictions: Evictions) -> str:
    lines = [f"Drain not completed yet (started at {timestamp(started)}):"]
    lines += _bullet((*plan.going, *evictions.accepted), "deletionTimestamp set, but still not removed from the Node")
    lines += _refusals(evictions.refused)
    lines += _bullet(evictions.unanswered, "eviction requested")
    lines += _bullet(plan.complete, "waiting for completion")
    if plan.evict_later:
        lines.append(f"{AFTERWARDS} the following Pods will be evicted: {_names(plan.evict_later)}")
    if plan.complete_later:
        later = f"waiting for the following Pods to complete without eviction: {_names(plan.complete_later)}"
        lines.append(f"{AFTERWARDS} {later}")
    return "\n".join(lines)


def named(names: Sequence[str], limit: int) -> str:
    more = [f"... ({len(names) - limit} more)"] if len(names) > limit else []
    return ", ".join([*names[:limit], *more])


def _refusals(refused: dict[str, list[Judged]]) -> Iterator[str]:
    words = sorted(refused)
    for refusal in words[:REFUSALS_SHOWN]:
        yield from _bullet(refused[refusal], _refusal(refusal))
    others = sum(len(refused[refusal]) for refusal in words[REFUSALS_SHOWN:])
    if others:
        yield f"* {others} {'Pod' if others == 1 else 'Pods'} with other issues"


def _refusal(words: str) -> str:
    said = words.replace(BUDGET.capitalize(), BUDGET)
    return said if said.startswith(BUDGET) else f"failed to evict Pod, {said}"


def _bullet(judged: Sequence[Judged], what: str) -> Iterator[str]:
    if judged:
        yield f"* {'Pod' if len(judged) == 1 else 'Pods'} {_names(judged)}: {what}"


def _names(judged: Iterable[Judged]) -> str:
    return named([full_name(each.pod) for each in judged], PODS_NAMED)
