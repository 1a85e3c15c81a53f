"""Keeps the registry and the status of definitions right while definitions come, change and go.

A definition is served before its Established condition is written, so whoever has seen the condition can use it. A
deleted one first loses its instances: the controller deletes them and waits for their finalizers, then lets it go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from functools import partial

import msgspec

from herder.engine.apiserver.crds.conversion import WebhookCaller
from herder.engine.apiserver.crds.instances import Instances
from herder.engine.apiserver.crds.resource import resource_from_crd
from herder.engine.apiserver.crds.status import CLEANUP, Taken, condition_is, set_condition, settled
from herder.engine.apiserver.resources import Registry
from herder.engine.apiserver.stored import decode, encoder
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.store import Delete, Key, Overflow, Put, Record, RevisionConflict, Store, Watch
from herder.engine.supervision import RetryQueue, supervised

DEFINITIONS = GroupResource("apiextensions.k8s.io", "customresourcedefinitions")
log = logging.getLogger(__name__)


class _Names(msgspec.Struct):
    """The part of a definition that others of its group care about; decoding skips its schemas."""

    class Spec(msgspec.Struct):
        group: str

    spec: Spec
    status: Object = {}


class CrdController:
    def __init__(
        self,
        store: Store,
        registry: Registry,
        *,
        clock: Callable[[], datetime],
        webhooks: WebhookCaller | None = None,
    ) -> None:
        self._store = store
        self._registry = registry
        self._clock = clock
        self._webhooks = webhooks
        self._served: dict[str, tuple[GroupResource, tuple[object, ...]]] = {}  # by definition; what it was made from
        self._names: dict[str, tuple[int, _Names]] = {}  # by definition, with the revision they were read at
        self._cleanups: dict[str, asyncio.Task[None]] = {}
        self._ending: set[str] = (
            set()
        )  # being deleted from the store: whoever sees that must find them served no longer
        self._queue = RetryQueue(self._handle, name="definitions")

    def load(self) -> None:
        """Serve what the store's established definitions say. Called once, before the first request."""
        for record in self._store.list(str(DEFINITIONS)):
            try:
                crd = decode(record)
                if condition_is(crd, "Established", "True"):
                    self._serve(crd, reshaped_before=record.revision)
            except Exception:  # the other definitions are served; this one is tried again by `run`
                log.exception("custom resource definition %s cannot be served", record.key.name)

    async def run(self) -> None:
        """Follow the definitions until cancelled."""
        working = asyncio.ensure_future(self._queue.run())
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
            working.cancel()
            for cleanup in self._cleanups.values():
                cleanup.cancel()

    async def _follow(self, watch: Watch) -> None:
        for name in (*self._served, *(record.key.name for record in self._store.list(str(DEFINITIONS)))):
            self._queue.add(name)
        async for batch in watch:
            for event in batch:
                self._queue.add(event.record.key.name)

    # --- one definition --------------------------------------------------------------------------------------

    async def _handle(self, name: str) -> None:
        """Settle one definition and, if it gives names up, the others of its group, which may wait for them."""
        if await self._settle(name):
            for other in self._waiting(name.partition(".")[2]):
                if other != name:
                    self._queue.add(other)

    async def _settle(self, name: str) -> bool:
        """Bring registry and status of one definition to where they should be; whether names became free."""
        record = self._record(name)
        if record is None:
            return self._forget(name)
        crd = decode(record)
        if crd["metadata"].get("deletionTimestamp"):
            self._clean_up(name, crd)
            return False
        others = [{"status": names.status} for other, names in self._group(crd["spec"]["group"]) if other != name]
        wanted = settled(crd, Taken.by(others), self._now())
        if condition_is(wanted, "Established", "True"):
            self._serve(wanted, reshaped_before=self._store.revision)
        if wanted["status"] == crd.get("status"):
            return False
        freed = bool(wanted["status"].get("acceptedNames") != (crd.get("status") or {}).get("acceptedNames"))
        await self._write(record, wanted)
        return freed

    def _serve(self, crd: Object, *, reshaped_before: int) -> None:
        """`reshaped_before` counts where the spec is another than the one served until now."""
        name = crd["metadata"]["name"]
        status = crd.get("status") or {}
        made_from = (crd["spec"], status.get("acceptedNames"), condition_is(crd, "Terminating", "True"))
        before, served_from = self._served.get(name, (None, ()))
        if served_from == made_from:
            return
        present = self._registry.get(before) if before else None
        if present is not None and served_from[0] == crd["spec"]:
            reshaped_before = present.reshaped_before
        resource = resource_from_crd(crd, webhooks=self._webhooks, reshaped_before=reshaped_before)
        present = self._registry.get(resource.group_resource)
        if present is not None and not present.custom:
            return  # built-in kinds cannot be taken over
        self._registry.add(resource)
        self._served[name] = (resource.group_resource, made_from)

    def _forget(self, name: str) -> bool:
        self._names.pop(name, None)
        served = self._served.pop(name, None)
        if served is not None:
            self._registry.remove(served[0])
        return True

    # --- deletion --------------------------------------------------------------------------------------------

    def _clean_up(self, name: str, crd: Object) -> None:
        if condition_is(crd, "Established", "True") and name not in self._ending:
            self._serve(crd, reshaped_before=self._store.revision)
        running = self._cleanups.get(name)
        if CLEANUP in (crd["metadata"].get("finalizers") or ()) and (running is None or running.done()):
            removal = supervised(partial(self._remove, name), name="definition-cleanup")
            self._cleanups[name] = asyncio.create_task(removal, name=f"cleanup of {name}")

    async def _remove(self, name: str) -> None:
        await self._mark(name, "True", "InstanceDeletionInProgress", "CustomResource deletion is in progress")
        record = self._record(name)
        if record is None:
            return
        crd = decode(record)
        if condition_is(crd, "Established", "True"):
            instances = Instances(self._store, GroupResource(crd["spec"]["group"], crd["spec"]["names"]["plural"]))
            await instances.delete_all(self._now)
            ending = ("InstanceDeletionCompleted", "removed all instances")
        else:
            ending = ("NeverEstablished", "resource was never established")
        await self._let_go(name, *ending)

    async def _mark(self, name: str, status: str, reason: str, message: str) -> None:
        record = self._record(name)
        if record is not None:
            crd = decode(record)
            set_condition(crd, "Terminating", status, reason, message, now=self._now())
            await self._write(record, crd)

    async def _let_go(self, name: str, reason: str, message: str) -> None:
        """Take our finalizer off; the definition goes with it where it was the last."""
        while (record := self._record(name)) is not None:
            crd = decode(record)
            set_condition(crd, "Terminating", "False", reason, message, now=self._now())
            finalizers = [each for each in crd["metadata"].get("finalizers") or () if each != CLEANUP]
            if finalizers:
                crd["metadata"]["finalizers"] = finalizers
                if await self._write(record, crd):
                    return
                continue
            crd["metadata"].pop("finalizers", None)
            self._forget(name)
            self._ending.add(name)
            try:
                await self._store.commit(Delete(record.key, encoder(crd), record.revision))
                return
            except RevisionConflict:
                continue
            finally:
                self._ending.discard(name)

    # --- the store ---------------------------------------------------------------------------------------------

    async def _write(self, record: Record, crd: Object) -> bool:
        """Whether it was written; where somebody else was faster, their change brings us back here."""
        try:
            await self._store.commit(Put(record.key, encoder(self._tracked(crd, record)), record.revision))
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
            decode(record),
            manager="kube-apiserver",
            api_version="apiextensions.k8s.io/v1",
            subresource="status",
            now=self._clock(),
            type_of=lambda version: resource.versions["v1"].model.merge_type,
        )
        crd["metadata"]["managedFields"] = entries
        if not entries:
            del crd["metadata"]["managedFields"]
        return crd

    def _record(self, name: str) -> Record | None:
        return self._store.get(Key(str(DEFINITIONS), "", name))

    def _group(self, group: str) -> list[tuple[str, _Names]]:
        """Every definition of a group, by name."""
        found = []
        for record in self._store.list(str(DEFINITIONS)):
            name = record.key.name
            revision, names = self._names.get(name, (0, None))
            if names is None or revision != record.revision:
                names = msgspec.json.decode(record.value, type=_Names)
                self._names[name] = (record.revision, names)
            if names.spec.group == group:
                found.append((name, names))
        return found

    def _waiting(self, group: str) -> list[str]:
        """Definitions of a group whose names are not accepted yet."""
        return [
            name
            for name, names in self._group(group)
            if not condition_is({"status": names.status}, "NamesAccepted", "True")
        ]

    def _now(self) -> str:
        return self._clock().strftime("%Y-%m-%dT%H:%M:%SZ")
