"""APIService objects: one for every served group version, for `kubectl get apiservices`.

All of them are local; nothing is proxied to another server. Those of built-in groups exist from the first start, those
of custom groups as long as a CRD serves them. Objects that another client created are not modified.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import datetime

from herder.engine.apiserver.auth.system_objects import new_metadata
from herder.engine.apiserver.registry.resources import Registry
from herder.engine.apiserver.registry.storage_codec import decode, encoder
from herder.engine.control.loop import ControlLoop
from herder.engine.control.source import StoreInformer
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.store import Delete, Key, Put, RevisionConflict, Store

_SERVICES = str(GroupResource("apiregistration.k8s.io", "apiservices"))
_DEFINITIONS = str(GroupResource("apiextensions.k8s.io", "customresourcedefinitions"))
_ALL = "apiservices"  # the only queue key: all objects are reconciled together
_MANAGED = "kube-aggregator.kubernetes.io/automanaged"
_UNLISTED = "apiregistration.k8s.io"  # kube-aggregator does not register its own group

# Priorities of groups in kube-apiserver, and of versions that differ from the default.
_GROUPS = {
    "": 18000, "apps": 17800, "events.k8s.io": 17750, "authentication.k8s.io": 17700, "authorization.k8s.io": 17600,
    "autoscaling": 17500, "batch": 17400, "certificates.k8s.io": 17300, "networking.k8s.io": 17200, "policy": 17100,
    "rbac.authorization.k8s.io": 17000, "storage.k8s.io": 16800, "apiextensions.k8s.io": 16700,
    "admissionregistration.k8s.io": 16700, "scheduling.k8s.io": 16600, "coordination.k8s.io": 16500,
    "node.k8s.io": 16300, "discovery.k8s.io": 16200, "resource.k8s.io": 16200, "flowcontrol.apiserver.k8s.io": 16100,
}  # fmt: skip
_VERSIONS = {
    ("", "v1"): 1,
    ("autoscaling", "v2"): 30,
    ("flowcontrol.apiserver.k8s.io", "v1"): 21,
    ("resource.k8s.io", "v1"): 21,
}
_CUSTOM_GROUP, _CUSTOM_VERSION, _VERSION = 1000, 100, 15


class ApiServices:
    """Controller that creates and deletes APIService objects."""

    def __init__(
        self, store: Store, registry: Registry, *, clock: Callable[[], datetime], entropy: Callable[[int], bytes]
    ) -> None:
        self._store = store
        self._registry = registry
        self._clock = clock
        self._entropy = entropy
        self._loop: ControlLoop[str] = ControlLoop("apiservice-registration", self._reconcile)

    async def run(self) -> None:
        """Run until cancelled. A CRD change is visible only after the registry has been updated, so reconciling on
        it is enough."""
        informer = StoreInformer(
            self._store,
            _DEFINITIONS,
            resync=lambda: self._loop.add(_ALL),
            changed=lambda _event: self._loop.add(_ALL),
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._loop.run())
            tasks.create_task(informer.run())

    async def _reconcile(self, _key: str) -> None:
        while not await self._sync():
            pass

    async def _sync(self) -> bool:
        """Create and delete objects as needed. Return False after a write conflict; the caller retries."""
        desired = dict(self._desired())
        existing = {record.key.name: record for record in self._store.list(_SERVICES)}
        changes: list[Put | Delete] = [self._put(name, obj) for name, obj in desired.items() if name not in existing]
        for name, record in existing.items():
            obj = decode(record)
            if name not in desired and (obj["metadata"].get("labels") or {}).get(_MANAGED) == "true":
                changes.append(Delete(record.key, encoder(obj), record.revision))
        if changes:
            try:
                await self._store.commit(*changes)
            except RevisionConflict:
                return False
        return True

    def _put(self, name: str, obj: Object) -> Put:
        metadata = {"name": name, "labels": obj["metadata"]["labels"]}
        obj["metadata"] = new_metadata(metadata, now=self._clock(), entropy=self._entropy)
        obj["status"]["conditions"][0]["lastTransitionTime"] = obj["metadata"]["creationTimestamp"]
        return Put(Key(_SERVICES, "", name), encoder(obj), 0)

    def _desired(self) -> Iterator[tuple[str, Object]]:
        for resource in self._registry:
            if resource.group == _UNLISTED or (not resource.custom and resource.group not in _GROUPS):
                continue
            for version in resource.versions.values():
                if version.served:
                    name = f"{version.name}.{resource.group}"
                    yield name, _service(resource.group, version.name, custom=resource.custom)


def _service(group: str, version: str, *, custom: bool) -> Object:
    priority = _CUSTOM_VERSION if custom else _VERSIONS.get((group, version), _VERSION)
    spec: Object = {"group": group} if group else {}
    spec |= {
        "version": version,
        "groupPriorityMinimum": _CUSTOM_GROUP if custom else _GROUPS[group],
        "versionPriority": priority,
    }
    available = {
        "type": "Available",
        "status": "True",
        "reason": "Local",
        "message": "Local APIServices are always available",
    }
    return {
        "kind": "APIService",
        "apiVersion": "apiregistration.k8s.io/v1",
        "metadata": {"labels": {_MANAGED: "true" if custom else "onstart"}},
        "spec": spec,
        "status": {"conditions": [available]},
    }
