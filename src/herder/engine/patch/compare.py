"""What differs between two values of a type: the field paths that changed or came, and those that went.

Almost all of two versions of an object is equal, so every step first asks plain equality, and walks only where it
fails. Upstream tells changed paths from new ones; nothing here needs that, so they are one set.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from herder.engine.patch.fieldset import FieldSet, as_member, in_order, union
from herder.engine.patch.jsonpatch import same_json
from herder.engine.patch.listitems import by_element
from herder.engine.patch.paths import presence
from herder.engine.patch.typed import LIST, MAP, ListType, MapType, TypeRef

ABSENT: Any = object()


class Difference(NamedTuple):
    changed: FieldSet
    removed: FieldSet


class _Nodes(NamedTuple):
    """For one field: the nodes to put into either set, None for nothing."""

    changed: FieldSet | None = None
    removed: FieldSet | None = None


_SAME = _Nodes()
_LEAF_CHANGED = _Nodes(changed={})


def compare(of: TypeRef, old: Any, new: Any) -> Difference:
    """Raises TypedError where a list's items cannot be told apart."""
    nodes = _compare(of, old, new)
    return Difference(nodes.changed or {}, nodes.removed or {})


def equal(left: Any, right: Any) -> bool:
    """Equality as the API means it: 1 is 1.0, but true is not 1. Python thinks otherwise of the latter, so what it
    finds equal is looked at again: as bytes, which mostly settles it, or else item by item."""
    if left is right:
        return True
    if left != right:
        return False
    if isinstance(left, dict | list):
        return msgspec.json.encode(left) == msgspec.json.encode(right) or _equal_within(left, right)
    return isinstance(left, bool) == isinstance(right, bool)


def _equal_within(left: Any, right: Any) -> bool:
    """For two values that `==` holds to be equal."""
    if isinstance(left, dict):
        return all(_equal_within(item, right[key]) for key, item in left.items())
    if isinstance(left, list):
        return all(map(_equal_within, left, right))
    return isinstance(left, bool) == isinstance(right, bool)


def _unchanged(of: TypeRef | None, old: Any, new: Any) -> bool:
    return old is new or (bool(old == new) and (of is None or not of.loose or equal(old, new)))


def _compare(of: TypeRef, old: Any, new: Any) -> _Nodes:
    """Both are there (null counts). A value of another kind than before is compared as both kinds."""
    atom = of.atom
    was, now = atom.kind_of(old), atom.kind_of(new)
    nodes = _compare_as(was, of, old, new)
    if was == now:
        return nodes
    more = _compare_as(now, of, old, new)
    return _Nodes(_either(nodes.changed, more.changed), _either(nodes.removed, more.removed))


def _either(left: FieldSet | None, right: FieldSet | None) -> FieldSet | None:
    if left is None or right is None:
        return right if left is None else left
    return as_member(union(left, right)) if not left or not right else union(left, right)


def _compare_as(kind: int, of: TypeRef, old: Any, new: Any) -> _Nodes:
    atom = of.atom
    if kind == MAP:
        assert atom.map is not None
        was = old if isinstance(old, dict) else None
        now = new if isinstance(new, dict) else None
        if (was or now) and not atom.map.atomic:
            return _compare_maps(atom.map, was, now)
    elif kind == LIST:
        assert atom.list is not None
        before = old if isinstance(old, list) else None
        after = new if isinstance(new, list) else None
        if (before or after) and atom.list.associative:
            return _compare_lists(atom.list, before, after)
    return _SAME if equal(old, new) else _LEAF_CHANGED


def _compare_maps(of: MapType, old: dict[str, Any] | None, new: dict[str, Any] | None) -> _Nodes:
    if not old and new and not of.implied:
        return _Nodes(in_order(_arrived(of, new)) or None)
    changed: FieldSet = {}
    removed: FieldSet = {}
    implied_before = of.implied if old is not None else {}
    implied_after = of.implied if new is not None else {}
    old, new = old or {}, new or {}
    for key, after in new.items():
        before = old.get(key, ABSENT)
        if before is ABSENT:
            before = implied_before.get(key, ABSENT)
        if before is not after:
            _compare_field(of, key, before, after, changed, removed)
    for key, before in old.items():
        if key not in new:
            _compare_field(of, key, before, implied_after.get(key, ABSENT), changed, removed)
    return _Nodes(in_order(changed) or None, in_order(removed) or None)


def _arrived(of: MapType, new: dict[str, Any]) -> FieldSet:
    """Every field of a map that was not there before, as on creation."""
    fields, element, is_struct = of.fields, of.element, of.is_struct
    return {
        "f:" + key: presence(fields.get(key, element), value)
        for key, value in new.items()
        if value is not None or not is_struct
    }


def _compare_field(of: MapType, key: str, old: Any, new: Any, changed: FieldSet, removed: FieldSet) -> None:
    field = of.fields.get(key, of.element)
    if _unchanged(field, old, new):
        return
    if of.is_struct and (old is ABSENT or old is None) and (new is ABSENT or new is None):
        return  # a struct does not tell null from nothing
    if old is ABSENT:
        changed["f:" + key] = presence(field, new)
    elif new is ABSENT:
        removed["f:" + key] = presence(field, old)
    elif field is None:
        changed["f:" + key] = {}
    else:
        _put(_compare(field, old, new), "f:" + key, changed, removed)


def _put(nodes: _Nodes, element: str, changed: FieldSet, removed: FieldSet) -> None:
    if nodes.changed is not None:
        changed[element] = nodes.changed
    if nodes.removed is not None:
        removed[element] = nodes.removed


def _compare_lists(of: ListType, old: list[Any] | None, new: list[Any] | None) -> _Nodes:
    changed: FieldSet = {}
    removed: FieldSet = {}
    were, are = by_element(of, old), by_element(of, new)
    for element, now in are.items():
        was = were.get(element, [])
        if len(was) < 2 and len(now) < 2:
            if not was:
                changed[element] = presence(of.element, now[0])
            elif not _unchanged(of.element, was[0], now[0]):
                _put(_compare(of.element, was[0], now[0]), element, changed, removed)
        else:
            _compare_duplicates(of, element, was, now, changed, removed)
    for element, was in were.items():
        if element not in are:
            removed[element] = presence(of.element, was[0]) if len(was) == 1 else {}
    return _Nodes(in_order(changed) or None, in_order(removed) or None)


def _compare_duplicates(
    of: ListType, element: str, old: list[Any], new: list[Any], changed: FieldSet, removed: FieldSet
) -> None:
    """Items that cannot be told apart are owned as one, without their fields."""
    if len(old) > 1 and len(new) > 1:
        if not same_json(old, new):
            changed[element] = {}
    elif len(old) > 1:
        changed[element] = presence(of.element, new[0])
        removed[element] = {}
    else:
        changed[element] = {}
        if old:
            removed[element] = presence(of.element, old[0])
