"""How long tokens live: what was asked for, within what the settings allow. Everything in milliseconds."""

from __future__ import annotations

MINUTE_MS = 60_000


def granted(asked_ms: int, *, default_minutes: int, max_minutes: int) -> int:
    """Nothing asked is the default; a default of nothing is the most. Less than nothing is for ever, where the most
    has no limit. 0 in the answer: for ever."""
    most = max_minutes * MINUTE_MS if max_minutes >= 1 else 0
    if asked_ms == 0:
        asked_ms = default_minutes * MINUTE_MS if default_minutes > 0 else most
    if asked_ms <= 0:
        return most
    return min(asked_ms, most) if most else asked_ms
