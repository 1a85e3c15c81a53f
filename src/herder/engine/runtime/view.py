"""What a reconciler may see: cached objects, results of effects, downstream observations, settings, the time.

A view is read-only and lives for one pass. Objects in it are shared with everyone who reads the same cache: a
reconciler builds new ones and never changes those. In strict mode (tests, simulation) each pass is checked for having
left what it was handed as it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from herder.engine.control.cache import Cache, Key, encode, owned_by
from herder.engine.meta.kinds import Kind, Object
from herder.engine.meta.selectors import LabelSelector, parse_label_selector
from herder.engine.runtime.decision import EffectKey, EffectResult, Observe, Refusal

if TYPE_CHECKING:
    from herder.engine.runtime.groups import Grouping

G = TypeVar("G", bound=Hashable)


class UndeclaredKind(LookupError):
    """A reconciler reads a kind that its controller did not declare, so nobody watches it."""


class KindNotWatched(LookupError):
    """A reconciler reads a kind that it met only now. The runtime starts to follow it, and asks again when it can
    be read: a pass that ends this way has decided nothing."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(f"{kind} is not followed yet")
        self.kind = kind


class ViewChanged(AssertionError):
    """A reconciler changed an object of its view: decisions must be pure."""


@dataclass(frozen=True, slots=True)
class Unreachable:
    """A downstream cluster that does not answer is a value to decide on, not an exception."""

    reason: str
    since: datetime


@dataclass(frozen=True, slots=True)
class Observed:
    objects: tuple[Object, ...]
    as_of: datetime


@dataclass(frozen=True, slots=True)
class Connection:
    """How a downstream cluster is reached. `heard` is when it last answered, None if it never did since we began
    to try at `since`; `reason` says why it does not answer now, and is empty while it does."""

    since: datetime
    heard: datetime | None = None
    reason: str = ""

    @property
    def healthy(self) -> bool:
        return self.heard is not None and not self.reason


def _no_groups(grouping: Grouping[Any], _scope: str) -> Mapping[Any, Collection[Key]]:
    raise UndeclaredKind(f"grouping {grouping.name} is not declared here")


class View:
    def __init__(
        self,
        *,
        key: Key,
        now: datetime,
        caches: Mapping[Kind, Cache],
        results: Mapping[EffectKey, EffectResult],
        observe: Callable[[Observe], Observed | Unreachable | None],
        setting: Callable[[str], str],
        seed: bytes,
        strict: bool = False,
        all_caches: Mapping[Kind, Cache] | None = None,
        connection: Callable[[str], Connection | None] = lambda _cluster: None,
        followed: Callable[[Kind], Cache | None] | None = None,
        groups: Callable[[Grouping[Any], str], Mapping[Any, Collection[Key]]] = _no_groups,
        refused: Refusal | None = None,
    ) -> None:
        self.key = key
        self.now = now
        self.namespace = key.namespace
        self.name = key.name
        self.refused = refused  # by a guard, of what was decided here last: to be told where people look
        self._caches = caches
        self._all_caches = caches if all_caches is None else all_caches
        self._results = results
        self._observe = observe
        self._setting = setting
        self._seed = seed
        self._connection = connection
        self._followed = followed
        self._groups = groups
        self._handed: list[tuple[Object, bytes]] | None = [] if strict else None

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        """The object, or None. The namespace defaults to the reconciled object's own, for namespaced kinds."""
        where = (self.namespace if namespace is None else namespace) if kind.namespaced else ""
        return self._hand(self._cache(kind).get(Key(where, name)))

    def watch(self, kind: Kind) -> None:
        """Watch a kind that the controller writes without reading it, so that a write that changes nothing is not sent.
        May raise KindNotWatched, for the runtime."""
        self._cache(kind)

    def select(
        self,
        kind: Kind,
        *,
        namespace: str = "",
        labels: str | LabelSelector | None = None,
        index: tuple[str, str] | None = None,
    ) -> list[Object]:
        """Objects in name order; by an index of the controller's where one is named."""
        selector = parse_label_selector(labels) if isinstance(labels, str) else labels
        found = self._cache(kind).select(namespace=namespace, labels=selector, index=index)
        for obj in found:
            self._hand(obj)
        return found

    def owned(self, kind: Kind, uid: str) -> list[Object]:
        """What the object with this uid controls, which is in the reconciled object's namespace."""
        return self.select(kind, index=("controller", owned_by(self.namespace, uid)))

    def names(self, kind: Kind, index: tuple[str, str]) -> list[str]:
        """The names of those objects in order, without reading what is in them."""
        return sorted(key.name for key in self._cache(kind).indexed(index))

    def count(self, kind: Kind, index: tuple[str, str]) -> int:
        """How many objects an index has under a value, at no cost however many they are."""
        return self._cache(kind).count(index)

    def groups(self, grouping: Grouping[G], scope: str) -> Mapping[G, Collection[Key]]:
        """Who is in which group of a scope. It costs what has changed since somebody asked last."""
        return self._groups(grouping, scope)

    def result(self, key: EffectKey) -> EffectResult | None:
        """What an effect brought; None while it has not been performed."""
        return self._results.get(key)

    def observed(self, wish: Observe) -> Observed | Unreachable | None:
        """What a downstream cluster shows; None until the first look, which the wish in a decision asks for."""
        return self._observe(wish)

    def connection(self, cluster: str) -> Connection | None:
        """How a downstream cluster is reached; None while nobody asks for it."""
        return self._connection(cluster)

    def setting(self, name: str) -> str:
        return self._setting(name)

    def unique(self, purpose: str, length: int = 5) -> str:
        """Letters and digits that differ between managers and purposes, and stay the same over passes: a create
        that is decided twice names the same object twice, and the second fails instead of making a twin."""
        digest = hashlib.blake2b(f"{self.key}\0{purpose}".encode(), key=self._seed[:64], digest_size=length).digest()
        return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest)

    def unrestricted(self) -> View:
        """The same moment over everything that anybody here watches: guards do not depend on whom they check."""
        return View(
            key=self.key,
            now=self.now,
            caches=self._all_caches,
            results=self._results,
            observe=self._observe,
            setting=self._setting,
            seed=self._seed,
            connection=self._connection,
            groups=self._groups,
        )

    def check_unchanged(self) -> None:
        for obj, before in self._handed or ():
            if encode(obj) != before:
                raise ViewChanged(f"{obj.get('kind')} {obj['metadata'].get('name')} was changed in place")

    def _cache(self, kind: Kind) -> Cache:
        cache = self._caches.get(kind)
        if cache is None and self._followed is not None:
            cache = self._followed(kind)
            if cache is None:
                raise KindNotWatched(kind)
        if cache is None:
            raise UndeclaredKind(f"{kind} is not among the kinds that are declared here, so nobody watches it")
        return cache

    def _hand(self, obj: Object | None) -> Object | None:
        if self._handed is not None and obj is not None:
            self._handed.append((obj, encode(obj)))
        return obj


_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
