"""Subresources of a kind's own making: the body is read, the parent found, and the handler decides."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from herder.engine.apiserver import stored
from herder.engine.apiserver.calls import SubresourceRequest
from herder.engine.apiserver.conversion import to_version
from herder.engine.apiserver.decoding import decode_as
from herder.engine.apiserver.options import WriteOptions, delete_options_from, write_options
from herder.engine.apiserver.rendering import answer
from herder.engine.apiserver.resources import Subresource, TypeModel
from herder.engine.apiserver.scope import RequestContext
from herder.engine.apiserver.verbs.delete import delete_object
from herder.engine.apiserver.verbs.patch import apply_patch, patch_type, read_patch
from herder.engine.apiserver.verbs.update import Change, change_object
from herder.engine.client.wire import Response
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.store import Record

_OPTIONS = {"create": "CreateOptions", "update": "UpdateOptions", "patch": "PatchOptions"}


async def call_subresource(call: RequestContext, subresource: Subresource) -> Response:
    verb = call.info.verb
    options = write_options(call.request.query, _OPTIONS[verb]) if verb in _OPTIONS else WriteOptions("GetOptions")
    # What a subresource answers (a token, a log) cannot be taken back: its parent must be committed.
    await call.parts.store.wait_committed(call.parts.store.in_flight(call.key))
    record = call.parts.store.get(call.key)
    parent = (await to_version(call, [stored.decode(record)]))[0] if record is not None else None
    body = _body(call, subresource, options, parent)
    asked = SubresourceRequest(
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
        now=call.parts.clock(),
        entropy=call.parts.entropy,
        dry_run=options.dry_run,
        warnings=call.warnings,
        path=call.info.parts,
        lookup=stored.finder(call.parts.store),
        list=_lister(call),
        update=_updater(call, subresource.name, options),
        delete=_deleter(call),
    )
    reported = await subresource.call(asked)
    if isinstance(reported, Response):
        return reported
    return answer(stored.ordered(reported), call.rendering, 201 if verb == "create" else 200)


def _body(
    call: RequestContext, subresource: Subresource, options: WriteOptions, parent: Object | None
) -> Object | None:
    """What the client sent; for a patch, the parent with the patch applied."""
    verb = call.info.verb
    if verb == "patch":
        if parent is None:
            return None
        patched = apply_patch(patch_type(call), parent, read_patch(call.request).value, call)
        decoded, _ = call.version.model.decode(patched)
        return decoded
    if verb not in ("create", "update"):
        return None
    own = subresource.kind == call.kind
    return decode_as(call, options, subresource.kind, call.version.model if own else _model(call, subresource))


def _model(call: RequestContext, subresource: Subresource) -> TypeModel | None:
    """The type of a kind that is served elsewhere; kinds known only as bodies are decoded by the built-in data."""
    kind = subresource.kind
    holder = call.parts.registry.by_kind(kind.group_kind)
    if holder is not None and kind.version in holder.versions:
        return holder.versions[kind.version].model
    if call.resource.custom:
        return None
    from herder.engine.apiserver.builtin import BuiltinType

    return BuiltinType(kind)


def _lister(call: RequestContext) -> Callable[[GroupResource, str], Sequence[Object]]:
    def listed(resource: GroupResource, namespace: str) -> list[Object]:
        return [stored.decode(record) for record in call.parts.store.list(str(resource), namespace)]

    return listed


def _updater(
    call: RequestContext, subresource: str, options: WriteOptions
) -> Callable[[Callable[[Object], None]], Awaitable[Object]]:
    async def update(change: Callable[[Object], None]) -> Object:
        async def make(old: Object | None) -> Object:
            assert old is not None
            change(old)
            return old

        found = (await change_object(call, Change(make=make, options=options, subresource=subresource))).found
        return stored.decode(found) if isinstance(found, Record) else found

    return update


def _deleter(call: RequestContext) -> Callable[[Object], Awaitable[Object]]:
    async def delete(given: Object) -> Object:
        found, _ = await delete_object(call, delete_options_from(given))
        return stored.decode(found) if isinstance(found, Record) else found

    return delete
