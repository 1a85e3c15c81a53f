"""Event recorder: writes Kubernetes Events about objects."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound, StatusError
from herder.engine.meta.kinds import Object
from herder.engine.runner.kinds import EVENTS, Clock, timestamp

_MAX_SERIES = 2000


class Recorder:
    """Writes events in order in the background; repeated events increment the count. Events that cannot be written
    are dropped."""

    def __init__(
        self, client: Client, *, component: str, clock: Clock, entropy: Callable[[int], bytes], host: str = ""
    ) -> None:
        self._client = client
        self._source = {"component": component} | ({"host": host} if host else {})
        self._clock = clock
        self._entropy = entropy
        self._queue: asyncio.Queue[Object] = asyncio.Queue(1000)
        self._written: dict[tuple[str, ...], tuple[str, int]] = {}

    def normal(self, involved_object: Object, reason: str, message: str, *, field: str = "") -> None:
        self._record(involved_object, "Normal", reason, message, field)

    def warning(self, involved_object: Object, reason: str, message: str, *, field: str = "") -> None:
        self._record(involved_object, "Warning", reason, message, field)

    async def run(self) -> None:
        while True:
            event = await self._queue.get()
            with contextlib.suppress(StatusError, OSError):
                await self._write(event)
            self._queue.task_done()

    async def flush(self) -> None:
        """Wait until all recorded events are written, for at most two seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                await self._queue.join()

    def _record(self, involved_object: Object, kind: str, reason: str, message: str, field: str) -> None:
        meta, now = involved_object["metadata"], timestamp(self._clock())
        involved: Object = {
            "kind": involved_object["kind"],
            "apiVersion": involved_object["apiVersion"],
            "name": meta["name"],
            "uid": meta.get("uid", ""),
        }
        if meta.get("namespace"):
            involved["namespace"] = meta["namespace"]
        if field:
            involved["fieldPath"] = field
        event: Object = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{meta['name']}.{self._entropy(8).hex()}",
                "namespace": meta.get("namespace") or "default",
            },
            "involvedObject": involved,
            "type": kind,
            "reason": reason,
            "message": message[:1024],
            "source": self._source,
            "reportingComponent": self._source["component"],
            "reportingInstance": self._source.get("host", ""),
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        with contextlib.suppress(asyncio.QueueFull):
            self._queue.put_nowait(event)

    async def _write(self, event: Object) -> None:
        meta, involved = event["metadata"], event["involvedObject"]
        series = (involved["uid"], involved.get("fieldPath", ""), event["reason"], event["message"])
        name, count = self._written.get(series, ("", 0))
        if name:
            patch = {"count": count + 1, "lastTimestamp": event["lastTimestamp"]}
            try:
                await self._client.patch(EVENTS, name, patch, namespace=meta["namespace"])
                self._written[series] = name, count + 1
                return
            except NotFound:
                pass  # the event has expired; create a new one
        await self._client.create(EVENTS, event, namespace=meta["namespace"])
        self._written[series] = meta["name"], 1
        if len(self._written) > _MAX_SERIES:
            self._written.pop(next(iter(self._written)))
