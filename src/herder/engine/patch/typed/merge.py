"""Merge a partial value into a value of the same type, as applying a configuration does."""

from __future__ import annotations

from typing import Any

from herder.engine.patch.fieldpath.path_element import describe
from herder.engine.patch.typed.list_items import ItemError, TypedError, element_of
from herder.engine.patch.typed.types import LIST, MAP, ListType, MapType, TypeRef

_DUPLICATED: Any = object()


def merge(of: TypeRef, live: Any, applied: Any) -> Any:
    """Merge `applied` into `live`: applied values win, and nothing is removed. The result shares parts with both."""
    atom = of.atom
    kind = atom.kind_of(applied)
    if kind == MAP:
        assert atom.map is not None
        ours = live if isinstance(live, dict) else None
        theirs = applied if isinstance(applied, dict) else None
        if (ours or theirs) and not atom.map.atomic:
            return _merge_maps(atom.map, ours or {}, theirs or {})
    elif kind == LIST:
        assert atom.list is not None
        items = live if isinstance(live, list) else None
        applied_items = applied if isinstance(applied, list) else None
        if (items or applied_items) and atom.list.associative:
            return _merge_lists(atom.list, items or [], applied_items or [])
    return applied


def _merge_maps(of: MapType, live: dict[str, Any], applied: dict[str, Any]) -> dict[str, Any]:
    if not applied:
        return live
    merged = dict(live)
    for key, value in applied.items():
        field = of.fields.get(key, of.element)
        if field is None or key not in live:
            merged[key] = value
        elif live[key] != value or field.loose:
            merged[key] = merge(field, live[key], value)
    return merged


def _merge_lists(of: ListType, live: list[Any], applied: list[Any]) -> list[Any]:
    """Merge lists: common items are in the applied order, the others stay as close to their neighbors as possible."""
    if not applied:
        return live
    theirs = _applied_items(of, applied)
    elements, ours = _live_items(of, live)
    if not live:
        return applied
    wanted = list(theirs)
    shared = [element for element in wanted if element in ours]
    merged: list[Any] = []
    done: set[str] = set()
    at_live = at_applied = at_shared = 0

    def take(element: str) -> None:
        done.add(element)
        mine = ours.get(element, _DUPLICATED)
        value = theirs[element]
        merged.append(value if mine is _DUPLICATED else merge(of.element, mine, value))

    while at_live < len(elements) or at_applied < len(wanted):
        if at_live < len(elements) and at_applied < len(wanted):
            element = elements[at_live]
            if element == wanted[at_applied]:
                take(element)
                at_live += 1
                at_applied += 1
                at_shared += 1
                continue
            if element in theirs and at_shared < len(shared) and shared[at_shared] != element:
                at_live += 1  # inserted at its position in the applied list
                continue
        if at_live < len(elements):
            element = elements[at_live]
            if element not in theirs:
                merged.append(live[at_live])
                at_live += 1
                continue
            if element in done:
                at_live += 1
        if at_applied < len(wanted):
            element = wanted[at_applied]
            take(element)
            at_applied += 1
            if at_shared < len(shared) and shared[at_shared] == element:
                at_shared += 1
    return merged


def _applied_items(of: ListType, items: list[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for position, item in enumerate(items):
        element = _element(of, position, item)
        if element in found:
            raise TypedError(f"duplicate entries for key {describe(element)}")
        found[element] = item
    return found


def _live_items(of: ListType, items: list[Any]) -> tuple[list[str], dict[str, Any]]:
    """Return the elements in order, and the items by element; duplicates cannot be merged and are marked."""
    elements = [_element(of, position, item) for position, item in enumerate(items)]
    found: dict[str, Any] = {}
    for element, item in zip(elements, items, strict=True):
        found[element] = _DUPLICATED if element in found else item
    return elements, found


def _element(of: ListType, position: int, item: Any) -> str:
    try:
        return element_of(of, item)
    except ItemError as error:
        raise TypedError(f"element {position}: {error}") from None
