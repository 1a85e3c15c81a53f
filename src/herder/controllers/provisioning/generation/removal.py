"""How a provisioned cluster goes: Cluster API takes it apart, and what it does not know goes last."""

from __future__ import annotations

from collections.abc import Iterator

from herder.api.capi.conditions import Condition, condition, find
from herder.api.capi.kinds import CLUSTER, DEFINITION, MACHINE
from herder.api.capi.names import is_deleting
from herder.api.management import clusters
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke import names
from herder.api.rke.kinds import BOOTSTRAP_TEMPLATE, CONTROL_PLANE
from herder.api.rke.removal import REMOVED, machine_leaving, of_cluster, removing
from herder.api.rke.sets import HASH, set_hash
from herder.api.writing import delete, object_patch
from herder.controllers.provisioning.generation.asked import pools_of
from herder.controllers.provisioning.generation.generating import PRUNED, definition_of, made
from herder.controllers.provisioning.generation.reports import copied, management_of, report_management, told
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import DONE, Decision, Delete, Write, waiting
from herder.engine.runtime.view import View


def remove(view: View, cluster: Object) -> Decision:
    if names.REMOVE_CLUSTER not in (cluster["metadata"].get("finalizers") or ()):
        return DONE
    core = view.get(CLUSTER, view.name)
    ours = core if core is not None and _is_of(core, cluster) else None
    deletes: tuple[Write, ...] = ()
    if ours is not None and not is_deleting(ours):
        deletes = (delete(CLUSTER, ours, f"{view.key} is deleted"),)
    if (removed := _left(view, cluster, ours)) is not None:
        return Decision(writes=(*deletes, *_report_status(view, cluster, removed))) + waiting(removed["message"])
    if leftovers := tuple(_leftovers(view, cluster)):
        return Decision(writes=leftovers) + waiting("what Cluster API never took over is deleted")
    return Decision(writes=_released(cluster))


def _is_of(core: Object, cluster: Object) -> bool:
    owners = core["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == cluster["metadata"]["uid"] for owner in owners)


def _left(view: View, cluster: Object, core: Object | None) -> Condition | None:
    """What is waited for, as the condition that tells it; None when all is gone."""
    if core is None:
        return None
    plane = view.get(CONTROL_PLANE, view.name)
    if plane is not None and is_deleting(plane) and find(plane, REMOVED):
        return copied(plane, REMOVED, REMOVED)
    if (leaving := machine_leaving(of_cluster(view, MACHINE, view.name))) is not None:
        return leaving
    return removing(f"waiting for cluster-api cluster [{view.name}] to delete")


def _report_status(view: View, cluster: Object, removed: Condition) -> Iterator[Write]:
    """Other programs show what is being removed only where nothing else is going on any more."""
    settled = [condition(type_, "True", "") for type_ in ("Provisioned", "Waiting", "Pending", "Updated")]
    yield from told(view, cluster, [*settled, removed])
    management = management_of(view, cluster)
    if management is not None and not clusters.is_internal(management):
        reconciling = bool((management.get("status") or {}).get("readyReconciling"))
        yield from report_management(view, management, [removed], reconciling=reconciling)


def _leftovers(view: View, cluster: Object) -> Iterator[Delete]:
    meta = cluster["metadata"]
    for kind in (*PRUNED, CONTROL_PLANE, BOOTSTRAP_TEMPLATE):
        yield from _deletes(kind, made(view, kind, cluster))
    mark = f"{HASH}={set_hash(meta['namespace'], meta['name'])}"
    kinds = {pool.kinds.template for pool in pools_of(cluster) if pool.is_ours and pool.config.get("kind")}
    for kind in sorted(kinds, key=str):
        if view.get(DEFINITION, definition_of(kind)) is not None:
            yield from _deletes(kind, view.select(kind, namespace=meta["namespace"], labels=mark))


def _deletes(kind: Kind, objects: list[Object]) -> Iterator[Delete]:
    for obj in objects:
        yield delete(kind, obj, "its cluster is gone")


def _released(cluster: Object) -> tuple[Write, ...]:
    kept = [each for each in cluster["metadata"]["finalizers"] if each != names.REMOVE_CLUSTER]
    released = {**cluster, "metadata": {**cluster["metadata"], "finalizers": kept}}
    return object_patch(PROVISIONING_CLUSTER, cluster, released, "nothing is left of the cluster")
