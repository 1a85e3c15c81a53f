"""Cost limits for the rules of a schema.

The estimated cost of a rule is multiplied by how often its schema can occur in one object: the product of the bounds of
the enclosing lists and maps or, if one is unbounded, how often such a value fits into a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from herder.engine.meta.errors import FieldError, forbidden_field
from herder.engine.schema.gotext import format_value, to_json
from herder.engine.schema.nodes import Schema
from herder.engine.schema.rules.compiler import CompiledRules

RULE_LIMIT = 10_000_000
SCHEMA_LIMIT = 100_000_000
_MAX_REQUEST_BYTES = 3 * 1024 * 1024
_MAX_COST = 2**64 - 1
_MAX_NAMED = 4


@dataclass(frozen=True, slots=True)
class Cardinality:
    """How often a schema can occur in an object; None if unbounded."""

    bound: int | None

    def below(self, schema: Schema) -> Cardinality:
        """Return the cardinality of the parts of the schema's values."""
        if self.bound is None:
            return self
        bound: int | None = 1
        if schema.get("type") == "object":
            bound = 1 if schema.get("additionalProperties") is None else schema.get("maxProperties")
        elif schema.get("type") == "array":
            bound = schema.get("maxItems")
        return Cardinality(None if bound is None else min(self.bound * max(bound, 0), _MAX_COST))


class CostTotal:
    """Total cost of all rules of a schema, and its most expensive rules."""

    def __init__(self) -> None:
        self._total = 0
        self._costs: list[tuple[int, str]] = []

    def observe(self, path: str, cost: int) -> None:
        self._total = min(self._total + cost, _MAX_COST)
        self._costs.append((cost, path))

    def errors(self, path: str) -> list[FieldError]:
        if self._total <= SCHEMA_LIMIT:
            return []
        heavy = [entry for entry in self._costs if entry[0] >= SCHEMA_LIMIT // 100]
        heaviest = sorted(heavy, key=lambda entry: -entry[0])[:_MAX_NAMED]
        why = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"
        total = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema"
        return [
            *(forbidden_field(at, why) for _, at in heaviest),
            forbidden_field(path, _exceeds(total, self._total, SCHEMA_LIMIT)),
        ]


def check_rules(
    compiled: CompiledRules | None,
    rules: Sequence[Schema],
    path: str,
    *,
    cardinality: Cardinality,
    uncorrelatable: str,
    total: CostTotal,
) -> list[FieldError]:
    """Return the errors of the rules of one schema; their costs are added to the total."""
    if compiled is None:
        detail = "unable to convert structural schema to CEL declarations"
        message_ = f"failed to construct type information for x-kubernetes-validations rules: {detail}"
        return [FieldError("InternalError", path, f"Internal error: internal error: {message_}")]
    occurs = cardinality.bound
    if occurs is None:
        occurs = _MAX_REQUEST_BYTES // (compiled.min_size + 1)
    found: list[FieldError] = []
    for index, (rule, ready) in enumerate(zip(rules, compiled.rules, strict=True)):
        at = f"{path}[{index}]"
        cost = min(ready.expression.max_cost * occurs, _MAX_COST) if ready.expression else 0
        if cost > RULE_LIMIT:
            found.append(forbidden_field(f"{at}.rule", _exceeds("estimated rule cost", cost, RULE_LIMIT)))
        total.observe(f"{at}.rule", cost)
        if ready.problem:
            found.append(_rejected(f"{at}.rule", rule, ready.problem))
        if ready.message_problem:
            found.append(_rejected(f"{at}.messageExpression", rule, ready.message_problem))
        elif ready.message is not None:
            message_cost = ready.message.max_cost
            if message_cost > RULE_LIMIT:
                message_ = _exceeds("estimated messageExpression cost", message_cost, RULE_LIMIT)
                found.append(forbidden_field(f"{at}.messageExpression", message_))
            total.observe(f"{at}.messageExpression", message_cost)
        if ready.uses_old_self and uncorrelatable:
            message_ = f"oldSelf cannot be used on the uncorrelatable portion of the schema within {uncorrelatable}"
            found.append(_invalid(f"{at}.rule", format_value(rule.get("rule")), message_))
        elif not ready.uses_old_self and rule.get("optionalOldSelf") is not None:
            message_ = "may not be set if oldSelf is not used in rule"
            found.append(_invalid(f"{at}.optionalOldSelf", format_value(rule["optionalOldSelf"]), message_))
    return found


def _rejected(path: str, rule: Schema, problem: str) -> FieldError:
    """Return an error that quotes the whole rule with kube-apiserver's internal field names."""
    inner = {
        "Rule": rule.get("rule") or "",
        "Message": rule.get("message") or "",
        "MessageExpression": rule.get("messageExpression") or "",
        "Reason": rule.get("reason"),
        "FieldPath": rule.get("fieldPath") or "",
        "OptionalOldSelf": rule.get("optionalOldSelf"),
    }
    quoted = ",".join(f'"{name}":{to_json(value)}' for name, value in inner.items())
    return _invalid(path, f"{{{quoted}}}", problem)


def _invalid(path: str, rendered: str, detail: str) -> FieldError:
    return FieldError("FieldValueInvalid", path, f"Invalid value: {rendered}: {detail}")


def _exceeds(what: str, cost: int, limit: int) -> str:
    ratio = cost / limit
    factor = "more than 100x" if ratio > 100 else f"{ratio:f}x" if ratio < 1.5 else f"{ratio:.1f}x"
    advice = (
        "try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings"
    )
    return f"{what} exceeds budget by factor of {factor} ({advice} are declared)"
