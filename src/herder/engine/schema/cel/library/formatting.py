"""The printf of CEL: `"%d of %s".format([1, "x"])`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from herder.engine.schema.cel.errors import EvaluationError
from herder.engine.schema.cel.numbers import format_float_plain
from herder.engine.schema.cel.times import format_duration, format_timestamp
from herder.engine.schema.cel.values import Duration, Timestamp, TypeValue, Uint, type_name

_DEFAULT_PRECISION = 6
_CLAUSE = re.compile(r"%(?:(%)|(?:\.(\d*))?(.)?)", re.DOTALL)
_MAX_PRECISION = 1000


def format_text(template: str, args: list[Any]) -> str:
    used = 0

    def fill(match: re.Match[str]) -> str:
        nonlocal used
        if match[1]:
            return "%"
        if match[3] is None:
            raise EvaluationError("unexpected end of string")
        if used >= len(args):
            raise EvaluationError(f"index {used} out of range")
        value = args[used]
        used += 1
        return _format(match[3], _precision(match[2]), value)

    return _CLAUSE.sub(fill, template)


def _precision(digits: str | None) -> int:
    if digits is None:
        return _DEFAULT_PRECISION
    if not digits or int(digits) > _MAX_PRECISION:
        raise EvaluationError(
            "could not parse formatting clause: error while parsing precision: "
            f"error while converting precision to integer: {digits!r}"
        )
    return int(digits)


def _format(letter: str, precision: int, value: Any) -> str:
    clause = _CLAUSES.get(letter)
    if clause is None:
        raise EvaluationError(f'could not parse formatting clause: unrecognized formatting clause "{letter}"')
    formatter, allowed, complaint = clause
    if allowed is not None and type(value) not in allowed:
        raise EvaluationError(f"error during formatting: {complaint}, was given {type_name(value)}")
    if isinstance(value, float) and (math.isnan(value) or math.isinf(value)):
        return _not_finite(value)
    return formatter(value, precision)


def _not_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def text_of(value: Any, _: int = 0) -> str:
    """What `%s` makes of a value."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case Uint():
            return str(int(value))
        case int():
            return str(value)
        case float():
            return _not_finite(value) if math.isnan(value) or math.isinf(value) else format_float_plain(value)
        case None:
            return "null"
        case bytes():
            return value.decode(errors="replace")
        case Duration():
            return format_duration(value)
        case Timestamp():
            return format_timestamp(value)
        case TypeValue():
            return value.name
        case list():
            return f"[{', '.join(map(text_of, value))}]"
        case dict():
            entries = sorted((text_of(key), text_of(item)) for key, item in value.items())
            return f"{{{', '.join(f'{key}: {item}' for key, item in entries)}}}"
    raise EvaluationError(
        "error during formatting: string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, "
        f"types, durations, and timestamps, was given {type_name(value)}"
    )


def _decimal(value: Any, _: int) -> str:
    return format_float_plain(value) if isinstance(value, float) else str(int(value))


def _fixed(value: Any, precision: int) -> str:
    return f"{float(value):.{precision}f}"


def _scientific(value: Any, precision: int) -> str:
    return f"{float(value):.{precision}e}"


def _binary(value: Any, _: int) -> str:
    return format(int(value), "b")


def _octal(value: Any, _: int) -> str:
    return format(int(value), "o")


def _hex(value: Any, _: int) -> str:
    if isinstance(value, str):
        return value.encode().hex()
    return value.hex() if isinstance(value, bytes) else format(int(value), "x")


def _upper_hex(value: Any, precision: int) -> str:
    return _hex(value, precision).upper()


_NUMBERS = frozenset({int, Uint, float})
_HEXABLE = frozenset({int, Uint, str, bytes})
_HEX_COMPLAINT = "only ints, uints, bytes, and strings can be formatted as hex"
_CLAUSES: dict[str, tuple[Callable[[Any, int], str], frozenset[type] | None, str]] = {
    "s": (text_of, None, ""),
    "d": (_decimal, _NUMBERS, "decimal clause can only be used on ints, uints, and doubles"),
    "f": (_fixed, _NUMBERS, "fixed-point clause can only be used on ints, uints, and doubles"),
    "e": (_scientific, _NUMBERS, "scientific clause can only be used on ints, uints, and doubles"),
    "b": (_binary, frozenset({int, Uint, bool}), "only ints, uints, and bools can be formatted as binary"),
    "o": (_octal, frozenset({int, Uint}), "octal clause can only be used on ints and uints"),
    "x": (_hex, _HEXABLE, _HEX_COMPLAINT),
    "X": (_upper_hex, _HEXABLE, _HEX_COMPLAINT),
}
