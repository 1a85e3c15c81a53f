"""Equality and concatenation of lists that are sets or maps by their schema, where order does not matter.

`x-kubernetes-list-type: set` and `map` make a list unordered, wherever it occurs inside the compared values. So a
comparison is built from the schema type; other types use plain equality.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from herder.engine.schema.cel.types import ObjectType, Type
from herder.engine.schema.cel.values import equal

Equal = Callable[[Any, Any], bool]


def equality_of(type: Type) -> Equal | None:
    """Return the comparison for values of the type, or None if plain equality is sufficient."""
    if type.kind == "list":
        return _list_equality(type)
    if type.kind == "map":
        inner = equality_of(type.params[1])
        return None if inner is None else _map_equality(inner)
    if isinstance(type, ObjectType):
        by_key = {field.key: special for field in type.fields.values() if (special := equality_of(field.type))}
        return _object_equality(by_key) if by_key else None
    return None


def _list_equality(type: Type) -> Equal | None:
    element = equality_of(type.params[0])
    if type.list_type == "map" and type.list_keys:
        return _keyed_equality(type.list_keys, element or equal)
    if type.list_type == "set":
        return _set_equality
    if element is None:
        return None
    return lambda left, right: (
        isinstance(left, list)
        and isinstance(right, list)
        and len(left) == len(right)
        and all(map(element, left, right))
    )


def _set_equality(left: Any, right: Any) -> bool:
    if not isinstance(left, list) or not isinstance(right, list):
        return equal(left, right)
    if len(left) != len(right):
        return False
    return {_identity(item) for item in left} == {_identity(item) for item in right}


def _keyed_equality(keys: tuple[str, ...], element: Equal) -> Equal:
    def compare(left: Any, right: Any) -> bool:
        if not isinstance(left, list) or not isinstance(right, list):
            return equal(left, right)
        if len(left) != len(right):
            return False
        others = {_key(item, keys): item for item in right}
        return all((other := others.get(_key(item, keys))) is not None and element(item, other) for item in left)

    return compare


def _map_equality(inner: Equal) -> Equal:
    def compare(left: Any, right: Any) -> bool:
        if not isinstance(left, dict) or not isinstance(right, dict):
            return equal(left, right)
        return left.keys() == right.keys() and all(inner(value, right[key]) for key, value in left.items())

    return compare


def _object_equality(by_key: dict[str, Equal]) -> Equal:
    def compare(left: Any, right: Any) -> bool:
        if not isinstance(left, dict) or not isinstance(right, dict):
            return equal(left, right)
        if left.keys() != right.keys():
            return False
        return all(by_key.get(key, equal)(value, right[key]) for key, value in left.items())

    return compare


def concatenation_of(type: Type) -> Callable[[Any, Any], list[Any]] | None:
    """Return the concatenation of two lists of the type: sets and maps contain each element (by key) once, the later
    one wins."""
    if type.kind != "list":
        return None
    if type.list_type == "set":
        return lambda left, right: _merge(left, right, _identity)
    if type.list_type == "map" and type.list_keys:
        keys = type.list_keys
        return lambda left, right: _merge(left, right, lambda item: _key(item, keys))
    return None


def _merge(left: list[Any], right: list[Any], identity: Callable[[Any], Any]) -> list[Any]:
    merged = {identity(item): item for item in left}
    for item in right:
        merged[identity(item)] = item
    return list(merged.values())


def _key(item: Any, keys: tuple[str, ...]) -> Any:
    return tuple(_identity(item.get(key)) for key in keys) if isinstance(item, dict) else _identity(item)


def _identity(item: Any) -> Any:
    """Return a hashable identity that distinguishes values as CEL does (true is not 1)."""
    if isinstance(item, dict):
        return frozenset((key, _identity(value)) for key, value in item.items())
    if isinstance(item, list):
        return tuple(map(_identity, item))
    return (bool, item) if isinstance(item, bool) else item
