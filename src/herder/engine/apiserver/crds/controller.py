"""CRD controller: keeps the registry and the status of CustomResourceDefinitions up to date.

A CRD is served before its Established condition is written, so a client that has seen the condition can use it. When a
CRD is deleted, the controller deletes its instances, waits for their finalizers, and then removes its own finalizer.
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
from herder.engine.apiserver.crds.status import CLEANUP, TakenNames, condition_is, set_condition, with_desired_status
from herder.engine.apiserver.registry.resources import Registry
from herder.engine.apiserver.registry.storage_codec import decode, encoder
from herder.engine.control.loop import ControlLoop
from herder.engine.control.source import StoreInformer
from herder.engine.control.supervision import supervised
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.store import Delete, Key, Put, Record, RevisionConflict, Store

DEFINITIONS = GroupResource("apiextensions.k8s.io", "customresourcedefinitions")
RETRY_SECONDS = 30.0
"""Maximum back-off of a CRD that cannot be reconciled."""
log = logging.getLogger(__name__)


class _Names(msgspec.Struct):
    """The part of a CRD that matters to others of its group. Its schemas are not decoded."""

    class Spec(msgspec.Struct):
        group: str

    spec: Spec
    status: Object = {}


class CrdController:
    """Reconciles CustomResourceDefinitions."""

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
        # by CRD name: the resource, and what it was built from
        self._served: dict[str, tuple[GroupResource, tuple[object, ...]]] = {}
        self._names: dict[str, tuple[int, _Names]] = {}  # by CRD name, with the revision they were read at
        self._instances: dict[str, asyncio.Task[None]] = {}  # watches of instances, by name of the terminating CRD
        # CRDs whose deletion is being committed: they must no longer be served when a client sees it.
        self._removing: set[str] = set()
        self._definitions: ControlLoop[str] = ControlLoop("definitions", self._reconcile, max_retry=RETRY_SECONDS)
        self._deletions: ControlLoop[str] = ControlLoop(
            "definition-cleanup", self._remove, workers=4, max_retry=RETRY_SECONDS
        )

    def load(self) -> None:
        """Serve the established CRDs of the store. Called once, before the first request."""
        for record in self._store.list(str(DEFINITIONS)):
            try:
                crd = decode(record)
                if condition_is(crd, "Established", "True"):
                    self._serve(crd, schema_changed_at=record.revision)
            except Exception:  # the other CRDs are served; `run` retries this one
                log.exception("customresourcedefinition %s: cannot be served", record.key.name)

    async def run(self) -> None:
        """Watch CRDs until cancelled."""
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
                self._unwatch_instances(name)

    def _resync(self) -> None:
        for name in (*self._served, *(record.key.name for record in self._store.list(str(DEFINITIONS)))):
            self._definitions.add(name)

    # --- reconcile -------------------------------------------------------------------------------------------

    async def _reconcile(self, name: str) -> None:
        """Reconcile one CRD. If it released names, requeue CRDs of its group that may be waiting for them."""
        if await self._sync(name):
            for other in self._with_pending_names(name.partition(".")[2]):
                if other != name:
                    self._definitions.add(other)

    async def _sync(self, name: str) -> bool:
        """Update registry and status of one CRD. Return whether it released names."""
        record = self._record(name)
        if record is None:
            return self._stop_serving(name)
        crd = decode(record)
        if crd["metadata"].get("deletionTimestamp"):
            self._start_cleanup(name, crd)
            return False
        others = [{"status": names.status} for other, names in self._group(crd["spec"]["group"]) if other != name]
        desired = with_desired_status(crd, TakenNames.by(others), self._now())
        if condition_is(desired, "Established", "True"):
            self._serve(desired, schema_changed_at=self._store.revision)
        if desired["status"] == crd.get("status"):
            return False
        released = bool(desired["status"].get("acceptedNames") != (crd.get("status") or {}).get("acceptedNames"))
        await self._write(record, desired)
        return released

    def _serve(self, crd: Object, *, schema_changed_at: int) -> None:
        """Register the resource of a CRD. `schema_changed_at` is used if the spec differs from the one served so
        far."""
        name = crd["metadata"]["name"]
        status = crd.get("status") or {}
        source = (crd["spec"], status.get("acceptedNames"), condition_is(crd, "Terminating", "True"))
        before, served_source = self._served.get(name, (None, ()))
        if served_source == source:
            return
        present = self._registry.get(before) if before else None
        if present is not None and served_source[0] == crd["spec"]:
            schema_changed_at = present.schema_changed_at
        resource = resource_from_crd(crd, webhooks=self._webhooks, schema_changed_at=schema_changed_at)
        present = self._registry.get(resource.group_resource)
        if present is not None and not present.custom:
            return  # built-in resources cannot be replaced
        self._registry.add(resource)
        self._served[name] = (resource.group_resource, source)

    def _stop_serving(self, name: str) -> bool:
        self._names.pop(name, None)
        served = self._served.pop(name, None)
        if served is not None:
            self._registry.remove(served[0])
        return True

    # --- deletion --------------------------------------------------------------------------------------------

    def _start_cleanup(self, name: str, crd: Object) -> None:
        if condition_is(crd, "Established", "True") and name not in self._removing:
            self._serve(crd, schema_changed_at=self._store.revision)
        if _awaits_cleanup(crd):
            self._deletions.add(name)

    async def _remove(self, name: str) -> None:
        """Delete all instances, then the CRD. While finalizers keep instances, their events requeue the CRD."""
        await self._mark(name, "True", "InstanceDeletionInProgress", "CustomResource deletion is in progress")
        record = self._record(name)
        crd = decode(record) if record is not None else None
        if crd is None or not _awaits_cleanup(crd):
            self._unwatch_instances(name)
            return
        if condition_is(crd, "Established", "True"):
            resource = GroupResource(crd["spec"]["group"], crd["spec"]["names"]["plural"])
            self._watch_instances(name, resource)
            if not await Instances(self._store, resource).delete_all(self._now):
                return
            outcome = ("InstanceDeletionCompleted", "removed all instances")
        else:
            outcome = ("NeverEstablished", "resource was never established")
        self._unwatch_instances(name)
        await self._remove_finalizer(name, *outcome)

    def _watch_instances(self, name: str, resource: GroupResource) -> None:
        if name not in self._instances:
            informer = StoreInformer(
                self._store,
                str(resource),
                resync=lambda: self._deletions.add(name),
                changed=lambda _event: self._deletions.add(name),
            )
            task = supervised(informer.run, name="definition-cleanup")
            self._instances[name] = asyncio.create_task(task, name=f"instances of {name}")

    def _unwatch_instances(self, name: str) -> None:
        task = self._instances.pop(name, None)
        if task is not None:
            task.cancel()

    async def _mark(self, name: str, status: str, reason: str, message: str) -> None:
        record = self._record(name)
        if record is not None:
            crd = decode(record)
            set_condition(crd, "Terminating", status, reason, message, now=self._now())
            if _awaits_cleanup(crd) and crd != decode(record):
                await self._write(record, crd)

    async def _remove_finalizer(self, name: str, reason: str, message: str) -> None:
        """Remove our finalizer. The CRD is deleted if it was the last one."""
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
            self._stop_serving(name)
            self._removing.add(name)
            try:
                await self._store.commit(Delete(record.key, encoder(crd), record.revision))
                return
            except RevisionConflict:
                continue
            finally:
                self._removing.discard(name)

    # --- store ---------------------------------------------------------------------------------------------------

    async def _write(self, record: Record, crd: Object) -> bool:
        """Write the CRD. Return False on a conflict; the event of the other write requeues it."""
        try:
            await self._store.commit(Put(record.key, encoder(self._tracked(crd, record)), record.revision))
        except RevisionConflict:
            return False
        return True

    def _tracked(self, crd: Object, record: Record) -> Object:
        """Set the managedFields for the status."""
        from herder.engine.patch.ssa.managed import track_update

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
        """Return every CRD of a group, by name."""
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

    def _with_pending_names(self, group: str) -> list[str]:
        """Return the CRDs of a group whose names are not accepted yet."""
        return [
            name
            for name, names in self._group(group)
            if not condition_is({"status": names.status}, "NamesAccepted", "True")
        ]

    def _now(self) -> str:
        return self._clock().strftime("%Y-%m-%dT%H:%M:%SZ")


def _awaits_cleanup(crd: Object) -> bool:
    """Whether the CRD is being deleted and has this controller's finalizer."""
    metadata = crd["metadata"]
    return "deletionTimestamp" in metadata and CLEANUP in (metadata.get("finalizers") or ())
