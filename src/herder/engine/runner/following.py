"""A live copy of the objects that match a selector: listed once, then watched, listed afresh only when it must be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing

from herder.engine.client.client import Client
from herder.engine.logs import get_logger
from herder.engine.meta.errors import Expired, StatusError
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.engine.runner.kinds import identity

log = get_logger(__name__)

Name = tuple[str, str]
RETRY_FIRST, RETRY_LIMIT = 0.2, 15.0
WATCH_SECONDS = 300


class Following:
    """`on_change` gets each object's name with its newest state, or None once it is gone (or matches no more)."""

    def __init__(
        self,
        client: Client,
        resource: GroupVersionResource,
        on_change: Callable[[Name, Object | None], None],
        *,
        labels: str = "",
        fields: str = "",
    ) -> None:
        self._client = client
        self._resource = resource
        self._on_change = on_change
        self._labels = labels
        self._fields = fields
        self._revision = ""
        self._objects: dict[Name, Object] = {}
        self.synced = asyncio.Event()

    def get(self, name: Name) -> Object | None:
        return self._objects.get(name)

    def all(self) -> Iterable[Object]:
        return list(self._objects.values())

    def learn(self, obj: Object) -> None:
        """Take in the answer to a write of ours, so that nobody acts on what was there before it."""
        name = identity(obj)
        known = self._objects.get(name)
        if known is None:
            # Once the watch has gone past this revision, the object's absence is newer than the answer.
            newer = int(obj["metadata"]["resourceVersion"]) > int(self._revision or 0)
        else:
            newer = int(obj["metadata"]["resourceVersion"]) > int(known["metadata"]["resourceVersion"])
        if newer:
            self._objects[name] = obj

    async def run(self) -> None:
        failures = 0
        while True:
            try:
                if not self._revision:
                    await self._list()
                failures = 0
                await self._watch()
            except Expired:
                self._revision = ""
            except (StatusError, OSError, TimeoutError) as error:
                delay = min(RETRY_FIRST * 2.0**failures, RETRY_LIMIT)
                failures = min(failures + 1, 10)
                log.info("cannot follow", resource=str(self._resource), error=str(error), seconds=round(delay, 1))
                await asyncio.sleep(delay)

    async def _list(self) -> None:
        page = await self._client.list_all(self._resource, labels=self._labels, fields=self._fields)
        found = {identity(item): item for item in page.items}
        gone = [name for name in self._objects if name not in found]
        self._objects = found
        self._revision = page.resource_version
        self.synced.set()
        for name in gone:
            self._on_change(name, None)
        for name, obj in found.items():
            self._on_change(name, obj)

    async def _watch(self) -> None:
        events = self._client.watch(
            self._resource,
            labels=self._labels,
            fields=self._fields,
            resource_version=self._revision,
            timeout_seconds=WATCH_SECONDS,
        )
        # The server ends it in time; a connection that died unnoticed is given up then.
        async with asyncio.timeout(WATCH_SECONDS + 30), aclosing(events) as stream:
            async for event in stream:
                self._take(event.type, event.object)

    def _take(self, kind: str, obj: Object) -> None:
        self._revision = obj["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":
            return
        name = identity(obj)
        if kind == "DELETED":
            self._objects.pop(name, None)
            self._on_change(name, None)
            return
        known = self._objects.get(name)
        if known is None or int(known["metadata"]["resourceVersion"]) <= int(self._revision):
            self._objects[name] = obj
            self._on_change(name, obj)
