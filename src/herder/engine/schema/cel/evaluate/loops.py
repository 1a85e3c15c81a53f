"""Comprehension macros at run time.

Each iteration is charged, so that nested loops over large lists end with the budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from herder.engine.schema.cel.errors import BudgetExceeded, EvaluationError, no_such_overload
from herder.engine.schema.cel.evaluate.access import Evaluate
from herder.engine.schema.cel.library.lists import sort_by_keys
from herder.engine.schema.cel.values import NONE, Optional

BUDGET = 0
"""Slot of a frame that holds the remaining steps."""


class LoopPlan:
    """A planned loop: source of the elements, slots of the variables, cost per iteration."""

    __slots__ = ("cost", "range", "second", "slot")

    def __init__(self, range: Evaluate, slot: int, second: int | None, cost: int) -> None:
        self.range = range
        self.slot = slot
        self.second = second
        self.cost = cost

    def iterate(self, frame: list[Any]) -> Iterator[Any]:
        """Bind the variables for each iteration and yield the value of the first."""
        slot, second, cost = self.slot, self.second, self.cost
        for first, other in self._items(self.range(frame)):
            left = frame[BUDGET] - cost
            if left < 0:
                raise BudgetExceeded
            frame[BUDGET] = left
            frame[slot] = first
            if second is not None:
                frame[second] = other
            yield first

    def _items(self, container: Any) -> Iterable[tuple[Any, Any]]:
        if type(container) is list:
            return enumerate(container) if self.second is not None else ((item, None) for item in container)
        if type(container) is dict:
            return container.items()
        raise no_such_overload()


def quantifier(plan: LoopPlan, predicate: Evaluate, *, stop_at: bool) -> Evaluate:
    """Plan `all` (stops at False) and `exists` (stops at True): a decisive element hides failures on others."""
    slot, cost = plan.slot, plan.cost

    def simple(frame: list[Any]) -> bool:
        items = plan.range(frame)
        if type(items) is not list:
            return general(frame)
        failure: EvaluationError | None = None
        for item in items:
            left = frame[BUDGET] - cost
            if left < 0:
                raise BudgetExceeded
            frame[BUDGET] = left
            frame[slot] = item
            try:
                if bool(predicate(frame)) is stop_at:
                    return stop_at
            except EvaluationError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return not stop_at

    def general(frame: list[Any]) -> bool:
        failure: EvaluationError | None = None
        for _ in plan.iterate(frame):
            try:
                if bool(predicate(frame)) is stop_at:
                    return stop_at
            except EvaluationError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return not stop_at

    return simple if plan.second is None else general


def exists_one(plan: LoopPlan, predicate: Evaluate) -> Evaluate:
    def run(frame: list[Any]) -> bool:
        count = 0
        for _ in plan.iterate(frame):
            count += predicate(frame) is True
        return count == 1

    return run


def filter_list(plan: LoopPlan, predicate: Evaluate) -> Evaluate:
    return lambda frame: [item for item in plan.iterate(frame) if predicate(frame)]


def map_list(plan: LoopPlan, predicate: Evaluate | None, transform: Evaluate) -> Evaluate:
    """Plan `map` and `transformList`."""
    if predicate is None:
        return lambda frame: [transform(frame) for _ in plan.iterate(frame)]
    return lambda frame: [transform(frame) for _ in plan.iterate(frame) if predicate(frame)]


def map_values(plan: LoopPlan, predicate: Evaluate | None, transform: Evaluate) -> Evaluate:
    """Plan `transformMap`: the same keys (or indexes), new values."""

    def run(frame: list[Any]) -> dict[Any, Any]:
        return {key: transform(frame) for key in plan.iterate(frame) if predicate is None or predicate(frame)}

    return run


def map_entries(plan: LoopPlan, predicate: Evaluate | None, transform: Evaluate) -> Evaluate:
    """Plan `transformMapEntry`: each iteration returns a map, and keys must be unique."""

    def run(frame: list[Any]) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        for _ in plan.iterate(frame):
            if predicate is not None and not predicate(frame):
                continue
            entry = transform(frame)
            if type(entry) is not dict:
                raise no_such_overload()
            for key, value in entry.items():
                if key in result:
                    raise EvaluationError(f"insert failed: key {key} already exists")
                result[key] = value
        return result

    return run


def sort_by(plan: LoopPlan, key: Evaluate) -> Evaluate:
    """Plan `sortBy`."""

    def run(frame: list[Any]) -> list[Any]:
        items: list[Any] = []
        keys: list[Any] = []
        for item in plan.iterate(frame):
            items.append(item)
            keys.append(key(frame))
        return sort_by_keys(items, keys)

    return run


def map_optional(optional: Evaluate, slot: int, transform: Evaluate, *, flat: bool) -> Evaluate:
    """Plan `optMap` and `optFlatMap`."""

    def run(frame: list[Any]) -> Optional:
        value = optional(frame)
        if type(value) is not Optional:
            raise no_such_overload()
        if not value.present:
            return NONE
        frame[slot] = value.value
        result = transform(frame)
        if not flat:
            return Optional(result)
        if type(result) is not Optional:
            raise no_such_overload()
        return result

    return run
