"""Values without, or with only, the fields and items that a set names."""

from __future__ import annotations

from typing import Any

from herder.engine.patch.fieldset import FieldSet, as_member, is_member
from herder.engine.patch.listitems import element_of
from herder.engine.patch.pathelement import SELF
from herder.engine.patch.typed import LIST, MAP, UNTYPED, ListType, MapType, TypeRef


def remove_items(of: TypeRef | None, value: Any, fields: FieldSet) -> Any:
    """The value without what the set names. What holds nothing any more is left as null."""
    if of is None:
        return value
    atom = of.atom
    kind = atom.kind_of(value)
    if kind == MAP:
        assert atom.map is not None
        if not isinstance(value, dict) or not value or atom.map.atomic:
            return None
        return _remove_from_map(atom.map, value, fields)
    if kind == LIST:
        assert atom.list is not None
        if not isinstance(value, list) or not value or not atom.list.associative:
            return None
        return _remove_from_list(atom.list, value, fields)
    return value


def _remove_from_map(of: MapType, value: dict[str, Any], fields: FieldSet) -> dict[str, Any] | None:
    out: dict[str, Any] = {}
    for key, item in value.items():
        node = fields.get("f:" + key)
        if node is None:
            out[key] = item
        elif not is_member(node):
            out[key] = remove_items(of.fields.get(key, of.element), item, node)
    return out or None


def _remove_from_list(of: ListType, value: list[Any], fields: FieldSet) -> list[Any] | None:
    out: list[Any] = []
    for item in value:
        node = fields.get(element_of(of, item))
        if node is None:
            out.append(item)
        elif not is_member(node):
            out.append(remove_items(of.element, item, node))
    return out or None


def extract_items(of: TypeRef | None, value: Any, fields: FieldSet) -> Any:
    """The value with only what the set names, and what holds it: the configuration that an applier once sent."""
    if of is None:
        return value
    atom = of.atom
    kind = atom.kind_of(value)
    if kind == MAP:
        assert atom.map is not None
        if not isinstance(value, dict) or not value or atom.map.atomic:
            return value
        return _extract_from_map(atom.map, value, fields)
    if kind == LIST:
        assert atom.list is not None
        if not isinstance(value, list) or not value or not atom.list.associative:
            return value
        return _extract_from_list(atom.list, value, fields)
    return value


def _extract_from_map(of: MapType, value: dict[str, Any], fields: FieldSet) -> dict[str, Any] | None:
    out: dict[str, Any] = {}
    for key, item in value.items():
        node = fields.get("f:" + key)
        if node is not None:
            out[key] = extract_items(of.fields.get(key, of.element), item, node) if node else item
    return out or None


def _extract_from_list(of: ListType, value: list[Any], fields: FieldSet) -> list[Any] | None:
    out: list[Any] = []
    for item in value:
        node = fields.get(element_of(of, item))
        if node is not None:
            out.append(extract_items(of.element, item, node) if node else item)
    return out or None


def with_named_fields(of: TypeRef | None, fields: FieldSet) -> FieldSet:
    """The set with every declared field that leads to one of its paths made a member itself. Keys of maps are not
    declared: owning what is below one does not mean owning it."""
    atom = of.atom if of is not None else None
    out: FieldSet = {}
    for element, node in fields.items():
        if not node or element == SELF:
            out[element] = node
            continue
        below: TypeRef | None = None
        named = False
        if element[0] == "f" and atom is not None and atom.map is not None:
            named = element[2:] in atom.map.fields
            below = atom.map.type_of(element[2:])
        elif element[0] == "k" and atom is not None and atom.list is not None:
            below = atom.list.element
        child = with_named_fields(below, node)
        out[element] = as_member(child) if named else child
    return out


def reconcile(of: TypeRef, fields: FieldSet) -> FieldSet:
    """The set, brought in line with a type that has become atomic where it was not when the set was written: who
    owned parts of what is now one thing owns the thing."""
    return {element: _reconcile_child(of, element, node) for element, node in fields.items()}


def _reconcile_child(of: TypeRef, element: str, node: FieldSet) -> FieldSet:
    atom = of.atom
    if not node or element == SELF:
        return node
    if atom.fallback == MAP:
        assert atom.map is not None
        below = atom.map.type_of(element[2:]) if element[0] == "f" else atom.map.element
    elif atom.fallback == LIST:
        assert atom.list is not None
        below = atom.list.element
    else:
        below = None
    if below is None or _is_whole(below):
        return node if below is None else {}
    if _is_deduced(below):
        return node
    return reconcile(below, node)


def _is_whole(of: TypeRef) -> bool:
    atom = of.atom
    if atom.map is not None:
        return atom.map.atomic
    return atom.list is not None and atom.scalar is None and not atom.list.associative


def _is_deduced(of: TypeRef) -> bool:
    """A map of nothing but unknown fields, which has no atomic parts to speak of."""
    found = of.atom.map
    if found is None or found.fields or found.element is None:
        return False
    return found.element.atom.scalar == UNTYPED
