"""ResourceQuota: enforce quotas of namespaces, and keep their status up to date.

Usage is counted from the objects themselves instead of a quota's status, so it is never stale. Objects that were
admitted but are not committed yet are reserved for a few seconds; otherwise concurrent creates would all see the same
free quota.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec import json

from herder.engine.apiserver.admission.chain import CREATE, UPDATE, Attributes, denied_by_plugin, metadata
from herder.engine.apiserver.admission.objects import Objects
from herder.engine.apiserver.admission.quota_usage import (
    PODS,
    ZERO,
    Usage,
    add_usage,
    counted_resource,
    in_scope,
    increase,
    unspecified,
    usage_of,
)
from herder.engine.apiserver.auth.system_objects import object_encoder
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
    """An admitted object that is not committed yet."""

    key: Key
    obj: Object
    until: datetime


class QuotaCounter:
    """Counts the usage of namespaces."""

    def __init__(self, objects: Objects, clock: Callable[[], datetime]) -> None:
        self._objects = objects
        self._clock = clock
        self._reserved: list[_Reservation] = []

    def quotas(self, namespace: str) -> list[Object]:
        return list(self._objects.list(QUOTAS, namespace))

    def used(self, quota: Object, *, reserved: bool = False) -> Usage:
        """Return the usage of every resource that the quota limits. `reserved` includes objects that are not
        committed yet."""
        namespace, now = str(metadata(quota).get("namespace") or ""), self._clock()
        hard = (quota.get("spec") or {}).get("hard") or {}
        total: Usage = dict.fromkeys(hard, ZERO)
        for name in {counted_resource(key) for key in hard}:
            resource = _parse_resource(name)
            for obj in self._objects_to_count(resource, namespace, now, reserved=reserved):
                if in_scope(quota, resource, obj):
                    own = usage_of(resource, obj, now)
                    total = add_usage(total, {key: amount for key, amount in own.items() if key in hard})
        return total

    def reserve(self, key: Key, obj: Object) -> None:
        now = self._clock()
        self._reserved = [item for item in self._reserved if item.until > now]
        self._reserved.append(_Reservation(key, obj, now + _RESERVED_FOR))

    def committed(self, key: Key) -> None:
        """Drop the reservation of an object that is now stored, and counted as such."""
        if self._reserved:
            self._reserved = [item for item in self._reserved if item.key != key]

    async def wait_committed(self, namespace: str) -> bool:
        """Wait until reserved objects are committed or have failed. Return False if no write was pending."""
        waited = False
        for item in [item for item in self._reserved if item.key.namespace == namespace]:
            try:
                waited |= await self._objects.wait_committed(item.key)
            except StoreFailed:
                self.committed(item.key)  # the create failed: the object uses nothing
                waited = True
        return waited

    def _objects_to_count(
        self, resource: GroupResource, namespace: str, now: datetime, *, reserved: bool
    ) -> Iterable[Object]:
        seen = set()
        for record in self._objects.records(resource, namespace):
            seen.add(record.key)
            yield json.decode(record.value)
        for item in self._reserved if reserved else ():
            own = item.key.resource == str(resource) and item.key.namespace == namespace
            if own and item.until > now and item.key not in seen:
                yield item.obj


def _parse_resource(name: str) -> GroupResource:
    plural, _, group = name.partition(".")
    return GroupResource(group, plural)


class QuotaAdmission:
    """The ResourceQuota admission plugin."""

    name = "ResourceQuota"
    operations = frozenset({CREATE, UPDATE})
    resources: frozenset[GroupResource] | None = None
    subresources: frozenset[str] | None = frozenset({"", "resize"})

    def __init__(self, counter: QuotaCounter, clock: Callable[[], datetime]) -> None:
        self._counter = counter
        self._clock = clock

    async def validate(self, attributes: Attributes) -> None:
        """Reject a write that exceeds a quota, but never because of a pending object that may still fail."""
        while True:
            try:
                self._reserve(attributes)
                return
            except Forbidden:
                if not await self._counter.wait_committed(attributes.namespace):
                    raise

    def _reserve(self, attributes: Attributes) -> None:
        """Check and reserve without yielding to the event loop, so that no other write comes in between."""
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
        if is_pod and attributes.operation == CREATE and (missing := unspecified(hard, attributes.object)):
            raise denied_by_plugin(attributes, f"failed quota: {name}: {missing}")
        limited = {key: amount for key, amount in wanted.items() if key in hard}
        if not limited:
            return
        used = self._counter.used(quota, reserved=True)
        exceeded = sorted(key for key, amount in limited.items() if hard[key] < used[key].add(amount))
        if exceeded:
            raise denied_by_plugin(
                attributes,
                f"exceeded quota: {name}, requested: {_format(limited, exceeded)}, used: {_format(used, exceeded)}, "
                f"limited: {_format(hard, exceeded)}",
            )


def _format(amounts: Usage, keys: Iterable[str]) -> str:
    return ",".join(f"{key}={amounts[key]}" for key in keys)


class QuotaStatus:
    """Controller that updates the status of ResourceQuotas.

    It watches the resources that some quota limits, and no others.
    """

    def __init__(self, store: Store, counter: QuotaCounter) -> None:
        self._store = store
        self._counter = counter
        self._loop: ControlLoop[str] = ControlLoop("resourcequota", self._reconcile)  # keys: namespaces
        self._watches: dict[str, asyncio.Task[None]] = {}  # watch tasks by resource

    async def run(self) -> None:
        try:
            self._watch_resource(str(QUOTAS))
            await self._loop.run()
        finally:
            for task in self._watches.values():
                task.cancel()
            self._watches.clear()

    def _watch_resource(self, resource: str) -> None:
        """Watch a resource. Called before counting, so that no later change is missed."""
        if resource not in self._watches:
            informer = StoreInformer(self._store, resource, resync=self._resync, changed=self._changed)
            self._watches[resource] = asyncio.ensure_future(supervised(informer.run, name="resourcequota"))

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
                self._watch_resource(counted_resource(key))
            used = {key: str(amount) for key, amount in sorted(self._counter.used(quota).items())}
            status = {"hard": hard, "used": used}
            if quota.get("status") != status:
                with suppress(RevisionConflict):  # the event of the other write triggers another reconcile
                    await self._store.commit(
                        Put(record.key, object_encoder(quota | {"status": status}), record.revision)
                    )
