"""Format values as Go's fmt does, for messages that must match kube-apiserver's."""

from __future__ import annotations

import json
from typing import Any


def plain(value: Any) -> str:
    """Format as `%v`: maps as `map[a:1 b:2]` with sorted keys, lists as `[1 2]`, strings without quotes."""
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "map[" + " ".join(f"{key}:{plain(value[key])}" for key in sorted(value)) + "]"
    if isinstance(value, list):
        return "[" + " ".join(map(plain, value)) + "]"
    return number(value) if isinstance(value, float) else str(value)


def literal(value: Any) -> str:
    """Format as `%#v`: Go syntax."""
    if value is None:
        return "interface {}(nil)"
    if isinstance(value, dict):
        inside = ", ".join(f"{quoted(key)}:{literal(value[key])}" for key in sorted(value))
        return "map[string]interface {}{" + inside + "}"
    if isinstance(value, list):
        return "[]interface {}{" + ", ".join(map(literal, value)) + "}"
    return quoted(value) if isinstance(value, str) else plain(value)


def type_name(value: Any) -> str:
    """Return `%T` of decoded JSON."""
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, dict):
        return "map[string]interface {}"
    if isinstance(value, list):
        return "[]interface {}"
    return {str: "string", int: "int64"}.get(type(value), "float64")


def quoted(text: str) -> str:
    """`%q`."""
    return json.dumps(text, ensure_ascii=False)


def number(value: float) -> str:
    """Format a float with the fewest digits; integral values without a decimal point."""
    if value == int(value) and abs(value) < 1e21:
        return str(int(value))
    text = repr(value)
    mantissa, exponent, power = text.partition("e")
    return f"{mantissa}e{power[0]}{power[1:].zfill(2)}" if exponent else text
