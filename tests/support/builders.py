"""Builders of Kubernetes objects for tests, and one reconcile of a pure reconciler over them.

Each builder returns a plain dict as the API server would serve it. Folders of tests add builders for their own kinds
on top of these, where several tests share them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from herder.api.capi.conditions.lists import timestamp
from herder.api.capi.kinds import CLUSTER, DEFINITION, MACHINE
from herder.api.capi.names import CLUSTER_NAME, CONTROL_PLANE
from herder.engine.meta.kinds import Kind, Object
from herder.engine.patch import apply_merge_patch
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import Decision, Parallel, Patch, Write
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


def new_manifest(kind: Kind, name: str, namespace: str = "", **options: Any) -> Object:
    """An object as a client sends it, without a UID; `options` are those of `new_object`."""
    obj = new_object(kind, name, namespace, **options)
    del obj["metadata"]["uid"]
    return obj


def owner_reference(kind: Kind, name: str, *, controller: bool = True) -> Object:
    """A reference to an object from `new_object`."""
    reference: Object = {"apiVersion": kind.api_version, "kind": kind.kind, "name": name, "uid": f"{kind.kind}-{name}"}
    return reference | ({"controller": True, "blockOwnerDeletion": True} if controller else {})


def owner_reference_to(owner: Object, *, controller: bool = True) -> Object:
    """A reference to any object that has a UID."""
    meta = owner["metadata"]
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"]}
    return reference | ({"controller": True, "blockOwnerDeletion": True} if controller else {})


def object_reference(kind: Kind, name: str) -> Object:
    """A reference as in `spec.infrastructureRef`: the version is that of the contract."""
    return {"apiGroup": kind.group, "kind": kind.kind, "name": name}


def new_definition(kind: Kind, contract: str = "v1beta2") -> Object:
    """The CustomResourceDefinition of a provider kind, labelled with its contract; without one if it is empty."""
    labels = {f"cluster.x-k8s.io/{contract}": kind.version} if contract else {}
    return new_object(DEFINITION, f"{kind.plural}.{kind.group}", labels=labels)


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


def condition_of(obj: Object, type_: str) -> Object:
    """The condition of this type in the status of an object, which must report it."""
    found: Object = next(condition for condition in obj["status"]["conditions"] if condition["type"] == type_)
    return found


def condition_fields(obj: Object, type_: str) -> tuple[str, str, str]:
    """Status, reason and message of a condition."""
    found = condition_of(obj, type_)
    return found["status"], found["reason"], found["message"]


def legacy_condition_of(obj: Object, type_: str) -> Object:
    """The v1beta1 condition of this type in the status of an object, which must report it."""
    conditions = obj["status"]["deprecated"]["v1beta1"]["conditions"]
    found: Object = next(condition for condition in conditions if condition["type"] == type_)
    return found


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


def merge_objects(defaults: Iterable[Object], objects: Iterable[Object]) -> list[Object]:
    """The default objects and `objects`, each of which replaces the default of the same kind and name."""
    merged = {
        (obj["apiVersion"], obj["kind"], obj["metadata"]["name"]): obj for each in (defaults, objects) for obj in each
    }
    return list(merged.values())


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


def events_of(decision: Decision) -> list[str]:
    """The Events of a decision in words: "Warning PlanFailed Machine a: message"."""
    found = [*(event for write in writes_of(decision) for event in write.events), *decision.events]
    return [f"{each.type} {each.reason} {each.about.kind.kind} {each.about.name}: {each.message}" for each in found]


def patches_of(decision: Decision, kind: Kind | None = None) -> list[Patch]:
    """The patches among the writes of a decision; with `kind`, only those of objects of that kind."""
    return [write for write in writes_of(decision) if isinstance(write, Patch) and kind in (None, write.ref.kind)]


def only_patch(decision: Decision) -> Object:
    """The content of the one write of a decision, which must be a patch."""
    (write,) = writes_of(decision)
    assert isinstance(write, Patch)
    return write.patch


def patched(obj: Object, decision: Decision) -> Object:
    """The object after those patches of a decision that are for it."""
    for patch in patches_of(decision):
        if (patch.ref.kind.kind, patch.ref.name) == (obj["kind"], obj["metadata"]["name"]):
            obj = apply_merge_patch(obj, patch.patch)
    return obj


def summaries(decision: Decision) -> list[str]:
    """Each write in words: "Create Secret name", "Patch Machine name"."""
    return [write_summary(write) for write in writes_of(decision)]


def write_summary(write: Write) -> str:
    """One write in words, as in `summaries`."""
    kind, name = (
        (write.ref.kind, write.ref.name) if hasattr(write, "ref") else (write.kind, write.obj["metadata"]["name"])
    )
    return f"{type(write).__name__} {kind.kind} {name}"


__all__ = [
    "DELETED_AT",
    "LONG_AGO",
    "NOW",
    "condition_fields",
    "condition_of",
    "events_of",
    "legacy_condition_of",
    "merge_objects",
    "new_cluster",
    "new_condition",
    "new_definition",
    "new_machine",
    "new_manifest",
    "new_object",
    "object_reference",
    "only_patch",
    "owner_reference",
    "owner_reference_to",
    "patched",
    "patches_of",
    "reconcile",
    "summaries",
    "write_summary",
    "writes_of",
]
