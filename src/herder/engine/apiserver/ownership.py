"""managedFields of a request: who acts, on which type, and what an endpoint ignores."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from herder.engine.apiserver.options import WriteOptions
from herder.engine.apiserver.resources import Resource
from herder.engine.apiserver.scope import Call
from herder.engine.meta.errors import BadRequest, InternalError
from herder.engine.meta.kinds import Object
from herder.engine.patch.managed import (
    InvalidManagedFields,
    apply,
    keep_times_of_noop,
    track_update,
    validate_managed_fields,
)

if TYPE_CHECKING:
    from herder.engine.patch.typed import TypeRef

_MAX_MANAGER = 128


def manager_name(call: Call, options: WriteOptions) -> str:
    """The field manager: as named, or the program's name at the front of its User-Agent."""
    if options.field_manager:
        return options.field_manager
    agent = call.request.headers.get("user-agent", "").partition("/")[0]
    printable = "".join(character for character in agent if character.isprintable())
    while len(printable.encode()) > _MAX_MANAGER:
        printable = printable[:-1]
    return printable


def types_of(resource: Resource) -> Callable[[str], TypeRef | None]:
    def type_of(api_version: str) -> TypeRef | None:
        version = resource.versions.get(api_version.rpartition("/")[2])
        if version is None or resource.api_version(version.name) != api_version:
            return None
        return version.model.merge_type

    return type_of


def reset_fields(call: Call, subresource: str, *objects: Object | None) -> dict[str, object] | None:
    """What this endpoint ignores, and so nobody comes to own through it, as FieldsV1."""
    if not (call.version.status and call.resource.strategy.has_status):
        return None
    if not subresource:
        return {"f:status": {}}
    if subresource != "status":
        return None
    kept = ("apiVersion", "kind", "status") if call.resource.custom else ("apiVersion", "kind", "metadata", "status")
    names = {"spec", *(name for obj in objects for name in obj or ())}
    return {f"f:{name}": {} for name in names if name not in kept}


def track(call: Call, obj: Object, old: Object | None, options: WriteOptions, subresource: str = "") -> None:
    """Set the managedFields that this write leads to, in place."""
    entries = track_update(
        obj,
        old,
        manager=manager_name(call, options),
        api_version=call.api_version,
        now=call.parts.clock(),
        type_of=types_of(call.resource),
        subresource=subresource,
        reset=reset_fields(call, subresource, obj, old),
    )
    put_entries(obj, entries)


def put_entries(obj: Object, entries: list[Object]) -> None:
    if entries:
        obj["metadata"]["managedFields"] = entries
    else:
        obj["metadata"].pop("managedFields", None)


def applied(call: Call, live: Object | None, given: Any, options: WriteOptions, subresource: str = "") -> Object:
    """The object after server-side apply of `given`."""
    if given is not None and not isinstance(given, dict):
        raise BadRequest("error decoding YAML: the applied configuration is not an object")
    return apply(
        live,
        given or {},
        manager=options.field_manager,
        force=bool(options.force),
        api_version=call.api_version,
        now=call.parts.clock(),
        type_of=types_of(call.resource),
        subresource=subresource,
        kind=call.resource.kind,
        reset=reset_fields(call, subresource, given, live),
    )


def check_after_admission(obj: Object, before: list[Object] | None) -> None:
    """A webhook that broke the managedFields is at fault, not the caller; what it broke is put back."""
    entries = obj["metadata"].get("managedFields")
    if entries is before or entries == before:
        return
    try:
        validate_managed_fields(entries or [])
    except InvalidManagedFields as error:
        raise InternalError(f"invalid managedFields after mutating admission: {error}") from None


__all__ = ["applied", "check_after_admission", "keep_times_of_noop", "manager_name", "put_entries", "track", "types_of"]
