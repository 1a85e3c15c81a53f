"""Answers: stored bytes passed through where they can be, objects encoded where they must."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import msgspec

from herder.engine.apiserver import tables
from herder.engine.apiserver.compute import LARGE_BYTES
from herder.engine.apiserver.conversion import is_stale, needs_conversion, storage_api_version, to_version
from herder.engine.apiserver.negotiation import JSON, YAML, Rendering
from herder.engine.apiserver.scope import Call
from herder.engine.apiserver.stored import decode, encode, head, ordered
from herder.engine.client.wire import Response
from herder.engine.meta.errors import NotAcceptable
from herder.engine.meta.kinds import Object
from herder.engine.store import Record

_PIECE_BYTES = 256 << 10
_LARGE_YAML = 8 << 10
_MOST_YAML, _MOST_PRETTY = 4 << 20, 4 << 20
_ROWS_AT_ONCE = 250  # objects decoded between two turns of the event loop


def content(obj: object, rendering: Rendering) -> bytes:
    if rendering.media_type == YAML:
        import yaml

        return yaml.dump(obj, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=True).encode()
    if rendering.pretty:
        return msgspec.json.format(encode(obj), indent=2) + b"\n"
    return encode(obj) + b"\n"


def answer(obj: Object, rendering: Rendering, status: int = 200) -> Response:
    """Any object that is not one of the resource's own: a Status, a Scale, a review."""
    return Response(status, {"content-type": rendering.media_type}, content(obj, rendering))


async def object_response(call: Call, found: Record | Object, status: int = 200) -> Response:
    """One object of the resource: a record (as stored), or an object in the request's version."""
    rendering = call.rendering
    if isinstance(found, Record) and rendering.plain and not needs_conversion(call):
        body = stored_content(call, found)
        if body is not None:
            return Response(status, {"content-type": JSON}, body + b"\n")
    if isinstance(found, Record):
        (obj,) = await to_version(call, [decode(found)])
    else:
        obj = found
    return await _answer_beside(
        call, transformed(call, obj), status, len(found.value) if isinstance(found, Record) else 0
    )


async def _answer_beside(call: Call, obj: Object, status: int, size: int) -> Response:
    """As `answer`; a large object is encoded beside the event loop, which YAML would keep busy for seconds."""
    rendering = call.rendering
    if rendering.media_type == YAML and size > _MOST_YAML:
        raise NotAcceptable(f"the answer has more than {_MOST_YAML} bytes: request it as {JSON}")
    if rendering.pretty and size > _MOST_PRETTY:
        rendering = replace(rendering, pretty=False)
    call.large = call.large or size > (_LARGE_YAML if rendering.media_type == YAML else LARGE_BYTES)
    return await call.compute(answer, obj, rendering, status)


def stored_content(call: Call, record: Record) -> bytes | None:
    """The stored bytes with the head that the request's version has; None where they cannot be shown as they are."""
    if is_stale(call.resource, record.revision):
        return None
    stored = head(call.resource.kind, storage_api_version(call.resource, call.parts.registry))
    if not record.value.startswith(stored):
        return None
    wanted = head(call.resource.kind, call.api_version)
    return record.value if wanted == stored else wanted + record.value[len(stored) :]


def transformed(call: Call, obj: Object) -> Object:
    rendering = call.rendering
    match rendering.transform:
        case "":
            return ordered(obj)
        case "Table":
            return one_row_table(call, obj)
        case "PartialObjectMetadata":
            return partial(obj, rendering)
        case _:
            raise NotAcceptable(
                f"you requested PartialObjectMetadataList, but the requested object is not a list ({_go_type(call)})"
            )


def one_row_table(call: Call, obj: Object, *, with_columns: bool = True) -> Object:
    return tables.render(
        call.resource,
        call.version.name,
        [obj],
        now=call.parts.clock(),
        include_object=include_object(call),
        list_metadata={"resourceVersion": obj["metadata"].get("resourceVersion", "")},
        with_columns=with_columns,
    )


def _go_type(call: Call) -> str:
    """The type that the real server's messages name."""
    if call.resource.custom:
        return "*unstructured.Unstructured"
    return f"*{call.resource.group.partition('.')[0] or 'core'}.{call.resource.kind}"


def partial(obj: Object, rendering: Rendering) -> Object:
    api_version = f"meta.k8s.io/{rendering.transform_version}"
    return {"kind": "PartialObjectMetadata", "apiVersion": api_version, "metadata": obj["metadata"]}


# --- lists --------------------------------------------------------------------------------------------------------


async def list_response(call: Call, records: Sequence[Record], metadata: Object) -> Response:
    rendering = call.rendering
    if rendering.transform == "PartialObjectMetadata":
        raise NotAcceptable(
            f"you requested PartialObjectMetadata, but the requested object is a list ({_go_type(call)}List)"
        )
    if rendering.plain and not needs_conversion(call):
        return Response(200, {"content-type": JSON}, await _spliced_list(call, records, metadata))
    if rendering.transform == "Table":
        table = await _table(call, records, metadata)
        return await _answer_beside(call, table, 200, _size(records) if include_object(call) == "Object" else 0)
    objects: list[Object] = []
    async for batch in _decoded_batches(call, records):
        objects.extend(batch)
    if rendering.transform:
        api_version = f"meta.k8s.io/{rendering.transform_version}"
        items = [partial(obj, rendering) for obj in objects]
        listed = {"kind": "PartialObjectMetadataList", "apiVersion": api_version, "metadata": metadata, "items": items}
        return await _answer_beside(call, listed, 200, _size(records))
    items = [ordered(obj) if call.resource.custom else _headless(obj) for obj in objects]
    listed = {"kind": list_kind(call), "apiVersion": call.api_version, "metadata": metadata, "items": items}
    return await _answer_beside(call, listed, 200, _size(records))


def _size(records: Sequence[Record]) -> int:
    return sum(len(record.value) for record in records)


def include_object(call: Call) -> str:
    """How much of each object the rows of a table hold."""
    return call.rendering.include_object or "Metadata"


def list_kind(call: Call) -> str:
    return call.resource.list_kind or f"{call.resource.kind}List"


def _headless(obj: Object) -> Object:
    return {key: value for key, value in obj.items() if key not in ("kind", "apiVersion")}


async def _spliced_list(call: Call, records: Sequence[Record], metadata: Object) -> list[bytes]:
    """The list as pieces of a few hundred kilobytes, cut so that the loop gets its turn in between."""
    stored = head(call.resource.kind, storage_api_version(call.resource, call.parts.registry))
    wanted = head(call.resource.kind, call.api_version) if call.resource.custom else b"{"
    as_it_is = wanted == stored
    start = b'{"kind":' + encode(list_kind(call)) + b',"apiVersion":' + encode(call.api_version)
    pieces = [start + b',"metadata":' + encode(metadata) + b',"items":[']
    waiting: list[bytes] = []
    size = 0
    skip = len(stored)
    for record in records:
        value = record.value
        if not value.startswith(stored) or is_stale(call.resource, record.revision):
            (shown,) = await to_version(call, [decode(record)])
            obj = ordered(shown) | {"apiVersion": call.api_version}
            waiting.append(encode(obj if call.resource.custom else _headless(obj)))
        else:
            waiting.append(value if as_it_is else wanted + value[skip:])
        size += len(value)
        if size > _PIECE_BYTES:
            pieces.append(b",".join(waiting) + b",")
            waiting, size = [], 0
            await asyncio.sleep(0)
    if waiting:
        pieces.append(b",".join(waiting) + b"]}\n")
    elif len(pieces) > 1:
        pieces[-1] = pieces[-1][:-1] + b"]}\n"
    else:
        pieces.append(b"]}\n")
    return pieces


async def _decoded_batches(call: Call, records: Sequence[Record]) -> AsyncIterator[list[Object]]:
    batch: list[Object] = []
    size = 0
    for record in records:
        batch.append(decode(record))
        size += len(record.value)
        if len(batch) == _ROWS_AT_ONCE or size > _PIECE_BYTES:
            yield await to_version(call, batch)
            batch, size = [], 0
            await asyncio.sleep(0)
    if batch:
        yield await to_version(call, batch)


async def _table(call: Call, records: Sequence[Record], metadata: Object) -> Object:
    include = include_object(call)
    now = call.parts.clock()
    whole: Object | None = None
    async for batch in _decoded_batches(call, records):
        table = tables.render(
            call.resource, call.version.name, batch, now=now, include_object=include, list_metadata=metadata
        )
        if whole is None:
            whole = table
        else:
            whole["rows"].extend(table["rows"])
    if whole is None:
        whole = tables.render(
            call.resource, call.version.name, [], now=now, include_object=include, list_metadata=metadata
        )
    return whole
