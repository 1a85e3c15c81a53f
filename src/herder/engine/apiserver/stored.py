"""Objects as the store holds them: JSON bytes in the storage version, `kind` and `apiVersion` first.

Because every value begins with the same few bytes, most answers are spliced from stored bytes without decoding them:
an item of a built-in list loses its head (the real server leaves it out there), an object asked for in another version
of a kind without conversion gets another head.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from herder.engine.apiserver.resources import Resource
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.store import Encode, Key, Record, Store

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def decode(record: Record) -> Object:
    """The stored object, the caller's own copy."""
    return _decode(record.value)  # type: ignore[no-any-return]


def decode_bytes(content: bytes) -> Object:
    return _decode(content)  # type: ignore[no-any-return]


def encode(obj: Any) -> bytes:
    return _encode(obj)


def copied(obj: Object) -> Object:
    """A deep copy, by way of its bytes."""
    return _decode(_encode(obj))  # type: ignore[no-any-return]


def encoder(obj: Object) -> Encode:
    """What the store needs to write `obj`. The object's own resourceVersion follows, so that it can be answered."""

    def with_revision(revision: int) -> bytes:
        obj["metadata"]["resourceVersion"] = str(revision)
        return _encode(ordered(obj))

    return with_revision


def ordered(obj: Object) -> Object:
    """The same object with its head first, as the splices below rely on."""
    head: Object = {"kind": obj.get("kind"), "apiVersion": obj.get("apiVersion"), "metadata": obj.get("metadata")}
    head.update(obj)
    return head


@lru_cache(maxsize=1024)
def head(kind: str, api_version: str) -> bytes:
    """How a stored value of this kind and version begins."""
    return b'{"kind":' + _encode(kind) + b',"apiVersion":' + _encode(api_version) + b","


def key_of(resource: Resource, namespace: str, name: str) -> Key:
    return Key(str(resource.storage), namespace if resource.namespaced else "", name)


def finder(store: Store) -> Any:
    """Looks other objects up for hooks: (resource, namespace, name) -> object in its storage version, or None."""

    def lookup(resource: GroupResource, namespace: str, name: str) -> Object | None:
        record = store.get(Key(str(resource), namespace, name))
        return decode(record) if record is not None else None

    return lookup


# --- what selectors need, without decoding more than once ---------------------------------------------------------


class _Labelled(msgspec.Struct):
    labels: dict[str, str] | None = None


class _Head(msgspec.Struct):
    metadata: _Labelled


_head_decoder = msgspec.json.Decoder(_Head)


class Memo(msgspec.Struct, gc=False):
    """What was derived from a record's value."""

    labels: Mapping[str, str]
    fields: dict[str, Mapping[str, str]] | None = None  # selectable fields by version


def memo_of(record: Record) -> Memo:
    memo = record.memo
    if memo is None:
        memo = record.memo = Memo(_head_decoder.decode(record.value).metadata.labels or {})
    return memo  # type: ignore[no-any-return]
