"""Resource quantities (`500m`, `1.5Gi`, `1e3`): exact numbers with a decimal or binary suffix, as in apimachinery.

Numbers are integers times a power of ten, never floats. Quirks of apimachinery are reproduced where they are visible in
stored objects: a nearly canonical quantity is written back as it was read (`1.200`, `+5`), and a decimal number beyond
the suffix `E` loses its power of ten.
"""

from __future__ import annotations

import re
from typing import Final

DECIMAL_SI: Final = "DecimalSI"
BINARY_SI: Final = "BinarySI"
DECIMAL_EXPONENT: Final = "DecimalExponent"

_NANO = -9
_INT64_MAX = 2**63 - 1
_MAX_DIGITS = 18
_MAX_TEXT_LENGTH = 1000
_MAX_SHIFT = 2048
_DECIMAL_SUFFIXES = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_SUFFIXES = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_NAMES = {power: suffix for suffix, power in _DECIMAL_SUFFIXES.items()}
_BINARY_NAMES = {power: suffix for suffix, power in _BINARY_SUFFIXES.items()} | {0: ""}
_PARTS = re.compile(r"([+-]?)([0-9]*)(?:(\.)([0-9]*))?([eEinumkKMGTP]*[-+]?[0-9]*)\Z", re.ASCII)
_EXPONENT = re.compile(r"[eE][+-]?[0-9]+\Z", re.ASCII)

_WRONG_FORMAT = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_WRONG_NUMBER = "unable to parse numeric part of quantity"
_WRONG_SUFFIX = "unable to parse quantity's suffix"


class QuantityError(ValueError):
    """The text is not a quantity, or a computation would need an absurdly long number."""


class Quantity:
    """Immutable amount: `unscaled` × 10^`scale`, formatted as `format`."""

    __slots__ = ("_text", "exact_int", "format", "scale", "unscaled")

    cel_type = "kubernetes.Quantity"

    def __init__(
        self, unscaled: int, scale: int = 0, format: str = DECIMAL_SI, *, exact_int: bool = True, text: str = ""
    ) -> None:
        self.unscaled = unscaled
        self.scale = scale
        self.format = format
        self.exact_int = exact_int
        """Whether the number is small enough to have been read as a machine integer; `as_int` works on those only."""
        self._text = text

    def __str__(self) -> str:
        return self._text or _canonical(self)

    def __repr__(self) -> str:
        return f"Quantity({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.compare(other) == 0

    def __hash__(self) -> int:
        unscaled, scale = _strip_zeros(self.unscaled, self.scale)
        return hash((unscaled, scale))

    def __lt__(self, other: Quantity) -> bool:
        return self.compare(other) < 0

    @property
    def sign(self) -> int:
        return (self.unscaled > 0) - (self.unscaled < 0)

    def compare(self, other: Quantity) -> int:
        """Return -1, 0 or 1 if this is less than, equal to or greater than the other."""
        if self.sign != other.sign or self.sign == 0:
            return (self.sign > other.sign) - (self.sign < other.sign)
        mine, theirs = _magnitude(self), _magnitude(other)
        if mine != theirs:
            return self.sign if mine > theirs else -self.sign
        left, right, _ = _align(self, other)
        return (left > right) - (left < right)

    def add(self, other: Quantity) -> Quantity:
        left, right, scale = _align(self, other)
        return self._result(left + right, scale, other)

    def sub(self, other: Quantity) -> Quantity:
        left, right, scale = _align(self, other)
        return self._result(left - right, scale, other)

    def _result(self, unscaled: int, scale: int, other: Quantity) -> Quantity:
        """Keep the format of the first operand, or of the second if the first is zero."""
        format = self.format if self.unscaled else other.format
        fits = -_INT64_MAX - 1 <= unscaled <= _INT64_MAX
        return Quantity(unscaled, scale, format, exact_int=self.exact_int and other.exact_int and fits)

    def negated(self) -> Quantity:
        return Quantity(-self.unscaled, self.scale, self.format, exact_int=self.exact_int)

    def as_int(self) -> int | None:
        """Return the amount as a 64-bit integer, or None if that would need rounding."""
        if not self.exact_int or self.scale < 0 or self.scale > _MAX_DIGITS:
            return None
        value = self.unscaled * 10**self.scale
        return value if -_INT64_MAX - 1 <= value <= _INT64_MAX else None

    def scaled(self, scale: int) -> int:
        """Return the amount in units of 10^scale, rounded away from zero (`scaled(-3)`: thousandths)."""
        return _round_up(self.unscaled, self.scale, scale)

    def rounded_up(self, scale: int) -> Quantity:
        """Round away from zero to a multiple of 10^scale; resource lists are stored in thousandths
        (`rounded_up(-3)`)."""
        if self.scale >= scale:
            return self
        return Quantity(self.scaled(scale), scale, self.format, exact_int=self.exact_int)

    def value(self) -> int:
        """Return the amount as an integer, rounded away from zero."""
        return self.scaled(0)

    def as_float(self) -> float:
        try:
            return float(self.unscaled) if self.scale == 0 else self.unscaled * 10.0**self.scale
        except OverflowError:
            return float("inf") if self.unscaled > 0 else float("-inf")


def parse(text: str) -> Quantity:
    """Parse a quantity; raises QuantityError with kube-apiserver's message."""
    if not text or len(text) > _MAX_TEXT_LENGTH:
        raise QuantityError(_WRONG_FORMAT)
    match = _PARTS.match(text)
    if match is None:
        raise QuantityError(_WRONG_FORMAT)
    sign, whole, point, fraction, suffix = match.groups()
    power, format = _parse_suffix(suffix)
    fraction = fraction or ""
    digits = (whole.lstrip("0") or "0") + fraction
    parsed = _parse_fast(text, sign, digits, fraction, power, format)
    return parsed or _parse_exact(sign + whole + (point or "") + fraction, power, format)


def decode(value: str | int | float) -> Quantity:
    """Parse a quantity from JSON: a number, or a string with surrounding spaces."""
    return parse(value.strip() if isinstance(value, str) else str(value))


def canonical(text: str) -> str:
    """Return a quantity as the server would write it back."""
    return str(parse(text))


def _parse_suffix(suffix: str) -> tuple[int, str]:
    """Return the power (of ten, or of two for binary suffixes) and the format of a suffix."""
    if suffix in _DECIMAL_SUFFIXES:
        return _DECIMAL_SUFFIXES[suffix], DECIMAL_SI
    if suffix in _BINARY_SUFFIXES:
        return _BINARY_SUFFIXES[suffix], BINARY_SI
    if _EXPONENT.match(suffix) and abs(int(suffix[1:])) < 2**31:
        return int(suffix[1:]), DECIMAL_EXPONENT
    raise QuantityError(_WRONG_SUFFIX)


def _parse_fast(text: str, sign: str, digits: str, fraction: str, power: int, format: str) -> Quantity | None:
    """Parse numbers of moderate length, which need neither rounding nor capping."""
    binary = format == BINARY_SI
    if binary:
        room = 15 - len(digits) - power * 3 // 10 - 1 if not fraction else -1
    else:
        room = _MAX_DIGITS - len(digits)
    scale = (0 if binary else power) - len(fraction)
    if room < 0 or scale < _NANO:
        return None
    number = int(digits)
    unscaled = number << power if binary else number
    if unscaled > _INT64_MAX:
        return None
    if binary:
        kept = number & 7 != 0
    else:
        kept = scale % 3 == 0 and not digits.endswith("000") and digits[0] != "0"
    return Quantity(-unscaled if sign == "-" else unscaled, scale, format, text=text if kept or text == "0" else "")


def _parse_exact(number: str, power: int, format: str) -> Quantity:
    """Parse long or fine numbers: rounded up to nanos, and capped if binary."""
    sign = "-" if number[:1] == "-" else ""
    whole, _, fraction = number.lstrip("+-").partition(".")
    if not whole and not fraction:
        raise QuantityError(_WRONG_NUMBER)
    unscaled, scale = int(whole + fraction or "0"), -len(fraction)
    if format == BINARY_SI:
        unscaled <<= power
    else:
        scale += power
    if unscaled and scale < _NANO:
        unscaled, scale = _round_up(unscaled, scale, _NANO), _NANO
    if format == BINARY_SI:
        if _magnitude(Quantity(unscaled, scale)) > 18 and unscaled > _INT64_MAX * 10**-scale:
            unscaled, scale = _INT64_MAX, 0
        if 0 < unscaled < 10**-scale:
            format = DECIMAL_SI
    return Quantity(-unscaled if sign else unscaled, scale, format, exact_int=False)


def _round_up(unscaled: int, scale: int, target: int) -> int:
    """Return `unscaled` × 10^scale in units of 10^target, rounded away from zero."""
    if scale >= target:
        return unscaled * _power_of_ten(scale - target)
    if len(str(abs(unscaled))) + scale <= target:
        return (unscaled > 0) - (unscaled < 0)
    quotient, rest = divmod(abs(unscaled), _power_of_ten(target - scale))
    quotient += rest > 0
    return -quotient if unscaled < 0 else quotient


def _power_of_ten(exponent: int) -> int:
    """Return 10^exponent; refuse exponents such as that of 1e999999999, whose digits would fill the memory."""
    if exponent > _MAX_SHIFT:
        raise QuantityError("quantity is too large to compute with")
    return int(10**exponent)


def _magnitude(quantity: Quantity) -> int:
    """Return the number of digits before the decimal point (negative if the first digit comes after it)."""
    return len(str(abs(quantity.unscaled))) + quantity.scale


def _align(left: Quantity, right: Quantity) -> tuple[int, int, int]:
    if left.unscaled == 0 or right.unscaled == 0:
        scale = right.scale if left.unscaled == 0 else left.scale
        return left.unscaled, right.unscaled, scale
    scale = min(left.scale, right.scale)
    return (
        left.unscaled * _power_of_ten(left.scale - scale),
        right.unscaled * _power_of_ten(right.scale - scale),
        scale,
    )


def _strip_zeros(number: int, power: int) -> tuple[int, int]:
    """Move all factors of ten from the number to the power."""
    if number == 0:
        return 0, 0
    while number % 10 == 0:
        number //= 10
        power += 1
    return number, power


def _canonical(quantity: Quantity) -> str:
    """Format without fraction or loss, with the largest possible suffix."""
    if quantity.unscaled == 0:
        return "0"
    if quantity.format == BINARY_SI and (binary := _canonical_binary(quantity)) is not None:
        return binary
    number, power = _strip_zeros(quantity.unscaled, quantity.scale)
    while power % 3:
        number *= 10
        power -= 1
    if quantity.format == DECIMAL_EXPONENT:
        return f"{number}e{power}" if power else str(number)
    return f"{number}{_DECIMAL_NAMES.get(power, '')}"


def _canonical_binary(quantity: Quantity) -> str | None:
    """Format with a binary suffix; return None if a small or fractional number must be written in decimal."""
    if _magnitude(quantity) <= 3 or (quantity.scale < 0 and quantity.unscaled % 10 ** min(-quantity.scale, 64)):
        return None
    number = quantity.value()
    if -1024 < number < 1024:
        return None
    power = 0
    while number % 1024 == 0:
        number //= 1024
        power += 10
    return f"{number}{_BINARY_NAMES.get(power, '')}"
