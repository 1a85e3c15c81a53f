"""Standard CEL operators and conversions."""

from __future__ import annotations

import itertools
from typing import Any

from herder.engine.schema.cel import numbers, times
from herder.engine.schema.cel.declarations import Library
from herder.engine.schema.cel.errors import EvaluationError, no_such_key
from herder.engine.schema.cel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    STRING,
    TIMESTAMP,
    UINT,
    list_of,
    map_of,
    param,
    type_of,
)
from herder.engine.schema.cel.values import (
    Duration,
    Timestamp,
    TypeValue,
    Uint,
    contains,
    equal,
    has_key,
    less,
    type_name,
)

library = Library()
_A, _B = param("A"), param("B")
_LIST, _MAP = list_of(_A), map_of(_A, _B)
_SECOND = 1_000_000_000


# ---- comparison

library.function("_==_", _A, _A, returns=BOOL)(equal)
library.function("_!=_", _A, _A, returns=BOOL)(lambda left, right: not equal(left, right))


def less_or_equal(left: Any, right: Any) -> bool:
    return not less(right, left)


def greater(left: Any, right: Any) -> bool:
    return less(right, left)


def greater_or_equal(left: Any, right: Any) -> bool:
    return not less(left, right)


_NUMBERS = (INT, UINT, DOUBLE)
_ORDERED = [(BOOL, BOOL), *itertools.product(_NUMBERS, _NUMBERS)]
_ORDERED += [(kind, kind) for kind in (STRING, BYTES, TIMESTAMP, DURATION)]
for _name, _comparison in {"_<_": less, "_<=_": less_or_equal, "_>_": greater, "_>=_": greater_or_equal}.items():
    for _left, _right in _ORDERED:
        library.function(_name, _left, _right, returns=BOOL)(_comparison)


# ---- arithmetic


def _concatenate(left: Any, right: Any) -> Any:
    return left + right


library.function("!_", BOOL, returns=BOOL)(lambda value: not value)
library.function("_+_", BYTES, BYTES, returns=BYTES, linear=True)(_concatenate)
library.function("_+_", DOUBLE, DOUBLE, returns=DOUBLE)(_concatenate)
library.function("_+_", INT, INT, returns=INT)(numbers.add_int)
library.function("_+_", _LIST, _LIST, returns=_LIST, linear=True)(_concatenate)
library.function("_+_", STRING, STRING, returns=STRING, linear=True)(_concatenate)
library.function("_+_", UINT, UINT, returns=UINT)(lambda left, right: numbers.uint_of(int(left) + int(right)))
library.function("_-_", DOUBLE, DOUBLE, returns=DOUBLE)(lambda left, right: left - right)
library.function("_-_", INT, INT, returns=INT)(numbers.subtract_int)
library.function("_-_", UINT, UINT, returns=UINT)(lambda left, right: numbers.uint_of(int(left) - int(right)))
library.function("_*_", DOUBLE, DOUBLE, returns=DOUBLE)(lambda left, right: left * right)
library.function("_*_", INT, INT, returns=INT)(numbers.multiply_int)
library.function("_*_", UINT, UINT, returns=UINT)(lambda left, right: numbers.uint_of(int(left) * int(right)))
library.function("_/_", DOUBLE, DOUBLE, returns=DOUBLE)(numbers.divide_double)
library.function("_/_", INT, INT, returns=INT)(numbers.divide_int)
library.function("_/_", UINT, UINT, returns=UINT)(numbers.divide_uint)
library.function("_%_", INT, INT, returns=INT)(numbers.modulo_int)
library.function("_%_", UINT, UINT, returns=UINT)(numbers.modulo_uint)
library.function("-_", DOUBLE, returns=DOUBLE)(lambda value: -value)
library.function("-_", INT, returns=INT)(lambda value: numbers.int_of(-value))


@library.function("_+_", DURATION, DURATION, returns=DURATION)
def add_durations(left: Duration, right: Duration) -> Duration:
    return times.checked_duration(left.ns + right.ns)


@library.function("_-_", DURATION, DURATION, returns=DURATION)
def subtract_durations(left: Duration, right: Duration) -> Duration:
    return times.checked_duration(left.ns - right.ns)


@library.function("_+_", TIMESTAMP, DURATION, returns=TIMESTAMP)
def add_to_timestamp(moment: Timestamp, span: Duration) -> Timestamp:
    return times.checked_timestamp(moment.ns + span.ns)


@library.function("_+_", DURATION, TIMESTAMP, returns=TIMESTAMP)
def add_timestamp(span: Duration, moment: Timestamp) -> Timestamp:
    return times.checked_timestamp(moment.ns + span.ns)


@library.function("_-_", TIMESTAMP, DURATION, returns=TIMESTAMP)
def subtract_from_timestamp(moment: Timestamp, span: Duration) -> Timestamp:
    return times.checked_timestamp(moment.ns - span.ns)


@library.function("_-_", TIMESTAMP, TIMESTAMP, returns=DURATION)
def subtract_timestamps(left: Timestamp, right: Timestamp) -> Duration:
    return times.checked_duration(left.ns - right.ns)


# ---- containers


@library.function("_[_]", _LIST, INT, returns=_A)
def index_list(items: list[Any], index: Any) -> Any:
    if type(index) is not int:
        index = _whole(index)
    if 0 <= index < len(items):
        return items[index]
    raise EvaluationError(f"index out of bounds: {index}")


def _whole(index: Any) -> int:
    """Return an integer index; doubles and uints in dynamic expressions may index a list if they are whole numbers."""
    if isinstance(index, float) and index == int(index):
        return int(index)
    if isinstance(index, Uint):
        return int(index)
    raise EvaluationError(f"unsupported index type '{type_name(index)}' in list")


@library.function("_[_]", _MAP, _A, returns=_B)
def index_map(mapping: dict[Any, Any], key: Any) -> Any:
    if has_key(mapping, key):
        return mapping[key]
    raise no_such_key(key)


library.function("@in", _A, _LIST, returns=BOOL, linear=True)(lambda item, items: contains(items, item))
library.function("@in", _A, _MAP, returns=BOOL)(lambda key, mapping: has_key(mapping, key))

for _type in (STRING, BYTES, _LIST, _MAP):
    library.function("size", _type, returns=INT)(len)
    library.method("size", _type, returns=INT)(len)


# ---- conversions


def _same(value: Any) -> Any:
    return value


@library.function("type", _A, returns=type_of(_A))
def type_value(value: Any) -> TypeValue:
    return TypeValue(type_name(value))


library.function("dyn", _A, returns=DYN)(_same)
for _name, _type in {
    "bool": BOOL,
    "bytes": BYTES,
    "double": DOUBLE,
    "duration": DURATION,
    "int": INT,
    "string": STRING,
    "timestamp": TIMESTAMP,
    "uint": UINT,
}.items():
    library.function(_name, _type, returns=_type)(_same)
library.function("bool", STRING, returns=BOOL)(numbers.parse_bool)
library.function("bytes", STRING, returns=BYTES, linear=True)(str.encode)
library.function("double", INT, returns=DOUBLE)(float)
library.function("double", UINT, returns=DOUBLE)(float)
library.function("double", STRING, returns=DOUBLE)(numbers.parse_double)
library.function("duration", INT, returns=DURATION)(Duration)
library.function("int", DOUBLE, returns=INT)(numbers.double_to_int)
library.function("int", UINT, returns=INT)(lambda value: numbers.int_of(int(value)))
library.function("int", STRING, returns=INT)(numbers.parse_int)
library.function("int", DURATION, returns=INT)(lambda value: value.ns)
library.function("int", TIMESTAMP, returns=INT)(lambda value: value.ns // _SECOND)
library.function("uint", DOUBLE, returns=UINT)(numbers.double_to_uint)
library.function("uint", INT, returns=UINT)(numbers.uint_of)
library.function("uint", STRING, returns=UINT)(numbers.parse_uint)
library.function("string", BOOL, returns=STRING)(lambda value: "true" if value else "false")
library.function("string", DOUBLE, returns=STRING)(numbers.format_double)
library.function("string", INT, returns=STRING)(str)
library.function("string", UINT, returns=STRING)(lambda value: str(int(value)))
library.function("string", DURATION, returns=STRING)(times.format_duration)
library.function("string", TIMESTAMP, returns=STRING)(times.format_timestamp)


@library.function("duration", STRING, returns=DURATION)
def parse_duration(text: str) -> Duration:
    try:
        return times.parse_duration(text)
    except ValueError:
        raise EvaluationError("type conversion error from 'string' to 'google.protobuf.Duration'") from None


@library.function("timestamp", STRING, returns=TIMESTAMP)
def parse_timestamp(text: str) -> Timestamp:
    try:
        return times.parse_timestamp(text)
    except ValueError:
        raise EvaluationError("type conversion error from 'string' to 'google.protobuf.Timestamp'") from None


@library.function("timestamp", INT, returns=TIMESTAMP)
def timestamp_of_seconds(seconds: int) -> Timestamp:
    return times.checked_timestamp(seconds * _SECOND)


@library.function("string", BYTES, returns=STRING, linear=True)
def decode(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise EvaluationError("invalid UTF-8 in bytes, cannot convert to string") from None
