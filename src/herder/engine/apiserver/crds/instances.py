"""Delete all instances of a CRD that is being deleted."""

from __future__ import annotations

from collections.abc import Callable

from herder.engine.apiserver.registry.storage_codec import decode, encoder
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.store import Delete, Put, Record, RevisionConflict, Store


class Instances:
    """All objects of a custom resource. Deletes directly in the store, so that admission cannot block the deletion
    of a CRD."""

    def __init__(self, store: Store, resource: GroupResource) -> None:
        self._store = store
        self._resource = str(resource)

    async def delete_all(self, now: Callable[[], str]) -> bool:
        """Delete every object. Return whether none is left; objects with finalizers remain until these are removed."""
        await self._delete_each(now)
        return not self._store.count(self._resource)

    async def _delete_each(self, now: Callable[[], str]) -> None:
        for record in self._store.list(self._resource):
            obj = decode(record)
            metadata = obj["metadata"]
            if not metadata.get("finalizers"):
                await self._write(record, obj, delete=True)
            elif not metadata.get("deletionTimestamp"):
                metadata["deletionTimestamp"] = now()
                metadata["deletionGracePeriodSeconds"] = 0
                metadata["generation"] = metadata.get("generation", 0) + 1
                await self._write(record, obj, delete=False)

    async def _write(self, record: Record, obj: Object, *, delete: bool) -> None:
        change = Delete if delete else Put
        try:
            await self._store.commit(change(record.key, encoder(obj), record.revision))
        except RevisionConflict:
            return  # modified concurrently: the event requeues the CRD
