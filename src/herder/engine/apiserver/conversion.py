"""Between the version that is stored and the version that is asked for."""

from __future__ import annotations

from collections.abc import Sequence

from herder.engine.apiserver.resources import Registry, Resource
from herder.engine.apiserver.scope import RequestContext
from herder.engine.apiserver.stored import decode
from herder.engine.meta.kinds import Object
from herder.engine.store import Record


def storage_api_version(resource: Resource, registry: Registry) -> str:
    """How stored objects call themselves: by another group where another group's resource holds them."""
    holder = registry.get(resource.stored_as) if resource.stored_as else None
    owner = holder or resource
    return owner.api_version(owner.storage_version)


def decode_reshaped(resource: Resource, record: Record) -> Object:
    """A stored object, the caller's own copy, as the schema of the version it is stored in says now."""
    obj = decode(record)
    if resource.reshape is not None and is_stale(resource, record.revision):
        resource.reshape(obj)
    return obj


async def to_version(call: RequestContext, objects: Sequence[Object]) -> list[Object]:
    """Stored objects, the caller's own copies, in the version that the request speaks."""
    resource = call.resource
    if resource.reshape is not None:
        for obj in objects:
            if is_stale(resource, int(obj["metadata"].get("resourceVersion") or 0)):
                resource.reshape(obj)
    return await _converted(resource, objects, call.api_version)


async def to_storage(call: RequestContext, objects: Sequence[Object]) -> list[Object]:
    """Objects of the request's version as they are stored."""
    return await _converted(call.resource, objects, storage_api_version(call.resource, call.parts.registry))


async def _converted(resource: Resource, objects: Sequence[Object], api_version: str) -> list[Object]:
    if all(obj.get("apiVersion") == api_version for obj in objects):
        return list(objects)
    if resource.convert is not None:
        return await resource.convert(objects, api_version)
    return [{**obj, "apiVersion": api_version} for obj in objects]


def is_stale(resource: Resource, revision: int) -> bool:
    """Whether what was stored at this revision is to be reshaped before anybody sees it."""
    return resource.reshape is not None and revision < resource.schema_changed_at


def needs_conversion(call: RequestContext) -> bool:
    """Whether stored bytes must be decoded to be shown in the request's version."""
    stored = storage_api_version(call.resource, call.parts.registry)
    return call.resource.convert is not None and stored != call.api_version
