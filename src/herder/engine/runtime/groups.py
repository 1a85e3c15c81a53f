"""Objects of a kind, grouped by what follows from each of them and from others that belong to it.

An index knows one object; a group may follow from several, such as a Machine and its Secrets. It is computed anew for
those alone that something has changed about, when somebody asks next: the others cost nothing, however many they are.
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
    """A declaration. `group` is pure, and knows no time: it answers in which scope (a cluster, say) the object is that
    the view is about, and to which group it belongs there; None where it is nobody's."""

    name: str
    kind: Kind
    group: Callable[[View], tuple[str, G] | None]
    watches: tuple[Watches, ...] = ()  # what else it reads, and whose group a change there may change

    def kinds(self) -> tuple[Watches, ...]:
        return (Watches(self.kind, itself), *self.watches)


class OutOfDate(AssertionError):
    """A group is not what it would be if it were computed now: the grouping reads what it does not watch."""


class Groups:
    """The groups of all objects of a kind, kept up to date."""

    def __init__(
        self, grouping: Grouping[Any], caches: Mapping[Kind, Cache], view_of: Callable[[Key], View], *, strict: bool
    ) -> None:
        self.grouping = grouping
        self._cache = caches[grouping.kind]
        self._view_of = view_of
        self._strict = strict
        self._known: dict[Key, tuple[str, Any]] = {}
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
            # Whose group it is cannot be told: then it may be anybody's.
            log.error("trigger failed", grouping=self.grouping.name, key=str(change.key), exc_info=error)
            return self._cache.keys()

    def within(self, scope: str) -> Mapping[Any, Collection[Key]]:
        self._refresh()
        return self._members.get(scope, {})

    def _refresh(self) -> None:
        while self._stale:
            key = next(iter(self._stale))
            self._place(key, self._group(key))
            del self._stale[key]  # not before: where it cannot be computed, nobody is told half of it
        if self._strict:
            self._check(self._cache.keys())

    def _group(self, key: Key) -> tuple[str, Any] | None:
        return self.grouping.group(self._view_of(key)) if key in self._cache else None

    def _place(self, key: Key, placed: tuple[str, Any] | None) -> None:
        before = self._known.pop(key, None)
        if before is not None:
            self._leave(key, *before)
        if placed is not None:
            self._known[key] = placed
            self._members.setdefault(placed[0], {}).setdefault(placed[1], {})[key] = None

    def _leave(self, key: Key, scope: str, group: Any) -> None:
        groups = self._members[scope]
        del groups[group][key]
        if not groups[group]:
            del groups[group]
        if not groups:
            del self._members[scope]

    def _check(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if (now := self._group(key)) != self._known.get(key):
                raise OutOfDate(f"{self.grouping.name}: {key} is in {self._known.get(key)}, and would be in {now}")
