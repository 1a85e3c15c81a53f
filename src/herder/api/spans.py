"""Durations and versions that users or nodes wrote, in a form that can be added to times and sorted.

A duration of 10^15 seconds ends in an OverflowError where it is added to a time; so does infinity, which JSON knows.
"""

from __future__ import annotations

import re
from datetime import timedelta

LONGEST = timedelta(days=36500)
"""A hundred years: what is longer is as good as for ever, and can still be added to any time of today."""


def version_numbers(version: str) -> list[int]:
    """Every number of a version, in order, for sorting; of a longer one the first digits count."""
    return [int(number[:18]) for number in re.findall(r"[0-9]+", version)]


def span(seconds: object, default: float = 0.0) -> timedelta:
    """A number of seconds as a duration: never negative and never too long to be added to a time."""
    number = seconds if isinstance(seconds, int | float) and not isinstance(seconds, bool) else default
    if not number > 0:  # also what is not a number
        return timedelta()
    return timedelta(seconds=number) if number < LONGEST.total_seconds() else LONGEST
