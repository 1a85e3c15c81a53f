"""Informer: keep a cache current with a streaming list and a resumed watch.

It lists again only when the server requires it. There is no periodic resync, because level-triggered reconcilers that
miss no event need none. No response and no error ends an informer: it reports the error and retries with back-off.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing, suppress
from functools import partial

from herder.engine.client.client import OVER_BUDGET, Client, WatchEvent
from herder.engine.control.cache import LIST_BATCH, Cache, Change, Key, encode, encode_in_batches, key_of, strip_object
from herder.engine.logs import get_logger
from herder.engine.meta.errors import BadRequest, Expired, Invalid, NotFound, ServiceUnavailable, StatusError
from herder.engine.meta.kinds import Object

log = get_logger(__name__)

RETRY_FIRST, RETRY_LIMIT = 0.2, 30.0
STABLE_SECONDS = 5.0
"""A watch that the server closes sooner without an event counts as failed and is retried with back-off."""
MAX_QUICK_ROUNDS, QUICK_RETRY_LIMIT = 10, 1.0
"""After this many short-lived watches in a row that delivered an event, retries are delayed, up to this many
seconds."""
WATCH_SECONDS = 300
"""Minimum timeoutSeconds of a watch, up to twice that with jitter. A dead connection is detected after it at the
latest."""
WATCH_TIMEOUT_SECONDS = 2 * WATCH_SECONDS + 30.0
INITIAL_EVENTS_END = "k8s.io/initial-events-end"

_NO_OBJECT: tuple[Object, bytes] = ({}, b"")


class Informer:
    """List and watch one kind, and keep its cache up to date.

    `transform` reduces each object before it is cached. `jitter` returns a value in [0, 1) that spreads the reconnects
    of many managers. `on_health` is called with each error, and with an empty string on recovery. `max_objects` and
    `max_bytes` limit what an untrusted server can make us cache; 0 means no limit. With `relist_after_interruption`, it
    resumes a watch only if the server closed it after the requested time. Otherwise the server may have been restarted
    with data from a backup: a resumed watch does not show that, and revisions are assigned anew.
    """

    def __init__(
        self,
        client: Client,
        cache: Cache,
        on_change: Callable[[Change], None],
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        transform: Callable[[Object], Object] | None = None,
        jitter: Callable[[], float] = lambda: 0.5,
        on_health: Callable[[str], None] = lambda _failure: None,
        on_list: Callable[[], None] = lambda: None,
        max_objects: int = 0,
        max_bytes: int = 0,
        claim: Callable[[int], bool] = lambda _size: True,
        relist_after_interruption: bool = False,
    ) -> None:
        cache.set_selectors(labels, fields)
        self.client = client
        self.cache = cache
        self.namespace = namespace
        self.labels = labels
        self.fields = fields
        self.relists = 0
        self.failure = ""  # current error, empty if healthy
        self._logged_failure = ""
        self.synced = asyncio.Event()
        self.answered = asyncio.Event()  # synced once, or the server does not serve the kind
        self._transform = transform or partial(strip_object, cache.kind)
        self._on_change = on_change
        self._on_health = on_health
        self._on_list = on_list
        self._max_objects = max_objects
        self._max_bytes = max_bytes
        self._claim = claim  # returns whether the cache may have this size, in bytes
        self._jitter = jitter
        self._relist_after_interruption = relist_after_interruption
        self._retry_requested = asyncio.Event()
        self._revision = ""
        self._streaming_list = True  # false once the server rejects a streaming list (WatchList)
        self._received = False  # the server sent something on this connection
        self._watch_seconds = 0  # requested duration of the current watch; 0 if there is none

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        failures = quick_rounds = 0
        while True:
            started, resumed = loop.time(), bool(self._revision)
            self._received, self._watch_seconds = False, 0
            has_failed = await self._list_or_watch()
            if self._relist_after_interruption and (has_failed or loop.time() - started < self._watch_seconds):
                self._revision = ""
            lasted = loop.time() - started >= STABLE_SECONDS
            quick_rounds = 0 if lasted else quick_rounds + 1
            if lasted or (self._received and quick_rounds <= MAX_QUICK_ROUNDS):
                failures = 0
                if not has_failed:
                    continue
            healthy = resumed and self._received and not has_failed
            delay = min(RETRY_FIRST * 2.0**failures, QUICK_RETRY_LIMIT if healthy else RETRY_LIMIT)
            failures = min(failures + 1, 10)
            if await self._wait_for_retry(delay * (0.5 + self._jitter())):
                failures = 0

    def retry_now(self) -> None:
        """Retry without waiting for the back-off, because the server is probably available again."""
        self._retry_requested.set()

    async def _wait_for_retry(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._retry_requested.wait()
        requested = self._retry_requested.is_set()
        self._retry_requested.clear()
        return requested

    async def _list_or_watch(self) -> bool:
        """List, or watch from the last revision, until the connection ends; return whether it failed."""
        try:
            await (self._watch_changes() if self._revision else self._list())
        except Expired:
            self._revision = ""  # the revision was compacted: list again
        except NotFound as error:
            # The kind is not served, or no longer. Readers must not see objects that existed before.
            self._revision = ""
            self.synced.clear()
            self.cache.served = False
            self.answered.set()
            self._mark_unhealthy(str(error), log_failure=log.info)  # expected while the definition does not exist
            return True
        except (StatusError, OSError) as error:  # TimeoutError is an OSError with an empty message
            self._mark_unhealthy(str(error) or "watch timed out")
            return True
        except Exception as error:
            # A bug here or in the server. The cache may be incomplete: list again, but keep running.
            self._revision = ""
            log.error("informer failed", kind=str(self.cache.kind), exc_info=error)
            self._mark_unhealthy(f"{type(error).__name__}: {error}")
            return True
        return False

    def _mark_unhealthy(self, failure: str, log_failure: Callable[..., None] = log.warning) -> None:
        """Record a failure. One failed attempt is normal when a server or a tunnel restarts: the second is logged."""
        self._claim(self.cache.size)  # an incomplete list is discarded
        if self.failure and failure != self._logged_failure:
            log_failure("informer failed", kind=str(self.cache.kind), error=failure)
            self._logged_failure = failure
        self.failure = failure
        self._on_health(failure)

    def _mark_healthy(self) -> None:
        if self.failure:
            if self._logged_failure:
                log.info("informer recovered", kind=str(self.cache.kind))
            self.failure = self._logged_failure = ""
            self._on_health("")

    # --- list -------------------------------------------------------------------------------------------------

    async def _list(self) -> None:
        self.relists += 1
        self._on_list()
        if self._streaming_list:
            try:
                await self._list_by_stream()
                return
            except (BadRequest, Invalid):
                if self._received:
                    raise
                self._streaming_list = False
        self._watch_seconds, kind = 0, self.cache.kind
        page = await self.client.list_all(
            kind.resource,
            namespace=self.namespace,
            labels=self.labels,
            fields=self.fields,
            metadata_only=kind.partial,
            transform=self._transform,
            max_items=self._max_objects,
            max_bytes=self._max_bytes,
            claim=lambda size: self._claim(size + self.cache.size),
        )
        await self._replace(await encode_in_batches(page.items), page.resource_version)

    async def _list_by_stream(self) -> None:
        """Streaming list (sendInitialEvents): objects arrive as watch events and end with an annotated bookmark.

        Neither side holds the whole list. Changes made meanwhile may arrive before the bookmark.
        """
        found: dict[Key, tuple[Object, bytes]] | None = {}
        size = 0
        async with asyncio.timeout(WATCH_TIMEOUT_SECONDS), aclosing(self._watch(initial_events=True)) as events:
            async for event in events:
                if found is None:
                    self._handle(event)
                elif event.type == "DELETED":
                    size -= len(found.pop(key_of(event.object), _NO_OBJECT)[1])
                elif event.type != "BOOKMARK":
                    obj, key = self._transform(event.object), key_of(event.object)
                    encoded = encode(obj)
                    size += len(encoded) - len(found.get(key, _NO_OBJECT)[1])
                    found[key] = (obj, encoded)
                    self._check_limits(len(found), size)
                    self._check_claim(size + self.cache.size)
                elif (event.object["metadata"].get("annotations") or {}).get(INITIAL_EVENTS_END) == "true":
                    await self._replace(found.values(), event.object["metadata"]["resourceVersion"])
                    found = None
        if found is not None:
            raise TimeoutError("streaming list ended before its bookmark")

    async def _replace(self, objects: Collection[tuple[Object, bytes]], revision: str) -> None:
        changes: list[Change] = []
        as_of = int(revision or 0)
        if self._max_objects:
            await self.cache.replace_in_batches(objects, self._on_change)
        else:
            changes = self.cache.replace(objects, as_of)
        self._check_claim(self.cache.size)
        self._revision = revision
        self._received = True
        self.cache.synced = self.cache.served = True
        self._mark_healthy()
        for change in changes:
            self._on_change(change)
        self.synced.set()
        self.answered.set()

    # --- watch --------------------------------------------------------------------------------------------------

    async def _watch_changes(self) -> None:
        async with (
            asyncio.timeout(WATCH_TIMEOUT_SECONDS),
            aclosing(self._watch(resource_version=self._revision, opened=self._mark_healthy)) as events,
        ):
            async for event in events:
                self._handle(event)

    def _handle(self, event: WatchEvent) -> None:
        revision = event.object["metadata"]["resourceVersion"]
        self._received = True
        if event.type != "BOOKMARK":
            obj = self._transform(event.object)
            change = self.cache.remove(obj) if event.type == "DELETED" else self._upsert(obj)
            self._check_claim(self.cache.size)
            if change is not None:
                self._on_change(change)
        self._revision = revision

    def _upsert(self, obj: Object) -> Change | None:
        encoded = encode(obj)
        size = self.cache.size - self.cache.size_of(key_of(obj)) + len(encoded)
        self._check_limits(len(self.cache) + 1, size)
        self._check_claim(size)
        return self.cache.upsert(obj, encoded)

    def _check_limits(self, objects: int, size: int) -> None:
        if self._max_objects and objects > self._max_objects:
            raise ServiceUnavailable(f"more than {self._max_objects} objects of kind {self.cache.kind}")
        if self._max_bytes and size > self._max_bytes:
            raise ServiceUnavailable(f"more than {self._max_bytes} bytes of kind {self.cache.kind}")

    def _check_claim(self, size: int) -> None:
        if not self._claim(size):
            raise ServiceUnavailable(OVER_BUDGET)

    async def _watch(
        self, *, resource_version: str = "", initial_events: bool = False, opened: Callable[[], None] | None = None
    ) -> AsyncGenerator[WatchEvent, None]:
        """Buffered events are read without waiting. Yield to the event loop between batches, so that a burst of an
        untrusted server does not block it."""
        events = self._events(resource_version, initial_events, opened)
        number = 0
        async with aclosing(events):
            async for event in events:
                yield event
                number += 1
                if self._max_objects and number % LIST_BATCH == 0:
                    await asyncio.sleep(0)

    def _events(
        self, resource_version: str, initial_events: bool, opened: Callable[[], None] | None
    ) -> AsyncGenerator[WatchEvent, None]:
        self._watch_seconds = int(WATCH_SECONDS * (1 + self._jitter()))
        return self.client.watch(
            self.cache.kind.resource,
            namespace=self.namespace,
            labels=self.labels,
            fields=self.fields,
            resource_version=resource_version,
            initial_events=initial_events,
            timeout_seconds=self._watch_seconds,
            opened=opened,
            metadata_only=self.cache.kind.partial,
        )
