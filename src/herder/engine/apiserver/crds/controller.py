"""Keeps the registry and the status of definitions right while definitions come, change and go.

A definition is served before its Established condition is written, so whoever has seen the condition can use it. A
deleted one first loses its instances: the controller deletes them and waits for their finalizers, then lets it go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime

import msgspec

from herder.engine.apiserver.crds.conversion import WebhookCaller
from herder.engine.apiserver.crds.instances import Instances
from herder.engine.apiserver.crds.resource import resource_from_crd
from herder.engine.apiserver.crds.status import CLEANUP, Taken, condition_is, set_condition, settled
from herder.engine.apiserver.resources import Registry
from herder.engine.apiserver.stored import decode, encoder
from herder.engine.control.loop import ControlLoop
from herder.engine.control.source import StoreInformer
from herder.engine.control.supervision import supervised
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.store import Delete, Key, Put, Record, RevisionConflict, Store

DEFINITIONS = GroupResource("apiextensions.k8s.io", "customresourcedefinitions")
RETRY_SECONDS = 30.0
"""The longest back-off of a definition that cannot be reconciled."""
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
        self._instances: dict[str, asyncio.Task[None]] = {}  # watches of instances, by definition that is being deleted
        self._ending: set[str] = (
            set()
        )  # being deleted from the store: whoever sees that must find them served no longer
        self._definitions: ControlLoop[str] = ControlLoop("definitions", self._handle, longest_retry=RETRY_SECONDS)
        self._deletions: ControlLoop[str] = ControlLoop(
            "definition-cleanup", self._remove, workers=4, longest_retry=RETRY_SECONDS
        )

    def load(self) -> None:
        """Serve what the store's established definitions say. Called once, before the first request."""
        for record in self._store.list(str(DEFINITIONS)):
            try:
                crd = decode(record)
                if condition_is(crd, "Established", "True"):
                    self._serve(crd, schema_changed_at=record.revision)
            except Exception:  # the other definitions are served; this one is tried again by `run`
                log.exception("custom resource definition %s cannot be served", record.key.name)

    async def run(self) -> None:
        """Follow the definitions until cancelled."""
        informer = StoreInformer(
            self._store,
            str(DEFINITIONS),
            resync=self._resync,
            changed=lambda event: self._definitions.add(event.record.key.name),
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._definitions.run())
                tasks.create_task(self._deletions.run())
                tasks.create_task(informer.run())
        finally:
            for name in list(self._instances):
                self._unfollow_instances(name)

    def _resync(self) -> None:
        for name in (*self._served, *(record.key.name for record in self._store.list(str(DEFINITIONS)))):
            self._definitions.add(name)

    # --- one definition --------------------------------------------------------------------------------------

    async def _handle(self, name: str) -> None:
        """Settle one definition and, if it gives names up, the others of its group, which may wait for them."""
        if await self._settle(name):
            for other in self._waiting(name.partition(".")[2]):
                if other != name:
                    self._definitions.add(other)

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
            self._serve(wanted, schema_changed_at=self._store.revision)
        if wanted["status"] == crd.get("status"):
            return False
        freed = bool(wanted["status"].get("acceptedNames") != (crd.get("status") or {}).get("acceptedNames"))
        await self._write(record, wanted)
        return freed

    def _serve(self, crd: Object, *, schema_changed_at: int) -> None:
        """`schema_changed_at` counts where the spec is another than the one served until now."""
        name = crd["metadata"]["name"]
        status = crd.get("status") or {}
        made_from = (crd["spec"], status.get("acceptedNames"), condition_is(crd, "Terminating", "True"))
        before, served_from = self._served.get(name, (None, ()))
        if served_from == made_from:
            return
        present = self._registry.get(before) if before else None
        if present is not None and served_from[0] == crd["spec"]:
            schema_changed_at = present.schema_changed_at
        resource = resource_from_crd(crd, webhooks=self._webhooks, schema_changed_at=schema_changed_at)
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
            self._serve(crd, schema_changed_at=self._store.revision)
        if _holds(crd):
            self._deletions.add(name)

    async def _remove(self, name: str) -> None:
        """Delete all instances, and the definition once none is left. Finalizers that hold some bring the key back."""
        await self._mark(name, "True", "InstanceDeletionInProgress", "CustomResource deletion is in progress")
        record = self._record(name)
        crd = decode(record) if record is not None else None
        if crd is None or not _holds(crd):
            self._unfollow_instances(name)
            return
        if condition_is(crd, "Established", "True"):
            resource = GroupResource(crd["spec"]["group"], crd["spec"]["names"]["plural"])
            self._follow_instances(name, resource)
            if not await Instances(self._store, resource).delete_all(self._now):
                return
            ending = ("InstanceDeletionCompleted", "removed all instances")
        else:
            ending = ("NeverEstablished", "resource was never established")
        self._unfollow_instances(name)
        await self._let_go(name, *ending)

    def _follow_instances(self, name: str, resource: GroupResource) -> None:
        if name not in self._instances:
            informer = StoreInformer(
                self._store,
                str(resource),
                resync=lambda: self._deletions.add(name),
                changed=lambda _event: self._deletions.add(name),
            )
            watching = supervised(informer.run, name="definition-cleanup")
            self._instances[name] = asyncio.create_task(watching, name=f"instances of {name}")

    def _unfollow_instances(self, name: str) -> None:
        watching = self._instances.pop(name, None)
        if watching is not None:
            watching.cancel()

    async def _mark(self, name: str, status: str, reason: str, message: str) -> None:
        record = self._record(name)
        if record is not None:
            crd = decode(record)
            set_condition(crd, "Terminating", status, reason, message, now=self._now())
            if _holds(crd) and crd != decode(record):
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


def _holds(crd: Object) -> bool:
    """Whether the definition is being deleted and waits for this controller."""
    metadata = crd["metadata"]
    return "deletionTimestamp" in metadata and CLEANUP in (metadata.get("finalizers") or ())
