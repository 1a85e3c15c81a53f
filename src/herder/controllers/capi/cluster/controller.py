"""Cluster reconciler: finalizer, connection, normal reconciliation, deletion; and what it watches."""

from __future__ import annotations

from herder.api import observe_only
from herder.api.capi.conditions import condition, paused_condition
from herder.api.capi.kinds import (
    CLUSTER,
    DEFINITION,
    MACHINE,
    MACHINE_DEPLOYMENT,
    MACHINE_POOL,
    MACHINE_SET,
    SECRET_METADATA,
)
from herder.api.capi.names import CLUSTER_FINALIZER, CLUSTER_NAME, SECRET_TYPE, is_deleting, is_paused, key_of_cluster
from herder.api.events import normal, recorded
from herder.api.writes import object_patch
from herder.controllers.capi.cluster import connection, deletion, kubeconfig, members, references, status
from herder.controllers.capi.cluster.scope import ClusterScope, new_scope
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Parallel, Patch, Wait
from herder.engine.runtime.handlers import DynamicWatches, Indexed, Watches, changed, named_by_label
from herder.engine.runtime.view import View


def reconcile(view: View) -> Decision:
    cluster = view.get(CLUSTER, view.name)
    if cluster is None:
        return DONE
    if CLUSTER_FINALIZER not in _finalizers(cluster):
        return DONE if is_deleting(cluster) else _add_finalizer(cluster)
    scope = new_scope(view, cluster)
    connected = connection.ensure(scope)
    if is_paused(cluster, cluster):
        return (
            connected
            + status.report_paused(scope, paused_condition(cluster, cluster))
            + Decision(wait=Wait("it is paused"))
        )
    if is_deleting(cluster):
        return connected + _reconcile_delete(scope)
    return connected + _reconcile_normal(scope)


def _reconcile_normal(scope: ClusterScope) -> Decision:
    adopted = references.adopt(scope)
    endpoint = references.set_endpoint(scope)
    if endpoint:
        # The next pass reports the status, from the Cluster that this write produces.
        return adopted + Decision(writes=endpoint)
    waits = Decision(wait=references.wait(scope))
    return adopted + waits + status.report(scope) + kubeconfig.provide(scope)


def _reconcile_delete(scope: ClusterScope) -> Decision:
    stage = deletion.stage(scope)
    if stage is None:
        return _remove_finalizer(scope.cluster)
    deletes = (Parallel(stage.deletes),) if stage.deletes else ()
    reported = status.report(scope, condition("Deleting", "True", stage.reason, stage.message))
    return Decision(writes=deletes, wait=Wait(stage.message, stage.waits_for)) + reported


def _add_finalizer(cluster: Object) -> Decision:
    wanted = [*_finalizers(cluster), CLUSTER_FINALIZER]
    return Decision(writes=_with_finalizers(cluster, wanted, "the members of the cluster must be deleted first"))


def _remove_finalizer(cluster: Object) -> Decision:
    wanted = [name for name in _finalizers(cluster) if name != CLUSTER_FINALIZER]
    deleted = _with_finalizers(cluster, wanted, "all members of the cluster are deleted")
    message = f"Cluster {cluster['metadata']['name']} has been deleted"
    return Decision(writes=recorded(deleted, (normal(CLUSTER, cluster, "Deleted", message),)))


def _with_finalizers(cluster: Object, finalizers: list[str], reason: str) -> tuple[Patch, ...]:
    wanted = {**cluster, "metadata": {**cluster["metadata"], "finalizers": finalizers}}
    return object_patch(CLUSTER, cluster, wanted, reason)


def _finalizers(cluster: Object) -> list[str]:
    finalizers: list[str] = cluster["metadata"].get("finalizers") or []
    return finalizers


def _name(obj: Object) -> list[str]:
    return [obj["metadata"]["name"]]


_of_cluster = named_by_label(CLUSTER_NAME)

CONTROLLER = Controller(
    name="cluster",
    kind=CLUSTER,
    reconcile=reconcile,
    predicate=changed(
        "spec",
        "metadata.annotations",
        "metadata.finalizers",
        "metadata.deletionTimestamp",
        "status.initialization",
        "status.conditions",
        "status.deprecated",
    ),
    watches=(
        Watches(MACHINE, _of_cluster, members.machine_predicate),
        Watches(MACHINE_DEPLOYMENT, _of_cluster, members.pool_predicate),
        Watches(MACHINE_SET, _of_cluster, members.set_predicate),
        Watches(MACHINE_POOL, _of_cluster, changed("metadata.labels", "metadata.ownerReferences")),
        Watches(DEFINITION, Indexed(references.DEFINITIONS_INDEX, _name), changed("metadata.labels")),
        Watches(SECRET_METADATA, kubeconfig.secret_owners, fields=f"type={SECRET_TYPE}"),
    ),
    indexes={
        CLUSTER: {
            references.REFERENCES_INDEX: references.references_of,
            references.DEFINITIONS_INDEX: references.definitions_of,
            **observe_only.INDEXES,
        },
        MACHINE: {members.FACTS_INDEX: members.facts_of},
        MACHINE_DEPLOYMENT: {members.MEMBERS_INDEX: members.cluster_of},
        MACHINE_SET: {members.MEMBERS_INDEX: members.cluster_of},
        MACHINE_POOL: {members.MEMBERS_INDEX: members.cluster_of},
    },
    dynamic_watches=DynamicWatches(
        Indexed(references.REFERENCES_INDEX, references.reference_to),
        changed("spec", "status", "metadata.labels", "metadata.ownerReferences", "metadata.deletionTimestamp"),
    ),
    cluster_of=key_of_cluster,
    workers=16,
    pace=0.1,
)
