"""Parse integers from untrusted text (written by nodes, users or downstream clusters)."""

from __future__ import annotations

INT64_MAX = 2**63 - 1
_MAX_DIGITS = len(str(INT64_MAX))


def parse_int64(text: str, default: int = 0) -> int:
    """Parse a decimal int64 like Go's strconv.ParseInt; return `default` for any other text.

    The length is checked before the conversion: CPython raises for more than 4,300 digits, and converting fewer takes
    quadratic time.
    """
    digits = text[1:] if text.startswith(("-", "+")) else text
    if len(digits) > _MAX_DIGITS or not digits.isascii() or not digits.isdecimal():
        return default
    number = int(text)
    return number if -INT64_MAX - 1 <= number <= INT64_MAX else default
