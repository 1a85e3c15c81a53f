"""Detailed validation of a value against a schema, with kube-apiserver's errors.

kube-apiserver runs a fixed series of validators on each schema (type, junctors, string, format, number, list, enum,
object) and collects all results. For `anyOf` and `oneOf` it reports the errors of the alternative with the most passed
validators, so their number is part of the result. Names and order of the steps are the same here. Valid objects never
get here (see `fastcheck`).
"""

from __future__ import annotations

import math
from typing import Any

from herder.engine.meta.errors import FieldError
from herder.engine.schema import formats, re2
from herder.engine.schema.correlation import Correlated, same, unchanged
from herder.engine.schema.gotext import MAX_INT64, MIN_INT64, format_value, plain, quote, to_json
from herder.engine.schema.nodes import Node

_NO_FIELD = "<nil>"  # kube-apiserver's field name for an error without field


class Result:
    """Errors by message, and the number of passed validators."""

    __slots__ = ("errors", "matches")

    def __init__(self, matches: int = 0) -> None:
        self.errors: dict[str, FieldError] = {}
        self.matches = matches

    def add(self, message: str, error: FieldError) -> None:
        self.errors.setdefault(message, error)

    def merge(self, other: Result) -> None:
        for message, error in other.errors.items():
            self.errors.setdefault(message, error)
        self.matches += other.matches


def validate(node: Node, value: Any, correlated: Correlated | None = None, *, base: str = "") -> list[FieldError]:
    """Return the errors of a value. With an old value, unchanged errors are ratcheted.

    Errors are relative to the field `base`; messages name only fields below it, as in kube-apiserver.
    """
    result = _ratcheted(_Validator(base), node, value, "", correlated)
    return list(result.errors.values())


def is_valid(node: Node, value: Any) -> bool:
    return not _Validator("").check(node, value, "").errors


def _ratcheted(validator: _Validator, node: Node, value: Any, path: str, correlated: Correlated | None) -> Result:
    result = validator.check(node, value, path, correlated)
    return Result(result.matches) if result.errors and unchanged(correlated) else result


class _Validator:
    def __init__(self, base: str) -> None:
        self._base = base

    def check(self, node: Node, value: Any, path: str, correlated: Correlated | None = None) -> Result:
        result = Result()
        if value is None:
            self._type_of_null(node, path, result)
            self._enum(node, value, path, result)
            return result
        if node.types or node.format:
            result.matches += 1 + self._type(node, value, path, result)
        self._junctors(node, value, path, result)
        if isinstance(value, str):
            self._string(node, value, path, result)
            if node.format and formats.check_for(node.format):
                self._format(node, value, path, result)
                result.matches += 1
            result.matches += 1
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            self._number(node, value, path, result)
            result.matches += 2
        elif isinstance(value, list):
            self._list(node, value, path, correlated, result)
            result.matches += 2
        self._enum(node, value, path, result)
        if isinstance(value, dict):
            self._object(node, value, path, correlated, result)
            result.matches += 1
        result.matches += 3  # junctors, enum, and the schema itself
        return result

    # --- errors

    def _field(self, path: str) -> str:
        path = path.removeprefix(".")
        if self._base:
            return f"{self._base}.{path}" if path else self._base
        return path or _NO_FIELD

    def _invalid(self, result: Result, path: str, value: Any, detail: str, kind: str = "FieldValueInvalid") -> None:
        message = f"{path} in body {detail}"
        self._add(result, path, value, message, kind)

    def _add(self, result: Result, path: str, value: Any, message: str, kind: str = "FieldValueInvalid") -> None:
        body = f"Invalid value: {format_value(value)}: {message}"
        result.add(message, FieldError(kind, self._field(path), body))

    def _add_without_field(self, result: Result, message: str) -> None:
        body = f'Invalid value: "": {message}'
        result.add(message, FieldError("FieldValueInvalid", self._base or _NO_FIELD, body))

    # --- type

    def _type_of_null(self, node: Node, path: str, result: Result) -> None:
        if node.types and not node.nullable:
            self._wrong_type(result, path, ",".join(node.types), "null")
        else:
            result.matches += 1

    def _type(self, node: Node, value: Any, path: str, result: Result) -> int:
        """Return 1 if the type matches."""
        kind, kind_format = _kind(value)
        whole = kind == "number" and _is_near_integer(value) and "integer" in node.types
        fits = kind in node.types or whole or (kind == "integer" and "number" in node.types)
        numeric = "number" in node.types or "integer" in node.types
        if kind not in ("string", "array") and node.format and not (fits or kind_format == node.format):
            self._wrong_type(result, path, node.format, kind_format)
            return 0
        if not numeric and node.format and kind in ("string", "array"):
            return 1
        if not fits:
            self._wrong_type(result, path, ",".join(node.types), kind)
            return 0
        return 1

    def _wrong_type(self, result: Result, path: str, wanted: str, got: str) -> None:
        self._invalid(result, path, got, f"must be of type {wanted}: {quote(got)}", "FieldValueTypeInvalid")

    # --- junctors

    def _junctors(self, node: Node, value: Any, path: str, result: Result) -> None:
        # No ratcheting inside junctors: only the whole value can be ratcheted.
        if node.any_of:
            self._any_of(node, value, path, result)
        if node.one_of:
            self._one_of(node, value, path, result)
        if node.all_of:
            self._all_of(node, value, path, result)
        if node.negated is not None and not self.check(node.negated, value, path).errors:
            self._add_without_field(result, f"{quote(path)} must not validate the schema (not)")
        result.matches += 1

    def _any_of(self, node: Node, value: Any, path: str, result: Result) -> None:
        best: Result | None = None
        for option in node.any_of:
            outcome = self.check(option, value, path)
            if not outcome.errors:
                result.merge(outcome)
                return
            if best is None or outcome.matches > best.matches:
                best = outcome
        self._add_without_field(result, f"{quote(path)} must validate at least one schema (anyOf)")
        if best is not None:
            result.merge(best)

    def _one_of(self, node: Node, value: Any, path: str, result: Result) -> None:
        best: Result | None = None
        valid: list[Result] = []
        for option in node.one_of:
            outcome = self.check(option, value, path)
            if not outcome.errors:
                valid.append(outcome)
                best = None
            elif not valid and (best is None or outcome.matches > best.matches):
                best = outcome
        if len(valid) == 1:
            result.merge(valid[0])
            return
        found = f"Found {len(valid)} valid alternatives" if valid else "Found none valid"
        self._add_without_field(result, f"{quote(path)} must validate one and only one schema (oneOf). {found}")
        if best is not None:
            result.merge(best)

    def _all_of(self, node: Node, value: Any, path: str, result: Result) -> None:
        failed = 0
        for option in node.all_of:
            outcome = self.check(option, value, path)
            failed += bool(outcome.errors)
            result.merge(outcome)
        if failed:
            none = ". None validated" if failed == len(node.all_of) else ""
            self._add_without_field(result, f"{quote(path)} must validate all the schemas (allOf){none}")

    # --- strings, numbers, enums

    def _string(self, node: Node, value: str, path: str, result: Result) -> None:
        longest, shortest = node.schema.get("maxLength"), node.schema.get("minLength")
        pattern = node.schema.get("pattern")
        if longest is not None and len(value) > longest:
            message = f"{path} in body should be at most {longest} chars long"
            unit = "byte" if longest == 1 else "bytes"
            body = f"Too long: may not be more than {longest} {unit}"
            result.add(message, FieldError("FieldValueTooLong", self._field(path), body))
        elif shortest is not None and len(value) < shortest:
            self._invalid(result, path, value, f"should be at least {shortest} chars long")
        elif pattern:
            problem = _pattern_problem(pattern, value)
            if problem is not None:
                self._invalid(result, path, value, f"should match '{problem}'")

    def _format(self, node: Node, value: str, path: str, result: Result) -> None:
        check = formats.check_for(node.format)
        if check is not None and not check(value):
            detail = f"must be of type {node.format}: {quote(value)}"
            self._invalid(result, path, value, detail, "FieldValueTypeInvalid")

    def _number(self, node: Node, value: float, path: str, result: Result) -> None:
        if isinstance(value, int) and not MIN_INT64 <= value <= MAX_INT64:
            value = float(value)  # as Go's decoder does
        self._number_range(node, value, "Checked", path, result)
        factor, least, most = (node.schema.get(name) for name in ("multipleOf", "minimum", "maximum"))
        if factor is not None:
            fits = self._number_range(node, factor, "MultipleOf", path, result)
            self._multiple(value if fits else float(value), factor, path, result)
        if least is not None:
            fits = self._number_range(node, least, "Minimum boundary", path, result)
            self._bound(node, value if fits else float(value), least, path, result, upper=False)
        if most is not None:
            fits = self._number_range(node, most, "Maximum boundary", path, result)
            self._bound(node, value if fits else float(value), most, path, result, upper=True)

    def _number_range(self, node: Node, value: float, what: str, path: str, result: Result) -> bool:
        """Return whether a value or a bound is within the range of the schema's type. If not, both are compared as
        floats."""
        kind = node.types[0] if len(node.types) == 1 else ""
        if kind == "integer":
            bits = 32 if node.format == "int32" else 64
            fits = _is_integral(value) and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)
        else:
            fits = node.format != "float" or abs(value) <= 3.4028234663852886e38
        if not fits:
            shape = f"with format {node.format}" if node.format else "(default format)"
            self._add_without_field(result, f"{what} value must be of type {kind} {shape} in {path}")
        return fits

    def _multiple(self, value: float, factor: float, path: str, result: Result) -> None:
        whole = isinstance(value, int)
        if whole:
            factor = int(factor)
        if factor <= 0:
            message = f"factor MultipleOf declared for {path} must be positive: {plain(factor)}"
            self._add(result, path, factor, message)
        elif whole:
            if value % factor:
                self._invalid(result, path, value, f"should be a multiple of {plain(factor)}")
        elif not _is_near_integer(1 / factor * value if factor < 1 else value / factor):
            self._invalid(result, path, value, f"should be a multiple of {plain(float(factor))}")

    def _bound(self, node: Node, value: float, bound: float, path: str, result: Result, *, upper: bool) -> None:
        bound = int(bound) if isinstance(value, int) else float(bound)
        strict = bool(node.schema.get("exclusiveMaximum" if upper else "exclusiveMinimum"))
        beyond = value > bound if upper else value < bound
        if beyond or (strict and value == bound):
            relation = "less than" if upper else "greater than"
            relation += "" if strict else " or equal to"
            self._invalid(result, path, value, f"should be {relation} {plain(bound)}")

    def _enum(self, node: Node, value: Any, path: str, result: Result) -> None:
        if not node.enum or any(_equals_choice(value, choice) for choice in node.enum):
            return
        choices = [quote(choice if isinstance(choice, str) else to_json(choice)) for choice in node.enum]
        body = f"Unsupported value: {format_value(value)}: supported values: {', '.join(choices)}"
        message = f"{path} in body should be one of {choices}"
        result.add(message, FieldError("FieldValueNotSupported", self._field(path), body))

    # --- lists and objects

    def _list(self, node: Node, value: list[Any], path: str, correlated: Correlated | None, result: Result) -> None:
        if node.items is not None:
            for index, item in enumerate(value):
                inner = correlated.index(index) if correlated else None
                result.merge(_ratcheted(self, node.items, item, f"{path}[{index}]", inner))
        fewest, most = node.schema.get("minItems"), node.schema.get("maxItems")
        if fewest is not None and len(value) < fewest:
            self._invalid(result, path, len(value), f"should have at least {fewest} items")
        if most is not None and len(value) > most:
            self._too_many(result, path, len(value), most, "items")
        if node.schema.get("uniqueItems") and _has_duplicates(value):
            message = f"{path} in body shouldn't contain duplicates"
            self._add(result, path, "", message)

    def _too_many(self, result: Result, path: str, size: int, most: int, what: str) -> None:
        unit = "item" if most == 1 else "items"
        body = f"Too many: {size}: must have at most {most} {unit}"
        message = f"{path} in body should have at most {most} {what}"
        result.add(message, FieldError("FieldValueTooMany", self._field(path), body))

    def _object(
        self, node: Node, value: dict[str, Any], path: str, correlated: Correlated | None, result: Result
    ) -> None:
        fewest, most = node.schema.get("minProperties"), node.schema.get("maxProperties")
        if fewest is not None and len(value) < fewest:
            self._invalid(result, path, len(value), f"should have at least {fewest} properties")
        if most is not None and len(value) > most:
            self._too_many(result, path, len(value), most, "properties")
        for name, sub in value.items():
            if name not in node.properties and not node.additional_allowed:
                self._add(result, path, name, f"{path}.{name} in body is a forbidden property")
            elif name not in node.properties and node.additional is not None:
                self._field_of(node.additional, name, sub, f"{path}.{name}", correlated, result)
        for name, property_node in node.properties.items():
            if name in value:
                inner = f"{path}.{name}" if path else name
                self._field_of(property_node, name, value[name], inner, correlated, result)
        for name in node.required:
            if name not in value:
                message = f"{path}.{name} in body is required"
                error = FieldError("FieldValueRequired", self._field(f"{path}.{name}"), "Required value")
                result.add(message, error)

    def _field_of(
        self, node: Node, name: str, value: Any, path: str, correlated: Correlated | None, result: Result
    ) -> None:
        inner = correlated.key(name) if correlated else None
        if path in ("apiVersion", "kind") and not self._base:
            inner = None  # old and new are converted to one version, so a change would not be detected
        result.merge(_ratcheted(self, node, value, path, inner))


def _kind(value: Any) -> tuple[str, str]:
    if isinstance(value, bool):
        return "boolean", ""
    if isinstance(value, str):
        return "string", ""
    if isinstance(value, int):
        return ("integer", "int64") if MIN_INT64 <= value <= MAX_INT64 else ("number", "float64")
    if isinstance(value, float):
        return "number", "float64"
    return ("array", "") if isinstance(value, list) else ("object", "")


def _is_near_integer(value: float) -> bool:
    """Return whether Go accepts a float as an integer: exactly, or within rounding."""
    if math.isnan(value) or not -(2**53) <= value <= 2**53 - 1:
        return False
    whole = math.trunc(value)
    return value == whole or (whole != 0 and abs(value - whole) / (abs(value) + abs(whole)) < 1e-9)


def _is_integral(value: float) -> bool:
    return isinstance(value, int) or (not math.isinf(value) and not math.isnan(value) and value == math.trunc(value))


def _pattern_problem(pattern: str, value: str) -> str | None:
    """Return the pattern for the error message if the value does not match; None if it does."""
    try:
        return None if re2.compile(pattern).search(value) else pattern
    except re2.PatternError as problem:
        return f"{pattern}, but pattern is invalid: {problem}"


def _equals_choice(value: Any, choice: Any) -> bool:
    """Compare after converting the value to the choice's type, as Go does, so that number types may differ."""
    if isinstance(value, float) and type(choice) is int:
        return not math.isinf(value) and not math.isnan(value) and math.trunc(value) == choice
    if isinstance(choice, float) and type(value) is int:
        return float(value) == choice
    return value is not None and same(value, choice)


def _has_duplicates(items: list[Any]) -> bool:
    seen: set[Any] = set()
    for item in items:
        identity = to_json(item) if isinstance(item, (dict, list)) else (type(item), item)
        if identity in seen:
            return True
        seen.add(identity)
    return False
