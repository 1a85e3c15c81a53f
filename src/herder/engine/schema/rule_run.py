"""Running rules on values: one budget for all rules of an object, and the words for what they find."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from herder.engine.meta.errors import FieldError
from herder.engine.meta.work import TooMuchWork, current_meter
from herder.engine.schema.correlation import Correlated, unchanged
from herder.engine.schema.fieldpaths import normalized
from herder.engine.schema.gotext import quote, shown
from herder.engine.schema.nodes import Node, Schema
from herder.engine.schema.rule_compiler import CompiledRule, Expression

CALL_BUDGET = 1_000_000
OBJECT_BUDGET = 10_000_000
_LONGEST_MESSAGE = 5 * 1024
_NO_FIELD = "<nil>"


@dataclass(frozen=True, slots=True)
class _Firing:
    """One rule meeting one value."""

    node: Node
    rule: Schema
    ready: CompiledRule
    bindings: Mapping[str, Any]
    path: str

    @property
    def told(self) -> str:
        """How errors name the rule: by its message, or its text."""
        return str(self.rule.get("message") or self.rule.get("rule") or "").strip()

    def error(self, detail: str) -> FieldError:
        """Something went wrong in running the rule; the value's type stands for the value."""
        body = f"Invalid value: {quote(self.node.type)}: {detail}"
        return FieldError("FieldValueInvalid", self.path or _NO_FIELD, body)


class RuleRun:
    """One validation: what was found so far, and the budget left."""

    def __init__(self) -> None:
        self.errors: list[FieldError] = []
        self.tolerated: list[FieldError] = []  # wrong before, and unchanged
        self.spent = False
        self._budget = OBJECT_BUDGET
        self._meter = current_meter()

    def check_rules(
        self, node: Node, compiled: Sequence[CompiledRule], value: Any, old: Any, path: str, here: Correlated | None
    ) -> None:
        for rule, ready in zip(node.rules, compiled, strict=False):
            optional = bool(rule.get("optionalOldSelf"))
            if ready.uses_old_self and old is None and not optional:
                continue  # a transition needs a value to come from
            firing = _Firing(node, rule, ready, _bindings(value, old, optional=optional), path)
            if ready.problem:
                self.errors.append(firing.error(f"rule compile error: {ready.problem}"))
            elif ready.expression is not None and self._fails(firing, ready.expression):
                tolerated = not ready.uses_old_self and unchanged(here)
                self._add_failure(firing, self.tolerated if tolerated else self.errors)
            if self.spent:
                return

    def _fails(self, firing: _Firing, expression: Expression) -> bool:
        from herder.engine.schema.cel.errors import BudgetExceeded, EvaluationError

        try:
            outcome, cost = self._evaluate(expression, firing.bindings)
        except BudgetExceeded as error:
            words = "no further validation rules will be run due to call cost exceeds limit for rule"
            self._give_up(firing.error(f"'{error}': {words}: {firing.told}"), self.errors)
            return False
        except EvaluationError as error:
            self.errors.append(firing.error(_evaluation_problem(str(error), firing.told)))
            return False
        if cost > self._budget:
            words = "validation failed due to running out of cost budget, no further validation rules will be run"
            self._give_up(firing.error(words), self.errors)
            return False
        self._budget -= cost
        return outcome is not True

    def _evaluate(self, expression: Expression, bindings: Mapping[str, Any]) -> tuple[Any, int]:
        """The value and its cost, which the meter of the request pays too: a rule that fails is not free."""
        from herder.engine.schema.cel.errors import BudgetExceeded, EvaluationError

        meter = self._meter
        allowed = min(CALL_BUDGET, meter.left)
        try:
            value, cost = expression.evaluate_with_cost(bindings, allowed)
        except BudgetExceeded:
            if allowed < CALL_BUDGET:
                raise TooMuchWork(meter.limit) from None
            meter.spend(allowed)
            raise
        except EvaluationError as error:
            meter.spend(error.cost)
            raise
        meter.spend(cost)
        return value, cost

    def _give_up(self, error: FieldError, found: list[FieldError]) -> None:
        found.append(error)
        self.spent = True

    def _add_failure(self, firing: _Firing, found: list[FieldError]) -> None:
        message = self._message(firing, found)
        if not self.spent:
            found.append(_failure(firing, message or _fixed_message(firing)))

    def _message(self, firing: _Firing, found: list[FieldError]) -> str:
        """What the rule's messageExpression says; nothing when that fails, for then the fixed message serves."""
        from herder.engine.schema.cel.errors import BudgetExceeded, EvaluationError

        if firing.ready.message is None:
            return ""
        try:
            text, cost = self._evaluate(firing.ready.message, firing.bindings)
        except BudgetExceeded:
            words = "no further validation rules will be run due to call cost exceeds limit for messageExpression"
            self._give_up(firing.error(f"{words}: {quote(firing.rule['messageExpression'])}"), found)
            return ""
        except EvaluationError:
            return ""
        if cost > self._budget:
            words = "messageExpression evaluation failed due to running out of cost budget, no further validation rules"
            self._give_up(firing.error(f"{words} will be run"), found)
            return ""
        self._budget -= cost
        trimmed = text.strip() if isinstance(text, str) else ""
        return "" if len(trimmed.encode()) > _LONGEST_MESSAGE or "\n" in trimmed else trimmed


def _bindings(value: Any, old: Any, *, optional: bool) -> dict[str, Any]:
    if not optional:
        return {"self": value} if old is None else {"self": value, "oldSelf": old}
    from herder.engine.schema.cel.values import Optional

    return {"self": value, "oldSelf": Optional(old, present=old is not None)}


def _evaluation_problem(error: str, message: str) -> str:
    if error.startswith("no such overload"):
        words = "call arguments did not match a supported operator, function or macro signature for rule"
        return f"'{error}': {words}: {message}"
    return f"{error} evaluating rule: {message}"


def _fixed_message(firing: _Firing) -> str:
    return firing.told if firing.rule.get("message") else f"failed rule: {firing.told}"


def _failure(firing: _Firing, detail: str) -> FieldError:
    """A rule that does not hold, told by its reason, at its fieldPath. Whole objects and lists are not quoted."""
    node, rule, field = firing.node, firing.rule, firing.path
    inner = normalized(rule["fieldPath"], node) if rule.get("fieldPath") else ""
    if inner:
        field = f"{field}.{inner}" if field else inner
    field = field or _NO_FIELD
    quoted = "" if node.type in ("object", "array") else f": {shown(firing.bindings['self'])}"
    reason = rule.get("reason") or "FieldValueInvalid"
    if reason == "FieldValueForbidden":
        return FieldError(reason, field, f"Forbidden: {detail}")
    if reason == "FieldValueRequired":
        return FieldError(reason, field, f"Required value: {detail}")
    if reason == "FieldValueDuplicate":
        return FieldError(reason, field, f"Duplicate value{quoted}")
    return FieldError("FieldValueInvalid", field, f"Invalid value{quoted}: {detail}")
