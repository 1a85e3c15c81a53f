"""How many machines may be disturbed at the same time."""

from __future__ import annotations

import math
import re

from herder.api.capi.conditions import find
from herder.api.numbers import integer
from herder.engine.meta.kinds import Object

UNLIMITED = 0


class BadConcurrency(ValueError):
    """The message names the field."""


def limit_of(concurrency: object, members: int, field: str = "upgradeStrategy") -> int:
    """A number, a percentage of the members (never less than one), or 0 for no limit; one where nothing is said."""
    text = str(concurrency or "1").strip() if concurrency != 0 else "0"
    if (number := integer(text, -1)) >= 0:
        return number
    share = text.removesuffix("%")
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", share):
        raise BadConcurrency(
            f'{field}: concurrency must be a number or a percentage such as "10%", and "{text}" is not'
        )
    return max(1, math.ceil(members * float(share) / 100))


def quorum(members: int) -> int:
    return members // 2 + 1


def is_lost(machine: Object | None) -> bool:
    """Its Node is there no more, or not heard of, as the cluster itself tells: an agent that is gone tells nothing."""
    ready = find(machine, "NodeReady") or {}
    return ready.get("reason") in ("NodeNotReady", "NodeReadyUnknown", "NodeDeleted")
