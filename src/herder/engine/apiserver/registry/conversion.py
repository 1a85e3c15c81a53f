"""Convert objects between the storage version and the requested version."""

from __future__ import annotations

from collections.abc import Sequence

from herder.engine.apiserver.context import RequestContext
from herder.engine.apiserver.registry.resources import Registry, Resource
from herder.engine.apiserver.registry.storage_codec import decode
from herder.engine.meta.kinds import Object
from herder.engine.store import Record


def storage_api_version(resource: Resource, registry: Registry) -> str:
    """Return the apiVersion of stored objects. It is of another group if another group's resource stores them."""
    holder = registry.get(resource.stored_as) if resource.stored_as else None
    owner = holder or resource
    return owner.api_version(owner.storage_version)


def decode_with_current_schema(resource: Resource, record: Record) -> Object:
    """Decode a stored object (a private copy), pruned and defaulted by the current schema of its storage version."""
    obj = decode(record)
    if resource.prune_and_default is not None and is_stale(resource, record.revision):
        resource.prune_and_default(obj)
    return obj


async def to_version(call: RequestContext, objects: Sequence[Object]) -> list[Object]:
    """Convert stored objects (private copies) to the request's version."""
    resource = call.resource
    if resource.prune_and_default is not None:
        for obj in objects:
            if is_stale(resource, int(obj["metadata"].get("resourceVersion") or 0)):
                resource.prune_and_default(obj)
    return await _converted(resource, objects, call.api_version)


async def to_storage(call: RequestContext, objects: Sequence[Object]) -> list[Object]:
    """Convert objects of the request's version to the storage version."""
    return await _converted(call.resource, objects, storage_api_version(call.resource, call.deps.registry))


async def _converted(resource: Resource, objects: Sequence[Object], api_version: str) -> list[Object]:
    if all(obj.get("apiVersion") == api_version for obj in objects):
        return list(objects)
    if resource.convert is not None:
        return await resource.convert(objects, api_version)
    return [{**obj, "apiVersion": api_version} for obj in objects]


def is_stale(resource: Resource, revision: int) -> bool:
    """Whether an object stored at this revision was written under an older schema."""
    return resource.prune_and_default is not None and revision < resource.schema_changed_at


def needs_conversion(call: RequestContext) -> bool:
    """Whether stored bytes must be decoded to convert them to the request's version."""
    stored = storage_api_version(call.resource, call.deps.registry)
    return call.resource.convert is not None and stored != call.api_version
