"""CEL rules of a schema (`x-kubernetes-validations`): where they apply, with which old value, and what they report.

How an expression is compiled is injected (`RuleCompiler`), the CEL package by default; it is imported only when a
schema has rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from herder.engine.meta.errors import FieldError
from herder.engine.schema.correlation import Correlated, KeyedList, unchanged
from herder.engine.schema.fieldpaths import normalized
from herder.engine.schema.gotext import quote, shown
from herder.engine.schema.nodes import Node, Schema

CALL_BUDGET = 1_000_000
OBJECT_BUDGET = 10_000_000
_LONGEST_MESSAGE = 5 * 1024
_NO_FIELD = "<nil>"


class Expression(Protocol):
    @property
    def max_cost(self) -> int: ...

    def evaluate_with_cost(self, bindings: Mapping[str, Any], budget: int) -> tuple[Any, int]: ...


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """A rule ready to run, or what is wrong with it."""

    text: str
    expression: Expression | None = None
    message: Expression | None = None
    uses_old_self: bool = False
    problem: str = ""
    message_problem: str = ""


@dataclass(frozen=True, slots=True)
class CompiledRules:
    rules: Sequence[CompiledRule]
    min_size: int = 1  # of a value of this schema, in bytes: bounds how often it can occur in a request


class RuleCompiler(Protocol):
    def __call__(self, schema: Schema, *, resource_root: bool) -> CompiledRules | None:
        """The rules of one schema, in order; None when expressions cannot see such values at all."""
        ...


def compile_with_cel(schema: Schema, *, resource_root: bool) -> CompiledRules | None:
    from herder.engine.schema import cel

    value_type = cel.schema_type(schema, resource_root=resource_root)
    if value_type is None:
        return None
    compiled = [_compile_rule(rule, value_type) for rule in schema["x-kubernetes-validations"]]
    return CompiledRules(compiled, value_type.min_size)


def _compile_rule(rule: Schema, value_type: Any) -> CompiledRule:
    from herder.engine.schema import cel

    text = rule.get("rule") or ""
    if not text.strip():
        return CompiledRule(text)
    env = cel.rule_env_of_type(value_type, optional_old_self=bool(rule.get("optionalOldSelf")))
    try:
        program = cel.compile(text, env)
    except cel.CelError as error:
        return CompiledRule(text, problem=f"compilation failed: {error}")
    uses_old_self = "oldSelf" in program.references
    if program.result_type.kind != "bool":
        return CompiledRule(text, problem="cel expression must evaluate to a bool")
    message, message_problem = None, ""
    if rule.get("messageExpression"):
        try:
            message = cel.compile(rule["messageExpression"], env)
        except cel.CelError as error:
            message_problem = f"messageExpression compilation failed: {error}"
        if message is not None and message.result_type.kind != "string":
            message, message_problem = None, "messageExpression must evaluate to a string"
    return CompiledRule(text, program, message, uses_old_self, message_problem=message_problem)


class RuleTree:
    """The parts of a schema that have rules at or below them."""

    __slots__ = ("_compile", "_compiled", "_items", "_node", "_others", "_properties", "_root")

    def __init__(self, node: Node, compiler: RuleCompiler, *, root: bool) -> None:
        self._node = node
        self._root = root
        self._compile = compiler
        self._compiled: Sequence[CompiledRule] | None = None
        self._items = _below(node.items, compiler)
        self._others = _below(node.additional, compiler)
        self._properties = {
            name: tree for name, sub in node.properties.items() if (tree := _below(sub, compiler)) is not None
        }

    def validate(self, obj: Any, old: Any, correlated: Correlated | None, path: str = "") -> list[FieldError]:
        run = _Run()
        self.check(run, obj, old, path, correlated, None)
        return run.errors

    def check(
        self, run: _Run, value: Any, old: Any, path: str, here: Correlated | None, nearest: Correlated | None
    ) -> None:
        if value is None or run.spent:
            return
        if self._node.rules:
            tolerated = here if here is not None else nearest
            run.check_rules(self._node, self._rules(), value, old, path, tolerated)
        if type(value) is list and self._items is not None:
            self._check_items(run, value, old, path, here, nearest)
        elif type(value) is dict:
            self._check_fields(run, value, old if type(old) is dict else {}, path, here, nearest)

    def _rules(self) -> Sequence[CompiledRule]:
        if self._compiled is None:
            compiled = self._compile(self._node.schema, resource_root=self._root)
            self._compiled = compiled.rules if compiled else ()
        return self._compiled

    def _check_items(
        self, run: _Run, value: list[Any], old: Any, path: str, here: Correlated | None, nearest: Correlated | None
    ) -> None:
        assert self._items is not None
        old_items = KeyedList(self._node, old)
        for index, item in enumerate(value):
            inner = here.index(index) if here else None
            self._items.check(run, item, old_items.get(item), f"{path}[{index}]", inner, here or nearest)

    def _check_fields(
        self,
        run: _Run,
        value: dict[str, Any],
        old: dict[str, Any],
        path: str,
        here: Correlated | None,
        nearest: Correlated | None,
    ) -> None:
        if self._others is not None:
            for name, sub in value.items():
                inner = here.key(name) if here else None
                self._others.check(run, sub, old.get(name), f"{path}[{name}]", inner, here or nearest)
        for name, tree in self._properties.items():
            if name not in value:
                continue
            inner, around = here.key(name) if here else None, here or nearest
            if nearest is None and name in ("apiVersion", "kind"):
                inner = around = None  # old and new are shown at one version, so a change would go unseen
            tree.check(run, value[name], old.get(name), f"{path}.{name}" if path else name, inner, around)


def _below(node: Node | None, compiler: RuleCompiler) -> RuleTree | None:
    if node is None or not has_rules(node):
        return None
    return RuleTree(node, compiler, root=node.embedded)


def has_rules(node: Node) -> bool:
    return bool(node.rules) or any(map(has_rules, node.children))


class _Run:
    """One validation: the errors so far and the budget left."""

    def __init__(self) -> None:
        self.errors: list[FieldError] = []
        self.budget = OBJECT_BUDGET
        self.spent = False

    def check_rules(
        self, node: Node, compiled: Sequence[CompiledRule], value: Any, old: Any, path: str, here: Correlated | None
    ) -> None:
        for rule, ready in zip(node.rules, compiled, strict=False):
            if ready.problem:
                self._report(node, path, f"rule compile error: {ready.problem}")
                continue
            if ready.expression is None:
                continue
            optional = bool(rule.get("optionalOldSelf"))
            if ready.uses_old_self and old is None and not optional:
                continue
            bindings = _bindings(value, old, optional=optional)
            outcome = self._evaluate(node, rule, ready.expression, bindings, path)
            if self.spent:
                return
            if outcome is False and (ready.uses_old_self or not unchanged(here)):
                self._add_failure(node, rule, ready, bindings, path)
                if self.spent:
                    return

    def _evaluate(
        self, node: Node, rule: Schema, expression: Expression, bindings: Mapping[str, Any], path: str
    ) -> Any:
        from herder.engine.schema.cel.errors import BudgetExceeded, EvaluationError

        told = _told(rule)
        try:
            outcome, cost = expression.evaluate_with_cost(bindings, CALL_BUDGET)
        except BudgetExceeded as error:
            words = "no further validation rules will be run due to call cost exceeds limit for rule"
            self._report(node, path, f"'{error}': {words}: {told}")
            self.spent = True
            return None
        except EvaluationError as error:
            if str(error).startswith("no such overload"):
                words = "call arguments did not match a supported operator, function or macro signature for rule"
                self._report(node, path, f"'{error}': {words}: {told}")
            else:
                self._report(node, path, f"{error} evaluating rule: {told}")
            return None
        if cost > self.budget:
            words = "validation failed due to running out of cost budget, no further validation rules will be run"
            self._report(node, path, words)
            self.spent = True
            return None
        self.budget -= cost
        return outcome

    def _report(self, node: Node, path: str, detail: str) -> None:
        body = f"Invalid value: {quote(node.type)}: {detail}"
        self.errors.append(FieldError("FieldValueInvalid", path or _NO_FIELD, body))

    def _add_failure(
        self, node: Node, rule: Schema, ready: CompiledRule, bindings: Mapping[str, Any], path: str
    ) -> None:
        inner = normalized(rule["fieldPath"], node) if rule.get("fieldPath") else ""
        if inner:
            path = f"{path}.{inner}" if path else inner
        detail = self._message(node, rule, ready, bindings, path) if ready.message else ""
        if not self.spent:
            detail = detail or _message_or_default(rule)
            self.errors.append(_failure(node, rule, bindings["self"], path or _NO_FIELD, detail))

    def _message(self, node: Node, rule: Schema, ready: CompiledRule, bindings: Mapping[str, Any], path: str) -> str:
        """What the rule's messageExpression says; nothing when that fails, for then the fixed message serves."""
        from herder.engine.schema.cel.errors import BudgetExceeded, EvaluationError

        assert ready.message is not None
        try:
            text, cost = ready.message.evaluate_with_cost(bindings, CALL_BUDGET)
        except BudgetExceeded:
            words = "no further validation rules will be run due to call cost exceeds limit for messageExpression"
            self._report(node, path, f"{words}: {quote(rule['messageExpression'])}")
            self.spent = True
            return ""
        except EvaluationError:
            return ""
        if cost > self.budget:
            words = "messageExpression evaluation failed due to running out of cost budget, no further validation rules"
            self._report(node, path, f"{words} will be run")
            self.spent = True
            return ""
        self.budget -= cost
        trimmed = text.strip() if isinstance(text, str) else ""
        return "" if len(trimmed.encode()) > _LONGEST_MESSAGE or "\n" in trimmed else trimmed


def _bindings(value: Any, old: Any, *, optional: bool) -> dict[str, Any]:
    if not optional:
        return {"self": value} if old is None else {"self": value, "oldSelf": old}
    from herder.engine.schema.cel.values import Optional

    return {"self": value, "oldSelf": Optional(old, present=old is not None)}


def _failure(node: Node, rule: Schema, value: Any, field: str, detail: str) -> FieldError:
    reason = rule.get("reason") or "FieldValueInvalid"
    rendered = "" if node.type in ("object", "array") else f": {shown(value)}"
    if reason == "FieldValueForbidden":
        return FieldError(reason, field, f"Forbidden: {detail}")
    if reason == "FieldValueRequired":
        return FieldError(reason, field, f"Required value: {detail}")
    if reason == "FieldValueDuplicate":
        return FieldError(reason, field, f"Duplicate value{rendered}")
    return FieldError("FieldValueInvalid", field, f"Invalid value{rendered}: {detail}")


def _told(rule: Schema) -> str:
    return str(rule.get("message") or rule.get("rule") or "").strip()


def _message_or_default(rule: Schema) -> str:
    return str(rule["message"]).strip() if rule.get("message") else f"failed rule: {_told(rule)}"
