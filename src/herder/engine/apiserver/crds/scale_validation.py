"""Validate the fields that the scale subresource of a custom resource refers to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from herder.engine.apiserver.registry.resources import ScalePaths
from herder.engine.meta.errors import FieldError, invalid_value
from herder.engine.meta.kinds import Object

_MAX_INT32 = 2**31 - 1


def scale_problems(obj: Object, scale: ScalePaths, *, status_only: bool = False) -> Iterator[FieldError]:
    """Validate the replica counts and the selector at the scale paths of a custom resource."""
    if not status_only:
        yield from _check_replicas(obj, scale.spec_replicas)
    yield from _check_replicas(obj, scale.status_replicas)
    if scale.label_selector:
        yield from _check_selector(obj, scale.label_selector)


def _check_replicas(obj: Object, path: str) -> Iterable[FieldError]:
    value, problem = _nested(obj, path, int, "int64")
    if problem:
        yield invalid_value(path, 0, problem)
    elif value is not None and value < 0:
        yield invalid_value(path, value, "should be a non-negative integer")
    elif value is not None and value > _MAX_INT32:
        yield invalid_value(path, value, f"should be less than or equal to {_MAX_INT32}")


def _check_selector(obj: Object, path: str) -> Iterable[FieldError]:
    _, problem = _nested(obj, path, str, "string")
    if problem:
        yield invalid_value(path, "", problem)


def _nested(obj: Object, path: str, wanted: type, go: str) -> tuple[Any, str]:
    """Return the value at a path, or the error of Go's accessors if a value on the path has the wrong type."""
    value: Any = obj
    keys = path.removeprefix(".").split(".")
    for index, key in enumerate(keys):
        if not isinstance(value, dict):
            if value is None:
                return None, ""
            field_path = "." + ".".join(keys[: index + 1])
            return None, _accessor_error(field_path, value, "map[string]interface{}")
        if key not in value:
            return None, ""
        value = value[key]
    if type(value) is wanted:
        return value, ""
    return None, _accessor_error("." + ".".join(keys), value, go)


def _accessor_error(field_path: str, value: Any, go: str) -> str:
    return f"{field_path} accessor error: {_go_text(value)} is of the type {_go_type(value)}, expected {go}"


def _go_text(value: Any) -> str:
    if value is None:
        return "<nil>"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _go_type(value: Any) -> str:
    match value:
        case None:
            return "<nil>"
        case bool():
            return "bool"
        case int():
            return "int64"
        case float():
            return "float64"
        case str():
            return "string"
        case list():
            return "[]interface {}"
        case _:
            return "map[string]interface {}"
