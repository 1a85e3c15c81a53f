"""Perform single writes: skip no-ops, keep the cache up to date, and track writes with an unknown outcome.

A write whose response was lost may or may not have happened. It is recorded as uncertain, and `resolve_uncertain` reads
the object before the next decision, so that a stale view never creates an object twice.

Writes to one object are serialized across controllers. A write that was decided on an outdated resourceVersion would be
rejected by the server and is not sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from herder.engine.client.client import Client
from herder.engine.control.cache import Cache, Change, Key, encode, key_of, strip_object
from herder.engine.meta.errors import Conflict, NotFound, StatusError
from herder.engine.meta.kinds import Kind, Object
from herder.engine.patch import apply_merge_patch
from herder.engine.runtime.decision import MANAGEMENT, Apply, Create, Delete, Patch, Update, Write

MAX_APPLIED = 50_000
SERVER_FAILURE = 500


class _Applied(NamedTuple):
    """Digest of what a manager last applied to an object, and the resulting UID and revision."""

    digest: bytes
    uid: str
    revision: int


class StaleWrite(Conflict):
    """Another controller changed the object since the decision."""

    reason = "Overtaken"


class Writer:
    """Sends writes to the management cluster and to downstream clusters."""

    def __init__(
        self,
        client: Client,
        *,
        caches: Mapping[Kind, Cache],
        on_change: Callable[[Kind, Change], None],
        remote: Callable[[str], Client] | None = None,
    ) -> None:
        self._client = client
        self._caches = caches
        self._on_change = on_change
        self._remote = remote
        self._applied: dict[tuple[str, str, Key], _Applied] = {}  # in the management cluster
        self._uncertain: dict[tuple[Kind, Key], None] = {}

    async def write(self, write: Write, manager: str) -> bool:
        """Send a write; return False if it changed nothing, or if the cache shows that it would not."""
        if self.is_noop(write):
            return False
        cache = self._caches.get(_kind(write)) if write.target == MANAGEMENT else None
        if cache is None:
            return await self._send_or_mark_unknown(write, manager)
        async with cache.write_lock(_key(write)):
            if self.is_noop(write):
                return False
            if self._is_stale(write):
                raise StaleWrite(f"{_kind(write).kind} {_key(write)} has changed since it was read")
            return await self._send_or_mark_unknown(write, manager)

    def _is_stale(self, write: Write) -> bool:
        live, expected = self._live(write), _expected_revision(write)
        return live is not None and 0 < expected < int(live["metadata"].get("resourceVersion") or 0)

    async def _send_or_mark_unknown(self, write: Write, manager: str) -> bool:
        """Send a write, and record it as uncertain if its outcome is unknown."""
        try:
            return await self._send(write, self._client_for(write.target), manager)
        except Exception as error:
            if write.target == MANAGEMENT and _may_have_arrived(error):
                self._uncertain[(_kind(write), _key(write))] = None
            raise

    async def resolve_uncertain(self) -> None:
        """Read the objects of writes whose response was lost."""
        for kind, key in list(self._uncertain):
            cache = self._caches.get(kind)
            if cache is not None:
                await self._look_up(kind, key, cache)
            self._uncertain.pop((kind, key), None)

    async def _look_up(self, kind: Kind, key: Key, cache: Cache) -> None:
        try:
            self._update_cache(kind, await self._client.get(kind.resource, key.name, namespace=key.namespace))
        except NotFound:
            known = cache.get(key)
            if known is not None:
                self._notify(kind, cache.forget(key, known["metadata"].get("uid", "")))

    def is_noop(self, write: Write) -> bool:
        """Return whether the cache already shows the result of the write."""
        live = self._live(write)
        match write:
            case Update():
                return live == write.obj
            case Patch():
                return live is not None and apply_merge_patch(live, write.patch) == live
            case Delete():
                return bool(
                    live is not None
                    and live["metadata"].get("deletionTimestamp")
                    and live["metadata"].get("uid") == write.uid
                )
        return False

    def changes_nothing(self, write: Write) -> bool:
        """Return whether the live object has all that the write would set. Also for applies, whose effect on fields
        that they no longer contain only the API server knows."""
        if isinstance(write, Apply):
            live = self._live(write)
            return live is not None and _contains(live, write.obj)
        return self.is_noop(write)

    def creates(self, write: Write) -> bool:
        """Return whether the write creates its object, as far as the cache shows."""
        watched = _kind(write) in self._caches and write.target == MANAGEMENT
        return isinstance(write, Create) or (isinstance(write, Apply) and watched and self._live(write) is None)

    async def _send(self, write: Write, client: Client, manager: str) -> bool:
        match write:
            case Apply():
                return await self._apply(client, write, write.manager or manager)
            case Create():
                namespace = write.obj["metadata"].get("namespace", "")
                answer = await client.create(write.kind.resource, write.obj, namespace=namespace)
            case Update():
                answer = await client.update(write.kind.resource, write.obj, subresource=write.subresource)
            case Patch():
                answer = await self._patch(client, write)
            case Delete():
                await self._delete(client, write)
                return True
        if write.target == MANAGEMENT:
            self._update_cache(_kind(write), answer)
        return True

    async def _apply(self, client: Client, write: Apply, manager: str) -> bool:
        entry = (f"{write.kind}/{write.subresource}", manager, key_of(write.obj))
        digest = hashlib.blake2b(encode(write.obj), digest_size=16).digest()
        live = self._live(write)
        if self._applied_before(write, self._applied.get(entry), digest):
            return False
        answer = await client.apply(
            write.kind.resource, write.obj, field_manager=manager, force=write.force, subresource=write.subresource
        )
        if write.target != MANAGEMENT:
            return True  # Without a cache the record is of no use, and a hostile cluster would choose its size.
        if len(self._applied) >= MAX_APPLIED:
            self._applied.clear()  # bounds memory, at the cost of one server-side no-op per object
        meta = answer["metadata"]
        self._applied[entry] = _Applied(digest, meta.get("uid", ""), int(meta.get("resourceVersion") or 0))
        self._update_cache(write.kind, answer)
        return live is None or live["metadata"].get("resourceVersion") != meta.get("resourceVersion")

    def _applied_before(self, write: Apply, before: _Applied | None, digest: bytes) -> bool:
        """Return whether the same configuration was applied to the same object, and the fields are unchanged since."""
        live = self._live(write)
        if live is None or before is None or before.digest != digest or before.uid != live["metadata"].get("uid"):
            return False
        unchanged = before.revision == int(live["metadata"].get("resourceVersion") or 0)
        return unchanged or _contains(live, write.obj)

    async def _patch(self, client: Client, write: Patch) -> Object:
        patch: Object = write.patch
        if write.resource_version:
            meta = {**(patch.get("metadata") or {}), "resourceVersion": write.resource_version}
            patch = {**patch, "metadata": meta}
        ref = write.ref
        return await client.patch(
            ref.kind.resource, ref.name, patch, namespace=ref.namespace, subresource=write.subresource
        )

    async def _delete(self, client: Client, write: Delete) -> None:
        ref = write.ref
        try:
            answer = await client.delete(
                ref.kind.resource, ref.name, namespace=ref.namespace, uid=write.uid, propagation=write.propagation
            )
        except NotFound:
            answer = {"kind": "Status"}  # already deleted
        if write.target != MANAGEMENT:
            return
        if answer.get("kind") != "Status" and _has_finalizers(answer):
            self._update_cache(ref.kind, answer)
            return
        for kind in (ref.kind, ref.kind.metadata_only()):
            cache = self._caches.get(kind)
            if cache is not None:
                self._notify(kind, cache.forget(Key(ref.namespace, ref.name), write.uid))

    def _client_for(self, target: str) -> Client:
        if target == MANAGEMENT:
            return self._client
        if self._remote is None:
            raise LookupError(f"cluster '{target}': downstream clusters are not configured")
        return self._remote(target)

    def _live(self, write: Write) -> Object | None:
        cache = self._caches.get(_kind(write)) if write.target == MANAGEMENT else None
        return cache.get(_key(write)) if cache else None

    def _update_cache(self, kind: Kind, answer: Object) -> None:
        """Put the result of our own write into the caches without waiting for the watch event."""
        if (answer.get("apiVersion"), answer.get("kind")) != (kind.api_version, kind.kind):
            return  # some subresources return another kind
        for view in (kind, kind.metadata_only()):
            cache = self._caches.get(view)
            if cache is not None and cache.matches(answer):
                self._notify(view, cache.upsert(strip_object(view, answer)))

    def _notify(self, kind: Kind, change: Change | None) -> None:
        if change is not None:
            self._on_change(kind, change)


def _has_finalizers(deleted: Object) -> bool:
    """Return whether finalizers or a grace period delay the deletion; namespaces also have finalizers in spec."""
    meta, spec = deleted["metadata"], deleted.get("spec") or {}
    pending = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds")
    return bool(pending or (deleted.get("kind") == "Namespace" and spec.get("finalizers")))


def _kind(write: Write) -> Kind:
    return write.ref.kind if isinstance(write, (Patch, Delete)) else write.kind


def _key(write: Write) -> Key:
    return Key(write.ref.namespace, write.ref.name) if isinstance(write, (Patch, Delete)) else key_of(write.obj)


def _expected_revision(write: Write) -> int:
    """Return the resourceVersion that the object must still have; 0 for any."""
    match write:
        case Patch(resource_version=version):
            return int(version or 0)
        case Update(obj=obj):
            return int(obj["metadata"].get("resourceVersion") or 0)
    return 0


def _may_have_arrived(error: Exception) -> bool:
    """Return whether the write may have happened: true unless the server responded with a client error."""
    return not isinstance(error, StatusError) or error.code >= SERVER_FAILURE


def _contains(live: Any, wanted: Any) -> bool:
    """Return whether `live` contains every field of `wanted` with its value (lists must match item by item)."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(key in live and _contains(live[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return (
            isinstance(live, list)
            and len(live) == len(wanted)
            and all(_contains(left, right) for left, right in zip(live, wanted, strict=True))
        )
    return bool(live == wanted)
