"""Ownership graph of all objects in the store, updated from watch events."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from herder.engine.store import Key, Record

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"


class Owner(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """A complete ownerReference: the remaining ones are written back when one is removed."""

    uid: str
    api_version: str
    kind: str
    name: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]


class _Metadata(msgspec.Struct, rename="camel"):
    uid: str = ""
    owner_references: tuple[Owner, ...] | None = None
    finalizers: tuple[str, ...] | None = None
    deletion_timestamp: str | None = None


class _Object(msgspec.Struct):
    metadata: _Metadata


_decoder = msgspec.json.Decoder(_Object)


class ObjectNode(msgspec.Struct):
    """Ownership data of one object."""

    uid: str
    key: Key
    owners: tuple[Owner, ...]
    finalizers: tuple[str, ...]
    deleting: bool

    @classmethod
    def of(cls, record: Record) -> ObjectNode:
        meta = _decoder.decode(record.value).metadata
        return cls(
            meta.uid, record.key, meta.owner_references or (), meta.finalizers or (), bool(meta.deletion_timestamp)
        )

    @property
    def deletes_dependents_first(self) -> bool:
        return self.deleting and FOREGROUND in self.finalizers

    @property
    def orphans_dependents(self) -> bool:
        return self.deleting and ORPHAN in self.finalizers


class OwnershipGraph:
    """Objects and their dependents, by uid."""

    def __init__(self) -> None:
        self._nodes: dict[str, ObjectNode] = {}
        self._dependents: dict[str, dict[str, None]] = {}

    def get(self, uid: str) -> ObjectNode | None:
        return self._nodes.get(uid)

    def dependents(self, uid: str) -> list[ObjectNode]:
        return [self._nodes[each] for each in self._dependents.get(uid, ())]

    def blocking(self, uid: str) -> list[ObjectNode]:
        """Return the dependents that block the foreground deletion of an owner.

        Objects in another namespace never do: otherwise their authors could block the deletion of foreign objects. In
        this, kube-controller-manager differs.
        """
        namespace = self._nodes[uid].key.namespace if uid in self._nodes else ""
        return [
            node
            for node in self.dependents(uid)
            if namespace in ("", node.key.namespace)
            and any(owner.uid == uid and owner.block_owner_deletion for owner in node.owners)
        ]

    def put(self, record: Record) -> tuple[ObjectNode | None, ObjectNode]:
        """Store the current state of an object. Return the previous and the current node."""
        node = ObjectNode.of(record)
        before = self._nodes.get(node.uid)
        if before is not None:
            self._unlink(before)
        if node.owners or node.finalizers or node.deleting or node.uid in self._dependents or before is not None:
            self._nodes[node.uid] = node
        for owner in node.owners:
            self._dependents.setdefault(owner.uid, {})[node.uid] = None
        return before, node

    def remove(self, record: Record) -> ObjectNode:
        node = ObjectNode.of(record)
        self._unlink(self._nodes.pop(node.uid, node))
        return node

    def _unlink(self, node: ObjectNode) -> None:
        for owner in node.owners:
            members = self._dependents.get(owner.uid)
            if members is not None:
                members.pop(node.uid, None)
                if not members:
                    del self._dependents[owner.uid]


def remaining_owners(owners: Iterable[Owner], uids: set[str]) -> list[dict[str, object]]:
    """Return the references except those to `uids`, as JSON."""
    return [msgspec.to_builtins(owner) for owner in owners if owner.uid not in uids]
