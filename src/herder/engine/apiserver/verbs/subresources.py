"""Custom subresources: decode the body, load the parent, and call the subresource's handler."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence

from herder.engine.apiserver.context import RequestContext
from herder.engine.apiserver.registry import storage_codec
from herder.engine.apiserver.registry.conversion import to_version
from herder.engine.apiserver.registry.resources import Subresource, TypeModel
from herder.engine.apiserver.registry.selection import StreamPermissions
from herder.engine.apiserver.request.decode import decode_as
from herder.engine.apiserver.request.handler_call import SubresourceRequest
from herder.engine.apiserver.request.options import WriteOptions, delete_options_from, write_options
from herder.engine.apiserver.response.render import render_response
from herder.engine.apiserver.verbs.delete import delete_object
from herder.engine.apiserver.verbs.patch import apply_patch, patch_type, read_patch
from herder.engine.apiserver.verbs.write_path import ObjectChange, change_object
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.store import Record
from herder.engine.wire import Response

_OPTIONS = {"create": "CreateOptions", "update": "UpdateOptions", "patch": "PatchOptions"}


async def call_subresource(call: RequestContext, subresource: Subresource) -> Response:
    """Call the handler of a custom subresource, and respond with its result."""
    verb = call.info.verb
    options = write_options(call.request.query, _OPTIONS[verb]) if verb in _OPTIONS else WriteOptions("GetOptions")
    # A response such as a token or a log cannot be revoked, so the parent must be committed first.
    await call.deps.store.wait_committed(call.deps.store.in_flight(call.key))
    await call.check_again()
    record = call.deps.store.get(call.key)
    parent = (await to_version(call, [storage_codec.decode(record)]))[0] if record is not None else None
    body = _body(call, subresource, options, parent)
    handler_request = SubresourceRequest(
        request=call.request,
        user=call.user,
        resource=call.resource,
        version=call.version.name,
        subresource=subresource.name,
        verb=verb,
        namespace=call.info.namespace,
        name=call.info.name,
        body=body,
        parent=parent,
        now=call.deps.clock(),
        entropy=call.deps.entropy,
        dry_run=options.dry_run,
        warnings=call.warnings,
        path=call.info.parts,
        lookup=storage_codec.object_lookup(call.deps.store),
        list=_lister(call),
        update=_updater(call, subresource.name, options),
        delete=_deleter(call),
    )
    result = await subresource.call(handler_request)
    if isinstance(result, Response):
        if result.stream is not None:
            result.stream = _while_permitted(StreamPermissions(call), result.stream)
        return result
    return render_response(storage_codec.ordered(result), call.rendering, 201 if verb == "create" else 200)


async def _while_permitted(permissions: StreamPermissions, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """End a followed log with the permission to it."""
    try:
        async for chunk in stream:
            if permissions.have_ended():
                return
            yield chunk
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()


def _body(
    call: RequestContext, subresource: Subresource, options: WriteOptions, parent: Object | None
) -> Object | None:
    """Decode the body; for a patch, return the patched parent."""
    verb = call.info.verb
    if verb == "patch":
        if parent is None:
            return None
        patched = apply_patch(patch_type(call), parent, read_patch(call.request).value, call)
        decoded, _ = call.version.model.decode(patched)
        return decoded
    if verb not in ("create", "update"):
        return None
    is_own_kind = subresource.kind == call.kind
    return decode_as(call, options, subresource.kind, call.version.model if is_own_kind else _model(call, subresource))


def _model(call: RequestContext, subresource: Subresource) -> TypeModel | None:
    """Return the type of the body's kind. Kinds that are not served themselves use the built-in type data."""
    kind = subresource.kind
    owner = call.deps.registry.by_kind(kind.group_kind)
    if owner is not None and kind.version in owner.versions:
        return owner.versions[kind.version].model
    if call.resource.custom:
        return None
    from herder.engine.apiserver.builtin import BuiltinType

    return BuiltinType(kind)


def _lister(call: RequestContext) -> Callable[[GroupResource, str], Sequence[Object]]:
    def listed(resource: GroupResource, namespace: str) -> list[Object]:
        return [storage_codec.decode(record) for record in call.deps.store.list(str(resource), namespace)]

    return listed


def _updater(
    call: RequestContext, subresource: str, options: WriteOptions
) -> Callable[[Callable[[Object], None]], Awaitable[Object]]:
    async def update(change: Callable[[Object], None]) -> Object:
        async def transform(old: Object | None) -> Object:
            assert old is not None
            change(old)
            return old

        found = (
            await change_object(call, ObjectChange(transform=transform, options=options, subresource=subresource))
        ).found
        return storage_codec.decode(found) if isinstance(found, Record) else found

    return update


def _deleter(call: RequestContext) -> Callable[[Object], Awaitable[Object]]:
    async def delete(given: Object) -> Object:
        found, _ = await delete_object(call, delete_options_from(given))
        return storage_codec.decode(found) if isinstance(found, Record) else found

    return delete
