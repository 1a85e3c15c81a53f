"""Event TTL: delete Events an hour after their last change, like kube-apiserver."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec

from herder.engine.apiserver.collectors.controller_client import ControllerClient
from herder.engine.control.loop import ControlLoop, Result
from herder.engine.logs import get_logger
from herder.engine.meta.kinds import GroupVersionResource

log = get_logger(__name__)

EVENTS = GroupVersionResource("", "v1", "events")
EVENT_TTL = timedelta(hours=1)
PERIOD_SECONDS = 300.0


class _Metadata(msgspec.Struct, rename="camel"):
    creation_timestamp: datetime


class _Event(msgspec.Struct, rename="camel"):
    metadata: _Metadata
    last_timestamp: datetime | None = None

    def changed_at(self, now: datetime) -> datetime:
        """When it was last counted. A time in the future is no proof: clients write it."""
        created, counted = self.metadata.creation_timestamp, self.last_timestamp
        return max(created, counted) if counted is not None and counted <= now else created


_decoder = msgspec.json.Decoder(_Event)


class EventExpiry:
    """Deletes expired Events every few minutes."""

    def __init__(self, api: ControllerClient, clock: Callable[[], datetime]) -> None:
        self._api = api
        self._clock = clock
        self._loop: ControlLoop[str] = ControlLoop("event-expiry", self._reconcile, max_retry=PERIOD_SECONDS)

    async def run(self) -> None:
        self._loop.queue.add_after("events", PERIOD_SECONDS)
        await self._loop.run()

    async def _reconcile(self, _key: str) -> Result:
        await self.expire()
        return Result(requeue_after=PERIOD_SECONDS)

    async def expire(self) -> None:
        """Delete the Events that have expired."""
        now = self._clock()
        for record in self._api.store.list("events"):
            try:
                if _decoder.decode(record.value).changed_at(now) < now - EVENT_TTL:
                    await self._api.client.delete(EVENTS, record.key.name, namespace=record.key.namespace)
            except Exception as error:  # retried in the next pass
                log.debug("event not expired", object=str(record.key), error=str(error))
