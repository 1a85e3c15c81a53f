"""Field sets in the encoding of managedFields (FieldsV1).

A set is a dict from path elements (see `path_element`) to nodes. A node is `{}` for a field that is in the set without
children. A node with children contains them in the same way, plus `"."` if the field itself is in the set. Stored sets
therefore need no decoding. Operations share unchanged parts, so sets are never modified in place. Every node is in
canonical order, and there are no empty subtrees.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from herder.engine.patch.fieldpath.path_element import SELF, UnknownElement, canonical, describe, sort_key

FieldSet = dict[str, Any]
Path = tuple[str, ...]


class InvalidFieldSet(ValueError):
    """FieldsV1 that cannot be decoded."""


def from_fields_v1(fields: Any) -> FieldSet:
    """Return the canonical set for FieldsV1 from a client: drop elements of unknown kinds, reject malformed ones."""
    if fields is None:
        return {}
    try:
        node = _parse(fields)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidFieldSet(f"error decoding set: {error}") from None
    return {element: child for element, child in node.items() if element != SELF}


def _parse(fields: Any) -> FieldSet:
    if fields is None:
        return {}
    if not isinstance(fields, dict):
        raise ValueError(f"expected an object, got {type(fields).__name__}")
    node: FieldSet = {}
    for written, child in fields.items():
        if written == SELF:
            node[SELF] = {}
            continue
        try:
            element = canonical(written)
        except UnknownElement:
            continue
        node[element] = _parse(child)
    return {} if len(node) == 1 and SELF in node else in_order(node)


def in_order(node: FieldSet) -> FieldSet:
    """Return the node with its elements in canonical order; the same node if they already are."""
    if len(node) < 2:
        return node
    elements = list(node)
    ordered = sorted(elements)
    if ordered[-1][0] != "f":
        ordered.sort(key=sort_key)
    return node if ordered == elements else {element: node[element] for element in ordered}


def is_member(node: FieldSet) -> bool:
    """Return whether the field of this node is itself in the set."""
    return not node or SELF in node


def as_member(node: FieldSet) -> FieldSet:
    """Return the node with the field itself in the set."""
    return node if not node or SELF in node else {SELF: {}, **node}


def _normalize(node: FieldSet) -> FieldSet | None:
    """Normalize a node after a removal: None if it is empty, `{}` if only the field itself is left."""
    if not node:
        return None
    return {} if len(node) == 1 and SELF in node else node


def union(left: FieldSet, right: FieldSet) -> FieldSet:
    if not right or left is right:
        return left
    if not left:
        return right
    out: FieldSet | None = None
    for element, theirs in right.items():
        ours = left.get(element)
        node = theirs if ours is None else _union_nodes(ours, theirs)
        if node is not ours:
            if out is None:
                out = dict(left)
            out[element] = node
    if out is None:
        return left
    return in_order(out) if len(out) > len(left) else out


def _union_nodes(ours: FieldSet, theirs: FieldSet) -> FieldSet:
    if not theirs:
        return as_member(ours)
    return union(ours, theirs) if ours else as_member(theirs)


def difference(left: FieldSet, right: FieldSet) -> FieldSet:
    """Return the paths of `left` that are not in `right`. A path in `right` does not affect its parents or children."""
    if not left or not right:
        return left
    out: FieldSet | None = None
    for element, theirs in right.items():
        ours = left.get(element)
        if ours is None:
            continue
        node = _node_difference(ours, theirs)
        if node is ours:
            continue
        if out is None:
            out = dict(left)
        if node is None:
            del out[element]
        else:
            out[element] = node
    return left if out is None else out


def _node_difference(ours: FieldSet, theirs: FieldSet) -> FieldSet | None:
    if not ours:
        return None if is_member(theirs) else ours
    if not theirs:
        return {e: n for e, n in ours.items() if e != SELF} if SELF in ours else ours
    rest = difference(ours, theirs)
    return rest if rest is ours else _normalize(rest)


def recursive_difference(left: FieldSet, right: FieldSet) -> FieldSet:
    """Return the paths of `left` that are neither in `right` nor below a path in it."""
    out: FieldSet | None = None
    for element, theirs in right.items():
        ours = left.get(element)
        if ours is None:
            continue
        node: FieldSet | None = None
        if not is_member(theirs):
            if not ours:
                continue
            rest = recursive_difference(ours, theirs)
            if rest is ours:
                continue
            node = _normalize(rest)
        if out is None:
            out = dict(left)
        if node is None:
            del out[element]
        else:
            out[element] = node
    return left if out is None else out


def intersection(left: FieldSet, right: FieldSet) -> FieldSet:
    out: FieldSet = {}
    for element, ours in left.items():
        theirs = right.get(element)
        if theirs is None:
            continue
        if not ours or not theirs:
            if is_member(ours) and is_member(theirs):
                out[element] = {}
            continue
        node = _normalize(intersection(ours, theirs))
        if node is not None:
            out[element] = node
    return out


def contains(fields: FieldSet, path: Path) -> bool:
    node = fields
    for element in path:
        found = node.get(element)
        if found is None:
            return False
        node = found
    return is_member(node)


def from_paths(paths: Iterable[Path]) -> FieldSet:
    out: FieldSet = {}
    for path in paths:
        node: FieldSet = {}
        for element in reversed(path):
            node = {element: node}
        out = union(out, node)
    return out


def paths(fields: FieldSet, prefix: Path = ()) -> Iterator[Path]:
    """Yield all paths: at each level first the members, then their children."""
    for element, node in fields.items():
        if element != SELF and is_member(node):
            yield (*prefix, element)
    for element, node in fields.items():
        if node:
            yield from paths(node, (*prefix, element))


def leaves(fields: FieldSet) -> FieldSet:
    """Return the set without members that have children in it."""
    return {element: leaves(node) for element, node in fields.items() if element != SELF}


def path_text(path: Path) -> str:
    """Format a path as in `.spec.ports[port=80,protocol="TCP"]`."""
    return "".join(map(describe, path))
