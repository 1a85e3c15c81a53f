"""List responses, encoded while they are sent, so that a slow client holds one chunk in memory instead of the list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import msgspec

from herder.engine.apiserver import tables
from herder.engine.apiserver.context import RequestContext
from herder.engine.apiserver.registry.conversion import is_stale, needs_conversion, storage_api_version, to_version
from herder.engine.apiserver.registry.storage_codec import decode, encode, head, ordered
from herder.engine.apiserver.request.negotiation import JSON, YAML
from herder.engine.apiserver.response.render import (
    check_yaml_size,
    go_type,
    include_object,
    partial_metadata,
    render_large_response,
)
from herder.engine.meta.errors import NotAcceptable
from herder.engine.meta.kinds import Object
from herder.engine.store import Record
from herder.engine.wire import LazyBody, Response, Retained

_PIECE_BYTES = 256 << 10
_SMALL_LIST_BYTES = 64 << 10  # shorter lists are sent in one chunk
_BATCH_OBJECTS = 250  # objects (or bytes of them, below) decoded before yielding to the event loop
_BATCH_BYTES = 256 << 10
_COUNT_BATCH = 5_000

ToItems = Callable[[Sequence[Object]], list[Object]]


async def list_response(
    call: RequestContext, records: Sequence[Record], metadata: Object, *, past: int = 0
) -> Response:
    """Respond with a list of records, in the negotiated format. `past` is the revision of records from history."""
    response = await _list_response(call, records, metadata)
    if call.request.incoming is not None and (response.stream is not None or isinstance(response.body, LazyBody)):
        response.retained = retained_records(call, records, past=past)
    return response


def retained_records(call: RequestContext, records: Sequence[Record], *, past: int = 0) -> Retained:
    """The memory of records that are sent one after the other. Lists of one state of the store share it."""
    newest = past or max((record.revision for record in records), default=0)
    state = (call.resource.storage, call.namespace, len(records), newest, bool(past))
    return Retained(state, sum(len(record.value) for record in records), own=bool(past))


async def _list_response(call: RequestContext, records: Sequence[Record], metadata: Object) -> Response:
    rendering = call.rendering
    if rendering.transform == "PartialObjectMetadata":
        raise NotAcceptable(
            f"you requested PartialObjectMetadata, but the requested object is a list ({go_type(call)}List)"
        )
    if rendering.plain and not needs_conversion(call):
        return Response(200, {"content-type": JSON}, await _spliced_list(call, records, metadata))
    frame, key, to_items = _list_layout(call, metadata)
    if rendering.media_type == YAML:
        return await _yaml_list(call, records, frame, key, to_items)
    pieces = _encoded_pieces(call, records, frame, key, to_items)
    if call.request.incoming is None or needs_conversion(call):
        # A conversion can fail halfway, and the client must see the error; so nothing is sent before all items are
        # converted.
        return Response(200, {"content-type": JSON}, [piece async for piece in pieces])
    return Response(200, {"content-type": JSON}, stream=pieces)


def list_kind(call: RequestContext) -> str:
    return call.resource.list_kind or f"{call.resource.kind}List"


def _list_layout(call: RequestContext, metadata: Object) -> tuple[Object, str, ToItems]:
    """Return the list without its items, the name of the items field, and the function that turns objects into
    items."""
    rendering = call.rendering
    if rendering.transform == "Table":
        include, now = include_object(call), call.deps.clock()

        def table(objects: Sequence[Object]) -> Object:
            return tables.render(
                call.resource, call.version.name, objects, now=now, include_object=include, list_metadata=metadata
            )

        frame = table(())
        del frame["rows"]
        return frame, "rows", lambda objects: table(objects)["rows"]
    if rendering.transform:
        frame = {"kind": "PartialObjectMetadataList", "apiVersion": f"meta.k8s.io/{rendering.transform_version}"}
        return (
            frame | {"metadata": metadata},
            "items",
            lambda objects: [partial_metadata(obj, rendering) for obj in objects],
        )
    frame = {"kind": list_kind(call), "apiVersion": call.api_version, "metadata": metadata}
    shown = ordered if call.resource.custom else _without_head
    return frame, "items", lambda objects: [shown(obj) for obj in objects]


def _without_head(obj: Object) -> Object:
    return {key: value for key, value in obj.items() if key not in ("kind", "apiVersion")}


# --- spliced from stored bytes ------------------------------------------------------------------------------------


async def _spliced_list(call: RequestContext, records: Sequence[Record], metadata: Object) -> bytes | LazyBody:
    stored = head(call.resource.kind, storage_api_version(call.resource, call.deps.registry))
    wanted = head(call.resource.kind, call.api_version) if call.resource.custom else b"{"
    start = b'{"kind":' + encode(list_kind(call)) + b',"apiVersion":' + encode(call.api_version)
    start += b',"metadata":' + encode(metadata) + b',"items":['
    changed: dict[int, bytes] = {}  # by position: items whose stored bytes cannot be sent unchanged
    difference = len(wanted) - len(stored)
    size = len(start) + max(len(records) - 1, 0) + len(_END)
    for position, record in enumerate(records):
        value = record.value
        if not value.startswith(stored) or is_stale(call.resource, record.revision):
            (shown,) = await to_version(call, [decode(record)])
            obj = ordered(shown) | {"apiVersion": call.api_version}
            changed[position] = encode(obj if call.resource.custom else _without_head(obj))
            size += len(changed[position])
        else:
            size += len(value) + difference
        if position % _COUNT_BATCH == _COUNT_BATCH - 1:
            await asyncio.sleep(0)
    pieces = LazyBody(size, lambda: _spliced_pieces(start, records, changed, wanted, len(stored)))
    return b"".join(pieces) if size <= _SMALL_LIST_BYTES else pieces


_END = b"]}\n"


def _spliced_pieces(
    start: bytes, records: Sequence[Record], changed: dict[int, bytes], wanted: bytes, skip: int
) -> Iterator[bytes]:
    """Join small items. Large items are not copied, so that slow clients of the same list share them."""
    buffered, size = [start], len(start)
    for position, record in enumerate(records):
        if position:
            buffered.append(b",")
        item: bytes | memoryview
        if position in changed:
            item = changed[position]
        else:
            buffered.append(wanted)
            item = record.value[skip:] if len(record.value) < _PIECE_BYTES else memoryview(record.value)[skip:]
        if len(item) >= _PIECE_BYTES:
            yield b"".join(buffered)
            buffered, size = [], 0
            yield item  # type: ignore[misc]
            continue
        buffered.append(item)  # type: ignore[arg-type]
        size += len(item)
        if size > _PIECE_BYTES:
            yield b"".join(buffered)
            buffered, size = [], 0
    yield b"".join(buffered) + _END


# --- decoded objects ----------------------------------------------------------------------------------------------


class _Stored(msgspec.Struct):
    """A stored object of which only the bytes of its metadata are extracted: decoding managedFields alone can be
    slow."""

    metadata: msgspec.Raw


_decode_metadata = msgspec.json.Decoder(_Stored).decode


def _batches(call: RequestContext, records: Sequence[Record]) -> AsyncIterator[list[Object]]:
    rendering = call.rendering
    if (
        rendering.transform == "PartialObjectMetadataList"
        and rendering.media_type == JSON
        and not needs_conversion(call)
    ):
        return _metadata_batches(records)
    return _decoded_batches(call, records)


async def _metadata_batches(records: Sequence[Record]) -> AsyncIterator[list[Object]]:
    batch: list[Object] = []
    size = 0
    for record in records:
        metadata = _decode_metadata(record.value).metadata
        batch.append({"metadata": metadata})
        size += len(memoryview(metadata))
        if len(batch) >= _BATCH_OBJECTS or size > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
            await asyncio.sleep(0)
    if batch:
        yield batch


async def _decoded_batches(call: RequestContext, records: Sequence[Record]) -> AsyncIterator[list[Object]]:
    batch: list[Object] = []
    size = 0
    for record in records:
        batch.append(decode(record))
        size += len(record.value)
        if len(batch) >= _BATCH_OBJECTS or size > _BATCH_BYTES:
            decoded, batch, size = batch, [], 0
            yield await to_version(call, decoded)
            del decoded
            await asyncio.sleep(0)
    if batch:
        yield await to_version(call, batch)


async def _encoded_pieces(
    call: RequestContext, records: Sequence[Record], frame: Object, key: str, to_items: ToItems
) -> AsyncIterator[bytes]:
    pretty = call.rendering.pretty
    yield _list_start(frame, key, pretty=pretty)
    first = True
    async for batch in _batches(call, records):
        items = [_item(item, pretty=pretty) for item in to_items(batch)]
        del batch  # a slow client holds bytes, not objects
        piece = (b"" if first else b",") + b",".join(items)
        del items
        first = False
        yield piece
    yield _list_end(pretty=pretty, empty=first)


def _list_start(frame: Object, key: str, *, pretty: bool) -> bytes:
    if pretty:
        return msgspec.json.format(encode(frame), indent=2)[:-2] + b',\n  "' + key.encode() + b'": ['
    return encode(frame)[:-1] + b',"' + key.encode() + b'":['


def _item(item: Object, *, pretty: bool) -> bytes:
    if not pretty:
        return encode(item)
    return b"\n    " + msgspec.json.format(encode(item), indent=2).replace(b"\n", b"\n    ")


def _list_end(*, pretty: bool, empty: bool) -> bytes:
    if not pretty:
        return _END
    return b"]\n}\n" if empty else b"\n  ]\n}\n"


async def _yaml_list(
    call: RequestContext, records: Sequence[Record], frame: Object, key: str, to_items: ToItems
) -> Response:
    size = sum(len(record.value) for record in records)
    check_yaml_size(call.rendering, size)
    items: list[Object] = []
    async for batch in _decoded_batches(call, records):
        items.extend(to_items(batch))
    return await render_large_response(call, {**frame, key: items}, 200, size)
