"""Builders of Kubernetes objects for tests, and one reconcile of a pure reconciler over them.

Each builder returns a plain dict as the API server would serve it. Folders of tests add builders for their own kinds
on top of these, where several tests share them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from herder.api.capi.conditions.lists import timestamp
from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.capi.names import CLUSTER_NAME, CONTROL_PLANE
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import Decision, Parallel, Write
from tests.support.views import NOW, view_of

LONG_AGO = "2025-01-01T00:00:00Z"
DELETED_AT = "2026-01-01T11:59:50Z"
"""The deletionTimestamp of objects that are being deleted: ten seconds before `NOW`."""


def new_object(
    kind: Kind,
    name: str,
    namespace: str = "",
    *,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    owners: Iterable[Object] = (),
    finalizers: Iterable[str] = (),
    deleting: bool = False,
    metadata: Object | None = None,
    **fields: Any,
) -> Object:
    """An object of `kind`. `fields` are its top-level fields; `metadata` takes precedence over the other arguments."""
    meta: Object = {"name": name, "uid": f"{kind.kind}-{name}"}
    if namespace:
        meta["namespace"] = namespace
    if labels:
        meta["labels"] = labels
    if annotations:
        meta["annotations"] = annotations
    if owner_references := list(owners):
        meta["ownerReferences"] = owner_references
    if finalizer_list := list(finalizers):
        meta["finalizers"] = finalizer_list
    if deleting:
        meta["deletionTimestamp"] = DELETED_AT
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta | (metadata or {}), **fields}


def owner_reference(kind: Kind, name: str, *, controller: bool = True) -> Object:
    """A reference to an object from `new_object`."""
    reference: Object = {"apiVersion": kind.api_version, "kind": kind.kind, "name": name, "uid": f"{kind.kind}-{name}"}
    return reference | ({"controller": True, "blockOwnerDeletion": True} if controller else {})


def new_condition(
    type_: str, status: str = "True", reason: str = "", message: str = "", *, since: datetime | str = LONG_AGO
) -> Object:
    """A condition as in `status.conditions`; without a reason, its type is the reason."""
    at = since if isinstance(since, str) else timestamp(since)
    return {
        "type": type_,
        "status": status,
        "reason": reason or type_,
        "message": message,
        "lastTransitionTime": at,
    }


def new_cluster(name: str, namespace: str, *, provisioned: bool = True, paused: bool = False, **options: Any) -> Object:
    """A Cluster API Cluster; `options` are those of `new_object`."""
    spec = ({"paused": True} if paused else {}) | options.pop("spec", {})
    status = {"initialization": {"infrastructureProvisioned": provisioned}} | options.pop("status", {})
    return new_object(CLUSTER, name, namespace, spec=spec, status=status, **options)


def new_machine(name: str, namespace: str, *, cluster: str, control_plane: bool = False, **options: Any) -> Object:
    """A Machine of `cluster`; `options` are those of `new_object`."""
    labels = {CLUSTER_NAME: cluster} | ({CONTROL_PLANE: ""} if control_plane else {}) | options.pop("labels", {})
    spec = {"clusterName": cluster} | options.pop("spec", {})
    return new_object(MACHINE, name, namespace, labels=labels, spec=spec, **options)


def reconcile(controller: Controller, key: str, *objects: Object, **options: Any) -> Decision:
    """One reconcile of `key` ("namespace/name") over these objects; `options` are those of `view_of`."""
    view = view_of(controller, key, objects, **options)
    decision = controller.reconcile(view)
    view.check_unchanged()
    return decision


def writes_of(decision: Decision) -> list[Write]:
    """The writes of a decision in order, those that may run in parallel among them."""
    return list(_flatten(decision))


def _flatten(decision: Decision) -> Iterator[Write]:
    for step in decision.writes:
        if isinstance(step, Parallel):
            yield from step.writes
        else:
            yield step


def summaries(decision: Decision) -> list[str]:
    """Each write in words: "Create Secret name", "Patch Machine name"."""
    return [_summary(write) for write in writes_of(decision)]


def _summary(write: Write) -> str:
    kind, name = (
        (write.ref.kind, write.ref.name) if hasattr(write, "ref") else (write.kind, write.obj["metadata"]["name"])
    )
    return f"{type(write).__name__} {kind.kind} {name}"


__all__ = [
    "DELETED_AT",
    "LONG_AGO",
    "NOW",
    "new_cluster",
    "new_condition",
    "new_machine",
    "new_object",
    "owner_reference",
    "reconcile",
    "summaries",
    "writes_of",
]
