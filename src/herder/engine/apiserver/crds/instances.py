"""All objects of one custom resource, deleted with their definition."""

from __future__ import annotations

from collections.abc import Callable

from herder.engine.apiserver.stored import decode, encoder
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.store import Delete, Put, Record, RevisionConflict, Store


class Instances:
    """Straight on the store, as the real server does: no admission may keep a definition from going."""

    def __init__(self, store: Store, resource: GroupResource) -> None:
        self._store = store
        self._resource = str(resource)

    async def delete_all(self, now: Callable[[], str]) -> None:
        """Delete every object, and wait until those with finalizers have lost them and are gone too."""
        watch = self._store.watch(self._resource, since=self._store.revision)
        try:
            await self._delete_each(now)
            while self._store.count(self._resource):
                await anext(watch)
                await self._delete_each(now)
        finally:
            watch.close()

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
            return  # changed meanwhile: its event brings us back
