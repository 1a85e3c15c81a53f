"""Token lifetimes, in milliseconds: the requested one, within the limits of the settings."""

from __future__ import annotations

MINUTE_MS = 60_000


def granted_ttl(requested_ms: int, *, default_minutes: int, max_minutes: int) -> int:
    """Return the TTL to grant; 0 means unlimited.

    0 requests the default, and a default of 0 the maximum. A negative request is unlimited if there is no maximum.
    """
    maximum = max_minutes * MINUTE_MS if max_minutes >= 1 else 0
    if requested_ms == 0:
        requested_ms = default_minutes * MINUTE_MS if default_minutes > 0 else maximum
    if requested_ms <= 0:
        return maximum
    return min(requested_ms, maximum) if maximum else requested_ms
