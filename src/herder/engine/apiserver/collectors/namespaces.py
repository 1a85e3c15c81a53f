"""Namespace controller: deletes the content of terminating namespaces, reports what remains, and finalizes them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

from herder.engine.apiserver.collectors.controller_client import RETRY_SECONDS, ControllerClient
from herder.engine.apiserver.collectors.graph import ObjectNode
from herder.engine.control.loop import ControlLoop
from herder.engine.meta.errors import NotFound, StatusError
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.engine.store import Event, Key

NAMESPACES = GroupVersionResource("", "v1", "namespaces")
WORKERS = 8
FAILURES_SHOWN = 5


class ContentDeletionFailed(Exception):
    """Some objects could not be deleted; the namespace's conditions say which."""


class NamespaceController:
    """Deletes the content of terminating namespaces."""

    def __init__(self, api: ControllerClient, clock: Callable[[], datetime]) -> None:
        self._api = api
        self._clock = clock
        self._terminating: set[str] = set()
        self._loop: ControlLoop[str] = ControlLoop(
            "namespace-controller", self._reconcile, workers=WORKERS, max_retry=RETRY_SECONDS
        )

    def reset(self) -> None:
        """Forget the namespaces: every existing object is about to be reported again."""
        self._terminating.clear()

    def handle_event(self, event: Event) -> None:
        key = event.record.key
        if key.resource == "namespaces":
            if event.deleted:
                self._terminating.discard(key.name)
            elif key.name not in self._terminating and ObjectNode.of(event.record).deleting:
                self._terminating.add(key.name)
                self._loop.add(key.name)
        elif key.namespace in self._terminating:
            self._loop.add(key.namespace)  # content was deleted or created: check again

    async def run(self) -> None:
        await self._loop.run()

    async def _reconcile(self, name: str) -> None:
        """Delete the content, update the conditions, and finalize the namespace once it is empty."""
        with suppress(NotFound):
            await self._delete_and_finalize(name)

    async def _delete_and_finalize(self, name: str) -> None:
        if name not in self._terminating:
            return
        failures = await self._delete_content(name)
        namespace = await self._api.client.get(NAMESPACES, name)
        remaining = self._remaining(name)
        conditions = _conditions(namespace, remaining, self._finalizers(remaining), failures, self._clock())
        if conditions != (namespace.get("status") or {}).get("conditions"):
            namespace["status"] = {**(namespace.get("status") or {}), "phase": "Terminating", "conditions": conditions}
            namespace = await self._api.client.update(NAMESPACES, namespace, subresource="status")
        if failures:
            raise ContentDeletionFailed("; ".join(failures[:FAILURES_SHOWN]))  # retried with back-off
        if remaining:
            return
        remaining_finalizers = [
            each for each in (namespace.get("spec") or {}).get("finalizers") or [] if each != "kubernetes"
        ]
        namespace["spec"] = {**(namespace.get("spec") or {}), "finalizers": remaining_finalizers}
        await self._api.client.update(NAMESPACES, namespace, subresource="finalize")

    async def _delete_content(self, name: str) -> list[str]:
        """Delete every object that is not being deleted yet, pods first.

        Return one message for every resource of which an object could not be deleted.
        """
        failures: dict[str, str] = {}
        resources = sorted(self._api.namespaced(), key=lambda pair: (pair[1].resource != "pods", pair[1]))
        for resource, served in resources:
            for record in self._api.store.list(str(resource.storage), name):
                node = ObjectNode.of(record)
                if node.deleting:
                    continue
                try:
                    await self._api.client.delete(served, record.key.name, namespace=name, uid=node.uid)
                except NotFound:
                    continue
                except StatusError as error:
                    failures.setdefault(str(resource.group_resource), error.message)
        return sorted(failures.values())

    def _remaining(self, name: str) -> dict[str, list[Key]]:
        """Return the remaining objects by resource."""
        found = {}
        for resource, _ in self._api.namespaced():
            records = self._api.store.list(str(resource.storage), name)
            if records:
                # kube-apiserver's name has a dot even without a group.
                found[f"{resource.plural}.{resource.group}"] = [record.key for record in records]
        return found

    def _finalizers(self, remaining: dict[str, list[Key]]) -> dict[str, int]:
        """Return the finalizers of the remaining objects, with the number of objects that have each."""
        counts: dict[str, int] = {}
        for key in (key for keys in remaining.values() for key in keys):
            record = self._api.store.get(key)
            for finalizer in ObjectNode.of(record).finalizers if record is not None else ():
                counts[finalizer] = counts.get(finalizer, 0) + 1
        return counts


def _conditions(
    namespace: Object,
    remaining: dict[str, list[Key]],
    finalizers: dict[str, int],
    failures: list[str],
    now: datetime,
) -> list[Object]:
    """Return the five conditions of kube-controller-manager, with its messages."""
    content = ", ".join(
        f"{resource} has {len(keys)} resource instances" for resource, keys in sorted(remaining.items())
    )
    blocked = ", ".join(f"{name} in {count} resource instances" for name, count in sorted(finalizers.items()))
    desired = [
        ("NamespaceDeletionDiscoveryFailure", "False", "ResourcesDiscovered", "All resources successfully discovered"),
        ("NamespaceDeletionGroupVersionParsingFailure", "False", "ParsedGroupVersions",
         "All legacy kube types successfully parsed"),
        ("NamespaceDeletionContentFailure", "False", "ContentDeleted",
         "All content successfully deleted, may be waiting on finalization"),
        ("NamespaceContentRemaining", "False", "ContentRemoved", "All content successfully removed"),
        ("NamespaceFinalizersRemaining", "False", "ContentHasNoFinalizers",
         "All content-preserving finalizers finished"),
    ]  # fmt: skip
    if failures:
        message = (
            f"Failed to delete all resource types, {len(failures)} remaining: {', '.join(failures[:FAILURES_SHOWN])}"
        )
        desired[2] = ("NamespaceDeletionContentFailure", "True", "ContentDeletionFailed", message)
    if remaining:
        desired[3] = ("NamespaceContentRemaining", "True", "SomeResourcesRemain",
                     f"Some resources are remaining: {content}")  # fmt: skip
    if finalizers:
        desired[4] = ("NamespaceFinalizersRemaining", "True", "SomeFinalizersRemain",
                     f"Some content in the namespace has finalizers remaining: {blocked}")  # fmt: skip
    old = {each["type"]: each for each in (namespace.get("status") or {}).get("conditions") or []}
    return [_condition(old.get(kind), kind, status, reason, message, now) for kind, status, reason, message in desired]


def _condition(old: Object | None, kind: str, status: str, reason: str, message: str, now: datetime) -> Object:
    unchanged = old is not None and old["status"] == status
    at = old["lastTransitionTime"] if unchanged and old else now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": kind, "status": status, "lastTransitionTime": at, "reason": reason, "message": message}
