"""Events live for an hour, as on any API server; the rest of history is the store's own matter."""

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
LIFETIME = timedelta(hours=1)
EVERY_SECONDS = 300.0


class _Metadata(msgspec.Struct, rename="camel"):
    creation_timestamp: datetime


class _Event(msgspec.Struct):
    metadata: _Metadata


_decoder = msgspec.json.Decoder(_Event)


class EventExpiry:
    """Reconciles one key, the set of all Events, every few minutes."""

    def __init__(self, api: ControllerClient, clock: Callable[[], datetime]) -> None:
        self._api = api
        self._clock = clock
        self._loop: ControlLoop[str] = ControlLoop("event-expiry", self._expire, longest_retry=EVERY_SECONDS)

    async def work(self) -> None:
        self._loop.queue.add_after("events", EVERY_SECONDS)
        await self._loop.run()

    async def _expire(self, _key: str) -> Result:
        horizon = self._clock() - LIFETIME
        for record in self._api.store.list("events"):
            try:
                if _decoder.decode(record.value).metadata.creation_timestamp < horizon:
                    await self._api.client.delete(EVENTS, record.key.name, namespace=record.key.namespace)
            except Exception as error:  # what is still there is found again in the next round
                log.debug("event not expired", object=str(record.key), error=str(error))
        return Result(requeue_after=EVERY_SECONDS)
