"""Answers to list requests, put together while they are sent: slow readers hold a piece, not the list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import msgspec

from herder.engine.apiserver import tables
from herder.engine.apiserver.conversion import is_stale, needs_conversion, storage_api_version, to_version
from herder.engine.apiserver.negotiation import JSON, YAML
from herder.engine.apiserver.rendering import answer_in_thread, check_yaml_size, go_type, include_object, partial
from herder.engine.apiserver.scope import RequestContext
from herder.engine.apiserver.stored import decode, encode, head, ordered
from herder.engine.client.wire import LazyPieces, Response
from herder.engine.meta.errors import NotAcceptable
from herder.engine.meta.kinds import Object
from herder.engine.store import Record

_PIECE_BYTES = 256 << 10
_SHORT_BYTES = 64 << 10  # lists up to here are sent in one piece
_ROWS_AT_ONCE = 250  # objects decoded between two turns of the event loop, or so many bytes of them:
_DECODED_BYTES = 256 << 10
_COUNTED_AT_ONCE = 5_000

Show = Callable[[Sequence[Object]], list[Object]]


async def list_response(call: RequestContext, records: Sequence[Record], metadata: Object) -> Response:
    rendering = call.rendering
    if rendering.transform == "PartialObjectMetadata":
        raise NotAcceptable(
            f"you requested PartialObjectMetadata, but the requested object is a list ({go_type(call)}List)"
        )
    if rendering.plain and not needs_conversion(call):
        return Response(200, {"content-type": JSON}, await _spliced_list(call, records, metadata))
    frame, key, show = _shape(call, metadata)
    if rendering.media_type == YAML:
        return await _yaml_list(call, records, frame, key, show)
    pieces = _encoded_pieces(call, records, frame, key, show)
    if call.request.incoming is None or needs_conversion(call):
        # A conversion can fail in the middle, and the client must see why: nothing is sent before all of it is done.
        return Response(200, {"content-type": JSON}, [piece async for piece in pieces])
    return Response(200, {"content-type": JSON}, stream=pieces)


def list_kind(call: RequestContext) -> str:
    return call.resource.list_kind or f"{call.resource.kind}List"


def _shape(call: RequestContext, metadata: Object) -> tuple[Object, str, Show]:
    """The list without its items, the name of the items, and how objects become items."""
    rendering = call.rendering
    if rendering.transform == "Table":
        include, now = include_object(call), call.parts.clock()

        def table(objects: Sequence[Object]) -> Object:
            return tables.render(
                call.resource, call.version.name, objects, now=now, include_object=include, list_metadata=metadata
            )

        frame = table(())
        del frame["rows"]
        return frame, "rows", lambda objects: table(objects)["rows"]
    if rendering.transform:
        frame = {"kind": "PartialObjectMetadataList", "apiVersion": f"meta.k8s.io/{rendering.transform_version}"}
        return frame | {"metadata": metadata}, "items", lambda objects: [partial(obj, rendering) for obj in objects]
    frame = {"kind": list_kind(call), "apiVersion": call.api_version, "metadata": metadata}
    shown = ordered if call.resource.custom else _headless
    return frame, "items", lambda objects: [shown(obj) for obj in objects]


def _headless(obj: Object) -> Object:
    return {key: value for key, value in obj.items() if key not in ("kind", "apiVersion")}


# --- stored bytes as they are -------------------------------------------------------------------------------------


async def _spliced_list(call: RequestContext, records: Sequence[Record], metadata: Object) -> bytes | LazyPieces:
    stored = head(call.resource.kind, storage_api_version(call.resource, call.parts.registry))
    wanted = head(call.resource.kind, call.api_version) if call.resource.custom else b"{"
    start = b'{"kind":' + encode(list_kind(call)) + b',"apiVersion":' + encode(call.api_version)
    start += b',"metadata":' + encode(metadata) + b',"items":['
    changed: dict[int, bytes] = {}  # by position: items whose stored bytes cannot be shown as they are
    difference = len(wanted) - len(stored)
    size = len(start) + max(len(records) - 1, 0) + len(_END)
    for position, record in enumerate(records):
        value = record.value
        if not value.startswith(stored) or is_stale(call.resource, record.revision):
            (shown,) = await to_version(call, [decode(record)])
            obj = ordered(shown) | {"apiVersion": call.api_version}
            changed[position] = encode(obj if call.resource.custom else _headless(obj))
            size += len(changed[position])
        else:
            size += len(value) + difference
        if position % _COUNTED_AT_ONCE == _COUNTED_AT_ONCE - 1:
            await asyncio.sleep(0)
    pieces = LazyPieces(size, lambda: _spliced_pieces(start, records, changed, wanted, len(stored)))
    return b"".join(pieces) if size <= _SHORT_BYTES else pieces


_END = b"]}\n"


def _spliced_pieces(
    start: bytes, records: Sequence[Record], changed: dict[int, bytes], wanted: bytes, skip: int
) -> Iterator[bytes]:
    """Small items are joined; large ones are not copied at all, so that slow readers of the same list share them."""
    waiting, size = [start], len(start)
    for position, record in enumerate(records):
        if position:
            waiting.append(b",")
        item: bytes | memoryview
        if position in changed:
            item = changed[position]
        else:
            waiting.append(wanted)
            item = record.value[skip:] if len(record.value) < _PIECE_BYTES else memoryview(record.value)[skip:]
        if len(item) >= _PIECE_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
            yield item  # type: ignore[misc]
            continue
        waiting.append(item)  # type: ignore[arg-type]
        size += len(item)
        if size > _PIECE_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    yield b"".join(waiting) + _END


# --- decoded objects ----------------------------------------------------------------------------------------------


class _Stored(msgspec.Struct):
    """Of a stored object only the bytes of its metadata: their managedFields alone can take a long time to decode."""

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
        if len(batch) >= _ROWS_AT_ONCE or size > _DECODED_BYTES:
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
        if len(batch) >= _ROWS_AT_ONCE or size > _DECODED_BYTES:
            decoded, batch, size = batch, [], 0
            yield await to_version(call, decoded)
            del decoded
            await asyncio.sleep(0)
    if batch:
        yield await to_version(call, batch)


async def _encoded_pieces(
    call: RequestContext, records: Sequence[Record], frame: Object, key: str, show: Show
) -> AsyncIterator[bytes]:
    pretty = call.rendering.pretty
    yield _opened(frame, key, pretty=pretty)
    first = True
    async for batch in _batches(call, records):
        items = [_item(item, pretty=pretty) for item in show(batch)]
        del batch  # a client that does not read holds bytes, not objects
        piece = (b"" if first else b",") + b",".join(items)
        del items
        first = False
        yield piece
    yield _closed(pretty=pretty, empty=first)


def _opened(frame: Object, key: str, *, pretty: bool) -> bytes:
    if pretty:
        return msgspec.json.format(encode(frame), indent=2)[:-2] + b',\n  "' + key.encode() + b'": ['
    return encode(frame)[:-1] + b',"' + key.encode() + b'":['


def _item(item: Object, *, pretty: bool) -> bytes:
    if not pretty:
        return encode(item)
    return b"\n    " + msgspec.json.format(encode(item), indent=2).replace(b"\n", b"\n    ")


def _closed(*, pretty: bool, empty: bool) -> bytes:
    if not pretty:
        return _END
    return b"]\n}\n" if empty else b"\n  ]\n}\n"


async def _yaml_list(call: RequestContext, records: Sequence[Record], frame: Object, key: str, show: Show) -> Response:
    size = sum(len(record.value) for record in records)
    check_yaml_size(call.rendering, size)
    items: list[Object] = []
    async for batch in _decoded_batches(call, records):
        items.extend(show(batch))
    return await answer_in_thread(call, {**frame, key: items}, 200, size)
