"""create: a new object, by POST, or by a PUT or apply to a name that does not exist yet."""

from __future__ import annotations

from herder.engine.apiserver import stored
from herder.engine.apiserver.admission.chain import CREATE, Attributes
from herder.engine.apiserver.calls import VirtualCall
from herder.engine.apiserver.conversion import to_storage
from herder.engine.apiserver.decoding import decode_object
from herder.engine.apiserver.limits import bounded_encoder, fit
from herder.engine.apiserver.objectmeta import (
    count_generation,
    generated_name,
    metadata_of,
    settle_namespace,
    validate_metadata,
    validate_standard_finalizers,
    wipe_system_fields,
    without_repeated_owners,
)
from herder.engine.apiserver.options import WriteOptions, write_options
from herder.engine.apiserver.ownership import check_after_admission, track
from herder.engine.apiserver.rendering import answer, object_response
from herder.engine.apiserver.scope import RequestContext
from herder.engine.apiserver.strategy import Context
from herder.engine.client.wire import Response
from herder.engine.meta.errors import BadRequest, FieldError, already_exists, invalid
from herder.engine.meta.kinds import Object
from herder.engine.store import Put, Record, RevisionConflict

_NAME_ATTEMPTS = 8


async def create(call: RequestContext) -> Response:
    options = write_options(call.request.query, "CreateOptions")
    if call.resource.virtual is not None:
        return await _answer_virtual(call, options)
    obj = await call.compute(decode_object, call, options)
    metadata = metadata_of(obj)
    wipe_system_fields(metadata)
    settle_namespace(call, obj)
    without_repeated_owners(call, obj)
    await default(call, obj)
    drop_status(call, obj)
    await track(call, obj, None, options)
    made = await create_object(call, obj, options)
    return await object_response(call, made, 201)


async def _answer_virtual(call: RequestContext, options: WriteOptions) -> Response:
    """Reviews: computed, answered, never stored."""
    assert call.resource.virtual is not None
    obj = await call.compute(decode_object, call, options)
    metadata_of(obj)
    await default(call, obj)
    await track(call, obj, None, options)
    asked = VirtualCall(
        user=call.user,
        namespace=call.info.namespace,
        now=call.parts.clock(),
        entropy=call.parts.entropy,
        request=call.request,
        dry_run=options.dry_run,
        warnings=call.warnings,
    )
    reported = await call.resource.virtual(obj, asked)
    return answer(stored.ordered(reported), call.rendering, 201)


async def default(call: RequestContext, obj: Object) -> None:
    await call.compute(call.version.model.default, obj)
    call.resource.strategy.default(obj, call.context())


def drop_status(call: RequestContext, obj: Object) -> None:
    """A status that only its subresource may write is left out of creates."""
    if call.version.status and call.resource.strategy.has_status:
        obj.pop("status", None)


async def create_object(call: RequestContext, obj: Object, options: WriteOptions) -> Record | Object:
    """Admit, settle, validate and store an object that is decoded, defaulted and has its managers."""
    attributes = Attributes(
        operation=CREATE,
        resource=call.resource,
        version=call.version.name,
        user=call.user,
        name=obj["metadata"].get("name") or "",
        namespace=call.info.namespace or (obj["metadata"].get("name") or "" if _is_namespace(call) else ""),
        obj=obj,
        options=options.as_kind("CreateOptions"),
        dry_run=options.dry_run,
        warnings=call.warnings,
    )
    managers = obj["metadata"].get("managedFields")
    await call.parts.admission.admit(attributes)
    obj = attributes.obj if attributes.obj is not None else obj
    check_after_admission(call, obj, managers)
    without_repeated_owners(call, obj, after_admission=True)

    metadata = metadata_of(obj)
    if metadata.get("resourceVersion") not in (None, "", "0") and not options.dry_run:
        raise BadRequest("resourceVersion should not be set on objects to be created")
    metadata.pop("resourceVersion", None)
    base = metadata.get("generateName") if not metadata.get("name") else ""
    metadata["uid"] = call.parts.uid()
    metadata["creationTimestamp"] = call.parts.timestamp()
    for attempt in range(1, _NAME_ATTEMPTS + 1):
        if base:
            metadata["name"] = generated_name(base, call.parts.entropy)
        try:
            return await _settle_and_store(call, obj, attributes, options)
        except RevisionConflict as lost:
            if not base or attempt == _NAME_ATTEMPTS:
                await call.parts.store.wait_committed(call.parts.store.in_flight(lost.key))
                raise _exists(call, obj, generated=bool(base)) from None
    raise AssertionError("unreachable")


async def _settle_and_store(
    call: RequestContext, obj: Object, attributes: Attributes, options: WriteOptions
) -> Record | Object:
    strategy = call.resource.strategy
    context = call.context()
    obj["metadata"].setdefault("name", "")  # hooks may rely on it; that it is empty is told with all else
    count_generation(obj, None, counts=strategy.counts_generations)
    strategy.prepare_create(obj, context)
    problems = await call.check(_problems, call, obj, context)
    if problems:
        raise invalid(call.resource.group_kind, obj["metadata"].get("name") or "", problems)
    for text in strategy.warnings(obj, None):
        call.warn(text)
    attributes.obj = obj
    attributes.name = obj["metadata"]["name"]
    await call.parts.admission.validate(attributes)

    key = stored.key_of(call.resource, call.info.namespace, obj["metadata"]["name"])
    (kept,) = await to_storage(call, [obj])
    if options.dry_run:
        store = call.parts.store
        current, in_flight = store.latest(key), store.in_flight(key)
        if current is not None:
            raise RevisionConflict(key, current)
        await store.wait_committed(in_flight)
        return obj
    if call.large:
        await call.compute(fit, kept)
    (record,) = await call.parts.store.write(Put(key, bounded_encoder(kept), 0))
    return record


def _problems(call: RequestContext, obj: Object, context: Context) -> list[FieldError]:
    strategy = call.resource.strategy
    problems = [*validate_metadata(obj["metadata"], call.resource)]
    if strategy.standard_finalizers:
        problems += validate_standard_finalizers(obj["metadata"])
    problems += call.version.model.validate(obj, None)
    problems += strategy.validate(obj, context)
    return problems


def _exists(call: RequestContext, obj: Object, *, generated: bool) -> Exception:
    error = already_exists(call.group_resource, obj["metadata"]["name"])
    if generated:
        error.message += ", the server was not able to generate a unique name for the object"
        error.details = {**(error.details or {}), "retryAfterSeconds": 1}
        error.headers = {"retry-after": "1"}
    return error


def _is_namespace(call: RequestContext) -> bool:
    return call.resource.plural == "namespaces" and not call.resource.group
