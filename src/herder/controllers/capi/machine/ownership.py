"""Owner references of a Machine and of its bootstrap and infrastructure objects."""

from __future__ import annotations

from herder.api.capi.contract import reference_group
from herder.api.capi.kinds import CLUSTER, GROUP, MACHINE, MACHINE_SET
from herder.api.capi.names import (
    CLUSTER_NAME,
    CONTROL_PLANE,
    CONTROL_PLANE_NAME,
    MACHINE_FINALIZER,
    POOL_NAME,
    SET_NAME,
    labels_of,
)
from herder.api.writes import object_patch, owner_reference, with_owner
from herder.controllers.capi.externals import External
from herder.controllers.capi.machine.scope import MachineScope
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Patch


def with_finalizer(machine: Object) -> Object:
    meta = machine["metadata"]
    kept = meta.get("finalizers") or []
    finalizers = kept if MACHINE_FINALIZER in kept else [*kept, MACHINE_FINALIZER]
    return {**machine, "metadata": {**meta, "finalizers": finalizers}}


def adopted(machine: Object, cluster: Object) -> Object:
    """The Machine with the cluster label, and owned by the Cluster unless a set, pool or control plane owns it."""
    labelled = _labelled(machine, machine["spec"]["clusterName"])
    if _owned(machine) or any(label in labels_of(machine) for label in (SET_NAME, POOL_NAME, CONTROL_PLANE_NAME)):
        return labelled
    return with_owner(labelled, owner_reference(CLUSTER, cluster, controller=False))


def _owned(machine: Object) -> bool:
    owners = machine["metadata"].get("ownerReferences") or []
    return any(owner.get("controller") or _is(owner, GROUP, CLUSTER.kind) for owner in owners)


def claim(scope: MachineScope, external: External) -> tuple[Patch, ...]:
    """Make the Machine the controller of one of its objects, unless it is already or another controller may keep it."""
    if external.obj is None or external.kind is None or other_controller(scope, external.obj):
        return ()
    owners = [owner for owner in _owners(external.obj) if not _is_creator(scope, owner)]
    mine = owner_reference(MACHINE, scope.machine, controller=True)
    claimed = _labelled(external.obj, scope.machine["spec"]["clusterName"])
    if not any(_same(owner, mine) for owner in owners):
        claimed = with_owner(_owned_by(claimed, owners), mine)
    elif owners != _owners(external.obj):
        claimed = _owned_by(claimed, owners)
    return object_patch(external.kind, external.obj, claimed, "make the referencing Machine its controller")


def other_controller(scope: MachineScope, obj: Object) -> str:
    """The controller of a referenced object if it is neither this Machine nor the object's creator."""
    for owner in _owners(obj):
        if owner.get("controller") and not _is_machine(scope, owner) and not _is_creator(scope, owner):
            return f"{owner['kind']} {owner['name']}"
    return ""


def _is_machine(scope: MachineScope, owner: Object) -> bool:
    """Compare by name: a Machine restored from a backup has another UID."""
    return _is(owner, GROUP, MACHINE.kind) and bool(owner["name"] == scope.machine["metadata"]["name"])


def _is_creator(scope: MachineScope, owner: Object) -> bool:
    """MachineSets and control planes may own objects before the Machine exists."""
    if _is(owner, GROUP, MACHINE_SET.kind):
        return True
    control_plane = (scope.cluster.get("spec") or {}).get("controlPlaneRef")
    if not control_plane or CONTROL_PLANE not in labels_of(scope.machine):
        return False
    return _is(owner, reference_group(control_plane), control_plane["kind"])


def _labelled(obj: Object, cluster: str) -> Object:
    if labels_of(obj).get(CLUSTER_NAME) == cluster:
        return obj
    return {**obj, "metadata": {**obj["metadata"], "labels": {**labels_of(obj), CLUSTER_NAME: cluster}}}


def _owned_by(obj: Object, owners: list[Object]) -> Object:
    return {**obj, "metadata": {**obj["metadata"], "ownerReferences": owners}}


def _owners(obj: Object) -> list[Object]:
    owners: list[Object] = obj["metadata"].get("ownerReferences") or []
    return owners


def _is(owner: Object, group: str, kind: str) -> bool:
    return bool(owner["kind"] == kind and owner["apiVersion"].rpartition("/")[0] == group)


def _same(owner: Object, mine: Object) -> bool:
    return all(owner.get(field) == mine[field] for field in ("apiVersion", "kind", "name", "uid", "controller"))
