"""Sanitize text from nodes and workload clusters for conditions and logs, which users read in terminals."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all except tab and newline: terminals interpret the others


def printable(text: str, max_length: int | None = None) -> str:
    """Truncate the text and replace control characters that a terminal would interpret."""
    return _CONTROL.sub(" ", text[:max_length])
