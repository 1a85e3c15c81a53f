"""List functions: Kubernetes' list library, the lists extension and the sets extension."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from herder.engine.schema.cel import numbers, times
from herder.engine.schema.cel.declarations import Library
from herder.engine.schema.cel.errors import EvaluationError, no_such_overload
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
    Type,
    list_of,
    param,
)
from herder.engine.schema.cel.values import Duration, Uint, equal, less

library = Library()
_T = param("T")
_LIST = list_of(_T)
COMPARABLE = (INT, UINT, DOUBLE, BOOL, DURATION, TIMESTAMP, STRING, BYTES)
_MAX_RANGE = 1_000_000


def is_sorted(items: list[Any]) -> bool:
    return not any(less(after, before) for before, after in itertools.pairwise(items))


def least(items: list[Any]) -> Any:
    return _extreme("min", items, less)


def greatest(items: list[Any]) -> Any:
    return _extreme("max", items, lambda candidate, best: less(best, candidate))


def _extreme(name: str, items: list[Any], better: Callable[[Any, Any], bool]) -> Any:
    if not items:
        raise EvaluationError(f"{name} called on empty list")
    best = items[0]
    for item in items[1:]:
        if better(item, best):
            best = item
    return best


def sort(items: list[Any]) -> list[Any]:
    return sort_by_keys(items, items)


def sort_by_keys(items: list[Any], keys: list[Any]) -> list[Any]:
    """Return the items ordered by their keys, which must have one comparable type."""
    if not keys:
        return items
    if len({type(key) for key in keys}) > 1:
        raise EvaluationError("list elements must have the same type")
    if type(keys[0]) in (list, dict, type(None)):
        raise EvaluationError("list elements must be comparable")
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return [items[position] for position in order]


def _declare_comparable(element: Type) -> None:
    items = list_of(element)
    library.method("isSorted", items, returns=BOOL, linear=True)(is_sorted)
    library.method("min", items, returns=element, linear=True)(least)
    library.method("max", items, returns=element, linear=True)(greatest)
    library.method("sort", items, returns=items, linear=True)(sort)


for _element in COMPARABLE:
    _declare_comparable(_element)


def _summing(zero: Any, add: Callable[[Any, Any], Any]) -> Callable[[list[Any]], Any]:
    def total(items: list[Any]) -> Any:
        result = zero
        for item in items:
            if type(item) is not type(zero):
                raise no_such_overload()
            result = add(result, item)
        return result

    return total


library.method("sum", list_of(INT), returns=INT, linear=True)(_summing(0, numbers.add_int))
library.method("sum", list_of(UINT), returns=UINT, linear=True)(
    _summing(Uint(0), lambda left, right: numbers.uint_of(int(left) + int(right)))
)
library.method("sum", list_of(DOUBLE), returns=DOUBLE, linear=True)(_summing(0.0, lambda left, right: left + right))
library.method("sum", list_of(DURATION), returns=DURATION, linear=True)(
    _summing(Duration(0), lambda left, right: times.checked_duration(left.ns + right.ns))
)


@library.method("indexOf", _LIST, _T, returns=INT, linear=True)
def index_of(items: list[Any], item: Any) -> int:
    return next((position for position, each in enumerate(items) if equal(each, item)), -1)


@library.method("lastIndexOf", _LIST, _T, returns=INT, linear=True)
def last_index_of(items: list[Any], item: Any) -> int:
    return next((position for position in reversed(range(len(items))) if equal(items[position], item)), -1)


# ---- extension: lists


@library.method("slice", _LIST, INT, INT, returns=_LIST, linear=True)
def slice_list(items: list[Any], start: int, end: int) -> list[Any]:
    if start < 0 or end < 0:
        raise EvaluationError(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        message = f"cannot slice({start}, {end}), start index must be less than or equal to end index"
        raise EvaluationError(message)
    if end > len(items):
        raise EvaluationError(f"cannot slice({start}, {end}), list is length {len(items)}")
    return items[start:end]


@library.method("flatten", list_of(_LIST), returns=_LIST, linear=True)
@library.method("flatten", list_of(DYN), INT, returns=list_of(DYN), linear=True)
def flatten(items: list[Any], depth: int = 1) -> list[Any]:
    if depth < 0:
        raise EvaluationError("level must be non-negative")
    flat: list[Any] = []
    for item in items:
        if isinstance(item, list) and depth > 0:
            flat.extend(flatten(item, depth - 1))
        else:
            flat.append(item)
    return flat


@library.function("lists.range", INT, returns=list_of(INT))
def integers(count: int) -> list[int]:
    if count > _MAX_RANGE:
        raise EvaluationError(f"range of {count} elements is too large")
    return list(range(count))


library.method("reverse", _LIST, returns=_LIST, linear=True)(lambda items: items[::-1])


@library.method("distinct", _LIST, returns=_LIST, linear=True)
def distinct(items: list[Any]) -> list[Any]:
    if all(type(item) is str for item in items):
        return list(dict.fromkeys(items))
    unique: list[Any] = []
    for item in items:
        if not any(equal(item, other) for other in unique):
            unique.append(item)
    return unique


# ---- extension: sets


@library.function("sets.contains", _LIST, _LIST, returns=BOOL, linear=True)
def set_contains(items: list[Any], part: list[Any]) -> bool:
    return all(any(equal(item, wanted) for item in items) for wanted in part)


@library.function("sets.equivalent", _LIST, _LIST, returns=BOOL, linear=True)
def set_equivalent(left: list[Any], right: list[Any]) -> bool:
    both_ways = ((left, right), (right, left))
    return all(any(equal(item, wanted) for item in items) for items, part in both_ways for wanted in part)


@library.function("sets.intersects", _LIST, _LIST, returns=BOOL, linear=True)
def set_intersects(left: list[Any], right: list[Any]) -> bool:
    return any(any(equal(item, other) for other in right) for item in left)
