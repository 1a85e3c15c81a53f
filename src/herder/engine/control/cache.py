"""Informer cache of one kind, updated by the watch and by our own writes.

Objects are stored encoded, next to their labels, owner and index values, and are decoded on read; an LRU keeps the most
recent ones decoded. Ten thousand objects therefore cost little more than their bytes. The response to a write updates
the cache, so a reconciler sees its own writes in the next reconcile, before the watch delivers them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from herder.engine.logs import get_logger
from herder.engine.meta.kinds import Kind, Object
from herder.engine.meta.selectors import FieldSelector, LabelSelector, parse_field_selector, parse_label_selector

log = get_logger(__name__)

MAX_DECODED = 2048
MAX_TOMBSTONES = 4096
LIST_BATCH = 500
"""Objects of a long list that are added per event loop iteration."""
NEVER_REVIVED = float("inf")

Indexer = Callable[[Object], Iterable[str]]
"""Returns the values under which an index holds an object."""


class Key(NamedTuple):
    """Namespace and name of an object."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def key_of(obj: Object) -> Key:
    meta = obj["metadata"]
    return Key(meta.get("namespace", ""), meta["name"])


def strip_object(kind: Kind, obj: Object) -> Object:
    """Return the part of a decoded object that is cached: without managedFields, a third of its size, or metadata
    only."""
    obj["metadata"].pop("managedFields", None)
    if kind.partial:
        return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": obj["metadata"]}
    return obj


class Entry:
    """Encoded object with the fields that selects read."""

    __slots__ = ("encoded", "indexed", "labels", "revision", "uid")

    def __init__(self, encoded: bytes, obj: Object, indexers: Mapping[str, Indexer]) -> None:
        meta = obj["metadata"]
        self.encoded = encoded
        self.revision = int(meta.get("resourceVersion") or 0)
        self.uid: str = meta.get("uid", "")
        self.labels: dict[str, str] = meta.get("labels") or {}
        self.indexed = {name: values for name, index in indexers.items() if (values := index_values(name, index, obj))}


def index_values(name: str, index: Indexer, obj: Object) -> tuple[str, ...]:
    """Return the index values of an object. An object on which the indexer fails is in no index, and does not affect
    others."""
    try:
        return tuple(index(obj))
    except Exception as error:
        log.error("indexer failed", index=name, name=str(key_of(obj)), exc_info=error)
        return ()


_decode = msgspec.json.Decoder().decode
encode = msgspec.json.Encoder().encode


async def encode_in_batches(objects: Iterable[Object]) -> list[tuple[Object, bytes]]:
    """Return each object with its encoding, yielding to the event loop between batches."""
    encoded: list[tuple[Object, bytes]] = []
    for obj in objects:
        encoded.append((obj, encode(obj)))
        if len(encoded) % LIST_BATCH == 0:
            await asyncio.sleep(0)
    return encoded


class Change(NamedTuple):
    """Effect of an event on the cache; `old` is None for an added object, `new` for a deleted one."""

    key: Key
    old: Object | None
    new: Object | None


class Cache:
    """Objects of one kind by key, with indexes."""

    def __init__(self, kind: Kind, indexers: Mapping[str, Indexer] | None = None) -> None:
        self.kind = kind
        self.synced = False
        self.served = True  # until the server says that it does not serve the kind
        self._indexers = dict(indexers or {})
        self._entries: dict[Key, Entry] = {}
        self.size = 0  # encoded bytes of all objects
        self._by_namespace: dict[str, dict[Key, None]] = {}
        self._indexes: dict[str, dict[str, dict[Key, None]]] = {name: {} for name in self._indexers}
        # Deletion revision of recently deleted objects by UID. Responses and watch events overtake each other: without
        # tombstones, the response to a write that arrives after the DELETED event would revive the object.
        self._tombstones: OrderedDict[str, float] = OrderedDict()
        self._decoded: OrderedDict[Key, Object] = OrderedDict()
        self._labels, self._fields = LabelSelector(), FieldSelector()
        self._write_locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()

    def write_lock(self, key: Key) -> asyncio.Lock:
        """Return the lock that serializes writes to an object. It exists while it is held or awaited."""
        write_lock = self._write_locks.get(key)
        if write_lock is None:
            write_lock = self._write_locks[key] = asyncio.Lock()
        return write_lock

    def set_selectors(self, labels: str, fields: str) -> None:
        """Restrict the cache to the objects that these selectors match, as its informer does."""
        self._labels, self._fields = parse_label_selector(labels), parse_field_selector(fields)

    def matches(self, obj: Object) -> bool:
        """Return whether this object, as returned by the server, matches the selectors of the cache."""
        fields = {wanted.field: str(_at(obj, wanted.field)) for wanted in self._fields.requirements}
        return self._labels.matches(obj["metadata"].get("labels")) and self._fields.matches(fields)

    def add_indexer(self, name: str, index: Indexer) -> None:
        """Add an index, and index the objects that are already cached."""
        if self._indexers.get(name, index) is not index:
            raise ValueError(f"{self.kind}: index '{name}' is already defined differently")
        if name in self._indexers:
            return
        self._indexers[name] = index
        self._indexes[name] = {}
        for key, entry in self._entries.items():
            if values := index_values(name, index, self._object(key, entry)):
                entry.indexed[name] = values
                for value in values:
                    self._indexes[name].setdefault(value, {})[key] = None

    # --- reads --------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def get(self, key: Key) -> Object | None:
        entry = self._entries.get(key)
        return None if entry is None else self._object(key, entry)

    def revision(self, key: Key) -> int:
        entry = self._entries.get(key)
        return entry.revision if entry else 0

    def size_of(self, key: Key) -> int:
        entry = self._entries.get(key)
        return len(entry.encoded) if entry else 0

    def keys(self) -> Iterator[Key]:
        return iter(list(self._entries))

    def indexed(self, index: tuple[str, str]) -> list[Key]:
        return list(self._indexes[index[0]].get(index[1], ()))

    def values(self, index: str) -> list[str]:
        """Return the values of an index."""
        return list(self._indexes[index])

    def count(self, index: tuple[str, str]) -> int:
        return len(self._indexes[index[0]].get(index[1], ()))

    def select(
        self, *, namespace: str = "", labels: LabelSelector | None = None, index: tuple[str, str] | None = None
    ) -> list[Object]:
        """Return objects in name order: from an index if given, else of a namespace, else all."""
        if index is not None:
            keys: Iterable[Key] = self._indexes[index[0]].get(index[1], {})
        elif namespace:
            keys = self._by_namespace.get(namespace, {})
        else:
            keys = self._entries
        chosen = [key for key in keys if self._is_selected(key, namespace, labels)]
        return [self._object(key, self._entries[key]) for key in sorted(chosen)]

    def _is_selected(self, key: Key, namespace: str, labels: LabelSelector | None) -> bool:
        if namespace and key.namespace != namespace:
            return False
        return labels is None or labels.matches(self._entries[key].labels)

    def _object(self, key: Key, entry: Entry) -> Object:
        found = self._decoded.get(key)
        if found is not None:
            self._decoded.move_to_end(key)
            return found
        decoded: Object = _decode(entry.encoded)
        self._decoded[key] = decoded
        if len(self._decoded) > MAX_DECODED:
            self._decoded.popitem(last=False)
        return decoded

    # --- updates ------------------------------------------------------------------------------------------------

    def upsert(self, obj: Object, encoded: bytes | None = None) -> Change | None:
        """Store a newer state of an object; return None if it is not newer."""
        key = key_of(obj)
        revision = int(obj["metadata"].get("resourceVersion") or 0)
        if revision <= self._tombstones.get(obj["metadata"].get("uid", ""), -1):
            return None
        old = self._entries.get(key)
        if old is not None and old.revision >= revision:
            return None
        before = self.get(key) if old is not None else None
        self._put(key, Entry(encoded if encoded is not None else encode(obj), obj, self._indexers))
        return Change(key, before, obj)

    def remove(self, obj: Object) -> Change | None:
        """Handle a DELETED event."""
        key = key_of(obj)
        uid = obj["metadata"].get("uid", "")
        self._add_tombstone(uid, int(obj["metadata"].get("resourceVersion") or 0))
        entry = self._entries.get(key)
        if entry is None or (uid and entry.uid != uid):
            return None
        return self._drop(key)

    def forget(self, key: Key, uid: str) -> Change | None:
        """Remove an object that we deleted and the server confirmed; its DELETED event will be a no-op."""
        self._add_tombstone(uid, NEVER_REVIVED)
        entry = self._entries.get(key)
        if entry is None or entry.uid != uid:
            return None
        return self._drop(key)

    async def replace_in_batches(
        self, objects: Collection[tuple[Object, bytes]], changed: Callable[[Change], None] = lambda _change: None
    ) -> None:
        """Replace the content with a list of another cluster, and call `changed` for each difference.

        Unlike in `replace`, the list is right whatever its revisions are: a backup of the cluster may have been
        restored, and the cache holds no writes of ours. It yields to the event loop between batches, because the list
        of an untrusted server may be long.
        """
        self._tombstones.clear()
        seen: set[Key] = set()
        for number, (obj, encoded) in enumerate(objects, 1):
            key = key_of(obj)
            seen.add(key)
            known = self._entries.get(key)
            if known is None or known.encoded != encoded:
                before = self.get(key)
                self._put(key, Entry(encoded, obj, self._indexers))
                changed(Change(key, before, obj))
            if number % LIST_BATCH == 0:
                await asyncio.sleep(0)
        for number, key in enumerate(self.keys(), 1):
            if key not in seen:
                changed(self._drop(key))
            if number % LIST_BATCH == 0:
                await asyncio.sleep(0)

    def replace(self, objects: Iterable[tuple[Object, bytes]], revision: int) -> list[Change]:
        """Replace the content with a list as of `revision` and return the differences. Our own later writes stay."""
        seen: set[Key] = set()
        changes: list[Change] = []
        for obj, encoded in objects:
            seen.add(key_of(obj))
            change = self.upsert(obj, encoded)
            if change is not None:
                changes.append(change)
        removed = [(key, e.uid) for key, e in self._entries.items() if key not in seen and e.revision <= revision]
        for key, uid in removed:
            self._add_tombstone(uid, revision)
            changes.append(self._drop(key))
        return changes

    def _add_tombstone(self, uid: str, revision: float) -> None:
        if not uid:
            return
        self._tombstones[uid] = max(revision, self._tombstones.pop(uid, 0))
        if len(self._tombstones) > MAX_TOMBSTONES:
            self._tombstones.popitem(last=False)

    def _put(self, key: Key, entry: Entry) -> None:
        self._unindex(key)
        self.size += len(entry.encoded) - self.size_of(key)
        self._entries[key] = entry
        self._decoded.pop(key, None)
        self._by_namespace.setdefault(key.namespace, {})[key] = None
        for name, values in entry.indexed.items():
            for value in values:
                self._indexes[name].setdefault(value, {})[key] = None

    def _drop(self, key: Key) -> Change:
        old = self.get(key)
        self._unindex(key)
        self.size -= self.size_of(key)
        del self._entries[key]
        self._decoded.pop(key, None)
        return Change(key, old, None)

    def _unindex(self, key: Key) -> None:
        entry = self._entries.get(key)
        if entry is None:
            return
        _discard(self._by_namespace, key.namespace, key)
        for name, values in entry.indexed.items():
            for value in values:
                _discard(self._indexes[name], value, key)


def _at(obj: Any, field: str) -> Any:
    for part in field.split("."):
        obj = obj.get(part, "") if isinstance(obj, dict) else ""
    return obj


def _discard(groups: dict[str, dict[Key, None]], group: str, key: Key) -> None:
    members = groups.get(group)
    if members is not None:
        members.pop(key, None)
        if not members:
            del groups[group]


def controller_uid(obj: Object) -> list[str]:
    """Indexer by the UID of the controller owner, within the object's namespace and across namespaces (see
    `owned_by`)."""
    references: list[Any] = obj["metadata"].get("ownerReferences") or []
    uids = [reference["uid"] for reference in references if reference.get("controller")]
    return [value for uid in uids for value in dict.fromkeys((uid, owned_by(_namespace(obj), uid)))]


def controller_in_namespace(obj: Object) -> list[str]:
    """Indexer by the controller owner in the same namespace."""
    references: list[Any] = obj["metadata"].get("ownerReferences") or []
    return [owned_by(_namespace(obj), reference["uid"]) for reference in references if reference.get("controller")]


def owned_by(namespace: str, uid: str) -> str:
    """Return the index value for the objects that an owner in this namespace controls.

    Owner references do not cross namespaces: a user who can create objects in one namespace must not be able to attach
    them to an owner in another by its UID. A cluster-scoped owner owns objects in all namespaces.
    """
    return f"{namespace}/{uid}" if namespace else uid


def _namespace(obj: Object) -> str:
    return obj["metadata"].get("namespace") or ""
