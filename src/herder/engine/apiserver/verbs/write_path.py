"""Write path that create, update, patch, scale and custom subresources share.

A write computes the new object, runs mutating admission, prepares and validates the object, runs validating admission,
and stores it. An update starts with the latest object, and starts again with the new state if another writer wins.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from herder.engine.apiserver.admission.chain import CREATE, UPDATE, Attributes
from herder.engine.apiserver.compute import LARGE_BYTES
from herder.engine.apiserver.context import RequestContext
from herder.engine.apiserver.registry import storage_codec
from herder.engine.apiserver.registry.conversion import to_storage, to_version
from herder.engine.apiserver.registry.managed_fields import (
    check_after_admission,
    keep_times_of_noop,
    set_managed_fields,
    update_managed_fields,
)
from herder.engine.apiserver.registry.metadata import (
    dedup_owner_references,
    generate_name,
    inherit_system_fields,
    metadata_of,
    update_generation,
    validate_metadata,
    validate_metadata_update,
    validate_standard_finalizers,
    wipe_system_fields,
)
from herder.engine.apiserver.registry.strategy import Context
from herder.engine.apiserver.request.limits import bounded_encoder, check_stored_size
from herder.engine.apiserver.request.options import WriteOptions, parse_revision
from herder.engine.meta.errors import (
    MODIFIED,
    AlreadyExists,
    BadRequest,
    FieldError,
    already_exists,
    conflict,
    invalid,
    invalid_value,
    not_found,
)
from herder.engine.meta.kinds import GroupKind, GroupVersionKind, Object
from herder.engine.patch.patches.json_patch import same_json
from herder.engine.store import Delete, Put, Record, RevisionConflict

_NAME_ATTEMPTS = 8
_ATTEMPTS = 50  # every failed attempt means that another writer succeeded


@dataclass(slots=True)
class ObjectChange:
    """One update of one object, retried on the latest state after a write conflict.

    `transform` receives the stored object in the request's version (None if it does not exist) and returns the new
    object, decoded and defaulted. Both are private copies.
    """

    transform: Callable[[Object | None], Awaitable[Object]]
    options: WriteOptions
    subresource: str = ""
    creates_missing: bool = False  # create the object if it does not exist
    updates_managers: bool = True  # False if `transform` sets managedFields itself
    precondition_uid: str = ""
    kind: GroupVersionKind | None = None  # kind of the object in admission, if the subresource has its own
    # Converts the object to that kind, for admission.
    admission_view: Callable[[Object], Object] | None = None


@dataclass(slots=True)
class ChangeResult:
    """Result of an update."""

    found: Record | Object  # an Object for dry runs
    created: bool = False


# --- create --------------------------------------------------------------------------------------------------------


async def default(call: RequestContext, obj: Object) -> None:
    """Apply the defaults of the schema and of the kind."""
    await call.compute(call.version.model.default, obj)
    call.resource.strategy.default(obj, call.strategy_context())


def drop_status(call: RequestContext, obj: Object) -> None:
    """Remove status from a new object if only the status subresource may write it."""
    if call.version.status and call.resource.strategy.has_status:
        obj.pop("status", None)


async def create_object(call: RequestContext, obj: Object, options: WriteOptions) -> Record | Object:
    """Admit, prepare, validate and store a decoded and defaulted object whose managedFields are set."""
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
    await call.deps.admission.admit(attributes)
    obj = attributes.obj if attributes.obj is not None else obj
    check_after_admission(call, obj, managers)
    dedup_owner_references(call, obj, after_admission=True)

    metadata = metadata_of(obj)
    if metadata.get("resourceVersion") not in (None, "", "0") and not options.dry_run:
        raise BadRequest("resourceVersion should not be set on objects to be created")
    metadata.pop("resourceVersion", None)
    base = metadata.get("generateName") if not metadata.get("name") else ""
    metadata["uid"] = call.deps.uid()
    metadata["creationTimestamp"] = call.deps.timestamp()
    for attempt in range(1, _NAME_ATTEMPTS + 1):
        if base:
            metadata["name"] = generate_name(base, call.deps.entropy)
        try:
            return await _validate_and_store(call, obj, attributes, options)
        except RevisionConflict as error:
            if not base or attempt == _NAME_ATTEMPTS:
                await call.deps.store.wait_committed(call.deps.store.in_flight(error.key))
                raise _already_exists(call, obj, generated=bool(base)) from None
    raise AssertionError("unreachable")


async def _validate_and_store(
    call: RequestContext, obj: Object, attributes: Attributes, options: WriteOptions
) -> Record | Object:
    strategy = call.resource.strategy
    context = call.strategy_context()
    obj["metadata"].setdefault("name", "")  # hooks may rely on the name; validation reports an empty one
    update_generation(obj, None, counts=strategy.tracks_generation)
    strategy.prepare_create(obj, context)
    problems = await call.check(_create_problems, call, obj, context)
    if problems:
        raise invalid(call.resource.group_kind, obj["metadata"].get("name") or "", problems)
    for text in strategy.warnings(obj, None):
        call.warn(text)
    attributes.obj = obj
    attributes.name = obj["metadata"]["name"]
    await call.deps.admission.validate(attributes)

    key = storage_codec.key_of(call.resource, call.info.namespace, obj["metadata"]["name"])
    (stored,) = await to_storage(call, [obj])
    if options.dry_run:
        store = call.deps.store
        current, in_flight = store.latest(key), store.in_flight(key)
        if current is not None:
            raise RevisionConflict(key, current)
        await store.wait_committed(in_flight)
        return obj
    if call.large:
        await call.compute(check_stored_size, stored)
    await call.check_rights(attributes)
    (record,) = await call.deps.store.write(Put(key, bounded_encoder(stored), 0))
    return record


def _create_problems(call: RequestContext, obj: Object, context: Context) -> list[FieldError]:
    strategy = call.resource.strategy
    problems = [*validate_metadata(obj["metadata"], call.resource)]
    if strategy.standard_finalizers:
        problems += validate_standard_finalizers(obj["metadata"])
    problems += call.version.model.validate(obj, None)
    problems += strategy.validate(obj, context)
    return problems


def _already_exists(call: RequestContext, obj: Object, *, generated: bool) -> Exception:
    error = already_exists(call.group_resource, obj["metadata"]["name"])
    if generated:
        error.message += ", the server was not able to generate a unique name for the object"
        error.details = {**(error.details or {}), "retryAfterSeconds": 1}
        error.headers = {"retry-after": "1"}
    return error


def _is_namespace(call: RequestContext) -> bool:
    return call.resource.plural == "namespaces" and not call.resource.group


# --- update --------------------------------------------------------------------------------------------------------


def check_name(call: RequestContext, obj: Object) -> None:
    """Check that the object's name is that of the path."""
    name = metadata_of(obj).get("name")
    if not name:
        raise BadRequest(
            f"the name of the object ({call.info.name} based on URL) was undeterminable: name must be provided"
        )
    if name != call.info.name:
        raise BadRequest(f"the name of the object ({name}) does not match the name on the URL ({call.info.name})")


async def change_object(call: RequestContext, change: ObjectChange) -> ChangeResult:
    """Run the write path with retries. Returns only after all earlier writes that it has seen are committed."""
    store = call.deps.store
    for _ in range(_ATTEMPTS):
        current, in_flight = store.latest(call.key), store.in_flight(call.key)
        call.large = call.large or (current is not None and len(current.value) > LARGE_BYTES)
        try:
            if current is not None:
                changed = await _update_current(call, change, current)
            else:
                changed = await _create_missing(call, change)
        except RevisionConflict:
            continue
        except Exception:
            await store.wait_committed(in_flight)
            raise
        await store.wait_committed(in_flight)  # returns immediately after a write, because that one came later
        return changed
    raise conflict(call.group_resource, call.info.name, MODIFIED)


async def _create_missing(call: RequestContext, change: ObjectChange) -> ChangeResult:
    if not change.creates_missing:
        raise not_found(call.group_resource, call.info.name)
    call.check_creation()
    obj = await change.transform(None)
    uid = metadata_of(obj).get("uid")
    if uid:
        why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
        raise conflict(call.group_resource, call.info.name, why)
    obj["metadata"].pop("resourceVersion", None)  # of a deleted object: recreating it is not a conflict
    wipe_system_fields(obj["metadata"])
    drop_status(call, obj)
    if change.updates_managers:
        await update_managed_fields(call, obj, None, change.options)
    try:
        return ChangeResult(await create_object(call, obj, change.options), created=True)
    except AlreadyExists:  # another client has created it: retry as an update
        raise RevisionConflict(call.key, None) from None


async def _update_current(call: RequestContext, change: ObjectChange, current: Record) -> ChangeResult:
    old, base = await _old_and_base(call, current)
    _check_uid(call, change, old)
    obj = await change.transform(base)
    metadata = metadata_of(obj)
    _check_revision(call, obj, current)
    reset_ignored_fields(call, obj, old, change.subresource)
    if change.updates_managers:
        await update_managed_fields(call, obj, old, change.options, change.subresource)

    attributes = _update_attributes(call, change, obj, old)
    managers = metadata.get("managedFields")
    await call.deps.admission.admit(attributes)
    if change.admission_view is None:
        obj = attributes.obj if attributes.obj is not None else obj
    metadata = metadata_of(obj)
    check_after_admission(call, obj, managers)
    dedup_owner_references(call, obj, after_admission=True)
    set_managed_fields(obj, keep_times_of_noop(obj, old))

    await _prepare_and_validate(call, change, obj, old)
    attributes.obj = change.admission_view(obj) if change.admission_view else obj
    await call.deps.admission.validate(attributes)
    return ChangeResult(await _store(call, change, obj, attributes, current))


async def _old_and_base(call: RequestContext, current: Record) -> tuple[Object, Object]:
    """Return two copies of the stored object in the request's version: one for comparison, one to modify."""
    (old,) = await to_version(call, [await call.compute(storage_codec.decode, current)])
    if call.resource.convert is None:
        (base,) = await to_version(call, [await call.compute(storage_codec.decode, current)])
    else:
        base = await call.compute(storage_codec.deep_copy, old)
    return old, base


def _check_uid(call: RequestContext, change: ObjectChange, old: Object) -> None:
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
    """Reject an update of an older state (optimistic locking). Without resourceVersion the latest state is updated."""
    try:
        given = parse_revision(str(obj["metadata"].get("resourceVersion") or ""))
    except ValueError as error:
        raise BadRequest(f"metadata.{error}") from None
    if not given:
        if not call.resource.strategy.unconditional_update:
            problem = invalid_value("metadata.resourceVersion", 0, "must be specified for an update")
            raise invalid(GroupKind(*call.group_resource), call.info.name, [problem])
        obj["metadata"]["resourceVersion"] = str(current.revision)
    elif given != current.revision:
        raise conflict(call.group_resource, call.info.name, MODIFIED)


def reset_ignored_fields(call: RequestContext, obj: Object, old: Object, subresource: str) -> None:
    """Restore the fields that this endpoint may not write: only /status writes status, and it writes nothing else."""
    if not (call.version.status and call.resource.strategy.has_status):
        return
    if subresource == "status":
        stored = {key: value for key, value in old.items() if key not in ("metadata", "status")}
        status = obj.get("status")
        metadata = obj["metadata"]
        if call.resource.custom:
            own = {key: metadata[key] for key in ("managedFields", "resourceVersion") if key in metadata}
            metadata = {key: value for key, value in old["metadata"].items() if key != "managedFields"} | own
        obj.clear()
        obj.update(stored)
        obj["metadata"] = metadata
        if status is not None:
            obj["status"] = status
    elif not subresource:
        if "status" in old:
            obj["status"] = old["status"]
        else:
            obj.pop("status", None)


def _update_attributes(call: RequestContext, change: ObjectChange, obj: Object, old: Object) -> Attributes:
    shown = change.admission_view
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


async def _prepare_and_validate(call: RequestContext, change: ObjectChange, obj: Object, old: Object) -> None:
    strategy = call.resource.strategy
    context = call.strategy_context(change.subresource)
    metadata, before = obj["metadata"], old["metadata"]
    inherit_system_fields(metadata, before)
    strategy.prepare_update(obj, old, context)
    counts = strategy.tracks_generation and change.subresource != "status"
    update_generation(obj, old, counts=counts, with_status=call.resource.custom)
    problems, tolerated = await call.check(_update_problems, call, change, obj, old, context)
    for text in tolerated:
        call.warn(text)
    if problems:
        raise invalid(call.resource.group_kind, call.info.name, problems)
    for text in strategy.warnings(obj, old):
        call.warn(text)


def _update_problems(
    call: RequestContext, change: ObjectChange, obj: Object, old: Object, context: Context
) -> tuple[list[FieldError], list[str]]:
    """Return the validation errors, and those that ratcheting tolerates."""
    strategy = call.resource.strategy
    tolerated: list[str] = []
    problems = _metadata_problems(call, change, obj["metadata"], old["metadata"])
    problems += call.version.model.validate(obj, old, subresource=change.subresource, warnings=tolerated)
    problems += strategy.validate(obj, context)
    problems += strategy.validate_update(obj, old, context)
    return problems, tolerated


def _metadata_problems(
    call: RequestContext, change: ObjectChange, metadata: Object, before: Object
) -> list[FieldError]:
    """Validate metadata. kube-apiserver validates it generically and again per kind, and reports the errors of both."""
    strategy = call.resource.strategy
    generic = [*validate_metadata(metadata, call.resource)]
    changed = [*validate_metadata_update(metadata, before)]
    own = [*validate_standard_finalizers(metadata)] if strategy.standard_finalizers else []
    repeated = generic + own if strategy.repeats_metadata_errors and not change.subresource else []
    return generic + changed + changed + own + repeated


async def _store(
    call: RequestContext, change: ObjectChange, obj: Object, attributes: Attributes, current: Record
) -> Record | Object:
    """Write the object if it has changed, or remove it if its last finalizer is gone."""
    (stored,) = await to_storage(call, [obj])
    dry = change.options.dry_run
    if is_removable(call, stored):
        if dry:
            return obj
        await call.check_rights(attributes, current)
        (record,) = await call.deps.store.write(Delete(current.key, storage_codec.encoder(stored), current.revision))
        return record
    if await call.compute(is_unchanged, stored, current):
        return current
    if dry:
        return obj
    if call.large:
        await call.compute(check_stored_size, stored)
    await call.check_rights(attributes, current)
    (record,) = await call.deps.store.write(Put(current.key, bounded_encoder(stored), current.revision))
    return record


def is_unchanged(stored: Object, current: Record) -> bool:
    """Whether the object equals the stored one, so that nothing is written."""
    return same_json(stored, storage_codec.decode(current))


def is_removable(call: RequestContext, obj: Object) -> bool:
    """Whether a deleted object has no finalizer and no grace period left."""
    metadata = obj["metadata"]
    return (
        bool(metadata.get("deletionTimestamp"))
        and not metadata.get("finalizers")
        and not metadata.get("deletionGracePeriodSeconds")
        and call.resource.strategy.removable(obj)
    )
