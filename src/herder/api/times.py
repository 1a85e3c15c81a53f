"""Parse timestamps from annotations and Secrets, which anyone with write access may have set."""

from __future__ import annotations

from datetime import datetime

_FIRST_YEAR, _LAST_YEAR = 1900, 9000


def parse_time(text: str | None) -> datetime | None:
    """Parse an RFC 3339 time; None if it is invalid, has no time zone, or could overflow when a duration is added."""
    try:
        found = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return found if found.tzinfo and _FIRST_YEAR <= found.year <= _LAST_YEAR else None
