"""Times as annotations and Secrets tell them, where anybody may have written them."""

from __future__ import annotations

from datetime import datetime

_FIRST_YEAR, _LAST_YEAR = 1900, 9000


def moment(text: str | None) -> datetime | None:
    """None for what is no time, one without a zone, and one so early or late that adding a duration could overflow."""
    try:
        found = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return found if found.tzinfo and _FIRST_YEAR <= found.year <= _LAST_YEAR else None
