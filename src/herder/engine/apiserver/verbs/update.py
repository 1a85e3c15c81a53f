"""The update verb: replace an object with the one in the request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from herder.engine.apiserver.context import RequestContext
from herder.engine.apiserver.registry import storage_codec
from herder.engine.apiserver.registry.metadata import (
    dedup_owner_references,
    ensure_namespace,
)
from herder.engine.apiserver.request.decode import decode_object
from herder.engine.apiserver.request.options import write_options
from herder.engine.apiserver.response.render import object_response
from herder.engine.apiserver.verbs.write_path import ObjectChange, change_object, check_name, default
from herder.engine.meta.kinds import Object
from herder.engine.wire import Response


async def update(call: RequestContext) -> Response:
    """Replace the object; kinds that allow it are created if they do not exist."""
    options = write_options(call.request.query, "UpdateOptions")
    obj = await call.compute(decode_object, call, options)
    ensure_namespace(call, obj)
    check_name(call, obj)
    dedup_owner_references(call, obj)
    await default(call, obj)
    encoded = storage_codec.encode(obj)
    change = ObjectChange(
        transform=_fresh_copies(obj, encoded),
        options=options,
        subresource=call.info.subresource,
        creates_missing=call.resource.strategy.create_on_update and not call.info.subresource,
        precondition_uid=obj["metadata"].get("uid") or "",
    )
    changed = await change_object(call, change)
    return await object_response(call, changed.found, 201 if changed.created else 200)


def _fresh_copies(obj: Object, encoded: bytes) -> Callable[[Object | None], Awaitable[Object]]:
    """Return the object as sent, as a new copy for every retry."""
    fresh: list[Object] = [obj]

    async def transform(old: Object | None) -> Object:
        return fresh.pop() if fresh else storage_codec.decode_bytes(encoded)

    return transform
