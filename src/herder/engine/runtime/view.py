"""View: the inputs of a reconcile (cached objects, effect results, downstream observations, settings, time).

A view is read-only and lives for one reconcile. Its objects are shared with all readers of the cache: a reconciler
builds new objects and never modifies these. In strict mode (tests, simulation) every reconcile is checked for this.
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
from herder.engine.runtime.contact import EVER
from herder.engine.runtime.decision import EffectKey, EffectResult, Observe, Refusal

if TYPE_CHECKING:
    from herder.engine.runtime.groups import Grouping

G = TypeVar("G", bound=Hashable)


class UndeclaredKind(LookupError):
    """A reconciler reads a kind that its controller does not declare, so it is not watched."""


class KindNotWatched(LookupError):
    """A reconciler reads a kind that is not watched yet. The manager starts an informer and reconciles again once it
    is synced; the interrupted reconcile decides nothing."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(f"{kind} is not watched yet")
        self.kind = kind


class ViewChanged(AssertionError):
    """A reconciler modified an object of its view; decisions must be pure."""


@dataclass(frozen=True, slots=True)
class Unreachable:
    """A downstream cluster that does not respond: a value to decide on, not an exception."""

    reason: str
    since: datetime


@dataclass(frozen=True, slots=True)
class Observed:
    """Objects of a downstream cluster as of a time."""

    objects: tuple[Object, ...]
    as_of: datetime
    values: tuple[str, ...] = ()  # of the index that was asked for


@dataclass(frozen=True, slots=True)
class ConnectionStatus:
    """State of the connection to a downstream cluster.

    `last_contact` is the time of the last response, None if there was none since `since`, when the first attempt
    started. `reason` is the current connection error, empty while the cluster responds.
    """

    since: datetime
    last_contact: datetime | None = None
    reason: str = ""

    @property
    def healthy(self) -> bool:
        return self.last_contact is not None and not self.reason


def _no_groups(grouping: Grouping[Any], _scope: str) -> Mapping[Any, Collection[Key]]:
    raise UndeclaredKind(f"grouping {grouping.name} is not declared by this controller")


class View:
    """Read-only snapshot for one reconcile."""

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
        connection: Callable[[str], ConnectionStatus | None] = lambda _cluster: None,
        dynamic_cache: Callable[[Kind], Cache | None] | None = None,
        groups: Callable[[Grouping[Any], str], Mapping[Any, Collection[Key]]] = _no_groups,
        refused: Refusal | None = None,
        rejected: str = "",
        connected_since: datetime = EVER,
    ) -> None:
        self.key = key
        self.now = now
        self.connected_since = connected_since  # before, the manager was down or its API server was unavailable
        self.namespace = key.namespace
        self.name = key.name
        self.refused = refused  # guard refusal of the last decision, to be reported in a condition
        self.rejected = rejected  # message about a write of the last decision that the API server rejected, likewise
        self._caches = caches
        self._all_caches = caches if all_caches is None else all_caches
        self._results = results
        self._observe = observe
        self._setting = setting
        self._seed = seed
        self._connection = connection
        self._dynamic_cache = dynamic_cache
        self._groups = groups
        self._returned: list[tuple[Object, bytes]] | None = [] if strict else None

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        """Return the object, or None. For namespaced kinds, the namespace defaults to that of the reconciled object."""
        scope = (self.namespace if namespace is None else namespace) if kind.namespaced else ""
        return self._track(self._cache(kind).get(Key(scope, name)))

    def is_served(self, kind: Kind) -> bool:
        """Return whether the API server serves an optional kind of the controller."""
        return self._cache(kind).served

    def watch(self, kind: Kind) -> None:
        """Require the kind to be watched without reading it, so that the writer can skip no-op writes. May raise
        KindNotWatched."""
        self._cache(kind)

    def select(
        self,
        kind: Kind,
        *,
        namespace: str = "",
        labels: str | LabelSelector | None = None,
        index: tuple[str, str] | None = None,
    ) -> list[Object]:
        """Return objects in name order, optionally by label selector and by one of the controller's indexes."""
        selector = parse_label_selector(labels) if isinstance(labels, str) else labels
        found = self._cache(kind).select(namespace=namespace, labels=selector, index=index)
        for obj in found:
            self._track(obj)
        return found

    def owned(self, kind: Kind, uid: str) -> list[Object]:
        """Return the objects that the object with this UID controls, in the namespace of the reconciled object."""
        return self.select(kind, index=("controller", owned_by(self.namespace, uid)))

    def names(self, kind: Kind, index: tuple[str, str]) -> list[str]:
        """Return the sorted names of the objects that an index holds under a value, without reading the objects."""
        return sorted(key.name for key in self._cache(kind).indexed(index))

    def count(self, kind: Kind, index: tuple[str, str]) -> int:
        """Return the number of objects that an index holds under a value, in constant time."""
        return self._cache(kind).count(index)

    def groups(self, grouping: Grouping[G], scope: str) -> Mapping[G, Collection[Key]]:
        """Return the members of each group in a scope. Costs only what changed since the last call."""
        return self._groups(grouping, scope)

    def result(self, key: EffectKey) -> EffectResult | None:
        """Return the result of an effect; None if it has not been performed."""
        return self._results.get(key)

    def observed(self, subscription: Observe) -> Observed | Unreachable | None:
        """Return what a downstream cluster contains; None until the first list, which the subscription in a decision
        starts."""
        return self._observe(subscription)

    def connection(self, cluster: str) -> ConnectionStatus | None:
        """Return the state of the connection to a downstream cluster; None while no decision requests it."""
        return self._connection(cluster)

    def setting(self, name: str) -> str:
        return self._setting(name)

    def unique(self, purpose: str, length: int = 5) -> str:
        """Return a random-looking suffix that differs between managers and purposes but is stable across reconciles.

        A create that is decided twice therefore uses the same name twice, and the second one fails instead of creating
        a duplicate.
        """
        digest = hashlib.blake2b(f"{self.key}\0{purpose}".encode(), key=self._seed[:64], digest_size=length).digest()
        return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest)

    def unrestricted(self) -> View:
        """Return the same view over every watched kind: guards may read more than the controller that they check."""
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
            connected_since=self.connected_since,
        )

    def check_unchanged(self) -> None:
        for obj, before in self._returned or ():
            if encode(obj) != before:
                raise ViewChanged(f"{obj.get('kind')} {obj['metadata'].get('name')} was modified in place")

    def _cache(self, kind: Kind) -> Cache:
        cache = self._caches.get(kind)
        if cache is None and self._dynamic_cache is not None:
            cache = self._dynamic_cache(kind)
            if cache is None:
                raise KindNotWatched(kind)
        if cache is None:
            raise UndeclaredKind(f"{kind} is not declared by this controller; add it to watches")
        return cache

    def _track(self, obj: Object | None) -> Object | None:
        if self._returned is not None and obj is not None:
            self._returned.append((obj, encode(obj)))
        return obj


_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
