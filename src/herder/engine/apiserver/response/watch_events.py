"""Encode watch events. Each event is encoded once for all watchers with the same rendering."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from herder.engine.apiserver.context import RequestContext
from herder.engine.apiserver.registry.conversion import needs_conversion, storage_api_version, to_version
from herder.engine.apiserver.registry.resources import Resource
from herder.engine.apiserver.registry.storage_codec import decode, encode, head, ordered
from herder.engine.apiserver.request.negotiation import YAML
from herder.engine.apiserver.response.render import encode_body, one_row_table, partial_metadata, stored_content
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import Object
from herder.engine.store import Event, Record

_MAX_ENTRIES = 4096
_MAX_BYTES = 16 << 20
_LARGE_YAML = 64 << 10


class EventCache:
    """Cache of encoded events, shared by watchers.

    It holds events that were expensive to encode, for watchers that reach the same event a moment later, and the events
    of the batch that is currently sent to one watcher after the other.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[object, ...], tuple[Resource, bytes]] = OrderedDict()
        self._bytes = 0
        self._batch: Sequence[Event] = ()
        self._batch_entries: dict[tuple[object, ...], tuple[Resource, bytes]] = {}

    def batch_entries(self, batch: Sequence[Event]) -> dict[tuple[object, ...], tuple[Resource, bytes]]:
        """Return the encoded events of this batch, by rendering."""
        if batch is not self._batch:
            self._batch, self._batch_entries = batch, {}
        return self._batch_entries

    def get(self, key: tuple[object, ...]) -> bytes | None:
        known = self._entries.get(key)
        return known[1] if known is not None else None

    def put(self, key: tuple[object, ...], resource: Resource, line: bytes) -> None:
        """Keys contain the id of the resource. The resource is kept with the line, so that its id is not reused
        meanwhile."""
        if key in self._entries:
            self._bytes -= len(self._entries.pop(key)[1])
        self._entries[key] = resource, line
        self._bytes += len(line)
        while len(self._entries) > _MAX_ENTRIES or self._bytes > _MAX_BYTES:
            self._bytes -= len(self._entries.popitem(last=False)[1][1])


def event_type(event: Event) -> str:
    """Return the event type for a watch without selectors."""
    return "DELETED" if event.deleted else "MODIFIED" if event.previous is not None else "ADDED"


class EventEncoder:
    """Encodes the events of one watch. Only the first event of a Table watch contains the columns."""

    def __init__(self, call: RequestContext, shared: EventCache) -> None:
        self._call = call
        self._shared = shared
        self._spliced = (
            not call.rendering.transform and call.rendering.media_type != YAML and not needs_conversion(call)
        )
        self._columns_sent = False
        self._key = (call.api_version, id(call.resource))

    def encode_batch(self, batch: Sequence[Event]) -> bytes | None:
        """Return the encoded batch for a watch without selectors; None if some of it must be converted first."""
        known = self._shared.batch_entries(batch)
        if not self._spliced:
            return None
        found = known.get(self._key)
        if found is not None:
            return found[1]
        encoded = [self.spliced(event_type(event), event.record) for event in batch]
        if None in encoded:
            return None
        lines = b"".join(encoded)  # type: ignore[arg-type]
        known[self._key] = self._call.resource, lines
        return lines

    def spliced(self, kind: str, record: Record) -> bytes | None:
        """Return the event spliced from the stored bytes; None if they cannot be sent unchanged."""
        body = stored_content(self._call, record) if self._spliced else None
        return None if body is None else b'{"type":"' + kind.encode() + b'","object":' + body.rstrip(b"\n") + b"}\n"

    async def pieces(self, kind: str, record: Record) -> list[bytes | memoryview]:
        """Return the event of a large object without copying the stored bytes, so that slow watchers share them."""
        content = stored_content(self._call, record) if self._spliced else None
        if content is None:
            return [await self.line(kind, record)]
        start = b'{"type":"' + kind.encode() + b'","object":'
        if content is record.value:
            return [start, content, b"}\n"]
        # Another version of the kind: only the short head differs.
        stored = head(self._call.resource.kind, storage_api_version(self._call.resource, self._call.deps.registry))
        wanted = head(self._call.resource.kind, self._call.api_version)
        return [start + wanted, memoryview(record.value)[len(stored) :], b"}\n"]

    async def line(self, kind: str, record: Record) -> bytes:
        """Return `{"type":…,"object":…}` and a newline. `record` has the revision that the event shows."""
        spliced = self.spliced(kind, record)
        if spliced is not None:
            return spliced
        call = self._call
        first = call.rendering.transform == "Table" and not self._columns_sent
        self._columns_sent = True
        key = (kind, record.key, record.revision, call.rendering, call.api_version, first, id(call.resource))
        known = self._shared.get(key)
        if known is None:
            (obj,) = await to_version(call, [decode(record)])
            shown = self._transformed(obj, with_columns=first)
            if call.rendering.media_type == YAML and len(record.value) > _LARGE_YAML:
                known = await asyncio.to_thread(self._encoded, kind, shown)
            else:
                known = self._encoded(kind, shown)
            self._shared.put(key, call.resource, known)
        return known

    def _transformed(self, obj: Object, *, with_columns: bool) -> Object:
        rendering = self._call.rendering
        if rendering.transform == "Table":
            return one_row_table(self._call, obj, with_columns=with_columns)
        return partial_metadata(obj, rendering) if rendering.transform else ordered(obj)

    def _encoded(self, kind: str, obj: Object) -> bytes:
        event = {"type": kind, "object": obj}
        if self._call.rendering.media_type == YAML:
            return b"---\n" + encode_body(event, self._call.rendering)
        return encode(event) + b"\n"

    def bookmark(self, revision: int, *, initial_events_end: bool = False) -> bytes:
        call = self._call
        metadata: Object = {"resourceVersion": str(revision)}
        if initial_events_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        obj: Object = {"kind": call.resource.kind, "apiVersion": call.api_version, "metadata": metadata}
        if call.rendering.transform == "Table":
            obj = self._transformed(obj | {"metadata": {"name": "", "namespace": "", **metadata}}, with_columns=False)
        elif call.rendering.transform:
            obj = partial_metadata(obj, call.rendering)
        return self._encoded("BOOKMARK", obj)

    def error(self, error: StatusError) -> bytes:
        return self._encoded("ERROR", error.to_status())
