"""The delete verb: remove an object, or set deletionTimestamp while finalizers or a grace period keep it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from herder.engine.apiserver.admission.chain import DELETE, Attributes
from herder.engine.apiserver.compute import LARGE_BYTES
from herder.engine.apiserver.context import RequestContext
from herder.engine.apiserver.registry import storage_codec
from herder.engine.apiserver.registry.conversion import decode_with_current_schema, to_version
from herder.engine.apiserver.registry.metadata import FOREGROUND, ORPHAN
from herder.engine.apiserver.request.options import DeleteOptions, delete_options
from herder.engine.apiserver.response.render import object_response, render_response
from herder.engine.apiserver.verbs.write_path import is_removable, is_unchanged
from herder.engine.meta.errors import MODIFIED, conflict, not_found
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.store import Delete, Put, Record, RevisionConflict
from herder.engine.wire import Response

_ATTEMPTS = 50
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_JOB_ORPHAN_WARNING = (
    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set "
    "propagationPolicy=Orphan to suppress this warning"
)


async def delete(call: RequestContext) -> Response:
    """Delete the object, and return a Status, or the object if it still exists."""
    options = delete_options(call.request)
    found, removed = await delete_object(call, options)
    if removed and not call.resource.strategy.returns_deleted_object:
        return render_response(await call.compute(_success_status, call, found), call.rendering)
    accepted = not removed and options.orphan_dependents is False
    return await object_response(call, found, 202 if accepted else 200)


def _success_status(call: RequestContext, found: Record | Object) -> Object:
    obj = storage_codec.decode(found) if isinstance(found, Record) else found
    details: Object = {"name": call.info.name}
    if call.resource.group:
        details["group"] = call.resource.group
    details |= {"kind": call.resource.plural, "uid": obj["metadata"].get("uid", "")}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


async def delete_object(call: RequestContext, options: DeleteOptions) -> tuple[Record | Object, bool]:
    """Delete the object. Return its last state, and whether it has been removed."""
    if options.grace_period is not None and options.grace_period < 0:
        options = replace(options, grace_period=1)
    store = call.deps.store
    for _ in range(_ATTEMPTS):
        current, in_flight = store.latest(call.key), store.in_flight(call.key)
        try:
            if current is None:
                raise not_found(call.group_resource, call.info.name)
            deleted = await _delete_current(call, options, current)
        except RevisionConflict:
            continue
        except Exception:
            await store.wait_committed(in_flight)
            raise
        await store.wait_committed(in_flight)
        return deleted
    raise conflict(call.group_resource, call.info.name, MODIFIED)


async def _delete_current(
    call: RequestContext, options: DeleteOptions, current: Record
) -> tuple[Record | Object, bool]:
    call.large = len(current.value) > LARGE_BYTES
    obj = await call.compute(decode_with_current_schema, call.resource, current)
    _check_preconditions(call, options, obj, current)
    attributes = await _admit(call, options, current)
    if not obj["metadata"].get("deletionTimestamp"):
        call.resource.strategy.prepare_delete(obj, call.strategy_context())
    graceful = _mark_deleted(call, options, obj)
    if not graceful and is_removed_by_delete(call, obj):
        if options.dry_run:
            return obj, True
        if not obj["metadata"].get("deletionTimestamp"):
            # The DELETED event contains the object as last stored, or as the end of the grace period left it.
            obj = await call.compute(decode_with_current_schema, call.resource, current)
        await call.check_rights(attributes, current)
        (record,) = await call.deps.store.write(Delete(current.key, storage_codec.encoder(obj), current.revision))
        return record, True
    if await call.compute(is_unchanged, obj, current):
        return current, False
    if options.dry_run:
        return (await to_version(call, [obj]))[0], False
    await call.check_rights(attributes, current)
    (record,) = await call.deps.store.write(Put(current.key, storage_codec.encoder(obj), current.revision))
    return record, False


def _check_preconditions(call: RequestContext, options: DeleteOptions, obj: Object, current: Record) -> None:
    uid, revision = obj["metadata"].get("uid", ""), str(current.revision)
    named = GroupResource(call.resource.group, call.resource.kind)
    if options.uid is not None and options.uid != uid:
        why = (
            f"the UID in the precondition ({options.uid}) does not match the UID in record ({uid}). The object might "
            "have been deleted and then recreated"
        )
        raise conflict(named, call.info.name, why)
    if options.resource_version is not None and options.resource_version != revision:
        why = (
            f"the ResourceVersion in the precondition ({options.resource_version}) does not match the ResourceVersion "
            f"in record ({revision}). The object might have been modified"
        )
        raise conflict(named, call.info.name, why)


async def _admit(call: RequestContext, options: DeleteOptions, current: Record) -> Attributes:
    (old,) = await to_version(call, [await call.compute(storage_codec.decode, current)])
    attributes = Attributes(
        operation=DELETE,
        resource=call.resource,
        version=call.version.name,
        user=call.user,
        name=call.info.name,
        namespace=call.info.namespace,
        old=old,
        options=options.as_object(),
        dry_run=options.dry_run,
        warnings=call.warnings,
    )
    await call.deps.admission.admit(attributes)
    await call.deps.admission.validate(attributes)
    return attributes


# --- deletionTimestamp and finalizers -----------------------------------------------------------------------------


def _mark_deleted(call: RequestContext, options: DeleteOptions, obj: Object) -> bool:
    """Set deletionTimestamp and finalizers, in place. Return whether a grace period keeps the object."""
    metadata = obj["metadata"]
    if metadata.get("deletionTimestamp") and metadata.get("deletionGracePeriodSeconds"):
        return _shorten_grace_period(call, options, metadata)
    seconds = call.resource.strategy.grace_period(obj, options.grace_period)
    graceful = seconds is not None and not metadata.get("deletionTimestamp")
    _set_finalizers(call, options, metadata)
    if graceful and seconds is not None:
        _set_deletion_timestamp(call, metadata, seconds)
        return seconds > 0
    if metadata.get("finalizers"):
        _set_deletion_timestamp(call, metadata, 0)
    elif not call.resource.strategy.removable(obj):
        _set_deletion_timestamp(call, metadata, None)
    return False


def _set_deletion_timestamp(call: RequestContext, metadata: Object, seconds: int | None) -> None:
    if not metadata.get("deletionTimestamp"):
        when = call.deps.clock().astimezone(UTC) + timedelta(seconds=seconds or 0)
        metadata["deletionTimestamp"] = when.strftime(_TIME)
        if metadata.get("generation"):
            metadata["generation"] += 1
    if seconds is not None:
        metadata["deletionGracePeriodSeconds"] = seconds


def _shorten_grace_period(call: RequestContext, options: DeleteOptions, metadata: Object) -> bool:
    """Shorten the grace period of an object that is already being deleted; it can never be extended."""
    wanted, given = options.grace_period, metadata["deletionGracePeriodSeconds"]
    if wanted is None or wanted >= given:
        return True
    now = call.deps.clock().astimezone(UTC).replace(microsecond=0)
    end = datetime.strptime(metadata["deletionTimestamp"], _TIME).replace(tzinfo=UTC)
    end += timedelta(seconds=wanted - given)
    if end < now:
        end, wanted = now, min(wanted, 1)
    metadata["deletionTimestamp"] = end.strftime(_TIME)
    metadata["deletionGracePeriodSeconds"] = wanted
    return wanted > 0


def _set_finalizers(call: RequestContext, options: DeleteOptions, metadata: Object) -> None:
    """Set the finalizer through which the garbage collector handles dependents, according to the propagation policy."""
    present = metadata.get("finalizers") or []
    policy = _propagation_policy(call, options, present)
    kept = [name for name in present if name not in (ORPHAN, FOREGROUND)]
    if policy == "Orphan":
        kept.append(ORPHAN)
    elif policy == "Foreground":
        kept.append(FOREGROUND)
    if set(kept) == set(present):
        return
    if kept:
        metadata["finalizers"] = kept
    else:
        metadata.pop("finalizers", None)


def _propagation_policy(call: RequestContext, options: DeleteOptions, finalizers: list[str]) -> str:
    if options.propagation is not None:
        return options.propagation
    if options.orphan_dependents is not None:
        return "Orphan" if options.orphan_dependents else "Background"
    if ORPHAN in finalizers:
        return "Orphan"
    if FOREGROUND in finalizers:
        return "Foreground"
    policy = call.resource.strategy.default_propagation
    if policy == "Orphan" and call.resource.plural == "jobs":
        call.warn(_JOB_ORPHAN_WARNING)
    return policy


def is_removed_by_delete(call: RequestContext, obj: Object) -> bool:
    """Whether deleting this object removes it immediately."""
    return is_removable(call, {**obj, "metadata": {**obj["metadata"], "deletionTimestamp": "now"}})
