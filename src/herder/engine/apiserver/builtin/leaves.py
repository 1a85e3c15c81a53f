"""Types with custom JSON marshalling: times, durations, quantities, bytes, int-or-string.

Each function takes a JSON value and returns it as kube-apiserver would encode it. It raises `Mismatch` for a wrong JSON
type (reported with the path of the field), or `Unreadable` for a value that the type's own parser rejects.
"""

from __future__ import annotations

import base64
import binascii
import re
from datetime import UTC, datetime
from typing import Any

from herder.engine.meta import quantity as quantities


class Mismatch(Exception):
    """A JSON value has the wrong type. Enclosing structs add the path."""

    def __init__(self, value: str, go_type: str) -> None:
        super().__init__(value, go_type)
        self.value = value
        self.go_type = go_type
        self.struct = ""
        self.path: list[str] = []

    def message(self) -> str:
        location = f"Go struct field {self.struct}.{'.'.join(self.path)}" if self.path else "Go value"
        return f"json: cannot unmarshal {self.value} into {location} of type {self.go_type}"


class Unreadable(Exception):
    """A value has the right JSON type, but its Go type cannot parse it."""


def json_kind(value: Any) -> str:
    """Return the name of a JSON type in Go's error messages."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "string"
    if isinstance(value, (int, float)):
        return "number"
    return "array" if isinstance(value, list) else "object"


_RANGES = {
    "int32": (-(1 << 31), (1 << 31) - 1), "int64": (-(1 << 63), (1 << 63) - 1), "int": (-(1 << 63), (1 << 63) - 1),
    "uint8": (0, 255), "uint32": (0, (1 << 32) - 1),
}  # fmt: skip


def integer(value: Any, kind: str, go_type: str) -> int:
    """Check an integer against the range of its Go type."""
    low, high = _RANGES[kind]
    if type(value) is int and low <= value <= high:
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise Mismatch(f"number {value}", go_type)
    raise Mismatch(json_kind(value), go_type)


def int_or_string(value: Any) -> int | str:
    return value if isinstance(value, str) else integer(value, "int32", "int32")


def quantity(value: Any) -> str:
    try:
        return quantities.canonical(value if isinstance(value, str) else str(value))
    except ValueError as error:
        raise Unreadable(str(error)) from None


def resource_quantity(value: Any) -> str:
    """Normalize a quantity in a resource list: fractions below a thousandth are rounded up."""
    text = quantity(value)
    amount = quantities.parse(text)
    if amount.scale >= -3:
        return text
    return quantities.canonical(f"{amount.scaled(-3)}m")


# --- times ------------------------------------------------------------------------------------------------------

_SECONDS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:[.,](\d+))?(Z|[+-]\d\d:\d\d)")
_MICRO = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(\d{6})(Z|[+-]\d\d:\d\d)")
_LAYOUT = "2006-01-02T15:04:05Z07:00"
_MICRO_LAYOUT = "2006-01-02T15:04:05.000000Z07:00"


def time(value: Any) -> str | None:
    """RFC 3339 in seconds and UTC; the zero time is null."""
    if not isinstance(value, str):
        raise Mismatch(json_kind(value), "string")
    match = _RFC3339.fullmatch(value)
    if match is None:
        raise Unreadable(_parse_error(value, _LAYOUT))
    moment = _moment(value, match.group(1), match.group(3))
    return None if moment.year == 1 else moment.strftime("%Y-%m-%dT%H:%M:%SZ").rjust(20, "0")


def micro_time(value: Any) -> str | None:
    """RFC 3339 with exactly six decimals; anything else is rejected."""
    if not isinstance(value, str):
        raise Mismatch(json_kind(value), "string")
    match = _MICRO.fullmatch(value)
    if match is None:
        raise Unreadable(_parse_error(value, _MICRO_LAYOUT))
    moment = _moment(value, match.group(1), match.group(3))
    return None if moment.year == 1 else f"{moment.strftime('%Y-%m-%dT%H:%M:%S').rjust(19, '0')}.{match.group(2)}Z"


def _moment(value: str, wall: str, zone: str) -> datetime:
    try:
        return datetime.fromisoformat(wall + ("+00:00" if zone == "Z" else zone)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        # Python's message starts with the unit, too: "day is out of range for month"
        unit = str(error).partition(" ")[0]
        raise Unreadable(f'parsing time "{value}": {unit} out of range') from None


def _parse_error(value: str, layout: str) -> str:
    """Return Go's error: which rest of the value does not match which element of the layout."""
    elements = [("2006", r"\d{4}"), ("-", "-"), ("01", r"\d\d"), ("-", "-"), ("02", r"\d\d"), ("T", "T"),
                ("15", r"\d\d"), (":", ":"), ("04", r"\d\d"), (":", ":"), ("05", r"\d\d")]  # fmt: skip
    elements.append((".000000", r"\.\d{6}") if layout == _MICRO_LAYOUT else ("", r"(?:[.,]\d+)?"))
    elements.append(("Z07:00", r"Z|[+-]\d\d:\d\d"))
    rest = value
    for element, pattern in elements:
        match = re.match(pattern, rest)
        if match is None:
            return f'parsing time "{value}" as "{layout}": cannot parse "{rest}" as "{element}"'
        rest = rest[match.end() :]
    return f'parsing time "{value}": extra text: "{rest}"'


# --- durations --------------------------------------------------------------------------------------------------

_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_TERM = re.compile(r"(\d+(?:\.\d*)?|\.\d+)([a-zµμ]*)")


def duration(value: Any) -> str:
    if not isinstance(value, str):
        raise Mismatch(json_kind(value), "string")
    return format_duration(parse_duration(value))


def parse_duration(text: str) -> int:
    """Parse a Go duration such as `1h30m` to nanoseconds."""
    sign, rest = (-1 if text.startswith("-") else 1), text.lstrip("+-") if text[:1] in "+-" else text
    if rest == "0":
        return 0
    total, position = 0, 0
    while position < len(rest) or not rest:
        term = _TERM.match(rest, position)
        if term is None:
            raise Unreadable(f'time: invalid duration "{text}"')
        if term.group(2) not in _UNITS:
            problem = f'unknown unit "{term.group(2)}" in' if term.group(2) else "missing unit in"
            raise Unreadable(f'time: {problem} duration "{text}"')
        whole, _, fraction = term.group(1).partition(".")
        unit = _UNITS[term.group(2)]
        total += int(whole or 0) * unit + (int(fraction) * unit // 10 ** len(fraction) if fraction else 0)
        position = term.end()
    if total >= 1 << 63:
        raise Unreadable(f'time: invalid duration "{text}"')
    return sign * total


def format_duration(nanoseconds: int) -> str:
    """Format a duration like Go: `1h0m0s`, `1.5s`, `0s`."""
    sign, rest = ("-" if nanoseconds < 0 else ""), abs(nanoseconds)
    if rest == 0:
        return "0s"
    for unit, size in (("ns", 1), ("µs", 10**3), ("ms", 10**6)):
        if rest < size * 1000:
            return f"{sign}{_decimal(rest, size)}{unit}"
    minutes, rest = divmod(rest, 60 * 10**9)
    hours, minutes = divmod(minutes, 60)
    head = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{sign}{head}{_decimal(rest, 10**9)}s"


def _decimal(value: int, size: int) -> str:
    whole, fraction = divmod(value, size)
    digits = str(fraction).rjust(len(str(size)) - 1, "0").rstrip("0") if fraction else ""
    return f"{whole}.{digits}" if digits else str(whole)


# --- bytes ------------------------------------------------------------------------------------------------------

_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


def byte_string(value: Any) -> str:
    """Normalize base64. A list of numbers is accepted as bytes, like in Go."""
    if isinstance(value, list):
        return base64.b64encode(bytes(integer(item, "uint8", "uint8") for item in value)).decode()
    if not isinstance(value, str):
        raise Mismatch(json_kind(value), "[]uint8")
    text = value.replace("\n", "").replace("\r", "")
    match = _BASE64.match(text)
    assert match is not None
    if match.end() != len(text):
        raise Unreadable(f"illegal base64 data at input byte {_corrupt_at(text, match.end())}")
    if text.endswith("="):  # bits after the last byte are dropped
        return base64.b64encode(binascii.a2b_base64(text)).decode()
    return text


def _corrupt_at(value: str, start: int) -> int:
    """Return the position of the invalid character, or of the incomplete group."""
    for position in range(start, len(value)):
        if not re.match(r"[A-Za-z0-9+/]", value[position]):
            return position
    return start
