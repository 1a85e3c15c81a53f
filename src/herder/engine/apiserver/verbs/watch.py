"""The watch verb: stream the changes of a collection from a revision on.

A client that is too slow, or whose revision was compacted, gets `410 Expired` in the stream and lists again. No event
is ever dropped silently.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence

from herder.engine.apiserver.context import RequestContext
from herder.engine.apiserver.registry.conversion import decode_with_current_schema, is_stale
from herder.engine.apiserver.registry.resources import Resource
from herder.engine.apiserver.registry.selection import (
    Selection,
    StreamPermissions,
    is_before_namespace,
    is_of_earlier_object,
)
from herder.engine.apiserver.registry.storage_codec import encoder
from herder.engine.apiserver.request.negotiation import JSON, YAML
from herder.engine.apiserver.request.options import ListOptions, invalid_revision, list_options, parse_revision
from herder.engine.apiserver.response.list_stream import retained_records
from herder.engine.apiserver.response.watch_events import EventCache, EventEncoder, event_type
from herder.engine.meta.errors import Expired, StatusError
from herder.engine.store import CLIENT_BACKLOG_BYTES, Compacted, Event, Overflow, Record, Watch
from herder.engine.wire import Response, Sink

_BOOKMARK_SECONDS = 60.0
_MIN_TIMEOUT, _MAX_TIMEOUT = 1800, 3600  # seconds, if the client sets no timeout
_CHUNK_BYTES = 64 << 10
_MATCH_BATCH = 500  # objects matched before yielding to the event loop


async def watch(call: RequestContext, shared: EventCache, stopping: asyncio.Event) -> Response:
    """Start a watch. Errors after the start are sent as ERROR events."""
    options = list_options(call.request.query, watch=True)
    try:
        wanted = parse_revision(options.resource_version)
    except ValueError as error:
        raise invalid_revision(error) from None
    stream = _Stream(call, options, Selection(call, options), wanted, EventEncoder(call, shared), stopping)
    media_type = JSON if call.rendering.media_type != YAML else YAML
    return Response(200, {"content-type": media_type}, stream=EventStream(stream), retained=stream.retained)


class EventStream(AsyncIterator[bytes]):
    """The response stream of a watch: iterated by its reader, or pushing to a sink."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self._lines = stream.lines()

    async def __anext__(self) -> bytes:
        return await anext(self._lines)

    async def aclose(self) -> None:
        await self._lines.aclose()

    async def push(self, sink: Sink) -> None:
        """Write events to the sink as they happen.

        This task runs only when they cannot be written directly: the client is slow, an object must be converted, or
        history is read from disk.
        """
        self._stream.push_to(sink)
        async for chunk in self._lines:
            await sink.send(chunk)


class _Stream:
    """One watch: the initial state if requested, then events, and bookmarks while there are none."""

    def __init__(
        self,
        call: RequestContext,
        options: ListOptions,
        selection: Selection,
        wanted: int | None,
        event_encoder: EventEncoder,
        stopping: asyncio.Event,
    ) -> None:
        self._call = call
        self._options = options
        self._selection = selection
        self._encoder = event_encoder
        self._stopping = stopping
        store = call.deps.store
        self._revision = store.revision
        self._initial = options.send_initial if options.send_initial is not None else not wanted
        self._initial_records: Sequence[Record] = self._current_records() if self._initial else ()
        self._unsplit_events = call.request.incoming is None  # in-process clients need each event in one chunk
        self.retained = None if self._unsplit_events else retained_records(call, self._initial_records)
        self._skip_to = wanted or 0  # a future revision; earlier events are skipped
        self._error: Expired | None = None
        self._watch: Watch | None = None
        since = self._revision if self._initial or not wanted else min(wanted, self._revision)
        self._permissions = StreamPermissions(call)
        self._granted_by_name = self._permissions.granted_by_name
        self._starts_in_past = since < self._revision
        # The user lost the permission; or the object or its namespace was deleted, and permissions on its name do not
        # cover its successor.
        self._ended = False
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
        if (
            self._watch is not None
            and self._skip_to <= self._revision
            and not (self._granted_by_name and self._starts_in_past)
        ):
            self._watch.listener = lambda events: self._push_events(events, sink)

    def _push_events(self, events: Sequence[Event], sink: Sink) -> bool:
        if sink.congested or sum(len(event.record.value) for event in events) > _CHUNK_BYTES:
            return False
        if self._permissions.may_have_ended() or (self._granted_by_name and any(event.deleted for event in events)):
            return False
        if self._selection.everything:
            lines = self._encoder.encode_batch(events)
        else:
            seen = [line for event in events if (line := self._spliced(event)) != b""]
            lines = b"".join(seen) if None not in seen else None  # type: ignore[arg-type]
        if lines is None:
            return False
        sink.write(lines)
        return True

    def _spliced(self, event: Event) -> bytes | None:
        seen = self._visible_event(event)
        return b"" if seen is None else self._encoder.spliced(*seen)

    def _current_records(self) -> Sequence[Record]:
        store, call = self._call.deps.store, self._call
        return store.list(str(call.resource.storage), call.namespace)

    async def lines(self) -> AsyncGenerator[bytes, None]:
        try:
            if self._watch is None:
                assert self._error is not None
                yield self._encoder.error(self._error)
                return
            async for chunk in self._initial_lines():
                yield chunk
            async for chunk in self._follow(self._watch):
                yield chunk
        except StatusError as error:  # a failed conversion: the client gets the error and lists again
            yield self._encoder.error(error)
        finally:
            if self._watch is not None:
                self._watch.close()

    async def _initial_lines(self) -> AsyncIterator[bytes]:
        """Yield the initial state at the client's pace. Unsent objects stay in the store and are not copied."""
        records, self._initial_records = self._initial_records, ()
        seen = (("ADDED", record) if self._selection.matches(record) else None for record in records)
        async for chunk in self._chunks(seen):
            yield chunk
        del records, seen
        if self.retained is not None:
            self.retained.size = 0
        if self._options.send_initial and self._options.allow_bookmarks:
            yield self._encoder.bookmark(self._revision, initial_events_end=True)

    async def _follow(self, watch: Watch) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_seconds()
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
                        yield self._encoder.bookmark(progress)
                    if loop.time() >= deadline or self._permissions.have_ended():
                        return
                    next_bookmark = loop.time() + _BOOKMARK_SECONDS
                    continue
                async for chunk in self._chunks(map(self._filter_event, batch)):
                    yield chunk
                if self._ended:
                    return  # the client watches again, if it is still authorized
        except StopAsyncIteration:
            return
        except (Overflow, Compacted):
            yield self._encoder.error(Expired("too old resource version: the watch fell too far behind"))
        finally:
            ended.cancel()

    def _timeout_seconds(self) -> float:
        if self._options.timeout:
            return float(max(self._options.timeout, 0))
        spread = int.from_bytes(self._call.deps.entropy(2), "big") / 65535
        return _MIN_TIMEOUT + spread * (_MAX_TIMEOUT - _MIN_TIMEOUT)

    async def _chunks(self, events: Iterable[tuple[str, Record] | None]) -> AsyncIterator[bytes]:
        """Encode events and join small ones. None is skipped."""
        lines: list[bytes] = []
        size = 0
        for position, seen in enumerate(events, 1):
            if position % _MATCH_BATCH == 0:
                await asyncio.sleep(0)
            if seen is None:
                continue
            if len(seen[1].value) > _CHUNK_BYTES and not self._unsplit_events:
                if lines:
                    yield b"".join(lines)
                    lines, size = [], 0
                for piece in await self._encoder.pieces(*seen):
                    yield piece  # type: ignore[misc]
                continue
            lines.append(await self._encoder.line(*seen))
            size += len(lines[-1])
            if size > _CHUNK_BYTES:
                yield b"".join(lines)
                lines, size = [], 0
        if lines:
            yield b"".join(lines)

    def _filter_event(self, event: Event) -> tuple[str, Record] | None:
        self._ended = self._ended or self._permissions.have_ended()
        if self._ended or (event.revision <= self._skip_to and self._skip_to > self._revision):
            return None
        seen = self._visible_event(event)
        if seen is not None and self._granted_by_name:
            if event.revision <= self._revision:
                self._check_object(event.record)
            # The next object of this name may belong to another user.
            self._ended = event.deleted
        return seen

    def _check_object(self, record: Record) -> None:
        """Raise Expired, so that the client lists again, instead of sending an event that it may not see."""
        if is_of_earlier_object(self._call, record):
            raise Expired(f"too old resource version: {record.revision} is of an object that was deleted")

    def _visible_event(self, event: Event) -> tuple[str, Record] | None:
        """Return the event as this watch sees it: objects that start or stop matching are added or deleted."""
        selection = self._selection
        if selection.everything:
            return event_type(event), event.record
        matches = not event.deleted and selection.matches(event.record)
        matched = event.previous is not None and selection.matches(event.previous)
        if matches:
            return "MODIFIED" if matched else "ADDED", event.record
        if not matched:
            return None
        if event.deleted or event.previous is None:
            return "DELETED", event.record
        if event.memo is None:  # shared by all watchers that stop matching
            event.memo = _with_revision(self._call.resource, event.previous, event.revision)
        return "DELETED", event.memo


def _with_revision(resource: Resource, previous: Record, revision: int) -> Record:
    """Return the last matching state, with the revision of the change after which it no longer matched."""
    if is_stale(resource, previous.revision):
        value = encoder(decode_with_current_schema(resource, previous))(revision)
        return Record(previous.key, revision, previous.created, value)
    old, new = str(previous.revision).encode(), str(revision).encode()
    value = previous.value.replace(b'"resourceVersion":"' + old + b'"', b'"resourceVersion":"' + new + b'"', 1)
    return Record(previous.key, revision, previous.created, value)
