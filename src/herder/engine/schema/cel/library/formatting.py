"""`format()`, CEL's printf: `"%d of %s".format([1, "x"])`, with English digit grouping (`1,234.50`)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from herder.engine.schema.cel.errors import EvaluationError
from herder.engine.schema.cel.numbers import format_double
from herder.engine.schema.cel.times import format_duration, format_timestamp
from herder.engine.schema.cel.values import Duration, Timestamp, TypeValue, type_name

_DEFAULT_PRECISION = 6
_MAX_PRECISION = 1000
_CLAUSE = re.compile(r"%(?:(%)|(?:\.([0-9]*))?(.)?)", re.DOTALL)
_SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_PLAIN_FLOATS = frozenset({"NaN", "Infinity", "-Infinity"})


class FormatError(EvaluationError):
    """A clause and its argument do not match; `index` is the argument."""

    def __init__(self, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index


def format_text(template: str, args: list[Any]) -> str:
    return fill(template, len(args), lambda index, letter, precision: _format(letter, precision, args[index]))


def fill(template: str, count: int, clause: Callable[[int, str, int], str]) -> str:
    """Replace each clause in the template by the result of `clause(argument index, letter, precision)`."""
    used = 0

    def replacement(match: re.Match[str]) -> str:
        nonlocal used
        if match[1]:
            return "%"
        if used >= count:
            raise FormatError(f"index {used} out of range")
        if match[3] is None:
            raise FormatError("unexpected end of string")
        if match[3] not in CLAUSES:
            raise FormatError(f'could not parse formatting clause: unrecognized formatting clause "{match[3]}"')
        used += 1
        return clause(used - 1, match[3], _precision(match[2]))

    return _CLAUSE.sub(replacement, template)


def _precision(digits: str | None) -> int:
    if digits is None:
        return _DEFAULT_PRECISION
    if not digits or len(digits) > 9 or int(digits) > _MAX_PRECISION:
        raise FormatError(
            "could not parse formatting clause: error while parsing precision: "
            f'error while converting precision to integer: strconv.Atoi: parsing "{digits}": invalid syntax'
        )
    return int(digits)


def _format(letter: str, precision: int, value: Any) -> str:
    formatter, kinds, complaint = CLAUSES[letter]
    name = type_name(value)
    plain_float = letter in "fe" and value in _PLAIN_FLOATS if isinstance(value, str) else False
    if name not in kinds or (letter in "fe" and name == "string" and not plain_float):
        raise FormatError(f"error during formatting: {complaint}, was given {name}")
    return formatter(value, precision)


def _text(value: Any, _: int = 0) -> str:
    """Format as `%s`: like string(), with literals for lists and maps."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(int(value))
        case float():
            return format_double(value)
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
            return f"[{', '.join(map(_literal, value))}]"
        case dict():
            entries = sorted((_literal(key), _literal(item)) for key, item in value.items())
            return f"{{{', '.join(f'{key}:{item}' for key, item in entries)}}}"
    raise FormatError(f"error during formatting: no formatting function for {type_name(value)}")


def _literal(value: Any) -> str:
    """Format an element of a list or map as in an expression."""
    match value:
        case str():
            return json.dumps(value, ensure_ascii=False)
        case bytes():
            return f"b{json.dumps(value.decode(errors='replace'), ensure_ascii=False)}"
        case float() if math.isfinite(value):
            return f"{value:.{_DEFAULT_PRECISION}f}"
        case float():
            return f'"{format_double(value)}"'
        case Duration() | Timestamp():
            name = "duration" if isinstance(value, Duration) else "timestamp"
            return f'{name}("{_text(value)}")'
    return _text(value)


def _decimal(value: Any, _: int) -> str:
    return str(int(value))


def _fixed(value: Any, precision: int) -> str:
    number = float(value)
    return f"{number:,.{precision}f}" if math.isfinite(number) else _not_finite(number)


def _scientific(value: Any, precision: int) -> str:
    """Format in scientific notation. Upstream uses the precision as the width, which is visible in messages and
    reproduced."""
    number = float(value)
    if not math.isfinite(number):
        return _not_finite(number)
    mantissa, _, exponent = f"{number:.{_DEFAULT_PRECISION}e}".partition("e")
    sign = "-" if exponent[0] == "-" else ""
    return f"{mantissa}×10{(sign + exponent[1:]).translate(_SUPERSCRIPTS)}".rjust(precision)


def _not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else ("∞" if value > 0 else "-∞")


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


_HEX_KINDS = frozenset({"int", "uint", "string", "bytes"})
_HEX_COMPLAINT = "only integers, byte buffers, and strings can be formatted as hex"
_FLOAT_KINDS = frozenset({"double", "string"})
_TEXT_KINDS = frozenset(
    {"list", "map", "int", "uint", "double", "bool", "string", "bytes", "type", "null_type"}
    | {"google.protobuf.Timestamp", "google.protobuf.Duration"}
)
_TEXT_COMPLAINT = (
    "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and "
    "timestamps"
)
CLAUSES: dict[str, tuple[Callable[[Any, int], str], frozenset[str], str]] = {
    "s": (_text, _TEXT_KINDS, _TEXT_COMPLAINT),
    "d": (_decimal, frozenset({"int", "uint"}), "decimal clause can only be used on integers"),
    "f": (_fixed, _FLOAT_KINDS, "fixed-point clause can only be used on doubles"),
    "e": (_scientific, _FLOAT_KINDS, "scientific clause can only be used on doubles"),
    "b": (_binary, frozenset({"int", "uint", "bool"}), "only integers and bools can be formatted as binary"),
    "o": (_octal, frozenset({"int", "uint"}), "octal clause can only be used on integers"),
    "x": (_hex, _HEX_KINDS, _HEX_COMPLAINT),
    "X": (_upper_hex, _HEX_KINDS, _HEX_COMPLAINT),
}
"""By letter: formatter, accepted types, and the error message for other types."""


def check_format(template: str, types: list[str]) -> FormatError | None:
    """Check a call whose template and number of arguments are known; types may be `dyn`."""

    def check(index: int, letter: str, precision: int) -> str:
        kinds, complaint = CLAUSES[letter][1:]
        if types[index] != "dyn" and types[index] not in kinds:
            raise FormatError(f"error during formatting: {complaint}, was given {types[index]}", index)
        return ""

    try:
        fill(template, len(types), check)
    except FormatError as error:
        return error
    return _too_many(template, len(types))


def _too_many(template: str, count: int) -> FormatError | None:
    clauses = sum(not match[1] for match in _CLAUSE.finditer(template))
    if count <= clauses:
        return None
    return FormatError(f"too many arguments supplied to string.format (expected {clauses}, got {count})")
