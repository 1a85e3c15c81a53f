"""Delete a provisioning Cluster: RoleBindings and management Cluster first, then machines, then remaining objects.

Cluster API deletes the machines of a provisioned cluster. Objects that it never adopted are deleted last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from herder.api.capi.conditions import Condition, condition, find
from herder.api.capi.finalizers import blocked_message, blocking_finalizers
from herder.api.capi.kinds import CLUSTER, DEFINITION, MACHINE
from herder.api.capi.names import is_deleting
from herder.api.machines.jobs import ROLE_BINDING
from herder.api.management import clusters
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.management.names import REMOVE_PROVISIONING
from herder.api.rke import names
from herder.api.rke.kinds import BOOTSTRAP_TEMPLATE, CONTROL_PLANE
from herder.api.rke.machines.removal import BLOCKED, REMOVED, machine_removal_condition, of_cluster, removing_condition
from herder.api.rke.sets import HASH, set_hash
from herder.api.writes import delete, object_patch
from herder.controllers.provisioning.cluster.desired import pools_of
from herder.controllers.provisioning.cluster.generation import (
    PRUNED,
    definition_of,
    generated_objects,
    unadopted_configs,
)
from herder.controllers.provisioning.cluster.status import patch_status
from herder.controllers.provisioning.management_cluster.status import copied
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import DONE, Decision, Delete, Write, waiting
from herder.engine.runtime.view import View

BY_OWNER, CREATED_FOR = "owner-uid", "created-for"


def remove(view: View, cluster: Object) -> Decision:
    """One finalizer at a time: management Cluster first, then machines."""
    finalizers = cluster["metadata"].get("finalizers") or ()
    if REMOVE_PROVISIONING in finalizers:
        return Decision(writes=(*_delete_management(view, cluster), *_remove_finalizer(cluster, REMOVE_PROVISIONING)))
    if names.REMOVE_CLUSTER in finalizers:
        return _remove_machines(view, cluster)
    return _report_blocked(view, cluster)


def _report_blocked(view: View, cluster: Object) -> Decision:
    """Everything else is removed, and only another controller or a user can remove its finalizers."""
    finalizers = blocking_finalizers(cluster, ())
    if not finalizers:
        return DONE
    message = blocked_message(finalizers)
    return Decision(writes=_report_status(view, cluster, condition(REMOVED, "False", BLOCKED, message))) + waiting(
        message
    )


def _delete_management(view: View, cluster: Object) -> Iterator[Delete]:
    """Delete the management Cluster without waiting: it waits for this one. The manager's own is kept."""
    # RoleBindings refer to the cluster by name: revoke them before another user can take the name.
    for binding in view.select(ROLE_BINDING, index=(BY_OWNER, cluster["metadata"]["uid"])):
        yield delete(ROLE_BINDING, binding, f"{view.key} is deleted")
    for management in _managements(view, cluster):
        if not is_deleting(management) and not clusters.is_internal(management):
            yield delete(MANAGEMENT_CLUSTER, management, f"{view.key} is deleted")


def _managements(view: View, cluster: Object) -> list[Object]:
    """Management Clusters that were created for it, and the one that its status names, if they are paired.

    Users can move them to another workspace, or write another name into the status. If one remained, its owners would
    keep their rights, and the next cluster of this name could get it.
    """
    created = view.select(MANAGEMENT_CLUSTER, index=(CREATED_FOR, str(view.key)))
    name = (cluster.get("status") or {}).get("clusterName", "")
    named = view.get(MANAGEMENT_CLUSTER, name) if name else None
    if named is None or named in created or not clusters.are_paired(named, view.namespace, view.name):
        return created
    return [*created, named]


def created_for(management: Object) -> Iterable[str]:
    """Indexer: namespace/name of the provisioning Cluster that it was created for."""
    found = clusters.source_provisioning_cluster(management)
    return (found,) if found else ()


def _remove_machines(view: View, cluster: Object) -> Decision:
    core = view.get(CLUSTER, view.name)
    ours = core if core is not None and _is_owned_by(core, cluster) else None
    deletes: tuple[Write, ...] = ()
    if ours is not None and not is_deleting(ours):
        deletes = (delete(CLUSTER, ours, f"{view.key} is deleted"),)
    if (removed := _removal_condition(view, cluster, ours)) is not None:
        return Decision(writes=(*deletes, *_report_status(view, cluster, removed))) + waiting(removed["message"])
    if leftovers := tuple(_leftovers(view, cluster)):
        return Decision(writes=leftovers) + waiting("deleting objects that Cluster API never adopted")
    return Decision(writes=_remove_finalizer(cluster, names.REMOVE_CLUSTER))


def _is_owned_by(core: Object, cluster: Object) -> bool:
    owners = core["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == cluster["metadata"]["uid"] for owner in owners)


def _removal_condition(view: View, cluster: Object, core: Object | None) -> Condition | None:
    """The condition that says what the deletion waits for; None when everything is gone."""
    if core is None:
        return None
    plane = view.get(CONTROL_PLANE, view.name)
    if plane is not None and is_deleting(plane) and find(plane, REMOVED):
        return copied(plane, REMOVED, REMOVED)
    if (machines_left := machine_removal_condition(of_cluster(view, MACHINE, view.name))) is not None:
        return machines_left
    return removing_condition(f"waiting for cluster-api cluster [{view.name}] to delete")


def _report_status(view: View, cluster: Object, removed: Condition) -> tuple[Write, ...]:
    """Rancher's UI shows what is being removed only where nothing else is in progress."""
    finished = [condition(type_, "True", "") for type_ in ("Provisioned", "Waiting", "Pending", "Updated")]
    return patch_status(view, cluster, [*finished, removed])


def _leftovers(view: View, cluster: Object) -> Iterator[Delete]:
    meta = cluster["metadata"]
    for kind in (*PRUNED, CONTROL_PLANE, BOOTSTRAP_TEMPLATE):
        yield from _deletes(kind, generated_objects(view, kind, cluster))
    mark = f"{HASH}={set_hash(meta['namespace'], meta['name'])}"
    kinds = {pool.kinds.template for pool in pools_of(cluster) if pool.uses_node_driver and pool.config.get("kind")}
    for kind in sorted(kinds, key=str):
        if view.get(DEFINITION, definition_of(kind)) is not None:
            yield from _deletes(kind, view.select(kind, namespace=meta["namespace"], labels=mark))
    for kind, configs in unadopted_configs(view, cluster).items():
        yield from _deletes(kind, configs)


def _deletes(kind: Kind, objects: list[Object]) -> Iterator[Delete]:
    for obj in objects:
        yield delete(kind, obj, "its cluster is deleted")


def _remove_finalizer(cluster: Object, finalizer: str) -> tuple[Write, ...]:
    remaining = [each for each in cluster["metadata"]["finalizers"] if each != finalizer]
    patched = {**cluster, "metadata": {**cluster["metadata"], "finalizers": remaining}}
    return object_patch(PROVISIONING_CLUSTER, cluster, patched, "the objects behind the finalizer are deleted")
