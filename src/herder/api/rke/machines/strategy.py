"""Upgrade concurrency, etcd quorum, and lost machines."""

from __future__ import annotations

import math
import re

from herder.api.capi.conditions import find
from herder.api.numbers import parse_int64
from herder.engine.meta.kinds import Object

UNLIMITED = 0
_NODE_DELETED = "NodeDeleted"


class BadConcurrency(ValueError):
    """A concurrency is invalid; the message names the field."""


def limit_of(concurrency: object, members: int, field: str = "upgradeStrategy") -> int:
    """Resolve a number, a percentage of the members (at least one), or 0 for no limit; defaults to one."""
    text = str(concurrency or "1").strip() if concurrency != 0 else "0"
    if (number := parse_int64(text, -1)) >= 0:
        return number
    share = text.removesuffix("%")
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", share):
        raise BadConcurrency(
            f'{field}: "{text}" is not a valid concurrency; use a number or a percentage such as "10%"'
        )
    return max(1, math.ceil(members * float(share) / 100))


def quorum(members: int) -> int:
    return members // 2 + 1


def is_lost(machine: Object | None) -> bool:
    """Whether the cluster reports its Node as deleted or not ready: an agent on a lost machine reports nothing."""
    ready = find(machine, "NodeReady") or {}
    return ready.get("reason") in ("NodeNotReady", "NodeReadyUnknown", _NODE_DELETED)


def is_node_deleted(machine: Object | None) -> bool:
    ready = find(machine, "NodeReady") or {}
    return bool(ready.get("reason") == _NODE_DELETED)
