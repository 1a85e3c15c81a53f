"""Event handlers and predicates: which keys a change of an object enqueues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from herder.engine.control.cache import Change, Key
from herder.engine.control.queue import NORMAL
from herder.engine.meta.kinds import Kind, Object

MapFunc = Callable[[Object], Iterable[Key]]
"""Maps an object to the keys to enqueue."""
Predicate = Callable[[Change], bool]
"""Filters changes before they enqueue keys."""


@dataclass(frozen=True, slots=True)
class Indexed:
    """Maps an object to those objects of the controller's own kind that an index holds under one of the values."""

    index: str
    values: Callable[[Object], Iterable[str]]


Lookup = Callable[[tuple[str, str]], Iterable[Key]]
"""Returns the keys of the controller's own kind that an index holds under a value."""


def _no_index(index: tuple[str, str]) -> Iterable[Key]:
    raise LookupError(f"index {index[0]} is not declared")


def itself(obj: Object) -> Iterable[Key]:
    """Enqueue the changed object."""
    meta = obj["metadata"]
    return (Key(meta.get("namespace", ""), meta["name"]),)


def owner(kind: Kind, *, controller: bool = True) -> MapFunc:
    """Enqueue the owners of a kind; only the controller owner unless `controller` is False."""

    def keys(obj: Object) -> Iterable[Key]:
        namespace = obj["metadata"].get("namespace", "") if kind.namespaced else ""
        for reference in obj["metadata"].get("ownerReferences") or ():
            group = reference.get("apiVersion", "").rpartition("/")[0]
            if (group, reference.get("kind")) == kind.group_kind and (reference.get("controller") or not controller):
                yield Key(namespace, reference["name"])

    return keys


def named_by_label(label: str, *, namespace: str | None = None) -> MapFunc:
    """Enqueue the object that a label names, in the same namespace unless another is given."""

    def keys(obj: Object) -> Iterable[Key]:
        name = (obj["metadata"].get("labels") or {}).get(label)
        if name:
            yield Key(obj["metadata"].get("namespace", "") if namespace is None else namespace, name)

    return keys


def any_change(_change: Change) -> bool:
    """Accept every change."""
    return True


def changed(*paths: str) -> Predicate:
    """Accept additions, deletions, and updates that change one of the dotted paths."""
    split = [tuple(path.split(".")) for path in paths]

    def predicate(change: Change) -> bool:
        if change.old is None or change.new is None:
            return True
        return any(_at(change.old, path) != _at(change.new, path) for path in split)

    return predicate


def _at(obj: Any, path: Sequence[str]) -> Any:
    for part in path:
        if not isinstance(obj, dict):
            return None
        obj = obj.get(part)
    return obj


@dataclass(frozen=True, slots=True)
class Watches:
    """A kind that a controller reads, and how its changes enqueue keys."""

    kind: Kind
    keys: MapFunc | Indexed | None = None  # None: changes enqueue nothing
    predicate: Predicate = any_change
    priority: int = NORMAL
    labels: str = ""  # label selector
    fields: str = ""  # field selector
    optional: bool = False
    """Start the controller even if the server does not serve the kind. The kind then has no objects, and
    `View.is_served` is False; once it is defined, its objects enqueue keys like any others."""

    def affected(self, change: Change, lookup: Lookup = _no_index) -> list[Key]:
        if self.keys is None or not self.predicate(change):
            return []
        sides = [obj for obj in (change.old, change.new) if obj is not None]
        if isinstance(self.keys, Indexed):
            values = dict.fromkeys(value for obj in sides for value in self.keys.values(obj))
            return list(dict.fromkeys(key for value in values for key in lookup((self.keys.index, value))))
        return list(dict.fromkeys(key for obj in sides for key in self.keys(obj)))


@dataclass(frozen=True, slots=True)
class DynamicWatches:
    """How changes of objects enqueue keys whose kinds are discovered at run time, through references to them."""

    keys: MapFunc | Indexed
    predicate: Predicate = any_change

    def affected(self, kind: Kind, change: Change, lookup: Lookup = _no_index) -> list[Key]:
        return Watches(kind, self.keys, self.predicate).affected(change, lookup)
