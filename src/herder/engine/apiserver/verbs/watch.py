"""watch: what happens to a collection from a revision on, as a stream that ends by its own clock.

A client that reads too slowly, or whose revision was compacted, is told `410 Expired` inside the stream and lists
again: no event is ever left out silently.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence

from herder.engine.apiserver.conversion import decode_reshaped, is_stale
from herder.engine.apiserver.events import EventWriter, SharedLines, kind_of
from herder.engine.apiserver.negotiation import JSON, YAML
from herder.engine.apiserver.options import ListOptions, list_options, revision_of, unreadable_revision
from herder.engine.apiserver.resources import Resource
from herder.engine.apiserver.scope import RequestContext
from herder.engine.apiserver.selection import (
    Selection,
    is_before_namespace,
    is_granted_by_name,
    is_of_earlier_object,
)
from herder.engine.apiserver.stored import encoder
from herder.engine.client.wire import Response, Sink
from herder.engine.meta.errors import Expired, StatusError
from herder.engine.store import CLIENT_BACKLOG_BYTES, Compacted, Event, Overflow, Record, Watch

_BOOKMARK_SECONDS = 60.0
_SHORTEST, _LONGEST = 1800, 3600  # seconds, where the client names no timeout
_CHUNK_BYTES = 64 << 10
_MATCHED_AT_ONCE = 500  # objects looked at between two turns of the event loop


async def watch(call: RequestContext, shared: SharedLines, stopping: asyncio.Event) -> Response:
    options = list_options(call.request.query, watch=True)
    try:
        wanted = revision_of(options.resource_version)
    except ValueError as error:
        raise unreadable_revision(error) from None
    stream = _Stream(call, options, Selection(call, options), wanted, EventWriter(call, shared), stopping)
    media_type = JSON if call.rendering.media_type != YAML else YAML
    return Response(200, {"content-type": media_type}, stream=Lines(stream))


class Lines(AsyncIterator[bytes]):
    """A watch as its reader sees it: asked for line by line, or pushing by itself."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self._lines = stream.lines()

    async def __anext__(self) -> bytes:
        return await anext(self._lines)

    async def aclose(self) -> None:
        await self._lines.aclose()

    async def push(self, sink: Sink) -> None:
        """Events go straight into the sink as they happen. Only where they cannot (the client is behind, an object
        must be converted, the past comes from disk) this task wakes and carries them."""
        self._stream.push_to(sink)
        async for chunk in self._lines:
            await sink.send(chunk)


class _Stream:
    """One watch: the initial state where it is asked for, then events, then bookmarks when nothing happens."""

    def __init__(
        self,
        call: RequestContext,
        options: ListOptions,
        selection: Selection,
        wanted: int | None,
        writer: EventWriter,
        stopping: asyncio.Event,
    ) -> None:
        self._call = call
        self._options = options
        self._selection = selection
        self._writer = writer
        self._stopping = stopping
        store = call.parts.store
        self._revision = store.revision
        self._initial = options.send_initial if options.send_initial is not None else not wanted
        self._initial_records: Sequence[Record] = self._all_now() if self._initial else ()
        self._whole_lines = call.request.incoming is None  # for readers in this process
        self._skip_to = wanted or 0  # a revision that is still to come
        self._error: Expired | None = None
        self._watch: Watch | None = None
        since = self._revision if self._initial or not wanted else min(wanted, self._revision)
        self._of_one_object = is_granted_by_name(call)
        self._is_past = since < self._revision
        self._is_over = False  # the object is gone, and with it the rights that its name gave
        if is_before_namespace(call, since):
            self._error = Expired(f"too old resource version: {since} is older than the namespace")
            return
        name = selection.name if call.namespace or not call.resource.namespaced else ""
        try:
            self._watch = store.watch(
                str(call.resource.storage), call.namespace, name, since=since, backlog_bytes=CLIENT_BACKLOG_BYTES
            )
        except Compacted as error:
            self._error = Expired(f"too old resource version: {wanted} ({error.compacted})")

    def push_to(self, sink: Sink) -> None:
        if self._watch is not None and self._skip_to <= self._revision and not (self._of_one_object and self._is_past):
            self._watch.listener = lambda events: self._pushed(events, sink)

    def _pushed(self, events: Sequence[Event], sink: Sink) -> bool:
        if sink.congested or sum(len(event.record.value) for event in events) > _CHUNK_BYTES:
            return False
        if self._of_one_object and any(event.deleted for event in events):
            return False
        if self._selection.everything:
            lines = self._writer.everything(events)
        else:
            seen = [line for event in events if (line := self._spliced(event)) != b""]
            lines = b"".join(seen) if None not in seen else None  # type: ignore[arg-type]
        if lines is None:
            return False
        sink.write(lines)
        return True

    def _spliced(self, event: Event) -> bytes | None:
        seen = self._seen(event)
        return b"" if seen is None else self._writer.spliced(*seen)

    def _all_now(self) -> Sequence[Record]:
        store, call = self._call.parts.store, self._call
        return store.list(str(call.resource.storage), call.namespace)

    async def lines(self) -> AsyncGenerator[bytes, None]:
        try:
            if self._watch is None:
                assert self._error is not None
                yield self._writer.error(self._error)
                return
            async for chunk in self._initial_lines():
                yield chunk
            async for chunk in self._follow(self._watch):
                yield chunk
        except StatusError as error:  # a conversion that failed: the client is told, and lists again
            yield self._writer.error(error)
        finally:
            if self._watch is not None:
                self._watch.close()

    async def _initial_lines(self) -> AsyncIterator[bytes]:
        """As fast as the reader takes them: what is not read yet stays in the store and is nowhere copied."""
        records, self._initial_records = self._initial_records, ()
        seen = (("ADDED", record) if self._selection.matches(record) else None for record in records)
        async for chunk in self._chunks(seen):
            yield chunk
        if self._options.send_initial and self._options.allow_bookmarks:
            yield self._writer.bookmark(self._revision, initial_events_end=True)

    async def _follow(self, watch: Watch) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._seconds()
        next_bookmark = loop.time() + _BOOKMARK_SECONDS
        reported = self._revision
        ended = asyncio.ensure_future(self._stopping.wait())
        ended.add_done_callback(lambda _: watch.close())
        try:
            while True:
                try:
                    async with asyncio.timeout_at(min(deadline, next_bookmark)):
                        batch = await anext(watch)
                except TimeoutError:
                    progress = watch.progress()
                    if self._options.allow_bookmarks and progress > reported:
                        reported = progress
                        yield self._writer.bookmark(progress)
                    if loop.time() >= deadline:
                        return
                    next_bookmark = loop.time() + _BOOKMARK_SECONDS
                    continue
                async for chunk in self._chunks(map(self._wanted, batch)):
                    yield chunk
                if self._is_over:
                    return  # the client watches again, if it still may
        except StopAsyncIteration:
            return
        except (Overflow, Compacted):
            yield self._writer.error(Expired("too old resource version: the watch fell too far behind"))
        finally:
            ended.cancel()

    def _seconds(self) -> float:
        if self._options.timeout:
            return float(max(self._options.timeout, 0))
        spread = int.from_bytes(self._call.parts.entropy(2), "big") / 65535
        return _SHORTEST + spread * (_LONGEST - _SHORTEST)

    async def _chunks(self, events: Iterable[tuple[str, Record] | None]) -> AsyncIterator[bytes]:
        """Lines, small ones together; None is left out."""
        lines: list[bytes] = []
        size = 0
        for position, seen in enumerate(events, 1):
            if position % _MATCHED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if seen is None:
                continue
            if len(seen[1].value) > _CHUNK_BYTES and not self._whole_lines:
                if lines:
                    yield b"".join(lines)
                    lines, size = [], 0
                for piece in await self._writer.pieces(*seen):
                    yield piece  # type: ignore[misc]
                continue
            lines.append(await self._writer.line(*seen))
            size += len(lines[-1])
            if size > _CHUNK_BYTES:
                yield b"".join(lines)
                lines, size = [], 0
        if lines:
            yield b"".join(lines)

    def _wanted(self, event: Event) -> tuple[str, Record] | None:
        if self._is_over or (event.revision <= self._skip_to and self._skip_to > self._revision):
            return None
        seen = self._seen(event)
        if seen is not None and self._of_one_object:
            if event.revision <= self._revision:
                self._check_object(event.record)
            # The next object of the name may be another user's.
            self._is_over = event.deleted
        return seen

    def _check_object(self, record: Record) -> None:
        """The client lists again, instead of an event that it may not see."""
        if is_of_earlier_object(self._call, record):
            raise Expired(f"too old resource version: {record.revision} is of an object that was deleted")

    def _seen(self, event: Event) -> tuple[str, Record] | None:
        """The event as this watch sees it: an object that starts or stops matching comes or goes."""
        selection = self._selection
        if selection.everything:
            return kind_of(event), event.record
        matches = not event.deleted and selection.matches(event.record)
        matched = event.previous is not None and selection.matches(event.previous)
        if matches:
            return "MODIFIED" if matched else "ADDED", event.record
        if not matched:
            return None
        if event.deleted or event.previous is None:
            return "DELETED", event.record
        if event.memo is None:  # the same for all who saw it go
            event.memo = _as_of(self._call.resource, event.previous, event.revision)
        return "DELETED", event.memo


def _as_of(resource: Resource, previous: Record, revision: int) -> Record:
    """The last state that matched, carrying the revision of the change that ended it."""
    if is_stale(resource, previous.revision):
        value = encoder(decode_reshaped(resource, previous))(revision)
        return Record(previous.key, revision, previous.created, value)
    old, new = str(previous.revision).encode(), str(revision).encode()
    value = previous.value.replace(b'"resourceVersion":"' + old + b'"', b'"resourceVersion":"' + new + b'"', 1)
    return Record(previous.key, revision, previous.created, value)
