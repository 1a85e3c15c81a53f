"""Defaulting functions of built-in types, beyond the defaults in the published schemas.

Defaults belong to types rather than kinds: a probe has the same defaults wherever it occurs. The functions are
therefore registered by Go struct. Where they apply in a kind is computed once, by walking its types.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from herder.engine.apiserver.builtin import data, gotypes
from herder.engine.apiserver.builtin.defaults import cluster, core, pods, workloads
from herder.engine.apiserver.builtin.defaults.fill import Fill
from herder.engine.apiserver.builtin.gotypes import GoType
from herder.engine.meta.kinds import GroupVersionKind, Object

_BY_STRUCT: dict[str, Fill] = {**core.BY_STRUCT, **pods.BY_STRUCT, **workloads.BY_STRUCT, **cluster.BY_STRUCT}

Walk = Callable[[Any], None]


def default(kind: GroupVersionKind, obj: Object) -> None:
    """Apply the defaults of a kind, in place."""
    walk = _walk(f"{data.package_of(kind.group, kind.version)}.{kind.kind}")
    if walk is not None:
        walk(obj)


def default_struct(struct: str, obj: Object) -> None:
    """Apply the defaults of a Go struct such as `core.v1.PodSpec`, in place."""
    walk = _walk(struct)
    if walk is not None:
        walk(obj)


@cache
def _walk(struct: str) -> Walk | None:
    return _struct_walk(struct, frozenset())


def _struct_walk(struct: str, ancestors: frozenset[str]) -> Walk | None:
    """Return a function that applies a struct's own defaults and then those of its fields; None if there are none."""
    if struct in ancestors:
        return None  # recursive types have no defaults
    own = _own_functions(struct)
    children = _child_walks(struct, ancestors | {struct})
    if not own and not children:
        return None

    def walk(obj: Any) -> None:
        for fill in own:
            fill(obj)
        for key, child in children:
            value = obj.get(key)
            if value is not None:
                child(value)

    return walk


def _own_functions(struct: str) -> list[Fill]:
    """Return the functions of a struct and of the structs embedded in it."""
    found = [_BY_STRUCT[struct]] if struct in _BY_STRUCT else []
    for field in gotypes.struct_fields(struct):
        if not field.json:
            found += _own_functions(gotypes.parse(field.type).id)
    return found


def _child_walks(struct: str, ancestors: frozenset[str]) -> list[tuple[str, Walk]]:
    walks: list[tuple[str, Walk]] = []
    for field in gotypes.struct_fields(struct):
        go_type = gotypes.parse(field.type)
        if not field.json:
            walks += _child_walks(go_type.id, ancestors)
            continue
        child = _value_walk(go_type, ancestors)
        if child is not None:
            walks.append((field.json, child))
    return walks


def _value_walk(go_type: GoType, ancestors: frozenset[str]) -> Walk | None:
    if go_type.kind == "struct":
        return _struct_walk(go_type.id, ancestors)
    if go_type.element is None:
        return None
    each = _value_walk(go_type.element, ancestors)
    if each is None:
        return None
    is_map = go_type.kind == "map"

    def walk_all(values: Any) -> None:
        for value in values.values() if is_map else values:
            each(value)

    return walk_all
