"""Group the Pods of a drain: evict now, wait for, or later. Only the lowest remaining order is worked on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from herder.api.capi.drain_records import full_name
from herder.controllers.capi.machine.deletion.drain.filters import PodDrainStatus
from herder.controllers.capi.machine.deletion.drain.rules import Behavior
from herder.controllers.drain.evictions import EVICTED, REFUSED, outcome_of
from herder.controllers.drain.pods import is_terminating
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import EffectResult


class PodDrain(NamedTuple):
    """A Pod and how the drain treats it."""

    pod: Object
    status: PodDrainStatus


@dataclass(frozen=True, slots=True)
class Plan:
    """Groups of Pods, each sorted by name so that the plan is deterministic."""

    evict: tuple[PodDrain, ...] = ()
    terminating: tuple[PodDrain, ...] = ()  # deleted, but still running
    complete: tuple[PodDrain, ...] = ()  # waiting for completion
    evict_later: tuple[PodDrain, ...] = ()
    complete_later: tuple[PodDrain, ...] = ()

    @property
    def done(self) -> bool:
        return not (self.evict or self.terminating or self.complete or self.evict_later or self.complete_later)


def plan(pod_drain: Iterable[PodDrain]) -> Plan:
    left = sorted((each for each in pod_drain if each.status.behavior is not Behavior.SKIP), key=_by_name)
    lowest = min((each.status.order for each in left), default=0)
    groups: dict[str, list[PodDrain]] = {name: [] for name in Plan.__slots__}
    for each in left:
        groups[_group(each, now=each.status.order == lowest)].append(each)
    return Plan(**{name: tuple(group) for name, group in groups.items()})


def _group(pod_drain: PodDrain, *, now: bool) -> str:
    if pod_drain.status.behavior is Behavior.WAIT_COMPLETED:
        return "complete" if now else "complete_later"
    if is_terminating(pod_drain.pod):
        return "terminating"
    return "evict" if now else "evict_later"


def _by_name(pod_drain: PodDrain) -> str:
    return full_name(pod_drain.pod)


# --- results of evictions -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Evictions:
    """Results of the evictions in a plan."""

    open: tuple[PodDrain, ...] = ()  # no result in this round
    accepted: tuple[PodDrain, ...] = ()
    unanswered: tuple[PodDrain, ...] = ()  # open, and no result in the previous round either
    refused: dict[str, list[PodDrain]] = field(default_factory=dict)  # by the server's message

    @property
    def over(self) -> bool:
        return not (self.open or self.accepted or self.refused)


ResultOf = Callable[[Object], EffectResult | None]


def evictions(evict: Iterable[PodDrain], this_round: ResultOf, last_round: ResultOf) -> Evictions:
    """Collect the results; without one in this round, report the previous round's, which most likely still holds."""
    open_, accepted, unanswered = [], [], []
    refused: dict[str, list[PodDrain]] = {}
    for each in evict:
        answered = this_round(each.pod)
        if answered is None or not answered.done:
            open_.append(each)
        latest = answered or last_round(each.pod)
        outcome, message = _outcome_text(latest)
        if outcome in REFUSED:
            refused.setdefault(message, []).append(each)
        elif answered is None:
            unanswered.append(each)
        elif outcome == EVICTED:
            accepted.append(each)
    return Evictions(tuple(open_), tuple(accepted), tuple(unanswered), refused)


def _outcome_text(result: EffectResult | None) -> tuple[str, str]:
    if result is None:
        return "", ""
    outcome = outcome_of(result)
    if not result.done:
        return outcome.kind, outcome.message
    return outcome.kind, f"{outcome.message} {','.join(outcome.causes)}".strip()
