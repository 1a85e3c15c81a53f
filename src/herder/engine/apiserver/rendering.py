"""Answers: stored bytes passed through where they can be, objects encoded where they must."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from herder.engine.apiserver import tables
from herder.engine.apiserver.compute import LARGE_BYTES
from herder.engine.apiserver.conversion import is_stale, needs_conversion, storage_api_version, to_version
from herder.engine.apiserver.negotiation import JSON, YAML, Rendering
from herder.engine.apiserver.scope import RequestContext
from herder.engine.apiserver.stored import decode, encode, head, ordered
from herder.engine.client.wire import Response
from herder.engine.meta.errors import NotAcceptable
from herder.engine.meta.kinds import Object
from herder.engine.store import Record

_LARGE_YAML = 8 << 10
_MOST_YAML, _MOST_PRETTY = 4 << 20, 4 << 20


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


async def object_response(call: RequestContext, found: Record | Object, status: int = 200) -> Response:
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
    return await answer_in_thread(
        call, transformed(call, obj), status, len(found.value) if isinstance(found, Record) else 0
    )


async def answer_in_thread(call: RequestContext, obj: Object, status: int, size: int) -> Response:
    """As `answer`; a large object is encoded in a thread: YAML would keep the event loop busy for seconds."""
    rendering = call.rendering
    check_yaml_size(rendering, size)
    if rendering.pretty and size > _MOST_PRETTY:
        rendering = replace(rendering, pretty=False)
    call.large = call.large or size > (_LARGE_YAML if rendering.media_type == YAML else LARGE_BYTES)
    return await call.compute(answer, obj, rendering, status)


def check_yaml_size(rendering: Rendering, size: int) -> None:
    if rendering.media_type == YAML and size > _MOST_YAML:
        raise NotAcceptable(f"the answer has more than {_MOST_YAML} bytes: request it as {JSON}")


def stored_content(call: RequestContext, record: Record) -> bytes | None:
    """The stored bytes with the head that the request's version has; None where they cannot be shown as they are."""
    if is_stale(call.resource, record.revision):
        return None
    stored = head(call.resource.kind, storage_api_version(call.resource, call.parts.registry))
    if not record.value.startswith(stored):
        return None
    wanted = head(call.resource.kind, call.api_version)
    return record.value if wanted == stored else wanted + record.value[len(stored) :]


def transformed(call: RequestContext, obj: Object) -> Object:
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
                f"you requested PartialObjectMetadataList, but the requested object is not a list ({go_type(call)})"
            )


def one_row_table(call: RequestContext, obj: Object, *, with_columns: bool = True) -> Object:
    return tables.render(
        call.resource,
        call.version.name,
        [obj],
        now=call.parts.clock(),
        include_object=include_object(call),
        list_metadata={"resourceVersion": obj["metadata"].get("resourceVersion", "")},
        with_columns=with_columns,
    )


def include_object(call: RequestContext) -> str:
    """How much of each object the rows of a table hold."""
    return call.rendering.include_object or "Metadata"


def go_type(call: RequestContext) -> str:
    """The type that the real server's messages name."""
    if call.resource.custom:
        return "*unstructured.Unstructured"
    return f"*{call.resource.group.partition('.')[0] or 'core'}.{call.resource.kind}"


def partial(obj: Object, rendering: Rendering) -> Object:
    api_version = f"meta.k8s.io/{rendering.transform_version}"
    return {"kind": "PartialObjectMetadata", "apiVersion": api_version, "metadata": obj["metadata"]}
