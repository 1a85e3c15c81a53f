"""From a change of some object to the keys that must be looked at again, and which changes matter at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from herder.engine.control.cache import Change, Key
from herder.engine.control.queue import NORMAL
from herder.engine.meta.kinds import Kind, Object

KeysOf = Callable[[Object], Iterable[Key]]
Matters = Callable[[Change], bool]


@dataclass(frozen=True, slots=True)
class Indexed:
    """Those objects of the controller's own kind that have one of these values in one of its indexes."""

    index: str
    values: Callable[[Object], Iterable[str]]


Lookup = Callable[[tuple[str, str]], Iterable[Key]]
"""The keys of the controller's own kind that an index has under a value."""


def _no_index(index: tuple[str, str]) -> Iterable[Key]:
    raise LookupError(f"index {index[0]} is not declared")


def itself(obj: Object) -> Iterable[Key]:
    meta = obj["metadata"]
    return (Key(meta.get("namespace", ""), meta["name"]),)


def owner(kind: Kind, *, controller: bool = True) -> KeysOf:
    """The owners of that kind; only the controlling one unless said otherwise."""

    def keys(obj: Object) -> Iterable[Key]:
        namespace = obj["metadata"].get("namespace", "") if kind.namespaced else ""
        for reference in obj["metadata"].get("ownerReferences") or ():
            group = reference.get("apiVersion", "").rpartition("/")[0]
            if (group, reference.get("kind")) == kind.group_kind and (reference.get("controller") or not controller):
                yield Key(namespace, reference["name"])

    return keys


def labelled(label: str, *, namespace: str | None = None) -> KeysOf:
    """The object that a label names, in the same namespace unless another is given."""

    def keys(obj: Object) -> Iterable[Key]:
        name = (obj["metadata"].get("labels") or {}).get(label)
        if name:
            yield Key(obj["metadata"].get("namespace", "") if namespace is None else namespace, name)

    return keys


def any_change(_change: Change) -> bool:
    return True


def changed(*paths: str) -> Matters:
    """Additions and removals, and those changes that touch one of the dotted paths."""
    split = [tuple(path.split(".")) for path in paths]

    def matters(change: Change) -> bool:
        if change.old is None or change.new is None:
            return True
        return any(_at(change.old, path) != _at(change.new, path) for path in split)

    return matters


def _at(obj: Any, path: Sequence[str]) -> Any:
    for part in path:
        if not isinstance(obj, dict):
            return None
        obj = obj.get(part)
    return obj


@dataclass(frozen=True, slots=True)
class Watches:
    """A kind that a controller reads, and what its changes set off."""

    kind: Kind
    keys: KeysOf | Indexed | None = None  # None: read only, its changes set nothing off
    predicate: Matters = any_change
    priority: int = NORMAL
    labels: str = ""  # only these objects of the kind are read
    fields: str = ""

    def affected(self, change: Change, lookup: Lookup = _no_index) -> list[Key]:
        if self.keys is None or not self.predicate(change):
            return []
        sides = [obj for obj in (change.old, change.new) if obj is not None]
        if isinstance(self.keys, Indexed):
            values = dict.fromkeys(value for obj in sides for value in self.keys.values(obj))
            return list(dict.fromkeys(key for value in values for key in lookup((self.keys.index, value))))
        return list(dict.fromkeys(key for obj in sides for key in self.keys(obj)))


@dataclass(frozen=True, slots=True)
class Follows:
    """What the changes of objects set off whose kinds are met only at run time, by references to them."""

    keys: KeysOf | Indexed
    predicate: Matters = any_change

    def affected(self, kind: Kind, change: Change, lookup: Lookup = _no_index) -> list[Key]:
        return Watches(kind, self.keys, self.predicate).affected(change, lookup)
