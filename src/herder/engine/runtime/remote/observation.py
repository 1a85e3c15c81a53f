"""Observation of a downstream cluster: one watch, or lists on demand, shared by all equal subscriptions.

Only the projection of each object is cached. Subscribers with a focus are indexed by its value, so an event costs the
same regardless of their number, and changes outside the projection wake nobody.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from datetime import datetime
from functools import partial

from herder.engine.client.client import OVER_BUDGET, Client
from herder.engine.control.cache import LIST_BATCH, Cache, Change, encode_in_batches, index_values, strip_object
from herder.engine.control.informer import Informer
from herder.engine.control.tasks import Tasks
from herder.engine.logs import get_logger
from herder.engine.meta.errors import ServiceUnavailable
from herder.engine.meta.kinds import Kind, Object
from herder.engine.meta.names import path_segment
from herder.engine.runtime.decision import Observe, Projection
from herder.engine.runtime.remote.budget import Budget
from herder.engine.runtime.remote.transport import error_message
from herder.engine.runtime.view import Observed, Unreachable

log = get_logger(__name__)

Wake = Callable[[], None]
Focus = tuple[str, str]

SYNC_SECONDS = 300.0
"""Time limit for the first list."""
WATCH_GRACE_SECONDS = 50.0
"""A watch that cannot be resumed for this long has failed; until then the last known objects are returned."""
RETRY_SECONDS = 10.0
MAX_OBJECTS = 100_000
MAX_BYTES = 64 << 20
"""Limits per kind and cluster. A cluster that exceeds them is not observed, because its records would fill the
memory. The record of a Node has about a kilobyte."""
_MAX_OF_KIND = {
    ("", "Node"): 10_000,
    ("", "Namespace"): 20_000,
    ("k3s.cattle.io", "ETCDSnapshotFile"): 10_000,
}
"""Some reconciles visit all of these objects in one event loop iteration. Kubernetes supports half as many Nodes and
Namespaces."""
MAX_AT_ONCE = 10_000
"""Limit for the objects that one reconcile gets, because it visits all of them in one event loop iteration."""
_MAX_AT_ONCE_OF_KIND = {("", "PersistentVolume"): 2000, ("storage.k8s.io", "VolumeAttachment"): 2000}
"""Those of one Node, which has at most a few hundred."""
EVICTED_SECONDS = 60.0
"""Delay until a cluster is observed again whose memory was given to other clusters."""
_MAX_LENGTHS = {"name": 253, "namespace": 63, "uid": 128, "resourceVersion": 64}
"""Limits for identity fields, which are also kept for deleted objects."""


class Observation(ABC):
    """The objects of one subscription, without focus, and its subscribers."""

    _is_failure_logged = False

    def __init__(self, subscription: Observe, *, clock: Callable[[], datetime], tasks: Tasks, budget: Budget) -> None:
        self.subscription = subscription  # without focus, which each subscriber has
        self._clock = clock
        self._tasks = tasks
        self._project = projector(subscription)
        self._subscribers: dict[Focus | None, dict[Hashable, Wake]] = {}
        self._objects: Cache | None = None
        self._failure: Unreachable | None = None
        self._task: asyncio.Task[None] | None = None
        self._current_client: Client | None = None
        self._loading: Cache | None = None  # replaces the objects once it is complete
        self._account = budget.open(subscription.cluster, self._evict)

    # --- subscribers --------------------------------------------------------------------------------------------

    @property
    def unused(self) -> bool:
        return not self._subscribers

    def add(self, focus: Focus | None, subscriber: Hashable, wake: Wake) -> None:
        self._subscribers.setdefault(focus, {})[subscriber] = wake

    def discard(self, focus: Focus | None, subscriber: Hashable) -> None:
        subscribers = self._subscribers.get(focus, {})
        subscribers.pop(subscriber, None)
        if not subscribers:
            self._subscribers.pop(focus, None)

    def wake_all(self) -> None:
        self._wake(list(self._subscribers))

    def _wake(self, focuses: Iterable[Focus | None]) -> None:
        """Wake each subscriber once, regardless of how many focuses match."""
        subscribers: dict[Hashable, Wake] = {}
        for focus in focuses:
            subscribers |= self._subscribers.get(focus, {})
        for wake in subscribers.values():
            wake()

    # --- objects ------------------------------------------------------------------------------------------------

    def result(
        self, focus: Focus | None, last_contact: datetime | None, values_of: str = ""
    ) -> Observed | Unreachable | None:
        if self._failure is not None:
            return self._failure
        if self._objects is None:
            return None
        if values_of:
            return Observed((), self._as_of(last_contact), tuple(self._objects.values(values_of)))
        limit = max_at_once(self.subscription.kind)
        if (len(self._objects) if focus is None else self._objects.count(focus)) > limit:
            reason = f"more than {limit} objects of kind {self.subscription.kind} at once"
            return Unreachable(reason, self._as_of(last_contact))
        return Observed(tuple(self._objects.select(index=focus)), self._as_of(last_contact))

    @abstractmethod
    def _as_of(self, last_contact: datetime | None) -> datetime: ...

    # --- connection ---------------------------------------------------------------------------------------------

    def start(self, client: Client) -> None:
        """Observe through this connection from now on; cached objects stay until it has listed."""
        self._end()
        self._current_client = client
        self._task = self._tasks.spawn(
            self._run(client), name=f"observe {self.subscription.cluster} {self.subscription.kind}"
        )

    def stop(self) -> None:
        self._end()

    def _evict(self) -> None:
        """Free the memory for other clusters, and observe again later."""
        client, self._objects = self._current_client, None
        self._end()
        self._mark_unreachable(OVER_BUDGET)
        if client is not None:
            self._current_client = client
            self._task = self._tasks.spawn(self._run_later(client), name=f"observe {self.subscription.cluster} later")

    async def _run_later(self, client: Client) -> None:
        await asyncio.sleep(EVICTED_SECONDS)
        await self._run(client)

    def _claim(self, cache: Cache, size: int) -> bool:
        """Return whether `cache` may have this size, besides the objects that it will replace. A cache that was given
        up may not grow."""
        if cache is not self._loading and cache is not self._objects:
            return False
        before = self._objects.size if self._objects is not None and self._objects is not cache else 0
        return self._account.claim(before + size)

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = self._current_client = self._loading = None

    def invalidate(self) -> None:
        """Discard the cached objects: the cluster is unreachable, so they may be outdated."""
        self.stop()
        self._objects = self._failure = None
        self._account.release()

    @abstractmethod
    async def _run(self, client: Client) -> None: ...

    def _new_cache(self) -> Cache:
        projection = self.subscription.projection
        return Cache(self.subscription.kind, projection.indexes if projection else {})

    def _mark_unreachable(self, reason: str, *, logged: bool = True) -> None:
        is_new = self._failure is None
        self._is_failure_logged = self._is_failure_logged and not is_new
        self._failure = Unreachable(reason, self._failure.since if self._failure else self._clock())
        if logged and not self._is_failure_logged:
            self._is_failure_logged = True
            log.warning(
                "observation failed", cluster=self.subscription.cluster, kind=str(self.subscription.kind), reason=reason
            )
        if is_new:
            self.wake_all()


class WatchObservation(Observation):
    """Observation kept up to date by a watch."""

    _failing_since: float | None = None  # event loop time

    def _as_of(self, last_contact: datetime | None) -> datetime:
        return last_contact or self._clock()

    async def _run(self, client: Client) -> None:
        while True:
            cache = self._loading = self._new_cache()
            informer = self._informer(client, cache)
            task = self._tasks.spawn(
                informer.run(), name=f"follow {self.subscription.cluster} {self.subscription.kind}"
            )
            try:
                async with asyncio.timeout(SYNC_SECONDS):
                    await informer.synced.wait()
                await self._switch_cache(cache)
                await task
            except TimeoutError:
                self._mark_unreachable(informer.failure or "first list timed out")
            finally:
                task.cancel()

    def _informer(self, client: Client, cache: Cache) -> Informer:
        return Informer(
            client,
            cache,
            lambda change: self._changed(cache, change),
            namespace=self.subscription.namespace,
            labels=self.subscription.labels,
            fields=self.subscription.fields,
            transform=self._project,
            on_health=self._on_health,
            max_objects=max_objects(self.subscription.kind),
            max_bytes=MAX_BYTES,
            claim=partial(self._claim, cache),
            relist_after_interruption=True,
        )

    async def _switch_cache(self, cache: Cache) -> None:
        """Replace the objects of a previous connection by those of this one, and wake subscribers for the
        differences."""
        before, was_failing = self._objects, self._failure is not None
        self._objects, self._failure, self._failing_since = cache, None, None
        self._account.claim(cache.size)
        if before is None or was_failing:
            self.wake_all()
            return
        for number, key in enumerate(dict.fromkeys((*before.keys(), *cache.keys())), 1):
            self._notify(Change(key, before.get(key), cache.get(key)))
            if number % LIST_BATCH == 0:
                await asyncio.sleep(0)

    def _changed(self, cache: Cache, change: Change) -> None:
        if cache is self._objects:
            self._notify(change)

    def _notify(self, change: Change) -> None:
        if not _is_equal(change.old, change.new):
            self._wake(self._affected_focuses(change))

    def _affected_focuses(self, change: Change) -> dict[Focus | None, None]:
        """Return the focuses that match the old or new object, and None for subscribers without a focus."""
        focuses: dict[Focus | None, None] = {None: None}
        projection = self.subscription.projection
        for obj in (change.old, change.new):
            if obj is not None and projection is not None:
                for name, index in projection.indexes.items():
                    focuses |= {(name, value): None for value in index_values(name, index, obj)}
        return focuses

    def _on_health(self, failure: str) -> None:
        """Track the health of the watch. A watch breaks now and then and is resumed."""
        now = asyncio.get_running_loop().time()
        if not failure:
            self._failing_since = None
            if self._failure is not None:
                self._failure = None
                self.wake_all()
            return
        is_first = self._failing_since is None
        if self._failing_since is None:
            self._failing_since = now
        if self._objects is None or now - self._failing_since >= WATCH_GRACE_SECONDS:
            # Rights and tunnels of a new cluster may take effect a moment after the first attempt.
            self._mark_unreachable(failure, logged=not is_first)


class ListObservation(Observation):
    """Observation by lists, on demand when the last list is older than `freshness`."""

    _client: Client | None = None
    _listed_at: datetime | None = None

    def _as_of(self, last_contact: datetime | None) -> datetime:
        return self._listed_at or self._clock()

    def add(self, focus: Focus | None, subscriber: Hashable, wake: Wake) -> None:
        super().add(focus, subscriber, wake)
        if self._client is not None and (self._task is None or self._task.done()) and self._stale():
            super().start(self._client)

    def start(self, client: Client) -> None:
        self._client = client
        if self._stale():
            super().start(client)

    def stop(self) -> None:
        self._client = None
        super().stop()

    def _stale(self) -> bool:
        if self._failure or self._objects is None or self._listed_at is None or self.subscription.freshness is None:
            return True
        return (self._clock() - self._listed_at).total_seconds() >= self.subscription.freshness

    async def _run(self, client: Client) -> None:
        while True:
            try:
                async with asyncio.timeout(SYNC_SECONDS):
                    await self._list(client)
                return
            except Exception as error:
                # Any error is reported as the state of this cluster.
                self._account.claim(self._objects.size if self._objects is not None else 0)
                self._mark_unreachable(error_message(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def _list(self, client: Client) -> None:
        subscription, cache = self.subscription, self._new_cache()
        self._loading = cache
        page = await client.list_all(
            subscription.kind.resource,
            namespace=subscription.namespace,
            labels=subscription.labels,
            fields=subscription.fields,
            metadata_only=subscription.kind.partial,
            transform=self._project,
            max_items=max_objects(subscription.kind),
            max_bytes=MAX_BYTES,
            claim=partial(self._claim, cache),
        )
        await cache.replace_in_batches(await encode_in_batches(page.items))
        self._objects, self._listed_at, self._failure = cache, self._clock(), None
        self._account.claim(cache.size)
        self.wake_all()


def max_objects(kind: Kind) -> int:
    return min(MAX_OBJECTS, _MAX_OF_KIND.get(kind.group_kind, MAX_OBJECTS))


def max_at_once(kind: Kind) -> int:
    return _MAX_AT_ONCE_OF_KIND.get(kind.group_kind, MAX_AT_ONCE)


def observation(subscription: Observe, *, clock: Callable[[], datetime], tasks: Tasks, budget: Budget) -> Observation:
    kind = WatchObservation if subscription.freshness is None else ListObservation
    return kind(subscription, clock=clock, tasks=tasks, budget=budget)


def projector(subscription: Observe) -> Callable[[Object], Object]:
    """Return the function that reduces each object to what is cached."""
    transform = (
        partial(strip_object, subscription.kind)
        if subscription.projection is None
        else partial(_project_record, subscription.projection, set())
    )

    def project_checked(obj: Object) -> Object:
        _check_identity(obj)
        return transform(obj)

    return project_checked


def _check_identity(obj: Object) -> None:
    """Names become part of paths and messages: a cluster must not choose another path, or control a terminal."""
    meta = obj["metadata"]
    for field, max_length in _MAX_LENGTHS.items():
        value = meta.get(field, "")
        if not isinstance(value, str) or len(value) > max_length:
            raise ServiceUnavailable(f"metadata.{field} must be a string of at most {max_length} characters")
    for field in ("name", "namespace"):
        value = meta.get(field, "")
        if not value.isprintable() or path_segment(value):
            raise ServiceUnavailable(f"metadata.{field} must be a name that fits into one segment of a path")


def _project_record(projection: Projection, failed: set[str], obj: Object) -> Object:
    """Return the projected record with the object's identity and resourceVersion.

    `failed` records the first failure, so that a cluster that keeps sending invalid objects does not fill the log.
    """
    try:
        record = projection.project(obj)
    except Exception as error:
        # One invalid object must not hide the others.
        write = log.debug if failed else log.error
        failed.add(projection.name)
        write("projection failed", projection=projection.name, name=obj["metadata"]["name"], exc_info=error)
        record = {}
    meta = obj["metadata"]
    identity = {name: meta[name] for name in ("name", "namespace", "uid", "resourceVersion") if name in meta}
    return {**record, "metadata": {**(record.get("metadata") or {}), **identity}}


def _is_equal(old: Object | None, new: Object | None) -> bool:
    """Return whether the cached parts are equal except for the resourceVersion."""
    if old is None or new is None:
        return old is new
    return _without_revision(old) == _without_revision(new)


def _without_revision(obj: Object) -> Object:
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": ""}}
