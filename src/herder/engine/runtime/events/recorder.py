"""Write Events in the background: a reconcile never waits for one and never fails because of one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

from herder.engine.client.client import Client
from herder.engine.control.cache import Key
from herder.engine.logs import get_logger
from herder.engine.meta.errors import AlreadyExists, Conflict, NotFound, StatusError
from herder.engine.meta.kinds import GroupVersionResource, Kind, Object
from herder.engine.meta.names import dns1123_subdomain
from herder.engine.runtime.decision import WARNING, Event, Ref, Refusal
from herder.engine.runtime.events.correlator import Correlator, Observation, SourcedEvent
from herder.engine.runtime.rejection import Rejection

log = get_logger(__name__)

EVENTS = GroupVersionResource("", "v1", "events")
MAX_QUEUED = 1000
"""Events that wait to be written. When the API server does not keep up, further ones are dropped."""
MAX_TRIES, RETRY_SECONDS = 12, 10.0
"""Attempts to write an Event while the API server cannot be reached, and the delay between them."""
MAX_MESSAGE = 1024
"""Characters of a message. API servers reject longer ones in the newer Event API."""
FLUSH_SECONDS = 2.0
"""Time on shutdown to write the Events that are queued."""
CLUSTER_SCOPED = "default"
"""Namespace of Events about cluster-scoped objects, as in client-go."""
GUARD_REFUSED = "GuardRefused"

_CLIENT_ERRORS = range(400, 500)


class EventRecorder:
    """Queue of Events, and the task that writes them."""

    def __init__(self, client: Client, *, clock: Callable[[], datetime], jitter: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._jitter = jitter
        self._correlator = Correlator()
        self._queue: asyncio.Queue[SourcedEvent] = asyncio.Queue(MAX_QUEUED)
        self._dropped = 0
        self._last_number = 0

    def record(self, event: Event, component: str) -> None:
        """Queue an Event; drop it if the queue is full."""
        try:
            self._queue.put_nowait(SourcedEvent(event, component))
        except asyncio.QueueFull:
            self._dropped += 1
            if self._dropped == 1:
                log.warning("events are dropped: the API server does not keep up", queued=MAX_QUEUED)

    async def run(self) -> None:
        """Write queued Events until cancelled."""
        while True:
            sourced = await self._queue.get()
            try:
                await self._write(sourced)
            except Exception as error:  # Events are best effort
                log.warning("event not recorded", reason=sourced.event.reason, exc_info=error)
            finally:
                self._queue.task_done()
            if self._dropped and self._queue.empty():
                log.warning("events were dropped", count=self._dropped)
                self._dropped = 0

    async def flush(self) -> None:
        """Wait until the queue is written, for a short time."""
        try:
            await asyncio.wait_for(self._queue.join(), FLUSH_SECONDS)
        except TimeoutError:
            log.info("events not recorded before the end", queued=self._queue.qsize())

    async def _write(self, sourced: SourcedEvent) -> None:
        now = self._clock()
        seen = self._correlator.correlate(sourced, self._new_name(sourced.event.about.name, now), now)
        if seen is None:
            return
        for attempt in range(MAX_TRIES):
            try:
                await self._send(seen)
                return
            except StatusError as error:
                if error.code in _CLIENT_ERRORS and error.code != 429:
                    _log_rejected(seen, error)
                    return
            except Exception as error:  # of the transport
                log.debug("event not written yet", attempt=attempt, error=str(error))
            await asyncio.sleep(RETRY_SECONDS * (self._jitter() if attempt == 0 else 1.0))
        log.warning("event not written", reason=sourced.event.reason, attempts=MAX_TRIES)

    async def _send(self, seen: Observation) -> None:
        event = render(seen)
        namespace = event["metadata"]["namespace"]
        if seen.count > 1:
            changes = {part: event[part] for part in ("count", "lastTimestamp", "message")}
            try:
                await self._client.patch(EVENTS, seen.name, changes, namespace=namespace)
                return
            except NotFound:  # expired: it starts again with its count
                pass
        await self._client.create(EVENTS, event, namespace=namespace)

    def _new_name(self, name: str, now: datetime) -> str:
        """Name of an Event as in client-go: the object's name and the time, here unique within the recorder."""
        self._last_number = max(int(now.timestamp() * 1e9), self._last_number + 1)
        full = f"{name}.{self._last_number:x}"
        return f"event.{self._last_number:x}" if dns1123_subdomain(full) else full


def render(seen: Observation) -> Object:
    """Return the core/v1 Event of an observation."""
    event, component = seen.sourced
    about = event.about
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": seen.name, "namespace": about.namespace or CLUSTER_SCOPED},
        "involvedObject": {
            "apiVersion": about.kind.api_version,
            "kind": about.kind.kind,
            "name": about.name,
            **({"namespace": about.namespace} if about.namespace else {}),
            "uid": event.uid,
        },
        "type": event.type,
        "reason": event.reason,
        "message": _shortened(seen.message),
        "count": seen.count,
        "firstTimestamp": _timestamp(seen.first),
        "lastTimestamp": _timestamp(seen.last),
        "source": {"component": component},
        "reportingComponent": component,
        "reportingInstance": "",
    }


def _shortened(message: str) -> str:
    encoded = message.encode()
    if len(encoded) <= MAX_MESSAGE:
        return message
    ellipsis = "…"
    return encoded[: MAX_MESSAGE - len(ellipsis.encode())].decode(errors="ignore") + ellipsis


def _timestamp(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def _log_rejected(seen: Observation, error: StatusError) -> None:
    """A namespace that is being deleted takes no Events, and an Event may exist after a lost response."""
    expected = isinstance(error, (AlreadyExists, Conflict, NotFound)) or "being terminated" in str(error)
    record = log.debug if expected else log.warning
    record("event rejected", reason=seen.sourced.event.reason, error=str(error))


class ControllerEvents:
    """Records the Events of one controller, including those about its own failures."""

    def __init__(
        self, recorder: EventRecorder, controller: str, kind: Kind, object_of: Callable[[Key], Object | None]
    ) -> None:
        self._recorder = recorder
        self._component = f"{controller}-controller"
        self._kind = kind
        self._object_of = object_of

    def record(self, event: Event) -> None:
        self._recorder.record(event, self._component)

    def refused(self, key: Key, refusal: Refusal) -> None:
        self._warn(key, GUARD_REFUSED, f"{refusal.guard}: {refusal.reason}")

    def rejected(self, key: Key, rejection: Rejection) -> None:
        """Record a write that the API server rejects."""
        self._warn(key, *rejection)

    def _warn(self, key: Key, reason: str, message: str) -> None:
        obj = self._object_of(key)
        if obj is not None:
            about = Ref(self._kind, key.name, key.namespace)
            self.record(Event(about, obj["metadata"].get("uid", ""), reason, message, WARNING))
