"""Fast validity check: a compiled predicate that is true only for valid values.

Nearly every object is valid, so this is the cost of validation for a write. `False` only means that `validation` must
check in detail: the predicate may be stricter than the schema, but never laxer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from herder.engine.schema import formats, re2
from herder.engine.schema.gotext import MAX_INT64, MIN_INT64
from herder.engine.schema.nodes import Node
from herder.engine.schema.validation import is_valid

IsValid = Callable[[Any], bool]


_MAX_CACHED_LENGTH = 64
_MAX_CACHED = 256


def compile_check(node: Node) -> IsValid | None:
    """Return the check for a schema; None if everything is valid."""
    own = None if node.type == "string" and _is_string_enum(node) else _own(node)
    checks = [check for check in (own, _enum(node), *_junctors(node)) if check is not None]
    if not checks:
        return None
    combined = checks[0] if len(checks) == 1 else _all(tuple(checks))
    if not node.enum and (node.nullable or not node.types):
        return lambda value: value is None or combined(value)
    return combined


def _all(checks: tuple[IsValid, ...]) -> IsValid:
    if len(checks) == 2:
        first, second = checks
        return lambda value: first(value) and second(value)
    return lambda value: all(check(value) for check in checks)


def _is_string_enum(node: Node) -> bool:
    """Return whether the enum alone decides: exactly those strings are valid."""
    restricts = any(keyword in node.schema for keyword in ("minLength", "maxLength", "pattern")) or node.format
    return bool(node.enum) and not restricts and all(isinstance(choice, str) for choice in node.enum)


def _own(node: Node) -> IsValid | None:
    if node.int_or_string:
        return _either(_integer(node), _string(node))
    compile_one = _BY_TYPE.get(node.type)
    if compile_one is not None:
        return compile_one(node)
    return _untyped(node) if _has_keywords(node) else None


def _has_keywords(node: Node) -> bool:
    return bool(node.properties or node.required or node.items or node.additional_set or node.format) or any(
        keyword in node.schema for keyword in _KEYWORDS
    )


_KEYWORDS = (
    "maximum", "minimum", "multipleOf", "maxLength", "minLength", "pattern", "maxItems", "minItems", "uniqueItems",
    "maxProperties", "minProperties",
)  # fmt: skip


def _untyped(node: Node) -> IsValid:
    """Check a schema without type, as inside junctors and with preserved unknown fields: keywords apply only to
    their types."""
    on_string, on_number, on_list, on_object = _string(node), _number(node), _list(node), _object(node)
    formatted = bool(node.format)

    def check(value: Any) -> bool:
        kind = type(value)
        if kind is dict:
            return not formatted and on_object(value)
        if kind is str:
            return on_string(value)
        if kind is list:
            return on_list(value)
        return not formatted and (kind is bool or on_number(value))

    return check


def _either(first: IsValid, second: IsValid) -> IsValid:
    return lambda value: first(value) if type(value) is int else second(value)


def _boolean(node: Node) -> IsValid:
    return lambda value: value is True or value is False


def _string(node: Node) -> IsValid:
    min_length, max_length = node.schema.get("minLength"), node.schema.get("maxLength")
    pattern = node.schema.get("pattern")
    check_format = formats.check_for(node.format) if node.format else None
    if min_length is None and max_length is None and not pattern and check_format is None:
        return lambda value: type(value) is str
    low, high = min_length or 0, max_length if max_length is not None else MAX_INT64
    if not pattern and check_format is None:
        return lambda value: type(value) is str and low <= len(value) <= high
    matches = _matcher(pattern) if pattern else None
    accepted: set[str] = set()  # the same few strings recur: types and reasons, groups and kinds

    def check(value: Any) -> bool:
        if type(value) is not str:
            return False
        if value in accepted:
            return True
        valid = (
            low <= len(value) <= high
            and (matches is None or matches(value))
            and (check_format is None or check_format(value))
        )
        if valid and len(value) <= _MAX_CACHED_LENGTH:
            if len(accepted) >= _MAX_CACHED:
                accepted.clear()
            accepted.add(value)
        return valid

    return check


def _matcher(pattern: str) -> IsValid:
    try:
        return re2.compile(pattern).search
    except re2.PatternError:
        return lambda value: False


def _integer(node: Node) -> IsValid:
    low, high = (-(2**31), 2**31 - 1) if node.format == "int32" else (MIN_INT64, MAX_INT64)
    within = _within(node)
    if within is None:
        return lambda value: type(value) is int and low <= value <= high
    return lambda value: type(value) is int and low <= value <= high and within(value)


def _number(node: Node) -> IsValid:
    within = _within(node)
    limit = 3.4028234663852886e38 if node.format == "float" else float("inf")

    def check(value: Any) -> bool:
        if type(value) is not float and (type(value) is not int or not MIN_INT64 <= value <= MAX_INT64):
            return False
        return abs(value) <= limit and (within is None or within(value))

    return check


def _within(node: Node) -> Callable[[float], bool] | None:
    """Return the check of bounds and multipleOf. Fractional bounds of integers are left to the slow path."""
    schema = node.schema
    low, high, factor = schema.get("minimum"), schema.get("maximum"), schema.get("multipleOf")
    if low is None and high is None and factor is None:
        return None
    if factor is not None or any(bound is not None and bound != int(bound) for bound in (low, high)):
        return lambda value: is_valid(node, value)
    minimum: float = float("-inf") if low is None else low
    maximum: float = float("inf") if high is None else high
    above, below = bool(schema.get("exclusiveMinimum")), bool(schema.get("exclusiveMaximum"))
    if not above and not below:
        return lambda value: minimum <= value <= maximum
    return lambda value: (
        minimum <= value <= maximum and not (above and value == minimum) and not (below and value == maximum)
    )


def _list(node: Node) -> IsValid:
    item = compile_check(node.items) if node.items else None
    min_count, maximum = node.schema.get("minItems") or 0, node.schema.get("maxItems")
    high = maximum if maximum is not None else MAX_INT64
    unique = bool(node.schema.get("uniqueItems"))

    def check(value: Any) -> bool:
        if type(value) is not list or not min_count <= len(value) <= high or (unique and len(value) > 1):
            return False
        return item is None or all(map(item, value))

    return check


def _object(node: Node) -> IsValid:
    known = {name: compile_check(sub) for name, sub in node.properties.items()}
    others = compile_check(node.additional) if node.additional else None
    required = node.required
    min_count, maximum = node.schema.get("minProperties") or 0, node.schema.get("maxProperties")
    high = maximum if maximum is not None else MAX_INT64
    sized = bool(min_count) or maximum is not None
    closed = not node.additional_allowed
    find = known.get

    def check(value: Any) -> bool:
        if type(value) is not dict or (sized and not min_count <= len(value) <= high):
            return False
        for name in required:
            if name not in value:
                return False
        for name, sub in value.items():
            test = find(name)
            if test is not None and not test(sub):
                return False
        return True

    def check_map(value: Any) -> bool:
        if not check(value):
            return False
        for name, sub in value.items():
            if name not in known and (closed or (others is not None and not others(sub))):
                return False
        return True

    return check_map if closed or others is not None else check


_BY_TYPE: dict[str, Callable[[Node], IsValid]] = {
    "string": _string,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "array": _list,
    "object": _object,
}


def _enum(node: Node) -> IsValid | None:
    if not node.enum:
        return None
    strings = frozenset(choice for choice in node.enum if isinstance(choice, str))
    others = tuple(choice for choice in node.enum if not isinstance(choice, str))

    def check(value: Any) -> bool:
        if type(value) is str:
            return value in strings
        return any(type(value) is type(choice) and value == choice for choice in others)

    return check


def _junctors(node: Node) -> list[IsValid]:
    """Return the checks of junctors. `oneOf` and `not` need the exact result; in `allOf` and `anyOf` a stricter one
    is fine."""
    found: list[IsValid] = []
    found.extend(check for option in node.all_of if (check := compile_check(option)))
    if node.any_of:
        options = tuple(compile_check(option) for option in node.any_of)
        if None not in options:
            found.append(lambda value: any(option(value) for option in options if option is not None))
    if node.one_of:
        found.append(lambda value: sum(is_valid(option, value) for option in node.one_of) == 1)
    if node.negated is not None:
        negated = node.negated
        found.append(lambda value: not is_valid(negated, value))
    return found
