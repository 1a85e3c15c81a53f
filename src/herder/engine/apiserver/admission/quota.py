"""ResourceQuotas: a namespace may hold so much and no more.

Usage is counted from the objects themselves, not read from a quota's status, so it cannot be out of date. What was let
in but is not committed yet counts too, for a few seconds: otherwise many creations at once would all see the same
free room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec import json

from herder.engine.apiserver.admission.chain import CREATE, UPDATE, Attributes, metadata, refused
from herder.engine.apiserver.admission.objects import Objects
from herder.engine.apiserver.admission.quota_usage import (
    PODS,
    ZERO,
    Usage,
    added,
    in_scope,
    increase,
    resource_behind,
    unspecified,
    usage_of,
)
from herder.engine.apiserver.auth.stored import stored
from herder.engine.control.loop import ControlLoop
from herder.engine.control.source import StoreInformer
from herder.engine.control.supervision import supervised
from herder.engine.meta.errors import Forbidden
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.meta.quantity import decode
from herder.engine.store import Event, Key, Put, RevisionConflict, Store, StoreFailed

QUOTAS = GroupResource("", "resourcequotas")
_RESERVED_FOR = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class _Reservation:
    key: Key
    obj: Object
    until: datetime


class QuotaCounter:
    """What a namespace uses of what its quotas limit."""

    def __init__(self, objects: Objects, clock: Callable[[], datetime]) -> None:
        self._objects = objects
        self._clock = clock
        self._reserved: list[_Reservation] = []

    def quotas(self, namespace: str) -> list[Object]:
        return list(self._objects.list(QUOTAS, namespace))

    def used(self, quota: Object, *, reserved: bool = False) -> Usage:
        """Amounts for every key that the quota limits; nothing used is zero. `reserved` counts what is on its way."""
        namespace, now = str(metadata(quota).get("namespace") or ""), self._clock()
        hard = (quota.get("spec") or {}).get("hard") or {}
        total: Usage = dict.fromkeys(hard, ZERO)
        for name in {resource_behind(key) for key in hard}:
            resource = _parsed(name)
            for obj in self._counted(resource, namespace, now, reserved=reserved):
                if in_scope(quota, resource, obj):
                    own = usage_of(resource, obj, now)
                    total = added(total, {key: amount for key, amount in own.items() if key in hard})
        return total

    def reserve(self, key: Key, obj: Object) -> None:
        now = self._clock()
        self._reserved = [item for item in self._reserved if item.until > now]
        self._reserved.append(_Reservation(key, obj, now + _RESERVED_FOR))

    def committed(self, key: Key) -> None:
        """From here on the object counts for itself, for as long as it is there."""
        if self._reserved:
            self._reserved = [item for item in self._reserved if item.key != key]

    async def wait_committed(self, namespace: str) -> bool:
        """Wait until reservations whose objects are in flight are committed or have failed. False: there were none."""
        waited = False
        for item in [item for item in self._reserved if item.key.namespace == namespace]:
            try:
                waited |= await self._objects.wait_committed(item.key)
            except StoreFailed:
                self.committed(item.key)  # the object was not created: it uses nothing
                waited = True
        return waited

    def _counted(self, resource: GroupResource, namespace: str, now: datetime, *, reserved: bool) -> Iterable[Object]:
        seen = set()
        for record in self._objects.records(resource, namespace):
            seen.add(record.key)
            yield json.decode(record.value)
        for item in self._reserved if reserved else ():
            own = item.key.resource == str(resource) and item.key.namespace == namespace
            if own and item.until > now and item.key not in seen:
                yield item.obj


def _parsed(name: str) -> GroupResource:
    plural, _, group = name.partition(".")
    return GroupResource(group, plural)


class QuotaAdmission:
    name = "ResourceQuota"
    operations = frozenset({CREATE, UPDATE})
    resources: frozenset[GroupResource] | None = None
    subresources: frozenset[str] | None = frozenset({"", "resize"})

    def __init__(self, counter: QuotaCounter, clock: Callable[[], datetime]) -> None:
        self._counter = counter
        self._clock = clock

    async def validate(self, attributes: Attributes) -> None:
        """Refuse what does not fit, but never for an object that is in flight and may fail."""
        while True:
            try:
                self._reserve(attributes)
                return
            except Forbidden:
                if not await self._counter.wait_committed(attributes.namespace):
                    raise

    def _reserve(self, attributes: Attributes) -> None:
        """Check and reserve in one turn of the event loop: no other write may come between the two."""
        obj = attributes.obj
        if not attributes.namespace or obj is None or attributes.resource.virtual is not None:
            return
        quotas = self._counter.quotas(attributes.namespace)
        if not quotas:
            return
        resource, now = attributes.resource.storage, self._clock()
        usage = usage_of(resource, obj, now)
        before = usage_of(resource, attributes.old, now) if attributes.old is not None else {}
        for quota in quotas:
            if in_scope(quota, resource, obj):
                charged = before if attributes.old is not None and in_scope(quota, resource, attributes.old) else {}
                self._check(attributes, quota, increase(usage, charged), resource == PODS)
        if attributes.operation == CREATE and not attributes.dry_run:
            name = attributes.name or str(metadata(obj).get("name") or "")
            self._counter.reserve(Key(str(resource), attributes.namespace, name), obj)

    def _check(self, attributes: Attributes, quota: Object, wanted: Usage, is_pod: bool) -> None:
        name = metadata(quota).get("name")
        hard = {key: decode(amount) for key, amount in ((quota.get("spec") or {}).get("hard") or {}).items()}
        if is_pod and attributes.operation == CREATE and (silent := unspecified(hard, attributes.object)):
            raise refused(attributes, f"failed quota: {name}: {silent}")
        limited = {key: amount for key, amount in wanted.items() if key in hard}
        if not limited:
            return
        used = self._counter.used(quota, reserved=True)
        exceeded = sorted(key for key, amount in limited.items() if hard[key] < used[key].add(amount))
        if exceeded:
            raise refused(
                attributes,
                f"exceeded quota: {name}, requested: {_shown(limited, exceeded)}, used: {_shown(used, exceeded)}, "
                f"limited: {_shown(hard, exceeded)}",
            )


def _shown(amounts: Usage, keys: Iterable[str]) -> str:
    return ",".join(f"{key}={amounts[key]}" for key in keys)


class QuotaStatus:
    """Keeps the status of quotas true. `run` for as long as the server does.

    What quotas limit is watched while some quota limits it, and nothing else.
    """

    def __init__(self, store: Store, counter: QuotaCounter) -> None:
        self._store = store
        self._counter = counter
        self._loop: ControlLoop[str] = ControlLoop("resourcequota", self._reconcile)  # keys are namespaces
        self._followed: dict[str, asyncio.Task[None]] = {}  # watches by resource

    async def run(self) -> None:
        try:
            self._follow(str(QUOTAS))
            await self._loop.run()
        finally:
            for task in self._followed.values():
                task.cancel()
            self._followed.clear()

    def _follow(self, resource: str) -> None:
        """Called before counting: the watch reports, or lists, what changes from this moment on."""
        if resource not in self._followed:
            informer = StoreInformer(self._store, resource, resync=self._resync, changed=self._changed)
            self._followed[resource] = asyncio.ensure_future(supervised(informer.run, name="resourcequota"))

    def _resync(self) -> None:
        for record in self._store.list(str(QUOTAS)):
            self._loop.add(record.key.namespace)

    def _changed(self, event: Event) -> None:
        self._counter.committed(event.record.key)
        self._loop.add(event.record.key.namespace)

    async def _reconcile(self, namespace: str) -> None:
        for record in self._store.list(str(QUOTAS), namespace):
            quota: Object = json.decode(record.value)
            hard = (quota.get("spec") or {}).get("hard") or {}
            for key in hard:
                self._follow(resource_behind(key))
            used = {key: str(amount) for key, amount in sorted(self._counter.used(quota).items())}
            status = {"hard": hard, "used": used}
            if quota.get("status") != status:
                with suppress(RevisionConflict):  # its writer's event brings us here again
                    await self._store.commit(Put(record.key, stored(quota | {"status": status}), record.revision))
