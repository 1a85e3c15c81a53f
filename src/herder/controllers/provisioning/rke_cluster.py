"""Reconcile RKEClusters: the infrastructure of a cluster that consists of its machines alone.

It is provisioned as soon as Cluster API has adopted it. It has no endpoint: the planner writes that to the
RKEControlPlane, from which the Cluster API Cluster gets it.
"""

from __future__ import annotations

from herder.api.capi.kinds import CLUSTER
from herder.api.capi.names import is_deleting, is_paused, key_of_cluster
from herder.api.rke.kinds import RKE_CLUSTER
from herder.api.writes import ref, status_patch
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, waiting
from herder.engine.runtime.handlers import Watches, changed, itself
from herder.engine.runtime.view import View


def reconcile(view: View) -> Decision:
    infrastructure = view.get(RKE_CLUSTER, view.name)
    if infrastructure is None or is_deleting(infrastructure):
        return DONE
    cluster = _owner(view, infrastructure)
    if cluster is None:
        return waiting("waiting for Cluster API to set the owner reference")
    if is_paused(cluster, infrastructure):
        return waiting("it is paused", ref(CLUSTER, cluster))
    provisioned = {"initialization": {"provisioned": True}}
    return Decision(writes=status_patch(RKE_CLUSTER, infrastructure, provisioned, "it needs nothing but machines"))


def _owner(view: View, infrastructure: Object) -> Object | None:
    for reference in infrastructure["metadata"].get("ownerReferences") or ():
        if (reference["apiVersion"].rpartition("/")[0], reference["kind"]) == CLUSTER.group_kind:
            cluster = view.get(CLUSTER, reference["name"])
            if cluster is not None and cluster["metadata"]["uid"] == reference["uid"]:
                return cluster
    return None


CONTROLLER = Controller(
    name="rke-infrastructure",
    kind=RKE_CLUSTER,
    reconcile=reconcile,
    watches=(Watches(CLUSTER, itself, changed("spec.paused", "metadata.annotations")),),
    cluster_of=key_of_cluster,
)
