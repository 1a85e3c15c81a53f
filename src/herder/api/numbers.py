"""Integers in text that another party wrote: a node, a user, a downstream cluster."""

from __future__ import annotations

LARGEST = 2**63 - 1
_MOST_DIGITS = len(str(LARGEST))


def integer(text: str, default: int = 0) -> int:
    """A decimal int64 as Go's strconv.ParseInt reads it; `default` for any other text.

    The length is checked before the conversion: CPython refuses more than 4,300 digits with an exception, and the time
    that fewer digits take grows with their square.
    """
    digits = text[1:] if text.startswith(("-", "+")) else text
    if len(digits) > _MOST_DIGITS or not digits.isascii() or not digits.isdecimal():
        return default
    number = int(text)
    return number if -LARGEST - 1 <= number <= LARGEST else default
