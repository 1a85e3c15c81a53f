"""Keeps one cache true: a streaming list, then a watch that is resumed, and a fresh list only when the server says so.

There is no periodic resync: a level-triggered reconciler that misses nothing needs none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from herder.engine.client.client import Client
from herder.engine.logs import get_logger
from herder.engine.meta.errors import BadRequest, Expired, Invalid, NotFound, StatusError
from herder.engine.meta.kinds import Object
from herder.engine.runtime.cache import Cache, Change, encode

log = get_logger(__name__)

RETRY_FIRST, RETRY_LIMIT = 0.2, 30.0
INITIAL_EVENTS_END = "k8s.io/initial-events-end"


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
        jitter: Callable[[], float] = lambda: 0.5,
    ) -> None:
        self.client = client
        self.cache = cache
        self.namespace = namespace
        self.labels = labels
        self.fields = fields
        self.relists = 0
        self.failure = ""  # why the server cannot be read now, in its words
        self.synced = asyncio.Event()
        self._on_change = on_change
        self._jitter = jitter  # in [0, 1); keeps a fleet of managers from coming back all at once
        self._revision = ""
        self._streams = True  # until the server turns out not to know streaming lists

    async def run(self) -> None:
        failures = 0
        while True:
            try:
                if not self._revision:
                    await self._fill()
                failures = 0
                await self._follow()
            except Expired:
                self._revision = ""  # history is gone: a fresh list tells what we missed
            except (StatusError, TimeoutError) as error:
                self.failure = str(error)
                if isinstance(error, NotFound):
                    self._revision = ""  # the kind is not served (any more)
                delay = min(RETRY_FIRST * 2.0**failures, RETRY_LIMIT)
                failures = min(failures + 1, 10)
                log.info("informer waits", kind=str(self.cache.kind), error=self.failure, seconds=round(delay, 1))
                await asyncio.sleep(delay * (0.5 + self._jitter()))

    async def _fill(self) -> None:
        self.relists += 1
        if self._streams:
            try:
                await self._fill_by_stream()
                return
            except (BadRequest, Invalid):
                self._streams = False
        page = await self.client.list_all(
            self.cache.kind.resource, namespace=self.namespace, labels=self.labels, fields=self.fields
        )
        self._replace(page.items, page.resource_version)

    async def _fill_by_stream(self) -> None:
        """Initial objects as watch events, ended by an annotated bookmark: neither side holds a whole list."""
        found: list[Object] = []
        events = self.client.watch(
            self.cache.kind.resource,
            namespace=self.namespace,
            labels=self.labels,
            fields=self.fields,
            initial_events=True,
        )
        async for event in events:
            meta = event.object["metadata"]
            if event.type != "BOOKMARK":
                found.append(event.object)
            elif (meta.get("annotations") or {}).get(INITIAL_EVENTS_END) == "true":
                self._replace(found, meta["resourceVersion"])
                async for later in events:
                    self._take(later.type, later.object)
                return
        raise TimeoutError("the list stream ended early")

    def _replace(self, objects: list[Object], revision: str) -> None:
        changes = self.cache.replace(((obj, encode(obj)) for obj in objects), int(revision or 0))
        self._revision = revision
        self.failure = ""
        self.cache.synced = True
        for change in changes:
            self._on_change(change)
        self.synced.set()

    async def _follow(self) -> None:
        events = self.client.watch(
            self.cache.kind.resource,
            namespace=self.namespace,
            labels=self.labels,
            fields=self.fields,
            resource_version=self._revision,
        )
        async for event in events:
            self.failure = ""
            self._take(event.type, event.object)

    def _take(self, event_type: str, obj: Object) -> None:
        self._revision = obj["metadata"]["resourceVersion"]
        if event_type == "BOOKMARK":
            return
        change = self.cache.remove(obj) if event_type == "DELETED" else self.cache.upsert(obj)
        if change is not None:
            self._on_change(change)
