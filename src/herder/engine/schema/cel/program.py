"""From text to something that runs: parse, check, and turn into closures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from herder.engine.schema.cel.env import Env
from herder.engine.schema.cel.evaluator import Evaluate, plan
from herder.engine.schema.cel.types import Type

PER_CALL_BUDGET = 1_000_000
"""Steps one evaluation may take, as in Kubernetes; roughly a tenth of a second there."""


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled expression; immutable, so one may be shared by all requests."""

    text: str
    result_type: Type
    references: frozenset[str]
    """Variables the expression uses (`oldSelf` makes a rule a transition rule)."""
    max_cost: int
    """Worst-case cost over the largest values the schema types allow, in the units of Kubernetes' CEL budgets."""
    _run: Evaluate
    _slots: tuple[str, ...]
    _base_cost: int
    _scratch: int

    def evaluate(self, bindings: Mapping[str, Any], budget: int = PER_CALL_BUDGET) -> Any:
        """The value of the expression. Raises EvaluationError, or BudgetExceeded after `budget` steps."""
        return self.evaluate_with_cost(bindings, budget)[0]

    def evaluate_with_cost(self, bindings: Mapping[str, Any], budget: int = PER_CALL_BUDGET) -> tuple[Any, int]:
        """The value and the steps it took, for callers that share one budget among many expressions."""
        raise NotImplementedError


def compile(text: str, env: Env) -> Program:
    """Compile an expression; raises ParseError or CheckError with all that is wrong with it."""
    raise NotImplementedError
