"""The cache of one kind: what the API server last told us, and what we ourselves wrote since.

Objects are kept encoded, with the little that is asked of all of them beside (labels, owner, index values), and
decoded when somebody reads them; the most recently read stay decoded. So ten thousand objects cost what their bytes
cost. A write's answer goes straight into the cache: a reconciler sees its own writes in its next pass even where the
watch has not brought them yet.
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

DECODED_KEPT = 2048
TOMBSTONES_KEPT = 4096
TAKEN_AT_ONCE = 500
"""Objects of a long list, between two turns of the event loop."""
FOREVER = float("inf")

Indexer = Callable[[Object], Iterable[str]]


class Key(NamedTuple):
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def key_of(obj: Object) -> Key:
    meta = obj["metadata"]
    return Key(meta.get("namespace", ""), meta["name"])


def kept(kind: Kind, obj: Object) -> Object:
    """What a cache keeps of an object that was decoded for it: not who manages which field, which is a third of it."""
    obj["metadata"].pop("managedFields", None)
    if kind.partial:
        return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": obj["metadata"]}
    return obj


class Entry:
    __slots__ = ("encoded", "indexed", "labels", "revision", "uid")

    def __init__(self, encoded: bytes, obj: Object, indexers: Mapping[str, Indexer]) -> None:
        meta = obj["metadata"]
        self.encoded = encoded
        self.revision = int(meta.get("resourceVersion") or 0)
        self.uid: str = meta.get("uid", "")
        self.labels: dict[str, str] = meta.get("labels") or {}
        self.indexed = {name: values for name, index in indexers.items() if (values := index_values(name, index, obj))}


def index_values(name: str, index: Indexer, obj: Object) -> tuple[str, ...]:
    """An object that an indexer cannot read is in no index; it must not keep the others from being seen."""
    try:
        return tuple(index(obj))
    except Exception as error:
        log.error("indexer failed", index=name, name=str(key_of(obj)), exc_info=error)
        return ()


_decode = msgspec.json.Decoder().decode
encode = msgspec.json.Encoder().encode


class Change(NamedTuple):
    """What an event did to the cache; `old` is None for an added object, `new` for a removed one."""

    key: Key
    old: Object | None
    new: Object | None


class Cache:
    def __init__(self, kind: Kind, indexers: Mapping[str, Indexer] | None = None) -> None:
        self.kind = kind
        self.synced = False
        self._indexers = dict(indexers or {})
        self._entries: dict[Key, Entry] = {}
        self.size = 0  # bytes of all objects, encoded
        self._by_namespace: dict[str, dict[Key, None]] = {}
        self._indexes: dict[str, dict[str, dict[Key, None]]] = {name: {} for name in self._indexers}
        # Revision as of which each of the last removed objects was gone, by uid. Answers and events overtake one
        # another: without this, the answer to a write that comes in after the DELETED event would revive the object.
        self._tombstones: OrderedDict[str, float] = OrderedDict()
        self._decoded: OrderedDict[Key, Object] = OrderedDict()
        self._labels, self._fields = LabelSelector(), FieldSelector()
        self._write_locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()

    def write_lock(self, key: Key) -> asyncio.Lock:
        """Whose turn it is to write the object; kept while somebody has it or waits for it."""
        write_lock = self._write_locks.get(key)
        if write_lock is None:
            write_lock = self._write_locks[key] = asyncio.Lock()
        return write_lock

    def hold_only(self, labels: str, fields: str) -> None:
        """Of the kind, only the objects that these selectors choose: nobody keeps others true."""
        self._labels, self._fields = parse_label_selector(labels), parse_field_selector(fields)

    def holds(self, obj: Object) -> bool:
        """Whether this object, as the server has it, belongs here."""
        fields = {wanted.field: str(_at(obj, wanted.field)) for wanted in self._fields.requirements}
        return self._labels.matches(obj["metadata"].get("labels")) and self._fields.matches(fields)

    def add_indexer(self, name: str, index: Indexer) -> None:
        """What is in the cache already is found by it too."""
        if self._indexers.get(name, index) is not index:
            raise ValueError(f"{self.kind} has another index named '{name}' already")
        if name in self._indexers:
            return
        self._indexers[name] = index
        self._indexes[name] = {}
        for key, entry in self._entries.items():
            if values := index_values(name, index, self._object(key, entry)):
                entry.indexed[name] = values
                for value in values:
                    self._indexes[name].setdefault(value, {})[key] = None

    # --- reading ------------------------------------------------------------------------------------------------

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

    def count(self, index: tuple[str, str]) -> int:
        return len(self._indexes[index[0]].get(index[1], ()))

    def select(
        self, *, namespace: str = "", labels: LabelSelector | None = None, index: tuple[str, str] | None = None
    ) -> list[Object]:
        """Objects in name order: by index where one is named, else by namespace, else all."""
        if index is not None:
            keys: Iterable[Key] = self._indexes[index[0]].get(index[1], {})
        elif namespace:
            keys = self._by_namespace.get(namespace, {})
        else:
            keys = self._entries
        chosen = [key for key in keys if self._wanted(key, namespace, labels)]
        return [self._object(key, self._entries[key]) for key in sorted(chosen)]

    def _wanted(self, key: Key, namespace: str, labels: LabelSelector | None) -> bool:
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
        if len(self._decoded) > DECODED_KEPT:
            self._decoded.popitem(last=False)
        return decoded

    # --- writing ------------------------------------------------------------------------------------------------

    def upsert(self, obj: Object, encoded: bytes | None = None) -> Change | None:
        """Take in a newer state of an object; None where it was not newer."""
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
        """A DELETED event."""
        key = key_of(obj)
        uid = obj["metadata"].get("uid", "")
        self._add_tombstone(uid, int(obj["metadata"].get("resourceVersion") or 0))
        entry = self._entries.get(key)
        if entry is None or (uid and entry.uid != uid):
            return None
        return self._drop(key)

    def forget(self, key: Key, uid: str) -> Change | None:
        """We deleted the object and the server said that it is gone; its event will find nothing to do."""
        self._add_tombstone(uid, FOREVER)
        entry = self._entries.get(key)
        if entry is None or entry.uid != uid:
            return None
        return self._drop(key)

    async def take_in(
        self, objects: Collection[tuple[Object, bytes]], changed: Callable[[Change], None] = lambda _change: None
    ) -> None:
        """All but the last TAKEN_AT_ONCE of a fresh list, a few in each turn of the event loop: `replace` finds little
        left to do then. Of a short list it is all left to `replace`."""
        early = len(objects) - TAKEN_AT_ONCE
        for number, (obj, encoded) in enumerate(objects):
            if number >= early:
                return
            if (change := self.upsert(obj, encoded)) is not None:
                changed(change)
            if number % TAKEN_AT_ONCE == TAKEN_AT_ONCE - 1:
                await asyncio.sleep(0)

    def replace(self, objects: Iterable[tuple[Object, bytes]], revision: int) -> list[Change]:
        """A fresh list as of `revision`: the differences, each as one change. What we wrote later stays."""
        seen: set[Key] = set()
        changes: list[Change] = []
        for obj, encoded in objects:
            seen.add(key_of(obj))
            change = self.upsert(obj, encoded)
            if change is not None:
                changes.append(change)
        left = [(key, e.uid) for key, e in self._entries.items() if key not in seen and e.revision <= revision]
        for key, uid in left:
            self._add_tombstone(uid, revision)
            changes.append(self._drop(key))
        return changes

    def _add_tombstone(self, uid: str, revision: float) -> None:
        if not uid:
            return
        self._tombstones[uid] = max(revision, self._tombstones.pop(uid, 0))
        if len(self._tombstones) > TOMBSTONES_KEPT:
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
    """Indexer: by the uid of the controlling owner, in the object's own namespace and in all (see `owned_by`)."""
    references: list[Any] = obj["metadata"].get("ownerReferences") or []
    uids = [reference["uid"] for reference in references if reference.get("controller")]
    return [value for uid in uids for value in dict.fromkeys((uid, owned_by(_namespace(obj), uid)))]


def controller_in_namespace(obj: Object) -> list[str]:
    """Indexer: by the controlling owner, which is in the same namespace."""
    references: list[Any] = obj["metadata"].get("ownerReferences") or []
    return [owned_by(_namespace(obj), reference["uid"]) for reference in references if reference.get("controller")]


def owned_by(namespace: str, uid: str) -> str:
    """The value of an index by controlling owner for what an object of this namespace owns.

    Owner references do not cross namespaces: whoever creates objects in one must not be able to attach them to an owner
    in another by its uid. An owner that is in no namespace owns objects in all of them.
    """
    return f"{namespace}/{uid}" if namespace else uid


def _namespace(obj: Object) -> str:
    return obj["metadata"].get("namespace") or ""
