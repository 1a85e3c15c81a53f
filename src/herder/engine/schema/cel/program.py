"""Compile an expression: parse, check, and plan it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from herder.engine.meta.work import current_meter, set_meter
from herder.engine.schema.cel.check.checker import Checker
from herder.engine.schema.cel.check.estimate import estimate_cost
from herder.engine.schema.cel.check.validators import validate
from herder.engine.schema.cel.env import Env
from herder.engine.schema.cel.errors import BudgetExceeded, CheckError, EvaluationError, Issue
from herder.engine.schema.cel.evaluate.access import Evaluate
from herder.engine.schema.cel.evaluate.evaluator import Planner, cost_of
from herder.engine.schema.cel.library import functions
from herder.engine.schema.cel.parse.parser import parse
from herder.engine.schema.cel.types import Type

PER_CALL_BUDGET = 1_000_000
"""Maximum steps of one evaluation, as in Kubernetes (about a tenth of a second there)."""

_COMPILE_UNITS = 100
_TOO_DEEP = "expression recursion limit exceeded: 250"


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled, immutable expression that requests can share."""

    text: str
    result_type: Type
    references: frozenset[str]
    """Variables the expression uses (`oldSelf` makes a rule a transition rule)."""
    max_cost: int
    """Worst-case cost over the largest values the schema types allow, in the units of Kubernetes' CEL budgets."""
    _run: Evaluate
    _slots: tuple[tuple[str, int], ...]
    _frame_size: int
    _base_cost: int

    def evaluate(self, bindings: Mapping[str, Any], budget: int = PER_CALL_BUDGET) -> Any:
        """Evaluate the expression. Raises EvaluationError, or BudgetExceeded after `budget` steps.

        The steps are charged to the meter of the running computation, if its caller set one.
        """
        meter = set_meter()
        if meter is None:
            return self._run_in(self._frame(bindings, budget))
        allowed = min(budget, meter.left)
        try:
            value, cost = self.evaluate_with_cost(bindings, allowed)
        except BudgetExceeded:
            meter.spend(allowed + (allowed < budget))
            raise
        except EvaluationError as error:
            meter.spend(error.cost)
            raise
        meter.spend(cost)
        return value

    def evaluate_with_cost(self, bindings: Mapping[str, Any], budget: int = PER_CALL_BUDGET) -> tuple[Any, int]:
        """Return the value and the steps used, for callers that share one budget among expressions."""
        frame = self._frame(bindings, budget)
        try:
            value = self._run_in(frame)
        except EvaluationError as error:
            error.cost = budget - frame[0]
            raise
        return value, budget - frame[0]

    def _frame(self, bindings: Mapping[str, Any], budget: int) -> list[Any]:
        if budget < self._base_cost:
            raise BudgetExceeded
        frame: list[Any] = [None] * self._frame_size
        frame[0] = budget - self._base_cost
        for name, slot in self._slots:
            try:
                frame[slot] = bindings[name]
            except KeyError:
                raise EvaluationError(f"no such attribute(s): {name}") from None
        return frame

    def _run_in(self, frame: list[Any]) -> Any:
        try:
            return self._run(frame)
        except RecursionError:
            raise EvaluationError(_TOO_DEEP) from None


def compile(text: str, env: Env) -> Program:
    """Compile an expression; raises ParseError or CheckError with all issues."""
    # Parsing, checking and planning take some microseconds for each character.
    current_meter().spend(_COMPILE_UNITS + 5 * len(text))
    tree = parse(text)
    checker = Checker(text, env, functions(json_patch=env.json_patch))
    planner = Planner()
    try:
        result_type = checker.check(tree)
        validate(text, tree)
        run = planner.plan(tree)
        max_cost = estimate_cost(tree)
        base_cost = cost_of(tree)
    except RecursionError:
        raise CheckError(text, [Issue(-1, _TOO_DEEP)]) from None
    return Program(
        text=text,
        result_type=result_type,
        references=frozenset(checker.references),
        max_cost=max_cost,
        _run=run,
        _slots=tuple(planner.slots.items()),
        _frame_size=planner.size,
        _base_cost=base_cost,
    )
