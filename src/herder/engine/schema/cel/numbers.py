"""64-bit arithmetic that fails on overflow, and number parsing and formatting as in Go."""

from __future__ import annotations

import math
import re

from herder.engine.schema.cel.errors import EvaluationError
from herder.engine.schema.cel.values import INT_MAX, INT_MIN, UINT_MAX, Uint

_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\Z", re.ASCII)
_HEX_FLOAT = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?\d+\Z", re.ASCII)
_SPECIAL = re.compile(r"[+-]?(?:inf|infinity|nan)\Z", re.IGNORECASE)
_INTEGER = re.compile(r"[+-]?0*\d{1,20}\Z", re.ASCII)
_MAX_INTEGER_LENGTH = 1000
_PLAIN_DIGITS = 6
_LOWEST_DOUBLE = float(INT_MIN)
_HIGHEST_DOUBLE = float(2**63)


def int_of(value: int) -> int:
    if INT_MIN <= value <= INT_MAX:
        return value
    raise EvaluationError("integer overflow")


def uint_of(value: int) -> Uint:
    if 0 <= value <= UINT_MAX:
        return Uint(value)
    raise EvaluationError("unsigned integer overflow")


def add_int(left: int, right: int) -> int:
    result = left + right
    if INT_MIN <= result <= INT_MAX:
        return result
    raise EvaluationError("integer overflow")


def subtract_int(left: int, right: int) -> int:
    result = left - right
    if INT_MIN <= result <= INT_MAX:
        return result
    raise EvaluationError("integer overflow")


def multiply_int(left: int, right: int) -> int:
    return int_of(left * right)


def divide_int(left: int, right: int) -> int:
    """Divide, truncating toward zero."""
    if right == 0:
        raise EvaluationError("division by zero")
    quotient = abs(left) // abs(right)
    return int_of(quotient if (left < 0) == (right < 0) else -quotient)


def modulo_int(left: int, right: int) -> int:
    if right == 0:
        raise EvaluationError("modulus by zero")
    if left == INT_MIN and right == -1:
        raise EvaluationError("integer overflow")
    rest = abs(left) % abs(right)
    return -rest if left < 0 else rest


def divide_uint(left: Uint, right: Uint) -> Uint:
    if right == 0:
        raise EvaluationError("division by zero")
    return Uint(int(left) // int(right))


def modulo_uint(left: Uint, right: Uint) -> Uint:
    if right == 0:
        raise EvaluationError("modulus by zero")
    return Uint(int(left) % int(right))


def divide_double(left: float, right: float) -> float:
    if right != 0:
        return left / right
    if left == 0 or left != left:
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


def double_to_int(value: float) -> int:
    if math.isnan(value) or not _LOWEST_DOUBLE < value < _HIGHEST_DOUBLE:
        raise EvaluationError("integer overflow")
    return int(value)


def double_to_uint(value: float) -> Uint:
    if math.isnan(value) or not 0 <= value < float(2**64):
        raise EvaluationError("unsigned integer overflow")
    return Uint(int(value))


def parse_int(text: str) -> int:
    if len(text) <= _MAX_INTEGER_LENGTH and _INTEGER.match(text) and INT_MIN <= int(text) <= INT_MAX:
        return int(text)
    raise EvaluationError("type conversion error from 'string' to 'int'")


def parse_uint(text: str) -> Uint:
    if len(text) <= _MAX_INTEGER_LENGTH and _INTEGER.match(text) and text[0].isdigit() and int(text) <= UINT_MAX:
        return Uint(int(text))
    raise EvaluationError("type conversion error from 'string' to 'uint'")


def parse_double(text: str) -> float:
    if _DECIMAL.match(text):
        value = float(text)
        if not math.isinf(value):
            return value
    elif _SPECIAL.match(text):
        return float(text)
    elif _HEX_FLOAT.match(text):
        return float.fromhex(text)
    raise EvaluationError("type conversion error from 'string' to 'double'")


_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def parse_bool(text: str) -> bool:
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise EvaluationError("type conversion error from 'string' to 'bool'")


def format_double(value: float) -> str:
    """Format as Go's %g: shortest digits, with an exponent from a million on and below a ten-thousandth."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    digits, exponent, sign = _shortest(value)
    if digits == "0":
        return f"{sign}0"
    if not -4 <= exponent < _PLAIN_DIGITS:
        mantissa = digits[0] + (f".{digits[1:]}" if len(digits) > 1 else "")
        return f"{sign}{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    return sign + _positional(digits, exponent)


def format_float_plain(value: float) -> str:
    """Format as Go's %f with as many digits as needed: no exponent, no trailing zeros."""
    if math.isnan(value) or math.isinf(value):
        return format_double(value)
    digits, exponent, sign = _shortest(value)
    return f"{sign}0" if digits == "0" else sign + _positional(digits, exponent)


def _shortest(value: float) -> tuple[str, int, str]:
    """Return the shortest digits that round-trip, the exponent of the first digit, and the sign."""
    text = repr(abs(value))
    if "e" in text:
        mantissa, _, exponent = text.partition("e")
        digits = mantissa.replace(".", "")
        power = int(exponent)
    else:
        whole, _, fraction = text.partition(".")
        digits = (whole + fraction).lstrip("0")
        power = len(whole) - 1 if whole != "0" else -(len(fraction) - len(fraction.lstrip("0")) + 1)
    digits = digits.rstrip("0") or "0"
    return digits, power, "-" if math.copysign(1.0, value) < 0 else ""


def _positional(digits: str, exponent: int) -> str:
    if exponent < 0:
        return "0." + "0" * (-exponent - 1) + digits
    if len(digits) <= exponent + 1:
        return digits + "0" * (exponent + 1 - len(digits))
    return f"{digits[: exponent + 1]}.{digits[exponent + 1 :]}"
