"""Watch events as lines of bytes, each made once for all watchers that read the same rendering."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from herder.engine.apiserver.conversion import needs_conversion, storage_api_version, to_version
from herder.engine.apiserver.negotiation import YAML
from herder.engine.apiserver.rendering import content, one_row_table, partial, stored_content
from herder.engine.apiserver.resources import Resource
from herder.engine.apiserver.scope import RequestContext
from herder.engine.apiserver.stored import decode, encode, head, ordered
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import Object
from herder.engine.store import Event, Record

_REMEMBERED = 4096
_REMEMBERED_BYTES = 16 << 20
_LONG_YAML = 64 << 10


class SharedLines:
    """Lines that others want too: those that were costly to make, for the watchers that come to the same event a
    moment later, and those of the batch that is being handed from watcher to watcher right now."""

    def __init__(self) -> None:
        self._lines: OrderedDict[tuple[object, ...], tuple[Resource, bytes]] = OrderedDict()
        self._bytes = 0
        self._batch: Sequence[Event] = ()
        self._of_batch: dict[tuple[object, ...], tuple[Resource, bytes]] = {}

    def of_batch(self, batch: Sequence[Event]) -> dict[tuple[object, ...], tuple[Resource, bytes]]:
        """The renderings of this very batch so far."""
        if batch is not self._batch:
            self._batch, self._of_batch = batch, {}
        return self._of_batch

    def get(self, key: tuple[object, ...]) -> bytes | None:
        known = self._lines.get(key)
        return known[1] if known is not None else None

    def put(self, key: tuple[object, ...], resource: Resource, line: bytes) -> None:
        """Keys hold the id of the resource: kept with the line, that id can be no other's meanwhile."""
        if key in self._lines:
            self._bytes -= len(self._lines.pop(key)[1])
        self._lines[key] = resource, line
        self._bytes += len(line)
        while len(self._lines) > _REMEMBERED or self._bytes > _REMEMBERED_BYTES:
            self._bytes -= len(self._lines.popitem(last=False)[1][1])


def kind_of(event: Event) -> str:
    """What an event is to a watch that wants everything."""
    return "DELETED" if event.deleted else "MODIFIED" if event.previous is not None else "ADDED"


class EventWriter:
    """Writes one watch's events. Tables carry their columns once, with the first event."""

    def __init__(self, call: RequestContext, shared: SharedLines) -> None:
        self._call = call
        self._shared = shared
        self._spliced = (
            not call.rendering.transform and call.rendering.media_type != YAML and not needs_conversion(call)
        )
        self._columns_sent = False
        self._key = (call.api_version, id(call.resource))

    def everything(self, batch: Sequence[Event]) -> bytes | None:
        """The lines of a batch for a watch that wants all of it; None where some of it must be converted first."""
        known = self._shared.of_batch(batch)
        if not self._spliced:
            return None
        found = known.get(self._key)
        if found is not None:
            return found[1]
        made = [self.spliced(kind_of(event), event.record) for event in batch]
        if None in made:
            return None
        lines = b"".join(made)  # type: ignore[arg-type]
        known[self._key] = self._call.resource, lines
        return lines

    def spliced(self, kind: str, record: Record) -> bytes | None:
        """The line made of the stored bytes; None where they cannot be shown as they are."""
        body = stored_content(self._call, record) if self._spliced else None
        return None if body is None else b'{"type":"' + kind.encode() + b'","object":' + body.rstrip(b"\n") + b"}\n"

    async def pieces(self, kind: str, record: Record) -> list[bytes | memoryview]:
        """The line of a large object, without a copy of what is stored: those who read it slowly share it."""
        content = stored_content(self._call, record) if self._spliced else None
        if content is None:
            return [await self.line(kind, record)]
        start = b'{"type":"' + kind.encode() + b'","object":'
        if content is record.value:
            return [start, content, b"}\n"]
        # Another version of the kind: only the head differs, and is as short as names are.
        stored = head(self._call.resource.kind, storage_api_version(self._call.resource, self._call.parts.registry))
        wanted = head(self._call.resource.kind, self._call.api_version)
        return [start + wanted, memoryview(record.value)[len(stored) :], b"}\n"]

    async def line(self, kind: str, record: Record) -> bytes:
        """`{"type":…,"object":…}` and a newline. `record` carries the revision that the event shows."""
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
            if call.rendering.media_type == YAML and len(record.value) > _LONG_YAML:
                known = await asyncio.to_thread(self._encoded, kind, shown)
            else:
                known = self._encoded(kind, shown)
            self._shared.put(key, call.resource, known)
        return known

    def _transformed(self, obj: Object, *, with_columns: bool) -> Object:
        rendering = self._call.rendering
        if rendering.transform == "Table":
            return one_row_table(self._call, obj, with_columns=with_columns)
        return partial(obj, rendering) if rendering.transform else ordered(obj)

    def _encoded(self, kind: str, obj: Object) -> bytes:
        event = {"type": kind, "object": obj}
        if self._call.rendering.media_type == YAML:
            return b"---\n" + content(event, self._call.rendering)
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
            obj = partial(obj, call.rendering)
        return self._encoded("BOOKMARK", obj)

    def error(self, error: StatusError) -> bytes:
        return self._encoded("ERROR", error.to_status())
