"""Pruning: drop unknown fields and report them.

Nearly every object has none, so a compiled check first tests for them without tracking paths. Only if it finds one, the
slower pass drops fields and reports their paths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from herder.engine.meta.kinds import Object
from herder.engine.schema.nodes import META_FIELDS, Node

IsClean = Callable[[Any], bool]


def compile_clean(node: Node | None, *, root: bool = False) -> IsClean:
    """Return a check whether pruning would leave a value unchanged. It may be too strict: a false alarm costs only
    time."""
    if node is None or not (node.children or node.preserve or node.additional_set):
        return _has_no_fields if node is None or not node.embedded else _compile_fields({}, None, root=True)
    if node.items is not None:
        return _compile_list(compile_clean(node.items), keep=node.preserve)
    known = {name: compile_clean(sub) for name, sub in node.properties.items()}
    other_fields: IsClean | None = _accept_all if node.preserve else None
    if node.additional_set:
        other_fields = compile_clean(node.additional)
    elif node.preserve and not known:
        return _accept_all
    return _compile_fields(known, other_fields, root=root or node.embedded)


def _accept_all(value: Any) -> bool:
    return True


def _has_no_fields(value: Any) -> bool:
    """Return whether the value contains nothing that could be unknown."""
    return not value or (type(value) is not dict and type(value) is not list)


def _compile_fields(known: dict[str, IsClean], other_fields: IsClean | None, *, root: bool) -> IsClean:
    """Return the check of an object; `other_fields` checks fields with other names, None if there must be none."""
    if root:
        known = {**known, **dict.fromkeys(META_FIELDS, _accept_all)}

    def is_clean(value: Any) -> bool:
        if type(value) is not dict:
            return type(value) is not list
        for name, sub in value.items():
            if type(sub) is str and name in known:  # fast path: most fields
                continue
            check = known.get(name, other_fields)
            if check is None or sub is None or not check(sub):
                return False
        return True

    return is_clean


def _compile_list(check: IsClean, *, keep: bool) -> IsClean:
    def is_clean(value: Any) -> bool:
        if type(value) is not list:
            return type(value) is not dict or keep
        return all(map(check, value))

    return is_clean


def prune(value: Any, node: Node | None, *, root: bool = False) -> list[str]:
    """Drop unknown fields in place; return their sorted paths."""
    unknown: list[str] = []
    _prune(value, node, "", unknown, root)
    return sorted(unknown)


def _prune(value: Any, node: Node | None, path: str, unknown: list[str], root: bool = False) -> None:
    if node is not None and node.preserve:
        _prune_preserved(value, node, path, unknown, root)
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


def _prune_preserved(value: Any, node: Node, path: str, unknown: list[str], root: bool = False) -> None:
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
            _prune_preserved(item, node.items, f"{path}[{index}]", unknown)


def drop_nulls(value: Any, node: Node | None) -> None:
    """Drop nulls where the schema allows none and has no default: the field counts as absent."""
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
