"""Format values as Go does, for field errors that clients compare."""

from __future__ import annotations

import math
from typing import Any

_QUOTED = {
    '"': '\\"', "\\": "\\\\", "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v",
}  # fmt: skip
_JSON_ESCAPES = str.maketrans(
    {chr(code): f"\\u{code:04x}" for code in range(0x20)}
    | {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    | {char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
)
MAX_INT64 = 2**63 - 1
MIN_INT64 = -(2**63)


def quote(text: str) -> str:
    """Format as `%q`."""
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return '"' + "".join(_quoted(char) for char in text) + '"'


def _quoted(char: str) -> str:
    known = _QUOTED.get(char)
    if known is not None:
        return known
    if char.isprintable():
        return char
    code = ord(char)
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def plain(value: float | bool) -> str:
    """Format a number or boolean as `%v`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and MIN_INT64 <= value <= MAX_INT64:
        return str(value)
    return _float(float(value), largest_plain=1e6, smallest_plain=1e-4)


def _float(value: float, *, largest_plain: float, smallest_plain: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    size = abs(value)
    if size != 0 and (size < smallest_plain or size >= largest_plain):
        mantissa, exponent = _scientific(value)
        return f"{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    text = repr(value)
    if "e" in text:
        text = f"{value:.{_decimals(text)}f}"
    return text.removesuffix(".0")


def _scientific(value: float) -> tuple[str, int]:
    """Return the shortest digits and the decimal exponent."""
    sign = "-" if value < 0 else ""
    digits, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = digits.partition(".")
    power = int(exponent or 0) + len(whole) - 1
    both = whole + ("" if fraction == "0" else fraction)
    stripped = both.lstrip("0")
    power -= len(both) - len(stripped) if whole == "0" else 0
    format_value = stripped.rstrip("0") or "0"
    return sign + format_value[0] + ("." + format_value[1:] if len(format_value) > 1 else ""), power


def _decimals(text: str) -> int:
    digits, _, exponent = text.partition("e")
    fraction = digits.partition(".")[2]
    return max(0, len(fraction) - int(exponent))


def to_json(value: Any) -> str:
    """Encode as encoding/json does: sorted keys, escaped HTML characters."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return '"' + value.translate(_JSON_ESCAPES) + '"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        text = _float(value, largest_plain=1e21, smallest_plain=1e-6)
        return text.replace("e-0", "e-") if "e-0" in text else text
    if isinstance(value, list):
        return "[" + ",".join(map(to_json, value)) + "]"
    return "{" + ",".join(f"{to_json(key)}:{to_json(value[key])}" for key in sorted(value)) + "}"


def format_value(value: Any) -> str:
    """Format a value as field errors do."""
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, (bool, int, float)):
        return plain(value)
    try:
        return to_json(value)
    except RecursionError:  # nested too deeply to be readable
        return "[...]" if isinstance(value, list) else "{...}"
