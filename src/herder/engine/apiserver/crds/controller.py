"""Keeps the registry and the status of definitions right while definitions come, change and go.

A definition is served before its Established condition is written, so whoever has seen the condition can use it. A
deleted one first loses its instances: the controller deletes them and waits for their finalizers, then lets it go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from herder.engine.apiserver.crds.conversion import WebhookCall
from herder.engine.apiserver.crds.instances import Instances
from herder.engine.apiserver.crds.resource import resource_from_crd
from herder.engine.apiserver.crds.status import CLEANUP, Taken, condition_is, set_condition, settled
from herder.engine.apiserver.resources import Registry
from herder.engine.meta.kinds import GroupResource, Object

if TYPE_CHECKING:
    from herder.engine.store import Record, Store, Watch

DEFINITIONS = GroupResource("apiextensions.k8s.io", "customresourcedefinitions")
log = logging.getLogger(__name__)


class CrdController:
    def __init__(
        self,
        store: Store,
        registry: Registry,
        *,
        clock: Callable[[], datetime],
        webhook: WebhookCall | None = None,
    ) -> None:
        self._store = store
        self._registry = registry
        self._clock = clock
        self._webhook = webhook
        self._served: dict[str, tuple[GroupResource, bytes]] = {}  # by name of the definition; what it was made from
        self._cleanups: dict[str, asyncio.Task[None]] = {}

    def load(self) -> None:
        """Serve what the store's established definitions say. Called once, before the first request."""
        for crd in self._definitions():
            if condition_is(crd, "Established", "True"):
                self._serve(crd)

    async def run(self) -> None:
        """Follow the definitions until cancelled."""
        from herder.engine.store import Overflow

        try:
            while True:
                watch = self._store.watch(str(DEFINITIONS), since=self._store.revision)
                try:
                    await self._follow(watch)
                    return
                except Overflow:
                    log.warning("definitions changed faster than they could be followed; looking at all of them again")
                finally:
                    watch.close()
        finally:
            for cleanup in self._cleanups.values():
                cleanup.cancel()

    async def _follow(self, watch: Watch) -> None:
        await self._settle_all([*self._served, *(crd["metadata"]["name"] for crd in self._definitions())])
        async for batch in watch:
            await self._settle_all(event.record.key.name for event in batch)

    # --- one definition --------------------------------------------------------------------------------------

    async def _settle_all(self, names: Iterable[str]) -> None:
        """Settle these and, where one gives names up, the others of its group, which may have waited for them."""
        pending = dict.fromkeys(names)
        while pending:
            name = next(iter(pending))
            del pending[name]
            try:
                freed = await self._settle(name)
            except Exception:
                log.exception("custom resource definition %s could not be settled", name)
                continue
            if freed:
                group = name.partition(".")[2]
                pending.update(dict.fromkeys(other for other in self._waiting(group) if other != name))

    async def _settle(self, name: str) -> bool:
        """Bring registry and status of one definition to where they should be; whether names became free."""
        record = self._record(name)
        if record is None:
            return self._forget(name)
        crd = _decode(record)
        if crd["metadata"].get("deletionTimestamp"):
            self._clean_up(name, crd)
            return False
        others = [other for other in self._definitions() if other["metadata"]["name"] != name]
        same_group = [other for other in others if other["spec"]["group"] == crd["spec"]["group"]]
        wanted = settled(crd, Taken.by(same_group), self._now())
        if condition_is(wanted, "Established", "True"):
            self._serve(wanted)
        if wanted["status"] == crd.get("status"):
            return False
        freed = wanted["status"].get("acceptedNames") != (crd.get("status") or {}).get("acceptedNames")
        await self._write(record, wanted)
        return freed

    def _serve(self, crd: Object) -> None:
        name = crd["metadata"]["name"]
        made_from = msgspec.json.encode([
            crd["spec"],
            (crd.get("status") or {}).get("acceptedNames"),
            condition_is(crd, "Terminating", "True"),
        ])  # fmt: skip
        if self._served.get(name, (None, b""))[1] == made_from:
            return
        resource = resource_from_crd(crd, webhook=self._webhook)
        present = self._registry.get(resource.group_resource)
        if present is not None and not present.custom:
            return  # built-in kinds cannot be taken over
        self._registry.add(resource)
        self._served[name] = (resource.group_resource, made_from)

    def _forget(self, name: str) -> bool:
        served = self._served.pop(name, None)
        if served is not None:
            self._registry.remove(served[0])
        return True

    # --- deletion --------------------------------------------------------------------------------------------

    def _clean_up(self, name: str, crd: Object) -> None:
        if condition_is(crd, "Established", "True"):
            self._serve(crd)
        running = self._cleanups.get(name)
        if CLEANUP in (crd["metadata"].get("finalizers") or ()) and (running is None or running.done()):
            self._cleanups[name] = asyncio.create_task(self._remove(name), name=f"cleanup of {name}")

    async def _remove(self, name: str) -> None:
        try:
            await self._mark(name, "True", "InstanceDeletionInProgress", "CustomResource deletion is in progress")
            record = self._record(name)
            if record is None:
                return
            crd = _decode(record)
            if condition_is(crd, "Established", "True"):
                instances = Instances(self._store, GroupResource(crd["spec"]["group"], crd["spec"]["names"]["plural"]))
                await instances.delete_all(self._now)
                ending = ("InstanceDeletionCompleted", "removed all instances")
            else:
                ending = ("NeverEstablished", "resource was never established")
            await self._let_go(name, *ending)
        except Exception:
            log.exception("instances of custom resource definition %s could not be deleted", name)

    async def _mark(self, name: str, status: str, reason: str, message: str) -> None:
        record = self._record(name)
        if record is not None:
            crd = _decode(record)
            set_condition(crd, "Terminating", status, reason, message, now=self._now())
            await self._write(record, crd)

    async def _let_go(self, name: str, reason: str, message: str) -> None:
        """Take our finalizer off; the definition goes with it where it was the last."""
        from herder.engine.store import Delete, RevisionConflict

        while (record := self._record(name)) is not None:
            crd = _decode(record)
            set_condition(crd, "Terminating", "False", reason, message, now=self._now())
            finalizers = [each for each in crd["metadata"].get("finalizers") or () if each != CLEANUP]
            if finalizers:
                crd["metadata"]["finalizers"] = finalizers
                if await self._write(record, crd):
                    return
                continue
            crd["metadata"].pop("finalizers", None)
            self._forget(name)
            try:
                await self._store.write(Delete(record.key, _encoder(crd), record.revision))
                return
            except RevisionConflict:
                continue

    # --- the store ---------------------------------------------------------------------------------------------

    async def _write(self, record: Record, crd: Object) -> bool:
        """Whether it was written; where somebody else was faster, their change brings us back here."""
        from herder.engine.store import Put, RevisionConflict

        try:
            await self._store.write(Put(record.key, _encoder(self._tracked(crd, record)), record.revision))
        except RevisionConflict:
            return False
        return True

    def _tracked(self, crd: Object, record: Record) -> Object:
        """With managedFields that say who wrote the status."""
        from herder.engine.patch.managed import track_update

        resource = self._registry.get(DEFINITIONS)
        if resource is None:
            return crd
        entries = track_update(
            crd,
            _decode(record),
            manager="kube-apiserver",
            api_version="apiextensions.k8s.io/v1",
            subresource="status",
            now=self._clock(),
            type_of=lambda version: resource.versions["v1"].model.merge_type,
        )
        return {**crd, "metadata": {**crd["metadata"], "managedFields": entries}}

    def _record(self, name: str) -> Record | None:
        from herder.engine.store import Key

        return self._store.get(Key(str(DEFINITIONS), "", name))

    def _definitions(self) -> list[Object]:
        return [_decode(record) for record in self._store.list(str(DEFINITIONS))]

    def _waiting(self, group: str) -> list[str]:
        """Definitions of a group whose names are not accepted yet."""
        return [
            crd["metadata"]["name"]
            for crd in self._definitions()
            if crd["spec"]["group"] == group and not condition_is(crd, "NamesAccepted", "True")
        ]

    def _now(self) -> str:
        return self._clock().strftime("%Y-%m-%dT%H:%M:%SZ")


def _decode(record: Record) -> Object:
    crd: Object = msgspec.json.decode(record.value)
    return crd


def _encoder(crd: Object) -> Callable[[int], bytes]:
    def encode(revision: int) -> bytes:
        return msgspec.json.encode({**crd, "metadata": {**crd["metadata"], "resourceVersion": str(revision)}})

    return encode
