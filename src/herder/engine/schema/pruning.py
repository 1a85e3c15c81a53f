"""Pruning: what the schema does not know is dropped, and told.

Nearly every object that arrives is clean, so a compiled check looks for anything to do without tracking paths; only
when it finds something does the slower walk run that drops fields and names them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from herder.engine.meta.kinds import Object
from herder.engine.schema.nodes import META_FIELDS, Node

IsClean = Callable[[Any], bool]


def compile_clean(node: Node | None, *, root: bool = False) -> IsClean | None:
    """A check that pruning would leave a value as it is; None where there is nothing to check.

    A false alarm costs time only, so the check may be stricter than pruning.
    """
    if node is None:
        return _has_no_fields
    if node.preserve:
        return _compile_preserved(node, root=root)
    if node.items is not None:
        return _compile_list(node)
    known: dict[str, IsClean | None] = {name: compile_clean(sub) for name, sub in node.properties.items()}
    if root or node.embedded:
        known.update(dict.fromkeys(META_FIELDS))
    if node.additional_set:
        return _compile_map(node, known)
    if not known and node.types and "object" not in node.types and "array" not in node.types:
        return _is_scalar
    return _compile_object(known)


def _has_no_fields(value: Any) -> bool:
    return type(value) is not dict and type(value) is not list


def _is_scalar(value: Any) -> bool:
    return type(value) is not dict and type(value) is not list


def _compile_object(known: dict[str, IsClean | None]) -> IsClean:
    def is_clean(value: Any) -> bool:
        if type(value) is not dict:
            return type(value) is not list
        for name, sub in value.items():
            if sub is None or name not in known:
                return False
            check = known[name]
            if check is not None and not check(sub):
                return False
        return True

    return is_clean


def _compile_map(node: Node, known: dict[str, IsClean | None]) -> IsClean:
    others = compile_clean(node.additional)

    def is_clean(value: Any) -> bool:
        if type(value) is not dict:
            return type(value) is not list
        for name, sub in value.items():
            check = known.get(name, others)
            if sub is None or (check is not None and not check(sub)):
                return False
        return True

    return is_clean


def _compile_list(node: Node) -> IsClean:
    check = compile_clean(node.items)

    def is_clean(value: Any) -> bool:
        if type(value) is not list:
            return type(value) is not dict
        if check is not None:
            for item in value:
                if not check(item):
                    return False
        return True

    return is_clean


def _compile_preserved(node: Node, *, root: bool) -> IsClean | None:
    """Unknown fields stay, but known ones are still looked into."""
    if not node.children:
        return None
    known = {name: compile_clean(sub) for name, sub in node.properties.items()}
    if root or node.embedded:
        known.update(dict.fromkeys(META_FIELDS))

    def is_clean(value: Any) -> bool:
        if type(value) is not dict:
            return type(value) is not list
        for name, sub in value.items():
            if sub is None:
                return False
            check = known.get(name)
            if check is not None and not check(sub):
                return False
        return True

    return is_clean if not node.additional_set and node.items is None else lambda value: False


def prune(value: Any, node: Node | None, *, root: bool = False) -> list[str]:
    """Drop unknown fields in place; their paths, sorted."""
    unknown: list[str] = []
    _prune(value, node, "", unknown, root)
    return sorted(unknown)


def _prune(value: Any, node: Node | None, path: str, unknown: list[str], root: bool = False) -> None:
    if node is not None and node.preserve:
        _keep(value, node, path, unknown, root)
    elif type(value) is dict:
        _prune_object(value, node, path, unknown, root)
    elif type(value) is list:
        for index, item in enumerate(value):
            _prune(item, node.items if node else None, f"{path}[{index}]", unknown)


def _prune_object(value: Object, node: Node | None, path: str, unknown: list[str], root: bool) -> None:
    for name in list(value):
        if node is not None and (root or node.embedded) and name in META_FIELDS:
            continue
        inner = f"{path}.{name}" if path else name
        if node is not None and name in node.properties:
            _prune(value[name], node.properties[name], inner, unknown)
        elif node is not None and node.additional_set:
            _prune(value[name], node.additional, inner, unknown)
        else:
            unknown.append(inner)
            del value[name]


def _keep(value: Any, node: Node, path: str, unknown: list[str], root: bool = False) -> None:
    if type(value) is dict:
        for name, sub in value.items():
            if (root or node.embedded) and name in META_FIELDS:
                continue
            inner = f"{path}.{name}" if path else name
            if name in node.properties:
                _prune(sub, node.properties[name], inner, unknown)
            elif node.additional_set:
                _prune(sub, node.additional, inner, unknown)
    elif type(value) is list and node.items is not None:
        for index, item in enumerate(value):
            _keep(item, node.items, f"{path}[{index}]", unknown)


def drop_nulls(value: Any, node: Node | None) -> None:
    """A null where the schema allows none and has no default means that the field was not given."""
    if node is None:
        return
    if type(value) is dict:
        for name in list(value):
            sub = node.properties.get(name, node.additional)
            if value[name] is None and sub is not None and not sub.nullable and sub.default is None:
                del value[name]
            else:
                drop_nulls(value[name], sub)
    elif type(value) is list:
        for item in value:
            drop_nulls(item, node.items)
