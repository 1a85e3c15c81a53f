"""Incrementally maintained groups of objects, derived from an object and related objects.

A cache index depends on one object; a group may depend on several, such as a Machine and its Secrets. Groups are
computed lazily, and only for objects affected by a change, so unchanged objects cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from herder.engine.control.cache import Cache, Change, Key
from herder.engine.logs import get_logger
from herder.engine.meta.kinds import Kind
from herder.engine.runtime.handlers import Watches, itself
from herder.engine.runtime.view import View

log = get_logger(__name__)

G = TypeVar("G", bound=Hashable)


@dataclass(frozen=True)
class Grouping(Generic[G]):
    """Declaration of a grouping.

    `group` is pure and does not depend on time. It returns the scope (for example a cluster) of the object that the
    view is about, and the object's group there; or None if the object is in no group.
    """

    name: str
    kind: Kind
    group: Callable[[View], tuple[str, G] | None]
    watches: tuple[
        Watches, ...
    ] = ()  # other kinds that `group` reads, mapped to the objects whose group they may change

    def kinds(self) -> tuple[Watches, ...]:
        return (Watches(self.kind, itself), *self.watches)


class StaleGroup(AssertionError):
    """A cached group differs from the computed one: the grouping reads a kind that it does not watch. Checked in
    strict mode."""


class Groups:
    """The up-to-date groups of all objects of a kind."""

    def __init__(
        self, grouping: Grouping[Any], caches: Mapping[Kind, Cache], view_of: Callable[[Key], View], *, strict: bool
    ) -> None:
        self.grouping = grouping
        self._cache = caches[grouping.kind]
        self._view_of = view_of
        self._strict = strict
        self._group_of: dict[Key, tuple[str, Any]] = {}
        self._members: dict[str, dict[Any, dict[Key, None]]] = {}
        self._stale: dict[Key, None] = dict.fromkeys(self._cache.keys())

    def changed(self, kind: Kind, change: Change) -> None:
        for watch in self.grouping.kinds():
            if watch.kind == kind:
                self._stale.update(dict.fromkeys(self._affected(watch, change)))

    def _affected(self, watch: Watches, change: Change) -> Iterable[Key]:
        try:
            return watch.affected(change, self._cache.indexed)
        except Exception as error:
            # The affected objects are unknown, so recompute all groups.
            log.error("event handler failed", grouping=self.grouping.name, key=str(change.key), exc_info=error)
            return self._cache.keys()

    def in_scope(self, scope: str) -> Mapping[Any, Collection[Key]]:
        self._refresh()
        return self._members.get(scope, {})

    def _refresh(self) -> None:
        while self._stale:
            key = next(iter(self._stale))
            self._assign(key, self._group(key))
            del self._stale[key]  # only now: if `group` raises, the key stays stale
        if self._strict:
            self._check(self._cache.keys())

    def _group(self, key: Key) -> tuple[str, Any] | None:
        return self.grouping.group(self._view_of(key)) if key in self._cache else None

    def _assign(self, key: Key, assigned: tuple[str, Any] | None) -> None:
        before = self._group_of.pop(key, None)
        if before is not None:
            self._unassign(key, *before)
        if assigned is not None:
            self._group_of[key] = assigned
            self._members.setdefault(assigned[0], {}).setdefault(assigned[1], {})[key] = None

    def _unassign(self, key: Key, scope: str, group: Any) -> None:
        groups = self._members[scope]
        del groups[group][key]
        if not groups[group]:
            del groups[group]
        if not groups:
            del self._members[scope]

    def _check(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if (now := self._group(key)) != self._group_of.get(key):
                raise StaleGroup(
                    f"grouping {self.grouping.name}: {key} is in {self._group_of.get(key)}, expected {now};"
                    " watch every kind that it reads"
                )
