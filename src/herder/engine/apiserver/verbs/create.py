"""The create verb, including virtual resources (reviews)."""

from __future__ import annotations

from herder.engine.apiserver.context import RequestContext
from herder.engine.apiserver.registry import storage_codec
from herder.engine.apiserver.registry.managed_fields import update_managed_fields
from herder.engine.apiserver.registry.metadata import (
    dedup_owner_references,
    ensure_namespace,
    metadata_of,
    wipe_system_fields,
)
from herder.engine.apiserver.request.decode import decode_object
from herder.engine.apiserver.request.handler_call import VirtualCall
from herder.engine.apiserver.request.options import WriteOptions, write_options
from herder.engine.apiserver.response.render import object_response, render_response
from herder.engine.apiserver.verbs.write_path import create_object, default, drop_status
from herder.engine.wire import Response


async def create(call: RequestContext) -> Response:
    """Create an object from the request body."""
    options = write_options(call.request.query, "CreateOptions")
    if call.resource.virtual is not None:
        return await _create_virtual(call, options)
    obj = await call.compute(decode_object, call, options)
    metadata = metadata_of(obj)
    wipe_system_fields(metadata)
    ensure_namespace(call, obj)
    dedup_owner_references(call, obj)
    await default(call, obj)
    drop_status(call, obj)
    await update_managed_fields(call, obj, None, options)
    created = await create_object(call, obj, options)
    return await object_response(call, created, 201)


async def _create_virtual(call: RequestContext, options: WriteOptions) -> Response:
    """Run a virtual resource (a review): its result is returned and never stored."""
    assert call.resource.virtual is not None
    obj = await call.compute(decode_object, call, options)
    metadata_of(obj)
    await default(call, obj)
    await update_managed_fields(call, obj, None, options)
    virtual_call = VirtualCall(
        user=call.user,
        namespace=call.info.namespace,
        now=call.deps.clock(),
        entropy=call.deps.entropy,
        request=call.request,
        dry_run=options.dry_run,
        warnings=call.warnings,
    )
    result = await call.resource.virtual(obj, virtual_call)
    return render_response(storage_codec.ordered(result), call.rendering, 201)
