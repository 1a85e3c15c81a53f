"""Keeps one cache true: a streaming list, then a watch that is resumed, and a fresh list only when the server says so.

There is no periodic resync: a level-triggered reconciler that misses nothing needs none. Nothing that a server sends,
and nothing that goes wrong on the way, ends an informer: it tells what is wrong and tries again, ever more slowly.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing, suppress
from functools import partial

from herder.engine.client.client import Client, WatchEvent
from herder.engine.control.cache import Cache, Change, Key, encode, kept, key_of
from herder.engine.logs import get_logger
from herder.engine.meta.errors import BadRequest, Expired, Invalid, NotFound, ServiceUnavailable, StatusError
from herder.engine.meta.kinds import Object

log = get_logger(__name__)

RETRY_FIRST, RETRY_LIMIT = 0.2, 30.0
LASTING_SECONDS = 5.0
"""A watch that ended sooner, without a word, counts as failed: who hangs up at once is not asked in a loop."""
QUICK_ROUNDS, QUICK_LIMIT = 10, 1.0
"""So many watches may end sooner in a row after an event; then they, too, are paced, up to that many seconds."""
WATCH_SECONDS = 300
"""A watch is asked for this long, up to twice that; a connection that died unnoticed is noticed then at the latest."""
OVERDUE_SECONDS = 2 * WATCH_SECONDS + 30.0
INITIAL_EVENTS_END = "k8s.io/initial-events-end"

_NOTHING: tuple[Object, bytes] = ({}, b"")


class Informer:
    def __init__(
        self,
        client: Client,
        cache: Cache,
        on_change: Callable[[Change], None],
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        keep: Callable[[Object], Object] | None = None,
        jitter: Callable[[], float] = lambda: 0.5,
        on_health: Callable[[str], None] = lambda _failure: None,
        on_list: Callable[[], None] = lambda: None,
        most_objects: int = 0,
        most_bytes: int = 0,
    ) -> None:
        cache.hold_only(labels, fields)
        self.client = client
        self.cache = cache
        self.namespace = namespace
        self.labels = labels
        self.fields = fields
        self.relists = 0
        self.failure = ""  # why the server cannot be read now, in its words
        self.synced = asyncio.Event()
        self._keep = keep or partial(kept, cache.kind)  # what of each object goes into the cache
        self._on_change = on_change
        self._on_health = on_health  # told of each failure, and "" when all is well again
        self._on_list = on_list
        self._most_objects = most_objects  # of a server that is not trusted; 0: as many as there are
        self._most_bytes = most_bytes  # of all that is kept, encoded
        self._jitter = jitter  # in [0, 1); keeps a fleet of managers from coming back all at once
        self._retry_requested = asyncio.Event()
        self._revision = ""
        self._streams = True  # until the server turns out not to know streaming lists
        self._received = False  # whether the server told us anything in this round

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        failures = quick = 0
        while True:
            began, resumed = loop.time(), bool(self._revision)
            self._received = False
            failed = await self._round()
            lasted = loop.time() - began >= LASTING_SECONDS
            quick = 0 if lasted else quick + 1
            if lasted or (self._received and quick <= QUICK_ROUNDS):
                failures = 0
                if not failed:
                    continue
            well = resumed and self._received and not failed
            delay = min(RETRY_FIRST * 2.0**failures, QUICK_LIMIT if well else RETRY_LIMIT)
            failures = min(failures + 1, 10)
            if await self._wait_for_retry(delay * (0.5 + self._jitter())):
                failures = 0

    def retry_now(self) -> None:
        """Somebody has reason to believe that the server can be read again: do not wait any longer."""
        self._retry_requested.set()

    async def _wait_for_retry(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._retry_requested.wait()
        hurried = self._retry_requested.is_set()
        self._retry_requested.clear()
        return hurried

    async def _round(self) -> bool:
        """One connection's worth of reading; whether it ended otherwise than by the server's plan."""
        try:
            await (self._follow() if self._revision else self._fill())
        except Expired:
            self._revision = ""  # history is gone: a fresh list tells what we missed
        except NotFound as error:
            # The kind is not served (any more). Whoever reads it next is not to see what once was there.
            self._revision = ""
            self.synced.clear()
            self._mark_unhealthy(
                str(error), log_at=log.info
            )  # kinds come and go with their definitions: nothing is wrong
            return True
        except (StatusError, OSError) as error:  # a time that ran out is one too, and says nothing
            self._mark_unhealthy(str(error) or "the server fell silent")
            return True
        except Exception as error:
            # A bug of ours or of the server's. What was taken in may be incomplete: begin anew, but do not end.
            self._revision = ""
            log.error("informer failed", kind=str(self.cache.kind), exc_info=error)
            self._mark_unhealthy(f"{type(error).__name__}: {error}")
            return True
        return False

    def _mark_unhealthy(self, failure: str, log_at: Callable[..., None] = log.warning) -> None:
        if failure != self.failure:
            log_at("informer waits", kind=str(self.cache.kind), error=failure)
        self.failure = failure
        self._on_health(failure)

    def _mark_healthy(self) -> None:
        if self.failure:
            log.info("informer goes on", kind=str(self.cache.kind))
            self.failure = ""
            self._on_health("")

    # --- the whole --------------------------------------------------------------------------------------------

    async def _fill(self) -> None:
        self.relists += 1
        self._on_list()
        if self._streams:
            try:
                await self._fill_by_stream()
                return
            except (BadRequest, Invalid):
                if self._received:
                    raise
                self._streams = False
        kind = self.cache.kind
        page = await self.client.list_all(
            kind.resource,
            namespace=self.namespace,
            labels=self.labels,
            fields=self.fields,
            metadata_only=kind.partial,
            keep=self._keep,
            most_items=self._most_objects,
            most_bytes=self._most_bytes,
        )
        await self._replace([(obj, encode(obj)) for obj in page.items], page.resource_version)

    async def _fill_by_stream(self) -> None:
        """Initial objects as watch events, ended by an annotated bookmark: neither side holds a whole list.

        Changes made meanwhile may come before that bookmark.
        """
        found: dict[Key, tuple[Object, bytes]] | None = {}
        size = 0
        async with asyncio.timeout(OVERDUE_SECONDS), aclosing(self._watch(initial_events=True)) as events:
            async for event in events:
                if found is None:
                    self._take(event)
                elif event.type == "DELETED":
                    size -= len(found.pop(key_of(event.object), _NOTHING)[1])
                elif event.type != "BOOKMARK":
                    obj, key = self._keep(event.object), key_of(event.object)
                    encoded = encode(obj)
                    size += len(encoded) - len(found.get(key, _NOTHING)[1])
                    found[key] = (obj, encoded)
                    self._check_share(len(found), size)
                elif (event.object["metadata"].get("annotations") or {}).get(INITIAL_EVENTS_END) == "true":
                    await self._replace(found.values(), event.object["metadata"]["resourceVersion"])
                    found = None
        if found is not None:
            raise TimeoutError("the list stream ended early")

    async def _replace(self, objects: Collection[tuple[Object, bytes]], revision: str) -> None:
        if self._most_objects:
            await self.cache.take_in(objects, self._on_change)
        changes = self.cache.replace(objects, int(revision or 0))
        self._revision = revision
        self._received = True
        self.cache.synced = True
        self._mark_healthy()
        for change in changes:
            self._on_change(change)
        self.synced.set()

    # --- what comes after ---------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        async with (
            asyncio.timeout(OVERDUE_SECONDS),
            aclosing(self._watch(resource_version=self._revision, opened=self._mark_healthy)) as events,
        ):
            async for event in events:
                self._take(event)

    def _take(self, event: WatchEvent) -> None:
        revision = event.object["metadata"]["resourceVersion"]
        self._received = True
        if event.type != "BOOKMARK":
            obj = self._keep(event.object)
            change = self.cache.remove(obj) if event.type == "DELETED" else self._upsert(obj)
            if change is not None:
                self._on_change(change)
        self._revision = revision

    def _upsert(self, obj: Object) -> Change | None:
        encoded = encode(obj)
        self._check_share(len(self.cache) + 1, self.cache.size - self.cache.size_of(key_of(obj)) + len(encoded))
        return self.cache.upsert(obj, encoded)

    def _check_share(self, objects: int, size: int) -> None:
        if self._most_objects and objects > self._most_objects:
            raise ServiceUnavailable(f"more than {self._most_objects} objects of kind {self.cache.kind}")
        if self._most_bytes and size > self._most_bytes:
            raise ServiceUnavailable(f"more than {self._most_bytes} bytes of kind {self.cache.kind}")

    def _watch(
        self, *, resource_version: str = "", initial_events: bool = False, opened: Callable[[], None] | None = None
    ) -> AsyncGenerator[WatchEvent, None]:
        return self.client.watch(
            self.cache.kind.resource,
            namespace=self.namespace,
            labels=self.labels,
            fields=self.fields,
            resource_version=resource_version,
            initial_events=initial_events,
            timeout_seconds=int(WATCH_SECONDS * (1 + self._jitter())),
            opened=opened,
            metadata_only=self.cache.kind.partial,
        )
