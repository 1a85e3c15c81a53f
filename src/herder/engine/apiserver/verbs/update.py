"""update: an object replaced by what the client sent, and the road that every change of a stored object takes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from herder.engine.apiserver import stored
from herder.engine.apiserver.admission.chain import UPDATE, Attributes
from herder.engine.apiserver.auth.access import forbidden
from herder.engine.apiserver.compute import LARGE_BYTES
from herder.engine.apiserver.conversion import to_storage, to_version
from herder.engine.apiserver.decoding import decode_object
from herder.engine.apiserver.limits import bounded_encoder, fit
from herder.engine.apiserver.objectmeta import (
    count_generation,
    inherit_system_fields,
    metadata_of,
    settle_namespace,
    validate_metadata,
    validate_metadata_update,
    validate_standard_finalizers,
    wipe_system_fields,
    without_repeated_owners,
)
from herder.engine.apiserver.options import WriteOptions, revision_of, write_options
from herder.engine.apiserver.ownership import check_after_admission, keep_times_of_noop, put_entries, track
from herder.engine.apiserver.rendering import object_response
from herder.engine.apiserver.scope import RequestContext
from herder.engine.apiserver.strategy import Context
from herder.engine.apiserver.verbs.create import create_object, default, drop_status
from herder.engine.client.wire import Response
from herder.engine.meta.errors import (
    MODIFIED,
    AlreadyExists,
    BadRequest,
    FieldError,
    conflict,
    invalid,
    invalid_value,
    not_found,
)
from herder.engine.meta.kinds import GroupKind, GroupVersionKind, Object
from herder.engine.patch.jsonpatch import same_json
from herder.engine.store import Delete, Put, Record, RevisionConflict

_ATTEMPTS = 50  # against other writers; each lost attempt means that another one won


@dataclass(slots=True)
class Change:
    """One change of one object, tried again on the newest state for as long as other writers come between.

    `make` gets the stored object in the request's version (None where there is none) and answers the new one,
    decoded and defaulted. Both are its own copies.
    """

    make: Callable[[Object | None], Awaitable[Object]]
    options: WriteOptions
    subresource: str = ""
    creates: bool = False  # where the object does not exist
    tracks: bool = True  # False where `make` settled the managedFields itself
    precondition_uid: str = ""
    kind: GroupVersionKind | None = None  # of what admission sees, where a subresource has a kind of its own
    admitted: Callable[[Object], Object] | None = None  # what admission sees of the object, for such a subresource


@dataclass(slots=True)
class Changed:
    found: Record | Object  # an object for dry runs
    created: bool = False


async def update(call: RequestContext) -> Response:
    options = write_options(call.request.query, "UpdateOptions")
    obj = await call.compute(decode_object, call, options)
    settle_namespace(call, obj)
    check_name(call, obj)
    without_repeated_owners(call, obj)
    await default(call, obj)
    sent = stored.encode(obj)
    change = Change(
        make=_same_each_time(obj, sent),
        options=options,
        subresource=call.info.subresource,
        creates=call.resource.strategy.create_on_update and not call.info.subresource,
        precondition_uid=obj["metadata"].get("uid") or "",
    )
    changed = await change_object(call, change)
    return await object_response(call, changed.found, 201 if changed.created else 200)


def _same_each_time(obj: Object, sent: bytes) -> Callable[[Object | None], Awaitable[Object]]:
    """The object as sent, in a fresh copy for each attempt after the first."""
    fresh: list[Object] = [obj]

    async def make(old: Object | None) -> Object:
        return fresh.pop() if fresh else stored.decode_bytes(sent)

    return make


def check_name(call: RequestContext, obj: Object) -> None:
    name = metadata_of(obj).get("name")
    if not name:
        raise BadRequest(
            f"the name of the object ({call.info.name} based on URL) was undeterminable: name must be provided"
        )
    if name != call.info.name:
        raise BadRequest(f"the name of the object ({name}) does not match the name on the URL ({call.info.name})")


async def change_object(call: RequestContext, change: Change) -> Changed:
    store = call.parts.store
    for _ in range(_ATTEMPTS):
        current, in_flight = store.latest(call.key), store.in_flight(call.key)
        call.large = call.large or (current is not None and len(current.value) > LARGE_BYTES)
        try:
            if current is not None:
                changed = await _change_current(call, change, current)
            else:
                changed = await _create_instead(call, change)
        except RevisionConflict:
            continue
        except Exception:
            await store.wait_committed(in_flight)
            raise
        await store.wait_committed(in_flight)  # at once, where something was written: that came after it
        return changed
    raise conflict(call.group_resource, call.info.name, MODIFIED)


async def _create_instead(call: RequestContext, change: Change) -> Changed:
    if not change.creates:
        raise not_found(call.group_resource, call.info.name)
    decision = call.parts.authorizer.authorize(call.user, call.access("create"))
    if not decision.allowed:
        raise forbidden(call.user, call.access("create"), decision.reason)
    obj = await change.make(None)
    uid = metadata_of(obj).get("uid")
    if uid:
        why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
        raise conflict(call.group_resource, call.info.name, why)
    obj["metadata"].pop("resourceVersion", None)  # of an object that has gone: no conflict where one is made anew
    wipe_system_fields(obj["metadata"])
    drop_status(call, obj)
    if change.tracks:
        await track(call, obj, None, change.options)
    try:
        return Changed(await create_object(call, obj, change.options), created=True)
    except AlreadyExists:  # someone was faster: then it is an update
        raise RevisionConflict(call.key, None) from None


async def _change_current(call: RequestContext, change: Change, current: Record) -> Changed:
    old, base = await _old_and_base(call, current)
    _check_uid(call, change, old)
    obj = await change.make(base)
    metadata = metadata_of(obj)
    _check_revision(call, obj, current)
    keep_ignored_fields(call, obj, old, change.subresource)
    if change.tracks:
        await track(call, obj, old, change.options, change.subresource)

    attributes = _attributes(call, change, obj, old)
    managers = metadata.get("managedFields")
    await call.parts.admission.admit(attributes)
    if change.admitted is None:
        obj = attributes.obj if attributes.obj is not None else obj
    metadata = metadata_of(obj)
    check_after_admission(call, obj, managers)
    without_repeated_owners(call, obj, after_admission=True)
    put_entries(obj, keep_times_of_noop(obj, old))

    await _settle_and_validate(call, change, obj, old)
    attributes.obj = change.admitted(obj) if change.admitted else obj
    await call.parts.admission.validate(attributes)
    return Changed(await _store(call, change, obj, current))


async def _old_and_base(call: RequestContext, current: Record) -> tuple[Object, Object]:
    """Two copies of the stored object in the request's version: one to compare with, one to change."""
    (old,) = await to_version(call, [await call.compute(stored.decode, current)])
    if call.resource.convert is None:
        (base,) = await to_version(call, [await call.compute(stored.decode, current)])
    else:
        base = await call.compute(stored.copied, old)
    return old, base


def _check_uid(call: RequestContext, change: Change, old: Object) -> None:
    wanted, found = change.precondition_uid, old["metadata"].get("uid", "")
    if wanted and wanted != found:
        group = f"{call.resource.group}/" if call.resource.custom else ""
        place = f"/registry/{group}{call.resource.plural}/{call.key.path.lstrip('/')}"
        why = (
            f"StorageError: invalid object, Code: 4, Key: {place}, ResourceVersion: 0, AdditionalErrorMsg: "
            f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}"
        )
        raise conflict(call.group_resource, call.info.name, why)


def _check_revision(call: RequestContext, obj: Object, current: Record) -> None:
    """A change made from an older state is refused; one that names no state is made on the newest."""
    try:
        given = revision_of(str(obj["metadata"].get("resourceVersion") or ""))
    except ValueError as error:
        raise BadRequest(f"metadata.{error}") from None
    if not given:
        if not call.resource.strategy.unconditional_update:
            problem = invalid_value("metadata.resourceVersion", 0, "must be specified for an update")
            raise invalid(GroupKind(*call.group_resource), call.info.name, [problem])
        obj["metadata"]["resourceVersion"] = str(current.revision)
    elif given != current.revision:
        raise conflict(call.group_resource, call.info.name, MODIFIED)


def keep_ignored_fields(call: RequestContext, obj: Object, old: Object, subresource: str) -> None:
    """Each endpoint writes its own part: status through /status, the rest through the object itself."""
    if not (call.version.status and call.resource.strategy.has_status):
        return
    if subresource == "status":
        kept = {key: value for key, value in old.items() if key not in ("metadata", "status")}
        status = obj.get("status")
        metadata = obj["metadata"]
        if call.resource.custom:
            own = {key: metadata[key] for key in ("managedFields", "resourceVersion") if key in metadata}
            metadata = {key: value for key, value in old["metadata"].items() if key != "managedFields"} | own
        obj.clear()
        obj.update(kept)
        obj["metadata"] = metadata
        if status is not None:
            obj["status"] = status
    elif not subresource:
        if "status" in old:
            obj["status"] = old["status"]
        else:
            obj.pop("status", None)


def _attributes(call: RequestContext, change: Change, obj: Object, old: Object) -> Attributes:
    shown = change.admitted
    return Attributes(
        operation=UPDATE,
        resource=call.resource,
        version=call.version.name,
        user=call.user,
        name=call.info.name,
        namespace=call.info.namespace,
        subresource=change.subresource,
        kind=change.kind,
        obj=shown(obj) if shown else obj,
        old=shown(old) if shown else old,
        options=change.options.as_kind("UpdateOptions"),
        dry_run=change.options.dry_run,
        warnings=call.warnings,
    )


async def _settle_and_validate(call: RequestContext, change: Change, obj: Object, old: Object) -> None:
    strategy = call.resource.strategy
    context = call.context(change.subresource)
    metadata, before = obj["metadata"], old["metadata"]
    inherit_system_fields(metadata, before)
    strategy.prepare_update(obj, old, context)
    counts = strategy.counts_generations and change.subresource != "status"
    count_generation(obj, old, counts=counts, with_status=call.resource.custom)
    problems, let_pass = await call.check(_problems, call, change, obj, old, context)
    for text in let_pass:
        call.warn(text)
    if problems:
        raise invalid(call.resource.group_kind, call.info.name, problems)
    for text in strategy.warnings(obj, old):
        call.warn(text)


def _problems(
    call: RequestContext, change: Change, obj: Object, old: Object, context: Context
) -> tuple[list[FieldError], list[str]]:
    """What is wrong, and what is let pass because it was wrong before."""
    strategy = call.resource.strategy
    let_pass: list[str] = []
    problems = _metadata_problems(call, change, obj["metadata"], old["metadata"])
    problems += call.version.model.validate(obj, old, subresource=change.subresource, warnings=let_pass)
    problems += strategy.validate(obj, context)
    problems += strategy.validate_update(obj, old, context)
    return problems, let_pass


def _metadata_problems(call: RequestContext, change: Change, metadata: Object, before: Object) -> list[FieldError]:
    """The real server checks metadata for all kinds and once more for each, and tells causes of both."""
    strategy = call.resource.strategy
    whole = [*validate_metadata(metadata, call.resource)]
    changed = [*validate_metadata_update(metadata, before)]
    own = [*validate_standard_finalizers(metadata)] if strategy.standard_finalizers else []
    again = whole + own if strategy.repeats_metadata_errors and not change.subresource else []
    return whole + changed + changed + own + again


async def _store(call: RequestContext, change: Change, obj: Object, current: Record) -> Record | Object:
    """Write what changed, if anything did; remove an object whose last finalizer went."""
    (kept,) = await to_storage(call, [obj])
    dry = change.options.dry_run
    if vanishes(call, kept):
        if dry:
            return obj
        (record,) = await call.parts.store.write(Delete(current.key, stored.encoder(kept), current.revision))
        return record
    if await call.compute(is_stored, kept, current):
        return current
    if dry:
        return obj
    if call.large:
        await call.compute(fit, kept)
    (record,) = await call.parts.store.write(Put(current.key, bounded_encoder(kept), current.revision))
    return record


def is_stored(kept: Object, current: Record) -> bool:
    return same_json(kept, stored.decode(current))


def vanishes(call: RequestContext, obj: Object) -> bool:
    """Whether a deleted object has nothing left that holds it."""
    metadata = obj["metadata"]
    return (
        bool(metadata.get("deletionTimestamp"))
        and not metadata.get("finalizers")
        and not metadata.get("deletionGracePeriodSeconds")
        and call.resource.strategy.removable(obj)
    )
