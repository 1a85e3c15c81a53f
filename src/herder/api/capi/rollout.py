"""Rollout arithmetic of a MachineDeployment: the next replica count of each of its MachineSets.

Two invariants hold at every step, whichever Machines a MachineSet deletes: at most replicas + maxSurge Machines, and at
least replicas - maxUnavailable available ones. Only breaking a deadlock may violate the latter, by one Machine of a
MachineSet with unavailable ones.
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
    """Resolve a number or a percentage of `total`; None is zero. Raise ValueError, naming the field, for other text."""
    if value is None or isinstance(value, int):
        return value or 0
    percent = _PERCENT.fullmatch(value)
    if percent is None:
        raise ValueError(f"{field}: '{value}' is neither a number nor a percentage")
    part = int(percent[1]) * total
    return math.ceil(part / 100) if round_up else part // 100


@dataclass(frozen=True, slots=True)
class Limits:
    """Desired replicas of a MachineDeployment, with maxSurge and maxUnavailable resolved."""

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
    """Resolve the limits of a MachineDeployment's spec, whose replicas are set."""
    replicas: int = spec["replicas"]
    if strategy_of(spec) != ROLLING_UPDATE:
        return Limits(replicas)
    rolling = ((spec.get("rollout") or {}).get("strategy") or {}).get("rollingUpdate") or {}
    path = "spec.rollout.strategy.rollingUpdate"
    surge = scaled(rolling.get("maxSurge", 1), replicas, round_up=True, field=f"{path}.maxSurge")
    unavailable = scaled(rolling.get("maxUnavailable", 0), replicas, round_up=False, field=f"{path}.maxUnavailable")
    if not surge and not unavailable:
        unavailable = 1  # a percentage of few Machines rounds to 0, and a rollout must be able to progress
    return Limits(replicas, surge, min(unavailable, replicas))


@dataclass(frozen=True, slots=True)
class SetScale:
    """Replica counts of one MachineSet: desired (`spec`), existing and available."""

    name: str
    spec: int
    replicas: int = 0
    available: int = 0
    created: str = ""  # RFC 3339, so that it sorts as text
    # max-replicas annotation: the deployment's maximum when this set was last scaled
    annotated_maximum: int | None = None

    @property
    def size(self) -> int:
        """Machines that are about to be created or not yet deleted count too."""
        return max(self.spec, self.replicas)

    @property
    def age(self) -> tuple[str, str]:
        return self.created, self.name


class ScaleChange(NamedTuple):
    replicas: int
    reason: str


Plan = Mapping[str, ScaleChange]
"""The changes, by name of the MachineSet."""


def plan_rolling_update(limits: Limits, new: SetScale, old: Sequence[SetScale]) -> Plan:
    plan = _size_new(limits, new, old)
    plan |= _scale_down_old(limits, new, old, plan)
    return plan or _break_deadlock(new, old)


def plan_on_delete(limits: Limits, new: SetScale, old: Sequence[SetScale]) -> Plan:
    plan = _size_new(limits, new, old)
    surplus = sum(share.spec for share in old) + _planned(plan, new) - limits.replicas
    # First those that do not exist: old Machines that a user deleted, or that never came up, are not recreated.
    for share in _oldest_first(old):
        if share.spec > share.replicas:
            plan[share.name] = ScaleChange(share.replicas, "deleted Machines of an old MachineSet are not recreated")
            surplus -= share.spec - share.replicas
    for share in _oldest_first(old):
        less = min(_planned(plan, share), surplus)
        if less > 0:
            plan[share.name] = ScaleChange(_planned(plan, share) - less, f"{limits.replicas} replicas desired in total")
            surplus -= less
    return plan


def plan_resize(
    limits: Limits, new: SetScale | None, old: Sequence[SetScale], *, rolling: bool, saturated: bool
) -> Plan:
    """Scale the MachineSets in proportion, when the deployment is scaled during a rollout or while paused.

    So scaling neither speeds up nor delays the rollout. `saturated` means that the new set has all desired replicas
    available: then the old ones are scaled to zero.
    """
    all_sets = [*old, *([new] if new else [])]
    active = [share for share in all_sets if share.spec > 0]
    if len(active) <= 1:
        only = active[0] if active else new or max(old, key=lambda share: share.age, default=None)
        return _changes({only: limits.replicas}, "all replicas belong to one MachineSet") if only else {}
    if saturated:
        return _changes(dict.fromkeys(old, 0), "the current MachineSet has all replicas")
    return _changes(_proportions(limits, active), "scaled in proportion to the others") if rolling else {}


# --- the new set ----------------------------------------------------------------------------------------------------


def _size_new(limits: Limits, new: SetScale, old: Sequence[SetScale]) -> dict[str, ScaleChange]:
    if new.spec > limits.replicas:
        return {new.name: ScaleChange(limits.replicas, f"{limits.replicas} replicas desired in total")}
    current = sum(share.size for share in (new, *old))
    spared = min(new.available, limits.replicas) - new.spec  # these exist already: counting them creates none
    more = max(min(limits.ceiling - current, limits.replicas - new.spec), spared)
    if more <= 0:
        return {}
    return {new.name: ScaleChange(new.spec + more, f"{current} Machines exist, at most {limits.ceiling} allowed")}


# --- the old sets in a rolling update -------------------------------------------------------------------------------


def _scale_down_old(limits: Limits, new: SetScale, old: Sequence[SetScale], plan: Plan) -> dict[str, ScaleChange]:
    all_sets = (new, *old)
    being_deleted = sum(max(share.replicas - min(share.spec, _planned(plan, share)), 0) for share in all_sets)
    # A new revision that does not become available stops the rollout, so that not all Machines are replaced by broken
    # ones.
    broken_new = max(new.spec - new.available, 0)
    budget = sum(share.spec for share in all_sets) - being_deleted - limits.minimum - broken_new
    if budget <= 0:
        return {}
    scale_down = _ScaleDown(budget, sum(share.available for share in all_sets), limits.minimum)
    for share in _oldest_first(old):
        scale_down.take(share, at_most=share.spec - share.available)  # unavailable Machines first
    for share in _oldest_first(old):
        scale_down.take(share, at_most=share.spec)
    return scale_down.plan


class _ScaleDown:
    """Scales down the old sets within both budgets.

    It assumes the worst case: a set with available Machines deletes those first.
    """

    def __init__(self, budget: int, available: int, minimum: int) -> None:
        self.plan: dict[str, ScaleChange] = {}
        self._budget = budget
        self._available = available
        self._minimum = minimum

    def take(self, share: SetScale, *, at_most: int) -> None:
        spec = _planned(self.plan, share)
        less = min(at_most, spec, self._budget)
        if less <= 0:
            return
        if share.available > 0:
            less = self._limit_to_available(share, spec, less)
        if less <= 0:
            return
        self._budget -= less
        self.plan[share.name] = ScaleChange(spec - less, f"at least {self._minimum} available Machines remain")

    def _limit_to_available(self, share: SetScale, spec: int, less: int) -> int:
        """Reduce `less` so that enough Machines stay available, and account for the deleted ones."""
        spare = max(self._available - self._minimum, 0)
        deleted = max(share.replicas - (spec - less), 0)
        if deleted > spare:
            target = min(share.replicas - spare, spec)
            less, deleted = spec - target, max(share.replicas - target, 0)
        self._available -= min(share.available, deleted)
        return less


def _break_deadlock(new: SetScale, old: Sequence[SetScale]) -> Plan:
    """Remove one Machine of the oldest set with unavailable ones, if nothing else can change.

    Machines of old revisions are not remediated, so no other controller would do it.
    """
    stable = all(share.spec == share.replicas for share in (new, *old))
    if not stable or new.available != new.replicas:
        return {}
    for share in _oldest_first(old):
        if share.available < share.replicas and share.spec > 0:
            return {
                share.name: ScaleChange(share.spec - 1, "unavailable Machines of an old MachineSet block the rollout")
            }
    return {}


# --- proportional scaling -------------------------------------------------------------------------------------------


def _proportions(limits: Limits, active: Sequence[SetScale]) -> dict[SetScale, int]:
    allowed = limits.ceiling if limits.replicas else 0
    growth = allowed - sum(share.size for share in active)
    change = growth if growth > 0 else min(allowed - sum(share.spec for share in active), 0)
    if not change:
        return {}
    # Of equally large sets the newest is scaled up first, and the oldest scaled down first.
    by_age = sorted(active, key=lambda share: share.age, reverse=change > 0)
    largest_first = sorted(by_age, key=lambda share: -share.spec)
    total, left = sum(share.spec for share in active), change
    sizes: dict[SetScale, int] = {}
    for share in largest_first:
        part = _fraction(share, limits, total)
        part = max(min(part, left), 0) if change > 0 else min(max(part, left), 0)
        sizes[share] = share.spec + part
        left -= part
    sizes[largest_first[0]] = max(sizes[largest_first[0]] + left, 0)
    return sizes


def _fraction(share: SetScale, limits: Limits, total: int) -> int:
    """Return by how much the set changes if it keeps its proportion."""
    if not limits.replicas:
        return -share.spec
    before = share.annotated_maximum or total
    return math.floor(share.spec * limits.ceiling / before + 0.5) - share.spec


# --- shared ---------------------------------------------------------------------------------------------------------


def _planned(plan: Plan, share: SetScale) -> int:
    return plan[share.name].replicas if share.name in plan else share.spec


def _oldest_first(shares: Iterable[SetScale]) -> list[SetScale]:
    return sorted(shares, key=lambda share: share.age)


def _changes(sizes: Mapping[SetScale, int], reason: str) -> Plan:
    return {share.name: ScaleChange(size, reason) for share, size in sizes.items() if size != share.spec}
