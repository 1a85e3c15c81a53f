"""Numbers in text that another party wrote: a user in an annotation, a node in its report, a downstream cluster.

CPython refuses to convert text of more than 4,300 digits and accepts digits of every script, and a duration of 10^15
seconds overflows where it is added to a time. Every number from another party is read here.
"""

from __future__ import annotations

import re
from datetime import timedelta

LARGEST = 2**31 - 1
LARGEST_INT64 = 2**63 - 1
LONGEST = timedelta(days=36500)
"""A hundred years: a longer duration means no limit, and this one can still be added to any current time."""

_WHOLE = re.compile(r"[0-9]{1,10}")
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")


def integer(text: str, default: int = 0) -> int:
    """A decimal int64 as Go's strconv.ParseInt reads it; `default` for any other text."""
    if _INTEGER.fullmatch(text) is None:
        return default
    number = int(text)
    return number if -LARGEST_INT64 - 1 <= number <= LARGEST_INT64 else default


def whole_number(text: object, default: int = 0, *, most: int = LARGEST) -> int:
    """A number from 0 to `most`; `default` for any other value."""
    if not isinstance(text, str) or _WHOLE.fullmatch(text) is None:
        return default
    number = int(text)
    return number if number <= most else default


def version_numbers(version: str) -> list[int]:
    """Every number of a version, in order, for sorting. Only the first 18 digits of each count."""
    return [int(number[:18]) for number in re.findall(r"[0-9]+", version)]


def span(seconds: object, default: float = 0.0) -> timedelta:
    """A number of seconds as a duration that is not negative and can be added to a time."""
    number = seconds if isinstance(seconds, int | float) and not isinstance(seconds, bool) else default
    if not number > 0:  # NaN too
        return timedelta()
    return timedelta(seconds=number) if number < LONGEST.total_seconds() else LONGEST
