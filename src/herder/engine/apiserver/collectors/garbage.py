"""Owner garbage collection: dependents go when their last owner has gone, or first, or stay, as the deletion asked.

The rules are those of the controller-manager's garbage collector. It acts on what the store says now: the graph only
tells where to look, and every deletion carries the uid that was looked at.
"""

from __future__ import annotations

from herder.engine.apiserver.collectors.controller_client import RETRY_SECONDS, ControllerClient
from herder.engine.apiserver.collectors.graph import FOREGROUND, ORPHAN, Node, Owner, OwnershipGraph, without
from herder.engine.control.loop import ControlLoop
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import GroupKind, Object
from herder.engine.store import Event, Key

WORKERS = 16


class GarbageCollector:
    def __init__(self, api: ControllerClient) -> None:
        self._api = api
        self._graph = OwnershipGraph()
        self._loop: ControlLoop[str] = ControlLoop(
            "garbage-collector", self._collect, workers=WORKERS, longest_retry=RETRY_SECONDS
        )

    def reset(self) -> None:
        """Every object is about to be reported again; what is no longer there will not be."""
        self._graph = OwnershipGraph()

    def seen(self, event: Event) -> None:
        """One event of the store, in order."""
        if event.deleted:
            self._gone(self._graph.remove(event.record))
            return
        before, node = self._graph.put(event.record)
        self._look_at_owners(node)
        if before is not None:
            for owner in before.owners:
                self._look_if_deleting(owner.uid)
        if node.deletes_dependents_first or node.orphans_dependents:
            self._look(node.uid)

    async def work(self) -> None:
        await self._loop.run()

    def _gone(self, node: Node) -> None:
        for dependent in self._graph.dependents(node.uid):
            self._look(dependent.uid)
        for owner in node.owners:
            self._look_if_deleting(owner.uid)

    def _look_at_owners(self, node: Node) -> None:
        """Only a reference to something that is absent or going needs a closer look."""
        for owner in node.owners:
            known = self._graph.get(owner.uid)
            if known is None and self._exists(node, owner):
                continue
            if known is None or known.deletes_dependents_first:
                self._look(node.uid)
                self._look_if_deleting(owner.uid)

    def _look_if_deleting(self, uid: str) -> None:
        owner = self._graph.get(uid)
        if owner is not None and owner.deletes_dependents_first:
            self._look(uid)

    def _look(self, uid: str) -> None:
        self._loop.add(uid)

    async def _collect(self, uid: str) -> None:
        node = self._graph.get(uid)
        if node is None:
            return
        try:
            await self._settle(node)
        except NotFound:
            pass
        except Exception as error:
            error.add_note(str(node.key))
            raise

    async def _settle(self, node: Node) -> None:
        if node.orphans_dependents:
            await self._orphan(node)
        elif node.deletes_dependents_first:
            await self._delete_dependents_of(node)
        elif node.owners and not node.deleting:
            await self._delete_if_ownerless(node)

    async def _orphan(self, node: Node) -> None:
        for dependent in self._graph.dependents(node.uid):
            await self._drop_owners(dependent, {node.uid})
        await self._drop_finalizer(node, ORPHAN)

    async def _delete_dependents_of(self, node: Node) -> None:
        blocking = self._graph.blocking(node.uid)
        if not blocking:
            await self._drop_finalizer(node, FOREGROUND)
        for dependent in self._graph.dependents(node.uid):
            self._look(dependent.uid)

    async def _delete_if_ownerless(self, node: Node) -> None:
        solid, dangling, waiting = self._sorted_owners(node)
        if solid:
            unwanted = {owner.uid for owner in (*dangling, *waiting)}
            if unwanted:
                await self._drop_owners(node, unwanted)
            return
        if not dangling and not waiting:
            return
        if waiting and (dependents := self._graph.dependents(node.uid)):
            if any(dependent.deletes_dependents_first for dependent in dependents):
                await self._unblock_owners(node)  # a circle would wait for itself for ever
            propagation = "Foreground"
        elif ORPHAN in node.finalizers:
            propagation = "Orphan"
        elif FOREGROUND in node.finalizers:
            propagation = "Foreground"
        else:
            propagation = "Background"
        await self._api.delete(node.key, node.uid, propagation)

    def _sorted_owners(self, node: Node) -> tuple[list[Owner], list[Owner], list[Owner]]:
        solid: list[Owner] = []
        dangling: list[Owner] = []
        waiting: list[Owner] = []
        for owner in node.owners:
            known = self._graph.get(owner.uid)
            if not self._exists(node, owner):
                dangling.append(owner)
            elif known is not None and known.deletes_dependents_first:
                waiting.append(owner)
            else:
                solid.append(owner)
        return solid, dangling, waiting

    def _exists(self, node: Node, owner: Owner) -> bool:
        """Whether the reference names a living object. One that cannot be judged counts as living: an unknown kind,
        or a namespaced owner of a cluster-scoped object, must not cost anyone their data."""
        resource = self._api.registry.by_kind(GroupKind(owner.group, owner.kind))
        if resource is None or (resource.namespaced and not node.key.namespace):
            return True
        namespace = node.key.namespace if resource.namespaced else ""
        record = self._api.store.get(Key(str(resource.storage), namespace, owner.name))
        return record is not None and Node.of(record).uid == owner.uid

    async def _drop_owners(self, node: Node, uids: set[str]) -> None:
        record = self._api.store.get(node.key)
        current = Node.of(record) if record is not None else None
        if record is None or current is None or current.uid != node.uid:
            return
        left = without(current.owners, uids)
        metadata: Object = {"ownerReferences": left or None, "resourceVersion": str(record.revision), "uid": node.uid}
        await self._api.patch_metadata(node.key, metadata)

    async def _unblock_owners(self, node: Node) -> None:
        owners = without(node.owners, set())
        references = [owner | {"blockOwnerDeletion": False} for owner in owners]
        await self._api.patch_metadata(node.key, {"ownerReferences": references, "uid": node.uid})

    async def _drop_finalizer(self, node: Node, finalizer: str) -> None:
        record = self._api.store.get(node.key)
        current = Node.of(record) if record is not None else None
        if record is None or current is None or current.uid != node.uid:
            return
        left = [name for name in current.finalizers if name != finalizer]
        metadata: Object = {"finalizers": left or None, "resourceVersion": str(record.revision), "uid": node.uid}
        await self._api.patch_metadata(node.key, metadata)
