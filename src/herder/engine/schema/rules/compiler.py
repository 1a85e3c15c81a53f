"""Compile validation rules of a schema.

This is the interface to CEL: another compiler can be injected, and the CEL package is imported only if a schema has
rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from herder.engine.schema.nodes import Schema


class Expression(Protocol):
    """A compiled expression."""

    @property
    def max_cost(self) -> int: ...

    def evaluate_with_cost(self, bindings: Mapping[str, Any], budget: int) -> tuple[Any, int]: ...


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """A compiled rule, or its error."""

    text: str
    expression: Expression | None = None
    message: Expression | None = None
    uses_old_self: bool = False
    problem: str = ""
    message_problem: str = ""


@dataclass(frozen=True, slots=True)
class CompiledRules:
    """The compiled rules of one schema."""

    rules: Sequence[CompiledRule]
    min_size: int = 1  # minimum bytes of a value of this schema: bounds how often it can occur in a request


class RuleCompiler(Protocol):
    """Compiles the rules of a schema."""

    def __call__(self, schema: Schema, *, resource_root: bool) -> CompiledRules | None:
        """Return the rules of one schema in order; None if expressions cannot access such values."""
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
