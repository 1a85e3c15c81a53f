"""Message of a drain: Pods grouped by what they wait for.

Users and Cluster API's summaries match these phrases: they must stay byte-compatible.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from herder.api.capi.conditions import timestamp
from herder.api.capi.drain_records import full_name
from herder.controllers.capi.machine.deletion.drain.plan import Evictions, Plan, PodDrain

PODS_NAMED = 3
REFUSALS_SHOWN = 5
BUDGET = "cannot evict pod as it would violate the pod's disruption budget."
AFTERWARDS = "After above Pods have been removed from the Node,"


def drain_message(started: datetime, plan: Plan, evictions: Evictions) -> str:
    lines = [f"Drain not completed yet (started at {timestamp(started)}):"]
    lines += _bullet(
        (*plan.terminating, *evictions.accepted), "deletionTimestamp set, but still not removed from the Node"
    )
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


def _refusals(refused: dict[str, list[PodDrain]]) -> Iterator[str]:
    message = sorted(refused)
    for refusal in message[:REFUSALS_SHOWN]:
        yield from _bullet(refused[refusal], _refusal(refusal))
    others = sum(len(refused[refusal]) for refusal in message[REFUSALS_SHOWN:])
    if others:
        yield f"* {others} {'Pod' if others == 1 else 'Pods'} with other issues"


def _refusal(message: str) -> str:
    said = message.replace(BUDGET.capitalize(), BUDGET)
    return said if said.startswith(BUDGET) else f"failed to evict Pod, {said}"


def _bullet(pod_drain: Sequence[PodDrain], what: str) -> Iterator[str]:
    if pod_drain:
        yield f"* {'Pod' if len(pod_drain) == 1 else 'Pods'} {_names(pod_drain)}: {what}"


def _names(pod_drain: Iterable[PodDrain]) -> str:
    return named([full_name(each.pod) for each in pod_drain], PODS_NAMED)
