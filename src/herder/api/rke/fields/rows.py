"""Rows of the field table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from herder.api.rke.distributions import DISTRIBUTIONS, Facts


class Effect(Enum):
    """What a value other than the default does."""

    DONE = "done"  # it changes the plans of machines or the generated objects
    REFUSED = "refused"  # admission rejects it
    NONE = "no effect"  # accepted without any effect, as in Rancher, or because the distribution does it anyway


@dataclass(frozen=True)
class Row:
    """The effects of one field. `path`: its path, with `[]` for any entry of a list or map."""

    path: str
    effects: Mapping[str, Effect]  # by the name of the distribution
    reason: str = ""  # why it is refused or has no effect, and what to do instead
    remark: str = ""  # a limitation where it is done
    off: tuple[Any, ...] = field(default=())  # values that request nothing, besides empty ones
    subtree: bool = False  # the row covers all fields below the path
    reasons: Mapping[str, str] = field(default_factory=dict)  # instead of `reason`, by the name of the distribution

    def reason_on(self, distribution: str) -> str:
        return self.reasons.get(distribution, self.reason)


def done(path: str, remark: str = "", *, subtree: bool = False) -> Row:
    return Row(path, _everywhere(Effect.DONE), remark=remark, subtree=subtree)


def refused(path: str, reason: str, *, subtree: bool = False) -> Row:
    return Row(path, _everywhere(Effect.REFUSED), reason, subtree=subtree)


def without_effect(path: str, reason: str) -> Row:
    return Row(path, _everywhere(Effect.NONE), reason)


def done_on(
    path: str,
    *distributions: Facts,
    reason: str,
    otherwise: Effect = Effect.REFUSED,
    off: tuple[Any, ...] = (),
    remark: str = "",
    subtree: bool = False,
) -> Row:
    """A row that is done on these distributions only. `reason`: why it is not done on the others."""
    effects = {each.name: Effect.DONE if each in distributions else otherwise for each in DISTRIBUTIONS}
    return Row(path, effects, reason, remark, off, subtree)


def _everywhere(effect: Effect) -> Mapping[str, Effect]:
    return {each.name: effect for each in DISTRIBUTIONS}
