"""How many Machines each MachineSet of a MachineDeployment should have next: numbers in, numbers out.

Two promises hold at every step of a rollout, whichever Machines a set chooses to delete: never more Machines than
replicas + surge, and never fewer available ones than replicas - unavailable. The deadlock breaker alone may go below,
by one Machine of a set that has broken ones, when nothing else could ever move again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from herder.engine.meta.kinds import Object

ROLLING_UPDATE = "RollingUpdate"
ON_DELETE = "OnDelete"

_PERCENT = re.compile(r"([0-9]{1,9})%")


def scaled(value: int | str | None, total: int, *, round_up: bool, field: str = "value") -> int:
    """A number, or a percentage of the total. ValueError, naming the field, for other text; nothing given is zero."""
    if value is None or isinstance(value, int):
        return value or 0
    percent = _PERCENT.fullmatch(value)
    if percent is None:
        raise ValueError(f"{field}: '{value}' is neither a number nor a percentage")
    part = int(percent[1]) * total
    return math.ceil(part / 100) if round_up else part // 100


@dataclass(frozen=True, slots=True)
class Limits:
    """What a MachineDeployment asks for, and how far a rollout may go above and below it."""

    replicas: int
    surge: int = 0
    unavailable: int = 0

    @property
    def ceiling(self) -> int:
        return self.replicas + self.surge

    @property
    def minimum(self) -> int:
        return max(self.replicas - self.unavailable, 0)


def strategy_of(spec: Object) -> str:
    return str(((spec.get("rollout") or {}).get("strategy") or {}).get("type") or ROLLING_UPDATE)


def limits_of(spec: Object) -> Limits:
    """From a MachineDeployment's spec, whose replicas are set."""
    replicas: int = spec["replicas"]
    if strategy_of(spec) != ROLLING_UPDATE:
        return Limits(replicas)
    rolling = ((spec.get("rollout") or {}).get("strategy") or {}).get("rollingUpdate") or {}
    path = "spec.rollout.strategy.rollingUpdate"
    surge = scaled(rolling.get("maxSurge", 1), replicas, round_up=True, field=f"{path}.maxSurge")
    unavailable = scaled(rolling.get("maxUnavailable", 0), replicas, round_up=False, field=f"{path}.maxUnavailable")
    if not surge and not unavailable:
        unavailable = 1  # a percentage of few Machines rounds to none, and a rollout must be able to move
    return Limits(replicas, surge, min(unavailable, replicas))


@dataclass(frozen=True, slots=True)
class Share:
    """A MachineSet as the planner sees it: what it should have, what it has, and what of that is available."""

    name: str
    spec: int
    replicas: int = 0
    available: int = 0
    created: str = ""  # RFC 3339, so that text sorts as time does
    annotated_maximum: int | None = None  # the deployment's ceiling when this share was last sized

    @property
    def size(self) -> int:
        """Machines to come count already, and so do those that are not gone yet."""
        return max(self.spec, self.replicas)

    @property
    def age(self) -> tuple[str, str]:
        return self.created, self.name


class Change(NamedTuple):
    replicas: int
    reason: str


Plan = Mapping[str, Change]
"""What changes, by the name of the MachineSet."""


def plan_rolling_update(limits: Limits, new: Share, old: Sequence[Share]) -> Plan:
    plan = _size_new(limits, new, old)
    plan |= _shrink_old(limits, new, old, plan)
    return plan or _break_deadlock(new, old)


def plan_on_delete(limits: Limits, new: Share, old: Sequence[Share]) -> Plan:
    plan = _size_new(limits, new, old)
    surplus = sum(share.spec for share in old) + _planned(plan, new) - limits.replicas
    # First what is not there: Machines that a user deleted, or that never came to be, are not made again.
    for share in _oldest_first(old):
        if share.spec > share.replicas:
            plan[share.name] = Change(share.replicas, "old Machines that are gone are not replaced by old ones")
            surplus -= share.spec - share.replicas
    for share in _oldest_first(old):
        less = min(_planned(plan, share), surplus)
        if less > 0:
            plan[share.name] = Change(_planned(plan, share) - less, f"{limits.replicas} replicas are wanted in all")
            surplus -= less
    return plan


def plan_resize(limits: Limits, new: Share | None, old: Sequence[Share], *, rolling: bool, saturated: bool) -> Plan:
    """The deployment was scaled while several sets have Machines, or while it is paused: each keeps its proportion.

    So a rollout is neither hastened nor delayed by scaling. `saturated` says that the new set holds all that is
    wanted, and has it available: then the old ones are no longer needed.
    """
    everyone = [*old, *([new] if new else [])]
    active = [share for share in everyone if share.spec > 0]
    if len(active) <= 1:
        only = active[0] if active else new or max(old, key=lambda share: share.age, default=None)
        return _changes({only: limits.replicas}, "all replicas belong to one MachineSet") if only else {}
    if saturated:
        return _changes(dict.fromkeys(old, 0), "the current MachineSet has all replicas")
    return _changes(_proportions(limits, active), "scaled in proportion to the others") if rolling else {}


# --- the new set ----------------------------------------------------------------------------------------------------


def _size_new(limits: Limits, new: Share, old: Sequence[Share]) -> dict[str, Change]:
    if new.spec > limits.replicas:
        return {new.name: Change(limits.replicas, f"{limits.replicas} replicas are wanted in all")}
    current = sum(share.size for share in (new, *old))
    spared = min(new.available, limits.replicas) - new.spec  # they are there: asking for them again makes none
    more = max(min(limits.ceiling - current, limits.replicas - new.spec), spared)
    if more <= 0:
        return {}
    return {new.name: Change(new.spec + more, f"{current} Machines, and up to {limits.ceiling} may be")}


# --- the old sets in a rolling update -------------------------------------------------------------------------------


def _shrink_old(limits: Limits, new: Share, old: Sequence[Share], plan: Plan) -> dict[str, Change]:
    everyone = (new, *old)
    going = sum(max(share.replicas - min(share.spec, _planned(plan, share)), 0) for share in everyone)
    # A new revision that does not come up stops the rollout: not all Machines shall be traded for broken ones.
    broken_new = max(new.spec - new.available, 0)
    budget = sum(share.spec for share in everyone) - going - limits.minimum - broken_new
    if budget <= 0:
        return {}
    shrinking = _Shrinking(budget, sum(share.available for share in everyone), limits.minimum)
    for share in _oldest_first(old):
        shrinking.take(share, at_most=share.spec - share.available)  # broken Machines first
    for share in _oldest_first(old):
        shrinking.take(share, at_most=share.spec)
    return shrinking.plan


class _Shrinking:
    """Takes Machines off the old sets while both budgets last, expecting the worst: that a set with any available
    Machine deletes the available ones first."""

    def __init__(self, budget: int, available: int, minimum: int) -> None:
        self.plan: dict[str, Change] = {}
        self._budget = budget
        self._available = available
        self._minimum = minimum

    def take(self, share: Share, *, at_most: int) -> None:
        spec = _planned(self.plan, share)
        less = min(at_most, spec, self._budget)
        if less <= 0:
            return
        if share.available > 0:
            less = self._without_harm(share, spec, less)
        if less <= 0:
            return
        self._budget -= less
        self.plan[share.name] = Change(spec - less, f"at least {self._minimum} available Machines remain")

    def _without_harm(self, share: Share, spec: int, less: int) -> int:
        """How many fewer the set may have so that enough stay available; those are counted as gone."""
        spare = max(self._available - self._minimum, 0)
        deleted = max(share.replicas - (spec - less), 0)
        if deleted > spare:
            target = min(share.replicas - spare, spec)
            less, deleted = spec - target, max(share.replicas - target, 0)
        self._available -= min(share.available, deleted)
        return less


def _break_deadlock(new: Share, old: Sequence[Share]) -> Plan:
    """Nothing may grow and nothing may shrink, because old Machines are broken: the oldest such set gives one.

    Machines of old revisions are not remediated, so nobody else would.
    """
    standing = all(share.spec == share.replicas for share in (new, *old))
    if not standing or new.available != new.replicas:
        return {}
    for share in _oldest_first(old):
        if share.available < share.replicas and share.spec > 0:
            return {share.name: Change(share.spec - 1, "unavailable Machines of an old MachineSet block the rollout")}
    return {}


# --- proportional scaling -------------------------------------------------------------------------------------------


def _proportions(limits: Limits, active: Sequence[Share]) -> dict[Share, int]:
    allowed = limits.ceiling if limits.replicas else 0
    growth = allowed - sum(share.size for share in active)
    change = growth if growth > 0 else min(allowed - sum(share.spec for share in active), 0)
    if not change:
        return {}
    # Of equally large sets the newest grows first, and the oldest shrinks first.
    by_age = sorted(active, key=lambda share: share.age, reverse=change > 0)
    largest_first = sorted(by_age, key=lambda share: -share.spec)
    total, left = sum(share.spec for share in active), change
    sizes: dict[Share, int] = {}
    for share in largest_first:
        part = _fraction(share, limits, total)
        part = max(min(part, left), 0) if change > 0 else min(max(part, left), 0)
        sizes[share] = share.spec + part
        left -= part
    sizes[largest_first[0]] = max(sizes[largest_first[0]] + left, 0)
    return sizes


def _fraction(share: Share, limits: Limits, total: int) -> int:
    """By how much the share changes if it stays the same part of the whole."""
    if not limits.replicas:
        return -share.spec
    before = share.annotated_maximum or total
    return math.floor(share.spec * limits.ceiling / before + 0.5) - share.spec


# --- shared ---------------------------------------------------------------------------------------------------------


def _planned(plan: Plan, share: Share) -> int:
    return plan[share.name].replicas if share.name in plan else share.spec


def _oldest_first(shares: Iterable[Share]) -> list[Share]:
    return sorted(shares, key=lambda share: share.age)


def _changes(sizes: Mapping[Share, int], reason: str) -> Plan:
    return {share.name: Change(size, reason) for share, size in sizes.items() if size != share.spec}
