"""managedFields of a request: who acts, on which type, and what an endpoint ignores."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from herder.engine.apiserver.options import WriteOptions
from herder.engine.apiserver.reset_fields import reset_fields
from herder.engine.apiserver.resources import Resource
from herder.engine.apiserver.scope import RequestContext
from herder.engine.apiserver.stored import copied, encode
from herder.engine.meta.errors import BadRequest
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
    from herder.engine.patch.versions import Convert

_MAX_MANAGER = 128
_Answer = TypeVar("_Answer")


def manager_name(call: RequestContext, options: WriteOptions) -> str:
    """The field manager: as named, or the program's name at the front of its User-Agent."""
    if options.field_manager:
        return options.field_manager
    agent = call.request.headers.get("user-agent", "").partition("/")[0]
    printable = agent if agent.isprintable() else "".join(filter(str.isprintable, agent))
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


async def track(
    call: RequestContext, obj: Object, old: Object | None, options: WriteOptions, subresource: str = ""
) -> None:
    """Set the managedFields that this write leads to, in place."""
    now = call.parts.clock()

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

    put_entries(obj, await _with_conversions(call, tracked))


def put_entries(obj: Object, entries: list[Object]) -> None:
    if entries:
        obj["metadata"]["managedFields"] = entries
    else:
        obj["metadata"].pop("managedFields", None)


async def applied(
    call: RequestContext, live: Object | None, given: Any, options: WriteOptions, subresource: str = ""
) -> Object:
    """The object after server-side apply of `given`."""
    if given is not None and not isinstance(given, dict):
        raise BadRequest("error decoding YAML: the applied configuration is not an object")
    now = call.parts.clock()

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


class _Unconverted(Exception):
    """An object is needed in another version."""

    def __init__(self, obj: Object, api_version: str) -> None:
        super().__init__(api_version)
        self.obj = obj
        self.api_version = api_version


async def _with_conversions(call: RequestContext, run: Callable[[Convert | None], _Answer]) -> _Answer:
    """What `run` answers, given objects in the versions that their managers last wrote.

    `run` is pure, and conversion may need a webhook: where it asks for an object in another version it is stopped,
    the object converted, and it runs again. Few objects have managers of several versions, and then of two or three.
    """
    resource = call.resource
    if resource.convert is None or resource.convert_renames:
        return await call.compute(run, None)
    known: dict[tuple[bytes, str], Object] = {}

    def convert(obj: Object, api_version: str) -> Object:
        found = known.get((encode(obj), api_version))
        if found is None:
            raise _Unconverted(obj, api_version)
        return found

    while True:
        try:
            return await call.compute(run, convert)
        except _Unconverted as needed:
            (found,) = await resource.convert([copied(needed.obj)], needed.api_version)
            known[encode(needed.obj), needed.api_version] = found


def check_after_admission(call: RequestContext, obj: Object, before: list[Object] | None) -> None:
    """What a webhook broke of the managedFields is put back, and the caller told."""
    entries = obj["metadata"].get("managedFields")
    if entries is before or entries == before:
        return
    try:
        validate_managed_fields(entries or [])
    except InvalidManagedFields as error:
        put_entries(obj, before or [])
        call.warn(
            ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated "
            f"mutating admission controller; please fix your requests: {error}"
        )


__all__ = ["applied", "check_after_admission", "keep_times_of_noop", "manager_name", "put_entries", "track", "types_of"]
