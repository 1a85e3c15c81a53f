"""Update managedFields for a request, and run server-side apply."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from herder.engine.apiserver.context import RequestContext
from herder.engine.apiserver.registry.reset_fields import reset_fields
from herder.engine.apiserver.registry.resources import Resource
from herder.engine.apiserver.registry.storage_codec import deep_copy, encode
from herder.engine.apiserver.request.options import WriteOptions
from herder.engine.meta.errors import BadRequest
from herder.engine.meta.kinds import Object
from herder.engine.patch.ssa.managed import (
    InvalidManagedFields,
    apply,
    keep_times_of_noop,
    track_update,
    validate_managed_fields,
)

if TYPE_CHECKING:
    from herder.engine.patch.ssa.versions import Convert
    from herder.engine.patch.typed.types import TypeRef

_MAX_MANAGER = 128
_Result = TypeVar("_Result")


def manager_name(call: RequestContext, options: WriteOptions) -> str:
    """Return the field manager: the fieldManager parameter, or the first part of the User-Agent."""
    if options.field_manager:
        return options.field_manager
    agent = call.request.headers.get("user-agent", "").partition("/")[0]
    printable = agent if agent.isprintable() else "".join(filter(str.isprintable, agent))
    while len(printable.encode()) > _MAX_MANAGER:
        printable = printable[:-1]
    return printable


def types_of(resource: Resource) -> Callable[[str], TypeRef | None]:
    """Return a function from apiVersion to the merge type of that version."""

    def type_of(api_version: str) -> TypeRef | None:
        version = resource.versions.get(api_version.rpartition("/")[2])
        if version is None or resource.api_version(version.name) != api_version:
            return None
        return version.model.merge_type

    return type_of


async def update_managed_fields(
    call: RequestContext, obj: Object, old: Object | None, options: WriteOptions, subresource: str = ""
) -> None:
    """Set the managedFields that result from this create or update, in place."""
    now = call.deps.clock()

    def tracked(convert: Convert | None) -> list[Object]:
        return track_update(
            obj,
            old,
            manager=manager_name(call, options),
            api_version=call.api_version,
            now=now,
            type_of=types_of(call.resource),
            subresource=subresource,
            convert=convert,
            reset=reset_fields(call.resource, call.version, subresource),
        )

    set_managed_fields(obj, await _with_conversions(call, tracked))


def set_managed_fields(obj: Object, entries: list[Object]) -> None:
    """Set managedFields in place, or remove it if there are no entries."""
    if entries:
        obj["metadata"]["managedFields"] = entries
    else:
        obj["metadata"].pop("managedFields", None)


async def server_side_apply(
    call: RequestContext, live: Object | None, given: Any, options: WriteOptions, subresource: str = ""
) -> Object:
    """Return the result of server-side apply of `given` to the live object."""
    if given is not None and not isinstance(given, dict):
        raise BadRequest("error decoding YAML: the applied configuration is not an object")
    now = call.deps.clock()

    def merged(convert: Convert | None) -> Object:
        return apply(
            live,
            given or {},
            manager=options.field_manager,
            force=bool(options.force),
            api_version=call.api_version,
            now=now,
            type_of=types_of(call.resource),
            subresource=subresource,
            kind=call.resource.kind,
            convert=convert,
            reset=reset_fields(call.resource, call.version, subresource),
        )

    return await _with_conversions(call, merged)


class _ConversionNeeded(Exception):
    """A version of an object that has not been converted yet is needed."""

    def __init__(self, obj: Object, api_version: str) -> None:
        super().__init__(api_version)
        self.obj = obj
        self.api_version = api_version


async def _with_conversions(call: RequestContext, run: Callable[[Convert | None], _Result]) -> _Result:
    """Run a pure function that needs objects in the versions their managers last wrote, and return its result.

    Conversion may call a webhook, which is asynchronous. If `run` needs a version that is not known yet, it is aborted,
    the object is converted, and `run` starts again. Few objects have managers of several versions, and then two or
    three.
    """
    resource = call.resource
    if resource.convert is None or resource.convert_renames:
        return await call.compute(run, None)
    conversions: dict[tuple[bytes, str], Object] = {}

    def convert(obj: Object, api_version: str) -> Object:
        found = conversions.get((encode(obj), api_version))
        if found is None:
            raise _ConversionNeeded(obj, api_version)
        return found

    while True:
        try:
            return await call.compute(run, convert)
        except _ConversionNeeded as needed:
            (found,) = await resource.convert([deep_copy(needed.obj)], needed.api_version)
            conversions[encode(needed.obj), needed.api_version] = found


def check_after_admission(call: RequestContext, obj: Object, before: list[Object] | None) -> None:
    """Restore managedFields that a webhook made invalid, and warn the client."""
    entries = obj["metadata"].get("managedFields")
    if entries is before or entries == before:
        return
    try:
        validate_managed_fields(entries or [])
    except InvalidManagedFields as error:
        set_managed_fields(obj, before or [])
        call.warn(
            ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated "
            f"mutating admission controller; please fix your requests: {error}"
        )


__all__ = [
    "check_after_admission",
    "keep_times_of_noop",
    "manager_name",
    "server_side_apply",
    "set_managed_fields",
    "types_of",
    "update_managed_fields",
]
