"""Times as annotations and Secrets tell them, where anybody may have written them."""

from __future__ import annotations

from datetime import datetime


def moment(text: str | None) -> datetime | None:
    """None for what is no time, or one without a zone: nobody can say when that is."""
    try:
        found = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return found if found.tzinfo else None
