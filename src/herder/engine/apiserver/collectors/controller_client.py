"""In-process API client of a controller, for any resource."""

from __future__ import annotations

from typing import TYPE_CHECKING

from herder.engine.apiserver.registry.resources import Registry, Resource
from herder.engine.client.client import Client
from herder.engine.meta.kinds import GroupResource, GroupVersionResource, Object
from herder.engine.store import Key, Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from herder.engine.wire import Transport

RETRY_SECONDS = 30.0
"""Maximum back-off of a controller: a webhook that rejected a deletion may allow it later."""


class ControllerClient:
    """API client and read access to the store."""

    def __init__(self, store: Store, registry: Registry, transport: Transport, *, name: str) -> None:
        self.store = store
        self.registry = registry
        self.client = Client(transport, field_manager=name)

    def resource_of(self, key: Key) -> GroupVersionResource | None:
        """Return the served resource of a stored key; None if its CRD was deleted."""
        plural, _, group = key.resource.partition(".")
        found = self.registry.get(GroupResource(group, plural))
        return _served(found) if found is not None else None

    def namespaced(self) -> Iterator[tuple[Resource, GroupVersionResource]]:
        """Yield every stored namespaced resource once."""
        for resource in self.registry:
            if resource.namespaced and resource.virtual is None and resource.stored_as is None:
                served = _served(resource)
                if served is not None and "delete" in resource.verbs:
                    yield resource, served

    async def delete(self, key: Key, uid: str, propagation: str) -> None:
        resource = self.resource_of(key)
        if resource is not None:
            await self.client.delete(resource, key.name, namespace=key.namespace, uid=uid, propagation=propagation)

    async def patch_metadata(self, key: Key, metadata: Object) -> None:
        resource = self.resource_of(key)
        if resource is not None:
            await self.client.patch(resource, key.name, {"metadata": metadata}, namespace=key.namespace)


def _served(resource: Resource) -> GroupVersionResource | None:
    version = resource.storage_version
    if not resource.versions[version].served:
        version = next((name for name, each in resource.versions.items() if each.served), "")
    return GroupVersionResource(resource.group, version, resource.plural) if version else None
