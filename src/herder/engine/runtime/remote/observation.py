"""What is seen of a downstream cluster: one look for all who wish for the same, by a watch or by lists on demand.

Only what the wish's projection leaves of an object is kept. Who asks with a focus is found by its value, so that an
event costs the same however many ask; and a change of what nobody keeps wakes nobody.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from datetime import datetime
from functools import partial

from herder.engine.client.client import Client
from herder.engine.control.cache import Cache, Change, encode, index_values, kept
from herder.engine.control.informer import Informer
from herder.engine.control.tasks import Tasks
from herder.engine.logs import get_logger
from herder.engine.meta.errors import ServiceUnavailable
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Observe, Projection
from herder.engine.runtime.remote.transport import in_words
from herder.engine.runtime.view import Observed, Unreachable

log = get_logger(__name__)

Wake = Callable[[], None]
Focus = tuple[str, str]

SYNC_SECONDS = 300.0
"""Until a first list must be complete."""
DOUBT_SECONDS = 50.0
"""A watch that cannot be resumed for so long has failed; until then what was seen last stands."""
RETRY_SECONDS = 10.0
MOST_OBJECTS = 100_000
MOST_BYTES = 64 << 20
"""Of one kind in one cluster: a cluster that shows more is not observed, for its records would fill the memory. Records
of Nodes have about a kilobyte."""
_MOST_OF_KIND = {("", "Node"): 10_000, ("", "Namespace"): 20_000}
"""Twice what Kubernetes itself supports: some passes look at all of them, in one turn of the event loop."""
_LONGEST = {"name": 253, "namespace": 63, "uid": 128, "resourceVersion": 64}
"""What tells objects and their states apart is also kept of objects that are gone."""


class Observation(ABC):
    def __init__(self, wish: Observe, *, clock: Callable[[], datetime], tasks: Tasks) -> None:
        self.wish = wish  # with no focus: those are the askers'
        self._clock = clock
        self._tasks = tasks
        self._keep = keeper(wish)
        self._askers: dict[Focus | None, dict[Hashable, Wake]] = {}
        self._seen: Cache | None = None
        self._failure: Unreachable | None = None
        self._task: asyncio.Task[None] | None = None

    # --- who asks -----------------------------------------------------------------------------------------------

    @property
    def unasked(self) -> bool:
        return not self._askers

    def add(self, focus: Focus | None, asker: Hashable, wake: Wake) -> None:
        self._askers.setdefault(focus, {})[asker] = wake

    def discard(self, focus: Focus | None, asker: Hashable) -> None:
        askers = self._askers.get(focus, {})
        askers.pop(asker, None)
        if not askers:
            self._askers.pop(focus, None)

    def wake_all(self) -> None:
        self._wake(list(self._askers))

    def _wake(self, focuses: Iterable[Focus | None]) -> None:
        """Each who asked once, whatever in how many ways."""
        askers: dict[Hashable, Wake] = {}
        for focus in focuses:
            askers |= self._askers.get(focus, {})
        for wake in askers.values():
            wake()

    # --- what is seen -------------------------------------------------------------------------------------------

    def seen(self, focus: Focus | None, heard: datetime | None) -> Observed | Unreachable | None:
        if self._failure is not None:
            return self._failure
        if self._seen is None:
            return None
        return Observed(tuple(self._seen.select(index=focus)), self._as_of(heard))

    @abstractmethod
    def _as_of(self, heard: datetime | None) -> datetime: ...

    # --- through which connection -------------------------------------------------------------------------------

    def start(self, client: Client) -> None:
        """Look through this connection from now on; what was seen through another stands until this one shows more."""
        self._end()
        self._task = self._tasks.spawn(self._look(client), name=f"observe {self.wish.cluster} {self.wish.kind}")

    def stop(self) -> None:
        self._end()

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def lose(self) -> None:
        """The cluster does not answer: what was seen is not what is."""
        self.stop()
        self._seen = self._failure = None

    @abstractmethod
    async def _look(self, client: Client) -> None: ...

    def _cache(self) -> Cache:
        projection = self.wish.projection
        return Cache(self.wish.kind, projection.indexes if projection else {})

    def _mark_unreachable(self, reason: str) -> None:
        news = self._failure is None
        self._failure = Unreachable(reason, self._failure.since if self._failure else self._clock())
        if news:
            log.warning("observation failed", cluster=self.wish.cluster, kind=str(self.wish.kind), reason=reason)
            self.wake_all()


class Watched(Observation):
    """Kept true by a watch for as long as somebody asks."""

    _failing_since: float | None = None  # on the loop's clock

    def _as_of(self, heard: datetime | None) -> datetime:
        return heard or self._clock()

    async def _look(self, client: Client) -> None:
        while True:
            cache = self._cache()
            informer = self._informer(client, cache)
            following = self._tasks.spawn(informer.run(), name=f"follow {self.wish.cluster} {self.wish.kind}")
            try:
                async with asyncio.timeout(SYNC_SECONDS):
                    await informer.synced.wait()
                self._turn_to(cache)
                await following
            except TimeoutError:
                self._mark_unreachable(informer.failure or "the first list did not come to an end in time")
            finally:
                following.cancel()

    def _informer(self, client: Client, cache: Cache) -> Informer:
        return Informer(
            client,
            cache,
            lambda change: self._changed(cache, change),
            namespace=self.wish.namespace,
            labels=self.wish.labels,
            fields=self.wish.fields,
            keep=self._keep,
            on_health=self._hear_of,
            most_objects=most_objects(self.wish.kind),
            most_bytes=MOST_BYTES,
        )

    def _turn_to(self, cache: Cache) -> None:
        """From what another connection showed, if any, to what this one shows."""
        before, ill = self._seen, self._failure is not None
        self._seen, self._failure, self._failing_since = cache, None, None
        if before is None or ill:
            self.wake_all()
            return
        for key in dict.fromkeys((*before.keys(), *cache.keys())):
            self._notify(Change(key, before.get(key), cache.get(key)))

    def _changed(self, cache: Cache, change: Change) -> None:
        if cache is self._seen:
            self._notify(change)

    def _notify(self, change: Change) -> None:
        if not _same(change.old, change.new):
            self._wake(self._touched(change))

    def _touched(self, change: Change) -> dict[Focus | None, None]:
        """Nobody's focus in particular, and what the object is found by or was."""
        touched: dict[Focus | None, None] = {None: None}
        projection = self.wish.projection
        for obj in (change.old, change.new):
            if obj is not None and projection is not None:
                for name, index in projection.indexes.items():
                    touched |= {(name, value): None for value in index_values(name, index, obj)}
        return touched

    def _hear_of(self, failure: str) -> None:
        """A watch breaks now and then, and is resumed."""
        now = asyncio.get_running_loop().time()
        if not failure:
            self._failing_since = None
            if self._failure is not None:
                self._failure = None
                self.wake_all()
            return
        if self._failing_since is None:
            self._failing_since = now
        if self._seen is None or now - self._failing_since >= DOUBT_SECONDS:
            self._mark_unreachable(failure)


class Listed(Observation):
    """Listed when somebody asks and what was listed last is too old."""

    _client: Client | None = None
    _listed_at: datetime | None = None

    def _as_of(self, heard: datetime | None) -> datetime:
        return self._listed_at or self._clock()

    def add(self, focus: Focus | None, asker: Hashable, wake: Wake) -> None:
        super().add(focus, asker, wake)
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
        if self._failure or self._seen is None or self._listed_at is None or self.wish.freshness is None:
            return True
        return (self._clock() - self._listed_at).total_seconds() >= self.wish.freshness

    async def _look(self, client: Client) -> None:
        while True:
            try:
                async with asyncio.timeout(SYNC_SECONDS):
                    await self._list(client)
                return
            except Exception as error:
                # Whatever it is, it is this cluster's trouble, and told as such.
                self._mark_unreachable(in_words(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def _list(self, client: Client) -> None:
        wish, cache = self.wish, self._cache()
        page = await client.list_all(
            wish.kind.resource,
            namespace=wish.namespace,
            labels=wish.labels,
            fields=wish.fields,
            metadata_only=wish.kind.partial,
            keep=self._keep,
            most_items=most_objects(wish.kind),
            most_bytes=MOST_BYTES,
        )
        objects = [(obj, encode(obj)) for obj in page.items]
        await cache.take_in(objects)
        cache.replace(objects, int(page.resource_version or 0))
        self._seen, self._listed_at, self._failure = cache, self._clock(), None
        self.wake_all()


def most_objects(kind: Kind) -> int:
    return min(MOST_OBJECTS, _MOST_OF_KIND.get(kind.group_kind, MOST_OBJECTS))


def observation(wish: Observe, *, clock: Callable[[], datetime], tasks: Tasks) -> Observation:
    kind = Watched if wish.freshness is None else Listed
    return kind(wish, clock=clock, tasks=tasks)


def keeper(wish: Observe) -> Callable[[Object], Object]:
    """What is kept of each object."""
    keep = partial(kept, wish.kind) if wish.projection is None else partial(_projected, wish.projection, set())

    def checked(obj: Object) -> Object:
        _check_identity(obj)
        return keep(obj)

    return checked


def _check_identity(obj: Object) -> None:
    meta = obj["metadata"]
    for field, longest in _LONGEST.items():
        value = meta.get(field, "")
        if not isinstance(value, str) or len(value) > longest:
            raise ServiceUnavailable(f"metadata.{field} of an object is no text of at most {longest} characters")


def _projected(projection: Projection, failed: set[str], obj: Object) -> Object:
    """The record, with what tells the object from others and its states from one another. `failed` grows with the first
    failure: a cluster that sends one such object after another does not fill the log."""
    try:
        record = projection.project(obj)
    except Exception as error:
        # One object that cannot be read must not keep the others from being seen.
        write = log.debug if failed else log.error
        failed.add(projection.name)
        write("projection failed", projection=projection.name, name=obj["metadata"]["name"], exc_info=error)
        record = {}
    meta = obj["metadata"]
    identity = {name: meta[name] for name in ("name", "namespace", "uid", "resourceVersion") if name in meta}
    return {**record, "metadata": {**(record.get("metadata") or {}), **identity}}


def _same(old: Object | None, new: Object | None) -> bool:
    """Whether nothing of what is kept differs but the revision."""
    if old is None or new is None:
        return old is new
    return _without_revision(old) == _without_revision(new)


def _without_revision(obj: Object) -> Object:
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": ""}}
