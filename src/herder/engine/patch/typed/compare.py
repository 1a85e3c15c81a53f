"""Compare two values of a type: changed or added field paths, and removed ones.

Two versions of an object are mostly equal, so each step first compares with plain equality and descends only if that
fails. Upstream distinguishes changed from added paths; nothing here needs that, so they are one set.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from herder.engine.patch.fieldpath.fieldset import FieldSet, as_member, in_order, union
from herder.engine.patch.fieldpath.paths import presence
from herder.engine.patch.patches.json_patch import same_json
from herder.engine.patch.typed.list_items import by_element
from herder.engine.patch.typed.types import LIST, MAP, ListType, MapType, TypeRef

ABSENT: Any = object()


class Difference(NamedTuple):
    """Field sets of a comparison."""

    changed: FieldSet
    removed: FieldSet


class _Nodes(NamedTuple):
    """Nodes of one field for either set; None for nothing."""

    changed: FieldSet | None = None
    removed: FieldSet | None = None


_SAME = _Nodes()
_LEAF_CHANGED = _Nodes(changed={})


def compare(of: TypeRef, old: Any, new: Any) -> Difference:
    """Compare two values. Raises TypedError if the items of a list cannot be identified."""
    nodes = _compare(of, old, new)
    return Difference(nodes.changed or {}, nodes.removed or {})


def equal(left: Any, right: Any) -> bool:
    """Compare as the API does: 1 equals 1.0, but true does not equal 1.

    Python considers true equal to 1, so equal values are compared again, as bytes or else item by item.
    """
    if left is right:
        return True
    if left != right:
        return False
    if isinstance(left, dict | list):
        return msgspec.json.encode(left) == msgspec.json.encode(right) or _same_types(left, right)
    return isinstance(left, bool) == isinstance(right, bool)


def _same_types(left: Any, right: Any) -> bool:
    """Compare the types of two values that are equal by `==`."""
    if isinstance(left, dict):
        return all(_same_types(item, right[key]) for key, item in left.items())
    if isinstance(left, list):
        return all(map(_same_types, left, right))
    return isinstance(left, bool) == isinstance(right, bool)


def _unchanged(of: TypeRef | None, old: Any, new: Any) -> bool:
    return old is new or (bool(old == new) and (of is None or not of.loose or equal(old, new)))


def _compare(of: TypeRef, old: Any, new: Any) -> _Nodes:
    """Compare two present values (null counts). Values of different kinds are compared as both kinds."""
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
        return _Nodes(in_order(_added(of, new)) or None)
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


def _added(of: MapType, new: dict[str, Any]) -> FieldSet:
    """Return every field of a new map, as on creation."""
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
        return  # a struct does not distinguish null from absent
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
    old_items, new_items = by_element(of, old), by_element(of, new)
    for element, now in new_items.items():
        was = old_items.get(element, [])
        if len(was) < 2 and len(now) < 2:
            if not was:
                changed[element] = presence(of.element, now[0])
            elif not _unchanged(of.element, was[0], now[0]):
                _put(_compare(of.element, was[0], now[0]), element, changed, removed)
        else:
            _compare_duplicates(of, element, was, now, changed, removed)
    for element, was in old_items.items():
        if element not in new_items:
            removed[element] = presence(of.element, was[0]) if len(was) == 1 else {}
    return _Nodes(in_order(changed) or None, in_order(removed) or None)


def _compare_duplicates(
    of: ListType, element: str, old: list[Any], new: list[Any], changed: FieldSet, removed: FieldSet
) -> None:
    """Compare duplicate items, which are owned as one, without their fields."""
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
