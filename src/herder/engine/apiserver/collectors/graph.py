"""Who belongs to whom, for every object of the store: followed event by event, never scanned again."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from herder.engine.store import Key, Record

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"


class Owner(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """All of a reference: what stays of the others is written back when one is dropped."""

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


class Node(msgspec.Struct):
    uid: str
    key: Key
    owners: tuple[Owner, ...]
    finalizers: tuple[str, ...]
    deleting: bool

    @classmethod
    def of(cls, record: Record) -> Node:
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
    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._dependents: dict[str, dict[str, None]] = {}

    def get(self, uid: str) -> Node | None:
        return self._nodes.get(uid)

    def dependents(self, uid: str) -> list[Node]:
        return [self._nodes[each] for each in self._dependents.get(uid, ())]

    def blocking(self, uid: str) -> list[Node]:
        """Dependents that must be gone before their owner may go.

        Objects of another namespace are none, whatever they say: their authors must not hold up the deletion of what is
        not theirs. kube-controller-manager lets them.
        """
        namespace = self._nodes[uid].key.namespace if uid in self._nodes else ""
        return [
            node
            for node in self.dependents(uid)
            if namespace in ("", node.key.namespace)
            and any(owner.uid == uid and owner.block_owner_deletion for owner in node.owners)
        ]

    def put(self, record: Record) -> tuple[Node | None, Node]:
        """Take in a state of an object; answers what was known of it before, and what is now."""
        node = Node.of(record)
        before = self._nodes.get(node.uid)
        if before is not None:
            self._unlink(before)
        if node.owners or node.finalizers or node.deleting or node.uid in self._dependents or before is not None:
            self._nodes[node.uid] = node
        for owner in node.owners:
            self._dependents.setdefault(owner.uid, {})[node.uid] = None
        return before, node

    def remove(self, record: Record) -> Node:
        node = Node.of(record)
        self._unlink(self._nodes.pop(node.uid, node))
        return node

    def _unlink(self, node: Node) -> None:
        for owner in node.owners:
            members = self._dependents.get(owner.uid)
            if members is not None:
                members.pop(node.uid, None)
                if not members:
                    del self._dependents[owner.uid]


def without(owners: Iterable[Owner], uids: set[str]) -> list[dict[str, object]]:
    """References that stay, as JSON."""
    return [msgspec.to_builtins(owner) for owner in owners if owner.uid not in uids]
