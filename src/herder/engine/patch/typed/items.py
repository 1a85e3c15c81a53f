"""Remove or extract the fields and items of a field set from a value."""

from __future__ import annotations

from typing import Any

from herder.engine.patch.fieldpath.fieldset import FieldSet, as_member, is_member
from herder.engine.patch.fieldpath.path_element import SELF
from herder.engine.patch.typed.list_items import element_of
from herder.engine.patch.typed.types import LIST, MAP, UNTYPED, ListType, MapType, TypeRef


def remove_items(of: TypeRef | None, value: Any, fields: FieldSet) -> Any:
    """Return the value without the fields of the set. Containers that become empty are null."""
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
    """Return the value with only the fields of the set and their parents: the configuration that an applier sent."""
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
    """Return the set with every declared field on the way to one of its paths as a member. Keys of maps are not
    declared: owning what is below one does not mean owning it."""
    atom = of.atom if of is not None else None
    out: FieldSet = {}
    for element, node in fields.items():
        if not node or element == SELF:
            out[element] = node
            continue
        child_type: TypeRef | None = None
        named = False
        if element[0] == "f" and atom is not None and atom.map is not None:
            named = element[2:] in atom.map.fields
            child_type = atom.map.type_of(element[2:])
        elif element[0] == "k" and atom is not None and atom.list is not None:
            child_type = atom.list.element
        child = with_named_fields(child_type, node)
        out[element] = as_member(child) if named else child
    return out


def reconcile(of: TypeRef, fields: FieldSet) -> FieldSet:
    """Adapt the set to a type that became atomic after the set was written: owners of parts own the whole."""
    return {element: _reconcile_child(of, element, node) for element, node in fields.items()}


def _reconcile_child(of: TypeRef, element: str, node: FieldSet) -> FieldSet:
    atom = of.atom
    if not node or element == SELF:
        return node
    if atom.fallback == MAP:
        assert atom.map is not None
        child_type = atom.map.type_of(element[2:]) if element[0] == "f" else atom.map.element
    elif atom.fallback == LIST:
        assert atom.list is not None
        child_type = atom.list.element
    else:
        child_type = None
    if child_type is None or _is_atomic(child_type):
        return node if child_type is None else {}
    if _is_deduced(child_type):
        return node
    return reconcile(child_type, node)


def _is_atomic(of: TypeRef) -> bool:
    atom = of.atom
    if atom.map is not None:
        return atom.map.atomic
    return atom.list is not None and atom.scalar is None and not atom.list.associative


def _is_deduced(of: TypeRef) -> bool:
    """Return whether the type is a map with only unknown fields, which has no atomic parts."""
    found = of.atom.map
    if found is None or found.fields or found.element is None:
        return False
    return found.element.atom.scalar == UNTYPED
