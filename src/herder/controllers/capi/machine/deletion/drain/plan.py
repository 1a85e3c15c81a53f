"""Which Pods go now, which are waited for, and which come later: only the lowest order that is left is worked on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from herder.api.capi.drained import full_name
from herder.controllers.capi.machine.deletion.drain.filters import Verdict
from herder.controllers.capi.machine.deletion.drain.rules import Behavior
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import EffectResult


class Judged(NamedTuple):
    pod: Object
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Plan:
    """Each in the order of names, so that the same Pods give the same plan."""

    evict: tuple[Judged, ...] = ()
    going: tuple[Judged, ...] = ()  # somebody has deleted them, and they are not gone yet
    complete: tuple[Judged, ...] = ()  # left alone until they end by themselves
    evict_later: tuple[Judged, ...] = ()
    complete_later: tuple[Judged, ...] = ()

    @property
    def done(self) -> bool:
        return not (self.evict or self.going or self.complete or self.evict_later or self.complete_later)


def plan(judged: Iterable[Judged]) -> Plan:
    left = sorted((each for each in judged if each.verdict.behavior is not Behavior.SKIP), key=_by_name)
    lowest = min((each.verdict.order for each in left), default=0)
    groups: dict[str, list[Judged]] = {name: [] for name in Plan.__slots__}
    for each in left:
        groups[_group(each, now=each.verdict.order == lowest)].append(each)
    return Plan(**{name: tuple(group) for name, group in groups.items()})


def _group(judged: Judged, *, now: bool) -> str:
    if judged.verdict.behavior is Behavior.WAIT_COMPLETED:
        return "complete" if now else "complete_later"
    if judged.pod["metadata"].get("deletionTimestamp"):
        return "going"
    return "evict" if now else "evict_later"


def _by_name(judged: Judged) -> str:
    return full_name(judged.pod)


# --- what became of evictions -----------------------------------------------------------------------------------

EVICTED, GONE, BLOCKED, FAILED = "evicted", "gone", "blocked", "failed"  # outcomes of the performer `evict`


@dataclass(frozen=True, slots=True)
class Evictions:
    """What is known of the evictions that a plan asks for."""

    open: tuple[Judged, ...] = ()  # not answered in this round
    accepted: tuple[Judged, ...] = ()
    unanswered: tuple[Judged, ...] = ()  # the open ones of which nothing is known from the round before either
    refused: dict[str, list[Judged]] = field(default_factory=dict)  # by what the server says

    @property
    def over(self) -> bool:
        return not (self.open or self.accepted or self.refused)


ResultOf = Callable[[Object], EffectResult | None]


def evictions(evict: Iterable[Judged], this_round: ResultOf, last_round: ResultOf) -> Evictions:
    """Where this round has brought no answer yet, that of the round before is told: it is most likely still so."""
    open_, accepted, unanswered = [], [], []
    refused: dict[str, list[Judged]] = {}
    for each in evict:
        answered = this_round(each.pod)
        if answered is None or not answered.done:
            open_.append(each)
        latest = answered or last_round(each.pod)
        outcome, words = _outcome_text(latest)
        if outcome in (BLOCKED, FAILED):
            refused.setdefault(words, []).append(each)
        elif answered is None:
            unanswered.append(each)
        elif outcome == EVICTED:
            accepted.append(each)
    return Evictions(tuple(open_), tuple(accepted), tuple(unanswered), refused)


def _outcome_text(result: EffectResult | None) -> tuple[str, str]:
    if result is None:
        return "", ""
    if not result.done:
        return FAILED, result.error
    value = result.value
    causes = ",".join(value.get("causes") or ())
    return value["outcome"], f"{value.get('message', '')} {causes}".strip()
