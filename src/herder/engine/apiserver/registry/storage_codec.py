"""Encoding of stored objects: JSON in the storage version, with `kind` and `apiVersion` first.

Every value starts with the same few bytes, the head. Most responses are therefore spliced from stored bytes without
decoding: items of built-in lists omit the head (like in kube-apiserver), and an object in another version of a kind
without conversion gets another head.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from herder.engine.apiserver.registry.resources import Resource
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.store import Encode, Key, Record, Store

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def decode(record: Record) -> Object:
    """Decode the stored object; every call returns a new copy."""
    return _decode(record.value)  # type: ignore[no-any-return]


def decode_bytes(content: bytes) -> Object:
    return _decode(content)  # type: ignore[no-any-return]


def encode(obj: Any) -> bytes:
    return _encode(obj)


def deep_copy(obj: Object) -> Object:
    """Return a deep copy, by encoding and decoding."""
    return _decode(_encode(obj))  # type: ignore[no-any-return]


def encoder(obj: Object) -> Encode:
    """Return the encoder that the store writes `obj` with. It also sets resourceVersion on `obj`, for the response."""

    def with_revision(revision: int) -> bytes:
        obj["metadata"]["resourceVersion"] = str(revision)
        return _encode(ordered(obj))

    return with_revision


def ordered(obj: Object) -> Object:
    """Return the object with the head first, as splicing requires."""
    head: Object = {"kind": obj.get("kind"), "apiVersion": obj.get("apiVersion"), "metadata": obj.get("metadata")}
    head.update(obj)
    return head


@lru_cache(maxsize=1024)
def head(kind: str, api_version: str) -> bytes:
    """Return the first bytes of stored values of this kind and version."""
    return b'{"kind":' + _encode(kind) + b',"apiVersion":' + _encode(api_version) + b","


def key_of(resource: Resource, namespace: str, name: str) -> Key:
    """Return the store key of an object."""
    return Key(str(resource.storage), namespace if resource.namespaced else "", name)


def object_lookup(store: Store) -> Any:
    """Return the lookup function for hooks: (resource, namespace, name) -> object in its storage version, or None."""

    def lookup(resource: GroupResource, namespace: str, name: str) -> Object | None:
        record = store.get(Key(str(resource), namespace, name))
        return decode(record) if record is not None else None

    return lookup


# --- labels and fields for selectors, decoded once per record -----------------------------------------------------


class _Labelled(msgspec.Struct):
    labels: dict[str, str] | None = None


class _Head(msgspec.Struct):
    metadata: _Labelled


_head_decoder = msgspec.json.Decoder(_Head)


class Memo(msgspec.Struct, gc=False):
    """Data derived from a record's value, cached with the record."""

    labels: Mapping[str, str]
    fields: dict[str, Mapping[str, str]] | None = None  # selectable fields by version


def memo_of(record: Record) -> Memo:
    """Return the cached data of a record; decode its labels on first use."""
    memo = record.memo
    if memo is None:
        memo = record.memo = Memo(_head_decoder.decode(record.value).metadata.labels or {})
    return memo  # type: ignore[no-any-return]
