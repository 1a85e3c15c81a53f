"""Run-time costs of calls, so that none can take unbounded time or memory.

Units are those of Kubernetes' CEL budgets: about one per operation, a tenth per character.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from herder.engine.schema.cel.library.matching import worst_steps

Charge = Callable[..., int]


_MAX_CHARGE = 2_000_000
"""More than any evaluation budget; counting beyond it would itself take too long."""


def size_of(value: Any) -> int:
    """Return the total size of a value, counting shared parts each time: what comparing, flattening or printing
    visits."""
    total = 0
    pending = [value]
    while pending and total < _MAX_CHARGE:
        part = pending.pop()
        kind = type(part)
        if kind is list:
            total += len(part)
            pending.extend(part)
        elif kind is dict:
            total += len(part)
            pending.extend(part.values())
        elif kind is str or kind is bytes:
            total += len(part) // 10
    return total


def traversal(*args: Any) -> int:
    return sum(map(size_of, args))


def _pairs(left: Any, right: Any) -> int:
    if not isinstance(left, list) or not isinstance(right, list):
        return 0
    return size_of(left) * len(right) + size_of(right) * len(left)


def _pattern(text: Any, pattern: Any, *_: Any) -> int:
    if not isinstance(text, str) or not isinstance(pattern, str):
        return 0
    return (len(text) // 10 + 1) * (len(pattern) // 4 + 1)


def _found(text: Any, pattern: Any, *_: Any) -> int:
    """Return the cost of find() and findAll(), which use a backtracking engine; about fifty of its steps take one
    unit."""
    if not isinstance(text, str) or not isinstance(pattern, str):
        return 0
    try:
        return worst_steps(text, pattern) // 50 + _pattern(text, pattern)
    except ValueError:
        return 1  # the call reports the invalid pattern


def _replacement(text: Any, old: Any, new: Any, *_: Any) -> int:
    if not (isinstance(text, str) and isinstance(old, str) and isinstance(new, str)):
        return 0
    return (len(text) + text.count(old) * len(new)) // 10


def _joined(parts: Any, separator: Any = "") -> int:
    if not isinstance(parts, list) or not isinstance(separator, str):
        return 0
    return len(parts) + (sum(len(part) for part in parts if isinstance(part, str)) + len(parts) * len(separator)) // 10


def _distinct(items: Any) -> int:
    if not isinstance(items, list) or all(type(item) is str for item in items):
        return size_of(items)
    return size_of(items) * len(items)


def _range(count: Any) -> int:
    return max(0, count) if isinstance(count, int) else 0


CHARGES: dict[str, Charge] = {
    "sets.contains": _pairs,
    "sets.equivalent": lambda left, right: 2 * _pairs(left, right),
    "sets.intersects": _pairs,
    "matches": _pattern,
    "find": _found,
    "findAll": _found,
    "replace": _replacement,
    "join": _joined,
    "distinct": _distinct,
    "lists.range": _range,
}
"""Functions whose cost is not just the size of their arguments."""
