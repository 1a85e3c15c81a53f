"""The Cluster controller."""

from __future__ import annotations

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
from herder.api.capi.names import CLUSTER_FINALIZER, CLUSTER_NAME, SECRET_TYPE, cluster_key, is_deleting, is_paused
from herder.api.writing import object_patch
from herder.controllers.capi.cluster import connection, deletion, kubeconfig, members, references, status
from herder.controllers.capi.cluster.scene import Scene, survey
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Parallel, Wait
from herder.engine.runtime.handlers import Follows, Indexed, Watches, changed, labelled
from herder.engine.runtime.view import View


def reconcile(view: View) -> Decision:
    cluster = view.get(CLUSTER, view.name)
    if cluster is None:
        return DONE
    if CLUSTER_FINALIZER not in _finalizers(cluster):
        return DONE if is_deleting(cluster) else _add_finalizer(cluster)
    scene = survey(view, cluster)
    connected = connection.keep(scene)
    if is_paused(cluster, cluster):
        return (
            connected
            + status.report_paused(scene, paused_condition(cluster, cluster))
            + Decision(wait=Wait("it is paused"))
        )
    if is_deleting(cluster):
        return connected + _take_apart(scene)
    return connected + _bring_together(scene)


def _bring_together(scene: Scene) -> Decision:
    adopted = references.adopt(scene)
    endpoint = references.take_endpoint(scene)
    if endpoint:
        # The status is told in the next pass, from the Cluster as this write leaves it.
        return adopted + Decision(writes=endpoint)
    waits = Decision(wait=references.wait(scene))
    return adopted + waits + status.report(scene) + kubeconfig.provide(scene)


def _take_apart(scene: Scene) -> Decision:
    stage = deletion.stage(scene)
    if stage is None:
        return _remove_finalizer(scene.cluster)
    deletes = (Parallel(stage.deletes),) if stage.deletes else ()
    reported = status.report(scene, condition("Deleting", "True", stage.reason, stage.message))
    return Decision(writes=deletes, wait=Wait(stage.message, stage.waits_for)) + reported


def _add_finalizer(cluster: Object) -> Decision:
    wanted = [*_finalizers(cluster), CLUSTER_FINALIZER]
    return _with_finalizers(cluster, wanted, "what is in the cluster must be removed before it")


def _remove_finalizer(cluster: Object) -> Decision:
    wanted = [name for name in _finalizers(cluster) if name != CLUSTER_FINALIZER]
    return _with_finalizers(cluster, wanted, "nothing is left of the cluster")


def _with_finalizers(cluster: Object, finalizers: list[str], reason: str) -> Decision:
    wanted = {**cluster, "metadata": {**cluster["metadata"], "finalizers": finalizers}}
    return Decision(writes=object_patch(CLUSTER, cluster, wanted, reason))


def _finalizers(cluster: Object) -> list[str]:
    finalizers: list[str] = cluster["metadata"].get("finalizers") or []
    return finalizers


def _name(obj: Object) -> list[str]:
    return [obj["metadata"]["name"]]


_of_cluster = labelled(CLUSTER_NAME)

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
        Watches(MACHINE, _of_cluster, members.machine_matters),
        Watches(MACHINE_DEPLOYMENT, _of_cluster, members.pool_matters),
        Watches(MACHINE_SET, _of_cluster, members.set_matters),
        Watches(MACHINE_POOL, _of_cluster, changed("metadata.labels", "metadata.ownerReferences")),
        Watches(DEFINITION, Indexed(references.DEFINITIONS_INDEX, _name), changed("metadata.labels")),
        Watches(SECRET_METADATA, kubeconfig.secret_owners, fields=f"type={SECRET_TYPE}"),
    ),
    indexes={
        CLUSTER: {
            references.REFERENCES_INDEX: references.references_of,
            references.DEFINITIONS_INDEX: references.definitions_of,
        },
        MACHINE: {members.FACTS_INDEX: members.facts_of},
        MACHINE_DEPLOYMENT: {members.MEMBERS_INDEX: members.cluster_of},
        MACHINE_SET: {members.MEMBERS_INDEX: members.cluster_of},
        MACHINE_POOL: {members.MEMBERS_INDEX: members.cluster_of},
    },
    follows=Follows(
        Indexed(references.REFERENCES_INDEX, references.reference_to),
        changed("spec", "status", "metadata.labels", "metadata.ownerReferences", "metadata.deletionTimestamp"),
    ),
    cluster_of=lambda cluster: cluster_key(cluster["metadata"]["namespace"], cluster["metadata"]["name"]),
    workers=16,
    pace=0.1,
)
