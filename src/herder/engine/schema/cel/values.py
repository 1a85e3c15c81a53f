"""CEL values without a Python equivalent, and comparisons across all values.

Strings, bytes, booleans, 64-bit integers, doubles, null, lists and maps are plain Python values. Unlike in Python, a
boolean never equals a number.
"""

from __future__ import annotations

from typing import Any, Final

from herder.engine.schema.cel.errors import EvaluationError, no_such_overload

INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1
UINT_MAX: Final = 2**64 - 1


class Uint(int):
    """An unsigned integer. As an int subclass it compares with ints and doubles by value, as CEL requires."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{int(self)}u"


class Duration:
    """A signed duration in nanoseconds (64 bits)."""

    __slots__ = ("ns",)

    def __init__(self, ns: int) -> None:
        self.ns = ns

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Duration) and self.ns == other.ns

    def __hash__(self) -> int:
        return hash(("duration", self.ns))

    def __lt__(self, other: Duration) -> bool:
        return self.ns < other.ns

    def __repr__(self) -> str:
        return f"Duration({self.ns})"


class Timestamp:
    """A time between the years 1 and 9999, in nanoseconds since 1970 UTC; `offset` (in seconds) only affects
    formatting."""

    __slots__ = ("ns", "offset")

    def __init__(self, ns: int, offset: int = 0) -> None:
        self.ns = ns
        self.offset = offset

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Timestamp) and self.ns == other.ns

    def __hash__(self) -> int:
        return hash(("timestamp", self.ns))

    def __lt__(self, other: Timestamp) -> bool:
        return self.ns < other.ns

    def __repr__(self) -> str:
        return f"Timestamp({self.ns})"


class TypeValue:
    """A type as a value: `type(self) == string`."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TypeValue) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return self.name


class Optional:
    """A value that may be absent; `NONE` is the absent one."""

    __slots__ = ("_value", "present")

    def __init__(self, value: Any, present: bool = True) -> None:
        self._value = value
        self.present = present

    @property
    def value(self) -> Any:
        if not self.present:
            raise EvaluationError("optional.none() dereference")
        return self._value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Optional) or self.present != other.present:
            return False
        return not self.present or equal(self._value, other._value)

    def __hash__(self) -> int:
        return hash((self.present, repr(self._value)))

    def __repr__(self) -> str:
        return f"optional.of({self._value!r})" if self.present else "optional.none()"


NONE: Final = Optional(None, present=False)

_SAME_TYPE_EQUALITY = frozenset({str, int, bool, bytes, float, Uint, type(None), Duration, Timestamp, TypeValue})
_NUMBERS = frozenset({int, float, Uint})


def equal(left: Any, right: Any) -> bool:
    """CEL's `==`: deep; numbers compare by value across types; different kinds are unequal."""
    left_type = type(left)
    right_type = type(right)
    if left_type is right_type:
        if left_type in _SAME_TYPE_EQUALITY:
            return bool(left == right)
        if left_type is dict:
            return _equal_maps(left, right)
        if left_type is list:
            return len(left) == len(right) and all(map(equal, left, right))
        return bool(left == right)
    if left_type in _NUMBERS and right_type in _NUMBERS:
        return bool(left == right)
    return False


def _equal_maps(left: dict[Any, Any], right: dict[Any, Any]) -> bool:
    if len(left) != len(right):
        return False
    return all(key in right and equal(value, right[key]) for key, value in left.items())


def contains(container: Any, item: Any) -> bool:
    """CEL's `in`: an element of a list, or a key of a map."""
    kind = type(container)
    if kind is list:
        if type(item) is str:
            return item in container
        return any(equal(item, element) for element in container)
    if kind is dict:
        return has_key(container, item)
    raise no_such_overload()


def has_key(mapping: dict[Any, Any], key: Any) -> bool:
    kind = type(key)
    if kind is str:
        return key in mapping
    if kind not in _NUMBERS and kind is not bool:
        return False
    if key not in mapping:
        return False
    return any(candidate == key and (type(candidate) is bool) == (kind is bool) for candidate in mapping)


_ORDERED = frozenset({str, bytes, bool, Duration, Timestamp})


def less(left: Any, right: Any) -> bool:
    """CEL's `<`, for values of one ordered type, or any two numbers."""
    left_type = type(left)
    right_type = type(right)
    if left_type in _NUMBERS and right_type in _NUMBERS:
        if left != left or right != right:
            raise EvaluationError("NaN values cannot be ordered")
        return bool(left < right)
    if left_type is right_type and left_type in _ORDERED:
        return bool(left < right)
    if left_type is right_type and hasattr(left, "compare"):
        return bool(left.compare(right) < 0)
    raise no_such_overload()


def type_name(value: Any) -> str:
    """Return the name that `type(value)` shows."""
    name = _TYPE_NAMES.get(type(value))
    if name is None:
        name = getattr(value, "cel_type", None)
    if name is None:
        raise no_such_overload()
    return str(name)


_TYPE_NAMES: dict[type, str] = {
    str: "string",
    int: "int",
    Uint: "uint",
    float: "double",
    bool: "bool",
    bytes: "bytes",
    type(None): "null_type",
    list: "list",
    dict: "map",
    Duration: "google.protobuf.Duration",
    Timestamp: "google.protobuf.Timestamp",
    TypeValue: "type",
    Optional: "optional_type",
}


def is_zero(value: Any) -> bool:
    """Return whether `optional.ofNonZeroValue` drops the value."""
    kind = type(value)
    if kind in (str, bytes, list, dict):
        return not value
    if kind in (Duration, Timestamp):
        return bool(value.ns == 0)
    if kind is Optional:
        return not value.present
    return value is None or value is False or (kind in _NUMBERS and value == 0)
