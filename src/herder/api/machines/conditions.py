"""Conditions of Rancher kinds, which have lastUpdateTime in addition to lastTransitionTime."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from herder.api.capi.conditions import Condition, timestamp


def merged_with_updates(
    existing: Iterable[Condition] | None, wanted: Iterable[Condition], now: datetime
) -> list[Condition]:
    """Merge the wanted conditions into the list; unchanged ones, and those of others, stay as they are."""
    result = {known["type"]: known for known in existing or ()}
    for new in wanted:
        old = result.get(new["type"]) or {}
        if any(old.get(part) != new[part] for part in ("status", "reason", "message")):
            transition = old.get("lastTransitionTime") if old.get("status") == new["status"] else None
            times = {"lastUpdateTime": timestamp(now), "lastTransitionTime": transition or timestamp(now)}
            result[new["type"]] = {**new, **times}
    return list(result.values())
