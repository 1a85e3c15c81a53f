"""Read access to other objects for admission plugins. It sees the committed state only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from msgspec import json

from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.store import Key, Record, Store

NAMESPACES = GroupResource("", "namespaces")
PODS = GroupResource("", "pods")
SERVICE_ACCOUNTS = GroupResource("", "serviceaccounts")
PRIORITY_CLASSES = GroupResource("scheduling.k8s.io", "priorityclasses")


class Objects:
    """Reads objects from the store. Every call decodes a new copy, which the caller may modify."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, resource: GroupResource, namespace: str, name: str) -> Object | None:
        record = self._store.get(Key(str(resource), namespace, name))
        return cast(Object, json.decode(record.value)) if record else None

    def record(self, resource: GroupResource, namespace: str, name: str) -> Record | None:
        """Return the stored record, for callers that need only its bytes."""
        return self._store.get(Key(str(resource), namespace, name))

    async def wait_committed(self, key: Key) -> bool:
        """Wait for a pending write of the key. Return False if there was none."""
        in_flight = self._store.in_flight(key)
        await self._store.wait_committed(in_flight)
        return in_flight is not None

    def list(self, resource: GroupResource, namespace: str = "") -> Iterator[Object]:
        for record in self._store.list(str(resource), namespace):
            yield cast(Object, json.decode(record.value))

    def records(self, resource: GroupResource, namespace: str = "") -> tuple[Record, ...]:
        return tuple(self._store.list(str(resource), namespace))
