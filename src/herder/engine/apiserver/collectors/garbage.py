"""Garbage collector: deletes dependents in the background or foreground, or orphans them.

The rules are those of kube-controller-manager. The graph only determines what to check: decisions use the current state
of the store, and every deletion has a uid precondition.
"""

from __future__ import annotations

from herder.engine.apiserver.collectors.controller_client import RETRY_SECONDS, ControllerClient
from herder.engine.apiserver.collectors.graph import (
    FOREGROUND,
    ORPHAN,
    ObjectNode,
    Owner,
    OwnershipGraph,
    remaining_owners,
)
from herder.engine.control.loop import ControlLoop
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import GroupKind, Object
from herder.engine.store import Event, Key

WORKERS = 16


class GarbageCollector:
    """Deletes objects whose owners are gone, and handles foreground deletion and orphaning."""

    def __init__(self, api: ControllerClient) -> None:
        self._api = api
        self._graph = OwnershipGraph()
        self._loop: ControlLoop[str] = ControlLoop(
            "garbage-collector", self._collect, workers=WORKERS, max_retry=RETRY_SECONDS
        )

    def reset(self) -> None:
        """Forget the graph: every existing object is about to be reported again."""
        self._graph = OwnershipGraph()

    def handle_event(self, event: Event) -> None:
        """Process one event of the store, in order."""
        if event.deleted:
            self._handle_deleted(self._graph.remove(event.record))
            return
        before, node = self._graph.put(event.record)
        self._enqueue_if_owner_missing(node)
        if before is not None:
            for owner in before.owners:
                self._enqueue_if_deleting(owner.uid)
        if node.deletes_dependents_first or node.orphans_dependents:
            self._enqueue(node.uid)

    async def run(self) -> None:
        await self._loop.run()

    def _handle_deleted(self, node: ObjectNode) -> None:
        for dependent in self._graph.dependents(node.uid):
            self._enqueue(dependent.uid)
        for owner in node.owners:
            self._enqueue_if_deleting(owner.uid)

    def _enqueue_if_owner_missing(self, node: ObjectNode) -> None:
        """Enqueue an object if one of its owners is absent or is being deleted in the foreground."""
        for owner in node.owners:
            known = self._graph.get(owner.uid)
            if known is None and self._exists(node, owner):
                continue
            if known is None or known.deletes_dependents_first:
                self._enqueue(node.uid)
                self._enqueue_if_deleting(owner.uid)

    def _enqueue_if_deleting(self, uid: str) -> None:
        owner = self._graph.get(uid)
        if owner is not None and owner.deletes_dependents_first:
            self._enqueue(uid)

    def _enqueue(self, uid: str) -> None:
        self._loop.add(uid)

    async def _collect(self, uid: str) -> None:
        node = self._graph.get(uid)
        if node is None:
            return
        try:
            await self._process(node)
        except NotFound:
            pass
        except Exception as error:
            error.add_note(str(node.key))
            raise

    async def _process(self, node: ObjectNode) -> None:
        if node.orphans_dependents:
            await self._orphan(node)
        elif node.deletes_dependents_first:
            await self._delete_dependents_of(node)
        elif node.owners and not node.deleting:
            await self._delete_if_ownerless(node)

    async def _orphan(self, node: ObjectNode) -> None:
        for dependent in self._graph.dependents(node.uid):
            await self._drop_owners(dependent, {node.uid})
        await self._drop_finalizer(node, ORPHAN)

    async def _delete_dependents_of(self, node: ObjectNode) -> None:
        blocking = self._graph.blocking(node.uid)
        if not blocking:
            await self._drop_finalizer(node, FOREGROUND)
        for dependent in self._graph.dependents(node.uid):
            self._enqueue(dependent.uid)

    async def _delete_if_ownerless(self, node: ObjectNode) -> None:
        solid, dangling, waiting = self._classify_owners(node)
        if solid:
            unwanted = {owner.uid for owner in (*dangling, *waiting)}
            if unwanted:
                await self._drop_owners(node, unwanted)
            return
        if not dangling and not waiting:
            return
        if waiting and (dependents := self._graph.dependents(node.uid)):
            if any(dependent.deletes_dependents_first for dependent in dependents):
                await self._unblock_owners(node)  # a cycle would wait for itself forever
            propagation = "Foreground"
        elif ORPHAN in node.finalizers:
            propagation = "Orphan"
        elif FOREGROUND in node.finalizers:
            propagation = "Foreground"
        else:
            propagation = "Background"
        await self._api.delete(node.key, node.uid, propagation)

    def _classify_owners(self, node: ObjectNode) -> tuple[list[Owner], list[Owner], list[Owner]]:
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

    def _exists(self, node: ObjectNode, owner: Owner) -> bool:
        """Whether the owner exists. If unsure (unknown kind, or namespaced owner of a cluster-scoped object), it does.

        Deleting an object by mistake would lose data.
        """
        resource = self._api.registry.by_kind(GroupKind(owner.group, owner.kind))
        if resource is None or (resource.namespaced and not node.key.namespace):
            return True
        namespace = node.key.namespace if resource.namespaced else ""
        record = self._api.store.get(Key(str(resource.storage), namespace, owner.name))
        return record is not None and ObjectNode.of(record).uid == owner.uid

    async def _drop_owners(self, node: ObjectNode, uids: set[str]) -> None:
        record = self._api.store.get(node.key)
        current = ObjectNode.of(record) if record is not None else None
        if record is None or current is None or current.uid != node.uid:
            return
        remaining = remaining_owners(current.owners, uids)
        metadata: Object = {
            "ownerReferences": remaining or None,
            "resourceVersion": str(record.revision),
            "uid": node.uid,
        }
        await self._api.patch_metadata(node.key, metadata)

    async def _unblock_owners(self, node: ObjectNode) -> None:
        owners = remaining_owners(node.owners, set())
        references = [owner | {"blockOwnerDeletion": False} for owner in owners]
        await self._api.patch_metadata(node.key, {"ownerReferences": references, "uid": node.uid})

    async def _drop_finalizer(self, node: ObjectNode, finalizer: str) -> None:
        record = self._api.store.get(node.key)
        current = ObjectNode.of(record) if record is not None else None
        if record is None or current is None or current.uid != node.uid:
            return
        remaining = [name for name in current.finalizers if name != finalizer]
        metadata: Object = {"finalizers": remaining or None, "resourceVersion": str(record.revision), "uid": node.uid}
        await self._api.patch_metadata(node.key, metadata)
