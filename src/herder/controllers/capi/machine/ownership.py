"""Who owns a Machine, and how a Machine comes to own its bootstrap and infrastructure objects."""

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
from herder.api.writing import object_patch, owner_reference, with_owner
from herder.controllers.capi.externals import External
from herder.controllers.capi.machine.scene import Scene
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Patch


def with_finalizer(machine: Object) -> Object:
    meta = machine["metadata"]
    kept = meta.get("finalizers") or []
    finalizers = kept if MACHINE_FINALIZER in kept else [*kept, MACHINE_FINALIZER]
    return {**machine, "metadata": {**meta, "finalizers": finalizers}}


def adopted(machine: Object, cluster: Object) -> Object:
    """The Machine as its Cluster wants it: labelled, and owned by it if nobody else does or will."""
    labelled = _labelled(machine, machine["spec"]["clusterName"])
    if _owned(machine) or any(label in labels_of(machine) for label in (SET_NAME, POOL_NAME, CONTROL_PLANE_NAME)):
        return labelled
    return with_owner(labelled, owner_reference(CLUSTER, cluster, controller=False))


def _owned(machine: Object) -> bool:
    owners = machine["metadata"].get("ownerReferences") or []
    return any(owner.get("controller") or _is(owner, GROUP, CLUSTER.kind) for owner in owners)


def claim(scene: Scene, external: External) -> tuple[Patch, ...]:
    """Make the Machine the controller of one of its objects; nothing where it is, or where another may keep it."""
    if external.obj is None or external.kind is None or rival(scene, external.obj):
        return ()
    owners = [owner for owner in _owners(external.obj) if not _made_it(scene, owner)]
    mine = owner_reference(MACHINE, scene.machine, controller=True)
    claimed = _labelled(external.obj, scene.machine["spec"]["clusterName"])
    if not any(_same(owner, mine) for owner in owners):
        claimed = with_owner(_owned_by(claimed, owners), mine)
    elif owners != _owners(external.obj):
        claimed = _owned_by(claimed, owners)
    return object_patch(external.kind, external.obj, claimed, "the Machine that names it owns it")


def rival(scene: Scene, obj: Object) -> str:
    """Who controls an object that this Machine names, if it is neither the Machine nor who made the object for it."""
    for owner in _owners(obj):
        if owner.get("controller") and not _is_machine(scene, owner) and not _made_it(scene, owner):
            return f"{owner['kind']} {owner['name']}"
    return ""


def _is_machine(scene: Scene, owner: Object) -> bool:
    """By name: a Machine that was restored from a backup has another uid."""
    return _is(owner, GROUP, MACHINE.kind) and bool(owner["name"] == scene.machine["metadata"]["name"])


def _made_it(scene: Scene, owner: Object) -> bool:
    """MachineSets and control planes may own objects before there is the Machine that they are for."""
    if _is(owner, GROUP, MACHINE_SET.kind):
        return True
    control_plane = (scene.cluster.get("spec") or {}).get("controlPlaneRef")
    if not control_plane or CONTROL_PLANE not in labels_of(scene.machine):
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
