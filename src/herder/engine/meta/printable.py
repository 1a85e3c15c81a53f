"""Text of nodes and workload clusters, for conditions and logs: users read these in terminals."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and newline: terminals obey the others


def printable(text: str, most: int | None = None) -> str:
    """At most so many characters, none of which a terminal obeys."""
    return _CONTROL.sub(" ", text[:most])
