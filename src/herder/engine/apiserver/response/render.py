"""Encode responses: stored bytes are passed through where possible, objects are encoded otherwise."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from herder.engine.apiserver import tables
from herder.engine.apiserver.compute import LARGE_BYTES
from herder.engine.apiserver.context import RequestContext
from herder.engine.apiserver.registry.conversion import is_stale, needs_conversion, storage_api_version, to_version
from herder.engine.apiserver.registry.storage_codec import decode, encode, head, ordered
from herder.engine.apiserver.request.negotiation import JSON, YAML, Rendering
from herder.engine.meta.errors import NotAcceptable
from herder.engine.meta.kinds import Object
from herder.engine.store import Record
from herder.engine.wire import Response

_LARGE_YAML = 8 << 10
_MAX_YAML_BYTES, _MAX_PRETTY_BYTES = 4 << 20, 4 << 20


def encode_body(obj: object, rendering: Rendering) -> bytes:
    """Encode an object as JSON, indented JSON or YAML."""
    if rendering.media_type == YAML:
        import yaml

        return yaml.dump(obj, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=True).encode()
    if rendering.pretty:
        return msgspec.json.format(encode(obj), indent=2) + b"\n"
    return encode(obj) + b"\n"


def render_response(obj: Object, rendering: Rendering, status: int = 200) -> Response:
    """Encode an object that is not one of the resource's own: a Status, a Scale, a review."""
    return Response(status, {"content-type": rendering.media_type}, encode_body(obj, rendering))


async def object_response(call: RequestContext, found: Record | Object, status: int = 200) -> Response:
    """Respond with one object of the resource: a stored record, or an object in the request's version."""
    rendering = call.rendering
    if isinstance(found, Record) and rendering.plain and not needs_conversion(call):
        body = stored_content(call, found)
        if body is not None:
            return Response(status, {"content-type": JSON}, body + b"\n")
    if isinstance(found, Record):
        (obj,) = await to_version(call, [decode(found)])
    else:
        obj = found
    return await render_large_response(
        call, transformed(call, obj), status, len(found.value) if isinstance(found, Record) else 0
    )


async def render_large_response(call: RequestContext, obj: Object, status: int, size: int) -> Response:
    """Like `render_response`, but encodes a large object in the executor's thread: YAML can take seconds."""
    rendering = call.rendering
    check_yaml_size(rendering, size)
    if rendering.pretty and size > _MAX_PRETTY_BYTES:
        rendering = replace(rendering, pretty=False)
    call.large = call.large or size > (_LARGE_YAML if rendering.media_type == YAML else LARGE_BYTES)
    return await call.compute(render_response, obj, rendering, status)


def check_yaml_size(rendering: Rendering, size: int) -> None:
    """Reject YAML responses that would take too long to encode."""
    if rendering.media_type == YAML and size > _MAX_YAML_BYTES:
        raise NotAcceptable(f"the response has more than {_MAX_YAML_BYTES} bytes; request it as {JSON}")


def stored_content(call: RequestContext, record: Record) -> bytes | None:
    """Return the stored bytes with the head of the request's version; None if they cannot be sent unchanged."""
    if is_stale(call.resource, record.revision):
        return None
    stored = head(call.resource.kind, storage_api_version(call.resource, call.deps.registry))
    if not record.value.startswith(stored):
        return None
    wanted = head(call.resource.kind, call.api_version)
    return record.value if wanted == stored else wanted + record.value[len(stored) :]


def transformed(call: RequestContext, obj: Object) -> Object:
    """Apply the requested transform: Table, PartialObjectMetadata or none."""
    rendering = call.rendering
    match rendering.transform:
        case "":
            return ordered(obj)
        case "Table":
            return one_row_table(call, obj)
        case "PartialObjectMetadata":
            return partial_metadata(obj, rendering)
        case _:
            raise NotAcceptable(
                f"you requested PartialObjectMetadataList, but the requested object is not a list ({go_type(call)})"
            )


def one_row_table(call: RequestContext, obj: Object, *, with_columns: bool = True) -> Object:
    return tables.render(
        call.resource,
        call.version.name,
        [obj],
        now=call.deps.clock(),
        include_object=include_object(call),
        list_metadata={"resourceVersion": obj["metadata"].get("resourceVersion", "")},
        with_columns=with_columns,
    )


def include_object(call: RequestContext) -> str:
    """Return how much of each object the rows of a Table contain."""
    return call.rendering.include_object or "Metadata"


def go_type(call: RequestContext) -> str:
    """Return the Go type that kube-apiserver's messages contain."""
    if call.resource.custom:
        return "*unstructured.Unstructured"
    return f"*{call.resource.group.partition('.')[0] or 'core'}.{call.resource.kind}"


def partial_metadata(obj: Object, rendering: Rendering) -> Object:
    """Return the object as PartialObjectMetadata."""
    api_version = f"meta.k8s.io/{rendering.transform_version}"
    return {"kind": "PartialObjectMetadata", "apiVersion": api_version, "metadata": obj["metadata"]}
