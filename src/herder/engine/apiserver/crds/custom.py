"""The rules that all custom resources share beyond their schemas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from herder.engine.apiserver.resources import ScalePaths
from herder.engine.apiserver.strategy import Context, Strategy
from herder.engine.meta import names
from herder.engine.meta.errors import FieldError, forbidden, invalid_value, show
from herder.engine.meta.kinds import GroupResource, Object

_MAX_INT32 = 2**31 - 1
_STANDARD_FINALIZERS = {"kubernetes", "orphan", "foregroundDeletion"}


class CustomStrategy(Strategy):
    """Of the instances of one definition."""

    unconditional_update = False

    def __init__(self, resource: GroupResource, scales: Mapping[str, ScalePaths], *, terminating: bool) -> None:
        self.resource = resource
        self.scales = scales  # by version, where it has the subresource
        self.terminating = terminating

    def prepare_create(self, obj: Object, context: Context) -> None:
        if self.terminating:
            name = obj.get("metadata", {}).get("name", "")
            raise forbidden(self.resource, name, "create not allowed while custom resource definition is terminating")

    def validate(self, obj: Object, context: Context) -> Iterable[FieldError]:
        scale = self.scales.get(str(obj.get("apiVersion", "")).rpartition("/")[2])
        if scale:
            if context.subresource != "status":
                yield from _check_replicas(obj, scale.spec_replicas)
            yield from _check_replicas(obj, scale.status_replicas)
            if scale.label_selector:
                yield from _check_selector(obj, scale.label_selector)

    def warnings(self, obj: Object, old: Object | None) -> Iterable[str]:
        present = set((old or {}).get("metadata", {}).get("finalizers") or ())
        for finalizer in sorted(set(obj.get("metadata", {}).get("finalizers") or ()) - present):
            yield from _finalizer_warnings(finalizer)


def _finalizer_warnings(finalizer: str) -> Iterable[str]:
    for problem in names.qualified_name(finalizer):
        yield f"metadata.finalizers: {show(finalizer)}: {problem}"
    if "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
        path = " including a path (/)" if "." in finalizer else ""
        yield (
            f"metadata.finalizers: {show(finalizer)}: prefer a domain-qualified finalizer name{path} to avoid "
            "accidental conflicts with other finalizer writers"
        )


# --- simple paths ------------------------------------------------------------------------------------------------


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
    """The value at a path, or what Go's accessors say where something on the way is of another type."""
    value: Any = obj
    keys = path.removeprefix(".").split(".")
    for place, key in enumerate(keys):
        if not isinstance(value, dict):
            if value is None:
                return None, ""
            way = "." + ".".join(keys[: place + 1])
            return None, _accessor_error(way, value, "map[string]interface{}")
        if key not in value:
            return None, ""
        value = value[key]
    if type(value) is wanted:
        return value, ""
    return None, _accessor_error("." + ".".join(keys), value, go)


def _accessor_error(way: str, value: Any, go: str) -> str:
    return f"{way} accessor error: {_go_text(value)} is of the type {_go_type(value)}, expected {go}"


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
