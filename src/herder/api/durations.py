"""Bounded durations and sortable version numbers, parsed from values that users or nodes wrote.

Adding an unbounded duration to a time (10^15 seconds, or infinity) raises OverflowError.
"""

from __future__ import annotations

import re
from datetime import timedelta

MAX_DURATION = timedelta(days=36500)
"""Longer durations are clamped to a hundred years, which can be added to any current time."""


def version_numbers(version: str) -> list[int]:
    """Return the numbers of a version, in order, as a sort key; only the first 18 digits of each count."""
    return [int(number[:18]) for number in re.findall(r"[0-9]+", version)]


def duration(seconds: object, default: float = 0.0) -> timedelta:
    """Convert seconds to a duration between zero and MAX_DURATION; `default` if `seconds` is not a number."""
    number = seconds if isinstance(seconds, int | float) and not isinstance(seconds, bool) else default
    if not number > 0:  # also true for NaN
        return timedelta()
    return timedelta(seconds=number) if number < MAX_DURATION.total_seconds() else MAX_DURATION
