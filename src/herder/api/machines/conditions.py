"""Conditions as upstream's own kinds have them: with the time of the last change, besides that of the last turn."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from herder.api.capi.conditions import Condition, timestamp


def merged_with_updates(
    existing: Iterable[Condition] | None, wanted: Iterable[Condition], now: datetime
) -> list[Condition]:
    """The list with the wanted conditions in it; those of others, and those that say the same as before, stay."""
    result = {known["type"]: known for known in existing or ()}
    for new in wanted:
        old = result.get(new["type"]) or {}
        if any(old.get(part) != new[part] for part in ("status", "reason", "message")):
            turned = old.get("lastTransitionTime") if old.get("status") == new["status"] else None
            times = {"lastUpdateTime": timestamp(now), "lastTransitionTime": turned or timestamp(now)}
            result[new["type"]] = {**new, **times}
    return list(result.values())
