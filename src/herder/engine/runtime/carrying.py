"""Carries a decision out: asks the guards, skips what would change nothing, writes the rest in order.

It stops at the first act that fails or is refused. What was done stays done and is in the cache, so the next pass
decides from what is true; that is why the order of writes in a decision is the order in which they are safe.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Kind, Object
from herder.engine.patch import apply_merge_patch
from herder.engine.runtime.cache import Cache, Change, Key, encode, key_of
from herder.engine.runtime.decision import (
    MANAGEMENT,
    Apply,
    Create,
    Decision,
    Delete,
    Effect,
    Outcome,
    Patch,
    Refusal,
    Update,
    Write,
)
from herder.engine.runtime.view import View

Guard = Callable[[Write | Effect, View], Refusal | None]
"""Pure: may this act be carried out, given the same view that it was decided on?"""

APPLIED_KEPT = 50_000


class _Applied(NamedTuple):
    """What a manager last applied to an object, and what came of it."""

    digest: bytes
    uid: str
    revision: int


class Carrier:
    def __init__(
        self,
        client: Client,
        *,
        caches: Mapping[Kind, Cache],
        on_change: Callable[[Kind, Change], None],
        guards: Sequence[Guard] = (),
        remote: Callable[[str], Client] | None = None,
        perform: Callable[[Effect, Key], None] | None = None,
    ) -> None:
        self._client = client
        self._caches = caches
        self._on_change = on_change
        self._guards = tuple(guards)
        self._remote = remote
        self._perform = perform
        self._applied: dict[tuple[str, str, str, Key], _Applied] = {}

    async def carry_out(self, decision: Decision, view: View, *, manager: str, now: datetime) -> Outcome:
        outcome = Outcome(decision, now)
        whole = view.whole()
        for write in decision.writes:
            outcome.refusal = self._refused(write, whole)
            if outcome.refusal is not None:
                return outcome
            if await self._write(write, manager):
                outcome.details.append(write.reason)
            else:
                outcome.skipped += 1
            outcome.done += 1
        for effect in decision.effects:
            outcome.refusal = self._refused(effect, whole)
            if outcome.refusal is not None:
                return outcome
            if self._perform is None:
                raise LookupError(f"nobody here performs '{effect.performer}'")
            self._perform(effect, view.key)
            outcome.done += 1
        return outcome

    def _refused(self, act: Write | Effect, view: View) -> Refusal | None:
        for guard in self._guards:
            refusal = guard(act, view)
            if refusal is not None:
                return refusal
        return None

    async def _write(self, write: Write, manager: str) -> bool:
        """Whether a request was made; False where the cache shows that it would have changed nothing."""
        client = self._client
        if write.target != MANAGEMENT:
            if self._remote is None:
                raise LookupError(f"no way to reach cluster '{write.target}'")
            client = self._remote(write.target)
        match write:
            case Apply():
                return await self._apply(client, write, write.manager or manager)
            case Create():
                namespace = write.obj["metadata"].get("namespace", "")
                self._learn(write, await client.create(write.kind.resource, write.obj, namespace=namespace))
                return True
            case Update():
                if self._live(write) == write.obj:
                    return False
                self._learn(write, await client.update(write.kind.resource, write.obj, subresource=write.subresource))
                return True
            case Patch():
                return await self._patch(client, write)
            case Delete():
                return await self._delete(client, write)

    async def _apply(self, client: Client, write: Apply, manager: str) -> bool:
        mark = (write.target, f"{write.kind}/{write.subresource}", manager, key_of(write.obj))
        digest = hashlib.blake2b(encode(write.obj), digest_size=16).digest()
        if self._stands(write, self._applied.get(mark), digest):
            return False
        answer = await client.apply(
            write.kind.resource, write.obj, field_manager=manager, force=write.force, subresource=write.subresource
        )
        if len(self._applied) >= APPLIED_KEPT:
            self._applied.clear()  # costs one server-side no-op for each, and keeps memory bounded
        meta = answer["metadata"]
        self._applied[mark] = _Applied(digest, meta.get("uid", ""), int(meta.get("resourceVersion") or 0))
        self._learn(write, answer)
        return True

    def _stands(self, write: Apply, before: _Applied | None, digest: bytes) -> bool:
        """Whether the same was applied before to the same object, and nobody has changed those fields since."""
        live = self._live(write)
        if live is None or before is None or before.digest != digest or before.uid != live["metadata"].get("uid"):
            return False
        untouched = before.revision == int(live["metadata"].get("resourceVersion") or 0)
        return untouched or _contains(live, write.obj)

    async def _patch(self, client: Client, write: Patch) -> bool:
        ref = write.ref
        patch: Object = write.patch
        cache = self._caches.get(ref.kind) if write.target == MANAGEMENT else None
        live = cache.get(Key(ref.namespace, ref.name)) if cache else None
        if live is not None and apply_merge_patch(live, patch) == live:
            return False
        if write.resource_version:
            meta = {**(patch.get("metadata") or {}), "resourceVersion": write.resource_version}
            patch = {**patch, "metadata": meta}
        answer = await client.patch(
            ref.kind.resource, ref.name, patch, namespace=ref.namespace, subresource=write.subresource
        )
        self._learn(write, answer)
        return True

    async def _delete(self, client: Client, write: Delete) -> bool:
        ref = write.ref
        key = Key(ref.namespace, ref.name)
        cache = self._caches.get(ref.kind) if write.target == MANAGEMENT else None
        live = cache.get(key) if cache else None
        if live is not None and live["metadata"].get("deletionTimestamp") and live["metadata"].get("uid") == write.uid:
            return False
        try:
            answer = await client.delete(
                ref.kind.resource, ref.name, namespace=ref.namespace, uid=write.uid, propagation=write.propagation
            )
        except NotFound:
            answer = {"kind": "Status"}  # somebody was quicker: gone is gone
        if cache is not None:
            still_there = answer.get("kind") != "Status" and (
                answer["metadata"].get("finalizers") or answer["metadata"].get("deletionGracePeriodSeconds")
            )
            change = cache.upsert(answer) if still_there else cache.forget(key, write.uid)
            if change is not None:
                self._on_change(ref.kind, change)
        return True

    def _live(self, write: Apply | Update) -> Object | None:
        cache = self._caches.get(write.kind) if write.target == MANAGEMENT else None
        return cache.get(key_of(write.obj)) if cache else None

    def _learn(self, write: Write, answer: Object) -> None:
        """Our own writes go into the cache at once; the watch will find them there."""
        kind = write.ref.kind if isinstance(write, (Patch, Delete)) else write.kind
        cache = self._caches.get(kind) if write.target == MANAGEMENT else None
        if cache is None or (answer.get("apiVersion"), answer.get("kind")) != (kind.api_version, kind.kind):
            return  # some subresources answer with a kind of their own
        change = cache.upsert(answer)
        if change is not None:
            self._on_change(kind, change)


def _contains(live: Any, wanted: Any) -> bool:
    """Whether every field of `wanted` has its value in `live` (lists item by item: a reorder is applied again)."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(key in live and _contains(live[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return (
            isinstance(live, list)
            and len(live) == len(wanted)
            and all(_contains(left, right) for left, right in zip(live, wanted, strict=True))
        )
    return bool(live == wanted)
