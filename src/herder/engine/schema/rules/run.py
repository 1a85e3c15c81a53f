"""Evaluate rules on values: one budget for all rules of an object, and the error messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from herder.engine.meta.errors import FieldError
from herder.engine.meta.work import TooMuchWork, current_meter
from herder.engine.schema.correlation import Correlated, unchanged
from herder.engine.schema.gotext import format_value, quote
from herder.engine.schema.nodes import Node, Schema
from herder.engine.schema.rules.compiler import CompiledRule, Expression
from herder.engine.schema.rules.field_path import normalized

CALL_BUDGET = 1_000_000
OBJECT_BUDGET = 10_000_000
_MAX_MESSAGE_BYTES = 5 * 1024
_NO_FIELD = "<nil>"


@dataclass(frozen=True, slots=True)
class _RuleCall:
    """One rule applied to one value."""

    node: Node
    rule: Schema
    ready: CompiledRule
    bindings: Mapping[str, Any]
    path: str

    @property
    def label(self) -> str:
        """Return the message or text of the rule, for errors."""
        return str(self.rule.get("message") or self.rule.get("rule") or "").strip()

    def error(self, detail: str) -> FieldError:
        """Return an evaluation error; it quotes the type of the value instead of the value."""
        body = f"Invalid value: {quote(self.node.type)}: {detail}"
        return FieldError("FieldValueInvalid", self.path or _NO_FIELD, body)


class RuleRun:
    """One validation: errors so far, and the remaining budget."""

    def __init__(self) -> None:
        self.errors: list[FieldError] = []
        self.tolerated: list[FieldError] = []  # violated before, and unchanged
        self.spent = False
        self._budget = OBJECT_BUDGET
        self._meter = current_meter()

    def check_rules(
        self,
        node: Node,
        compiled: Sequence[CompiledRule],
        value: Any,
        old: Any,
        path: str,
        correlated: Correlated | None,
    ) -> None:
        for rule, ready in zip(node.rules, compiled, strict=False):
            optional = bool(rule.get("optionalOldSelf"))
            if ready.uses_old_self and old is None and not optional:
                continue  # a transition rule needs an old value
            call = _RuleCall(node, rule, ready, _bindings(value, old, optional=optional), path)
            if ready.problem:
                self.errors.append(call.error(f"rule compile error: {ready.problem}"))
            elif ready.expression is not None and self._is_violated(call, ready.expression):
                tolerated = not ready.uses_old_self and unchanged(correlated)
                self._add_failure(call, self.tolerated if tolerated else self.errors)
            if self.spent:
                return

    def _is_violated(self, call: _RuleCall, expression: Expression) -> bool:
        from herder.engine.schema.cel.errors import BudgetExceeded, EvaluationError

        try:
            outcome, cost = self._evaluate(expression, call.bindings)
        except BudgetExceeded as error:
            detail_ = "no further validation rules will be run due to call cost exceeds limit for rule"
            self._exhaust(call.error(f"'{error}': {detail_}: {call.label}"), self.errors)
            return False
        except EvaluationError as error:
            self.errors.append(call.error(_evaluation_problem(str(error), call.label)))
            return False
        if cost > self._budget:
            detail_ = "validation failed due to running out of cost budget, no further validation rules will be run"
            self._exhaust(call.error(detail_), self.errors)
            return False
        self._budget -= cost
        return outcome is not True

    def _evaluate(self, expression: Expression, bindings: Mapping[str, Any]) -> tuple[Any, int]:
        """Return the value and its cost, which is also charged to the work meter of the request, even on failure."""
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

    def _exhaust(self, error: FieldError, found: list[FieldError]) -> None:
        found.append(error)
        self.spent = True

    def _add_failure(self, call: _RuleCall, found: list[FieldError]) -> None:
        message = self._message(call, found)
        if not self.spent:
            found.append(_failure(call, message or _fixed_message(call)))

    def _message(self, call: _RuleCall, found: list[FieldError]) -> str:
        """Return the result of the rule's messageExpression; empty if it fails, so that the fixed message is used."""
        from herder.engine.schema.cel.errors import BudgetExceeded, EvaluationError

        if call.ready.message is None:
            return ""
        try:
            text, cost = self._evaluate(call.ready.message, call.bindings)
        except BudgetExceeded:
            detail_ = "no further validation rules will be run due to call cost exceeds limit for messageExpression"
            self._exhaust(call.error(f"{detail_}: {quote(call.rule['messageExpression'])}"), found)
            return ""
        except EvaluationError:
            return ""
        if cost > self._budget:
            detail_ = (
                "messageExpression evaluation failed due to running out of cost budget, no further validation rules"
            )
            self._exhaust(call.error(f"{detail_} will be run"), found)
            return ""
        self._budget -= cost
        trimmed = text.strip() if isinstance(text, str) else ""
        return "" if len(trimmed.encode()) > _MAX_MESSAGE_BYTES or "\n" in trimmed else trimmed


def _bindings(value: Any, old: Any, *, optional: bool) -> dict[str, Any]:
    if not optional:
        return {"self": value} if old is None else {"self": value, "oldSelf": old}
    from herder.engine.schema.cel.values import Optional

    return {"self": value, "oldSelf": Optional(old, present=old is not None)}


def _evaluation_problem(error: str, message: str) -> str:
    if error.startswith("no such overload"):
        detail_ = "call arguments did not match a supported operator, function or macro signature for rule"
        return f"'{error}': {detail_}: {message}"
    return f"{error} evaluating rule: {message}"


def _fixed_message(call: _RuleCall) -> str:
    return call.label if call.rule.get("message") else f"failed rule: {call.label}"


def _failure(call: _RuleCall, detail: str) -> FieldError:
    """Return the error of a violated rule with its reason and fieldPath. Objects and lists are not quoted."""
    node, rule, field = call.node, call.rule, call.path
    inner = normalized(rule["fieldPath"], node) if rule.get("fieldPath") else ""
    if inner:
        field = f"{field}.{inner}" if field else inner
    field = field or _NO_FIELD
    quoted = "" if node.type in ("object", "array") else f": {format_value(call.bindings['self'])}"
    reason = rule.get("reason") or "FieldValueInvalid"
    if reason == "FieldValueForbidden":
        return FieldError(reason, field, f"Forbidden: {detail}")
    if reason == "FieldValueRequired":
        return FieldError(reason, field, f"Required value: {detail}")
    if reason == "FieldValueDuplicate":
        return FieldError(reason, field, f"Duplicate value{quoted}")
    return FieldError("FieldValueInvalid", field, f"Invalid value{quoted}: {detail}")
