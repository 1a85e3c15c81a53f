"""Field and map access, and conversion of JSON values to the types of their schema."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from typing import Any

from herder.engine.schema.cel.errors import EvaluationError, no_such_key, no_such_overload
from herder.engine.schema.cel.times import parse_date, parse_schema_duration, parse_timestamp
from herder.engine.schema.cel.types import ObjectType, Type
from herder.engine.schema.cel.values import NONE, Optional

Evaluate = Callable[[list[Any]], Any]
Convert = Callable[[Any], Any]
_HAS_ZONE = re.compile(r"(?:[Zz]|[+-]\d\d:\d\d)\Z")


def key_of(target: Type, field: str) -> str:
    """Return the data key of a field: unescaped if the type is an object type."""
    if isinstance(target, ObjectType):
        declared = target.find(field)
        if declared is not None:
            return declared.key
    return field


def converter(type: Type) -> Convert | None:
    """Return the conversion of JSON values to a schema type; None if they are the same.

    Objects are not converted: their fields are converted on selection, since most are never read.
    """
    match type.kind:
        case "double":
            return _double
        case "bytes":
            return _bytes
        case "duration":
            return _duration
        case "timestamp":
            return _timestamp
        case "list":
            inner = converter(type.params[0])
            return None if inner is None else _each(inner)
        case "map":
            inner = converter(type.params[1])
            return None if inner is None else _each_value(inner)
    return None


def _double(value: Any) -> Any:
    return float(value) if type(value) is int else value


def _bytes(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise EvaluationError(f"Invalid byte formatted string {value}") from None


def _duration(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return parse_schema_duration(value)
    except ValueError:
        raise EvaluationError(f"Invalid duration {value}") from None


def _timestamp(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        if "T" not in value and "t" not in value:
            return parse_date(value)
        return parse_timestamp(value if _HAS_ZONE.search(value) else f"{value}Z")
    except ValueError:
        raise EvaluationError(f"Invalid date formatted string {value}") from None


def _each(convert: Convert) -> Convert:
    return lambda items: [convert(item) for item in items] if isinstance(items, list) else items


def _each_value(convert: Convert) -> Convert:
    def convert_values(mapping: Any) -> Any:
        return {key: convert(value) for key, value in mapping.items()} if isinstance(mapping, dict) else mapping

    return convert_values


def select(operand: Evaluate, key: str, convert: Convert | None, *, of_object: bool) -> Evaluate:
    """Plan `operand.key`. In objects with known fields null counts as absent; in maps it is a value."""

    def run(frame: list[Any]) -> Any:
        container = operand(frame)
        try:
            value = container[key]
        except (KeyError, TypeError):
            return _select_dynamic(container, key)
        if value is None and of_object:
            raise no_such_key(key)
        return value

    return run if convert is None else converted(run, convert)


def select_from_slot(slot: int, keys: tuple[str, ...], convert: Convert | None, *, of_object: bool) -> Evaluate:
    """Plan `variable.key.key…`, the most common form in rules, without a call per step."""
    if len(keys) == 1:
        return select(lambda frame: frame[slot], keys[0], convert, of_object=of_object)

    def run(frame: list[Any]) -> Any:
        value = frame[slot]
        try:
            for key in keys:
                value = value[key]
        except (KeyError, TypeError):
            return _walk_dynamic(frame[slot], keys)
        if value is None and of_object:
            raise no_such_key(keys[-1])
        return value

    return run if convert is None else converted(run, convert)


def converted(run: Evaluate, convert: Convert) -> Evaluate:
    return lambda frame: convert(run(frame))


def _walk_dynamic(value: Any, keys: tuple[str, ...]) -> Any:
    previous = ""
    for key in keys:
        if value is None and previous:
            raise no_such_key(previous)
        value = _select_dynamic(value, key)
        previous = key
    return value


def _select_dynamic(container: Any, key: str) -> Any:
    """Select from a container of unknown type: it may be an optional, or have no fields."""
    if isinstance(container, dict):
        if key in container:
            return container[key]
        raise no_such_key(key)
    if isinstance(container, Optional):
        return _from_optional(container, key, of_object=False)
    raise no_such_overload()


def _from_optional(container: Optional, key: str, *, of_object: bool) -> Optional:
    if not container.present:
        return NONE
    inner = container.value
    if not isinstance(inner, dict):
        raise no_such_overload()
    if key not in inner or (of_object and inner[key] is None):
        return NONE
    return Optional(inner[key])


def select_optionally(operand: Evaluate, key: str, convert: Convert | None, *, of_object: bool) -> Evaluate:
    """Plan `operand.?key`, or a selection from an optional."""

    def run(frame: list[Any]) -> Any:
        container = operand(frame)
        if type(container) is not Optional:
            container = Optional(container)
        found = _from_optional(container, key, of_object=of_object)
        return Optional(convert(found.value)) if convert is not None and found.present else found

    return run


def test_field(operand: Evaluate, key: str, *, of_object: bool) -> Evaluate:
    """Plan `has(operand.key)`."""

    def run(frame: list[Any]) -> bool:
        container = operand(frame)
        if type(container) is dict:
            return container.get(key) is not None if of_object else key in container
        if isinstance(container, Optional):
            return _from_optional(container, key, of_object=of_object).present
        raise no_such_overload()

    return run
