"""Field paths of a value: all paths, or those that an applier of the value owns."""

from __future__ import annotations

from typing import Any

from herder.engine.patch.fieldpath.fieldset import FieldSet, as_member, in_order
from herder.engine.patch.fieldpath.path_element import SELF
from herder.engine.patch.typed.list_items import by_element
from herder.engine.patch.typed.types import LIST, MAP, ListType, MapType, TypeRef


def presence(of: TypeRef | None, value: Any) -> FieldSet:
    """Return the node for a value that was added or removed as a whole: itself and every path below it."""
    if of is None or not value:
        return {}
    kind = value.__class__
    if kind is dict:
        declared = of.atom.map
        if declared is None or declared.atomic:
            return {}
        fields, element = declared.fields, declared.element
        node: FieldSet = {SELF: {}}
        for key, item in value.items():
            # Most values are scalars without children, which are not worth a call each.
            is_container = item.__class__ is dict or item.__class__ is list
            node["f:" + key] = presence(fields.get(key, element), item) if is_container else {}
        return in_order(node)
    if kind is list:
        atom = of.atom
        if atom.list is None or not atom.list.associative:
            return {}
        node = {SELF: {}}
        for path_element, items in by_element(atom.list, value).items():
            node[path_element] = presence(atom.list.element, items[0]) if len(items) == 1 else {}
        return in_order(node)
    return {}


def owned_paths(of: TypeRef, value: Any) -> FieldSet:
    """Return the set that applying this value claims.

    Declared fields with children are not claimed themselves, so that two appliers can each set a part of `spec`. Keys
    of maps and items of lists are claimed.
    """
    node = _owned(of, value)
    return {element: child for element, child in (node or {}).items() if element != SELF}


def _owned(of: TypeRef | None, value: Any) -> FieldSet | None:
    """Return the node of a value: None if neither it nor anything below it is claimed."""
    if of is None:
        return None
    atom = of.atom
    kind = atom.kind_of(value)
    if kind == MAP:
        assert atom.map is not None
        return {} if atom.map.atomic else _owned_in_map(atom.map, value)
    if kind == LIST:
        assert atom.list is not None
        return _owned_in_list(atom.list, value) if atom.list.associative else {}
    return {}


def _owned_in_map(of: MapType, value: Any) -> FieldSet | None:
    if value.__class__ is not dict:
        return None
    fields, rest = of.fields, of.element
    node: FieldSet = {}
    for key, item in value.items():
        field = fields.get(key)
        if field is None:
            node["f:" + key] = as_member(_owned(rest, item) or {})
        elif item is None or item == {}:
            node["f:" + key] = {}
        else:
            child = _owned(field, item)
            if child is not None:
                node["f:" + key] = child
    return in_order(node) or None


def _owned_in_list(of: ListType, value: Any) -> FieldSet | None:
    if value.__class__ is not list:
        return None
    node: FieldSet = {}
    for element, items in by_element(of, value).items():
        node[element] = as_member(_owned(of.element, items[0]) or {}) if len(items) == 1 else {}
    return in_order(node) or None
