"""The infrastructure of a cluster that is nothing but its machines: there as soon as Cluster API has taken it over."""

from __future__ import annotations

from herder.api.capi.kinds import CLUSTER
from herder.api.capi.names import is_deleting, is_paused
from herder.api.rke.kinds import CONTROL_PLANE, RKE_CLUSTER
from herder.api.writing import object_patch, ref, status_patch
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, waiting
from herder.engine.runtime.handlers import Watches, changed, itself
from herder.engine.runtime.view import View

PLACEHOLDER = {"host": "localhost", "port": 6443}
"""Where the API is while nobody knows: Cluster API wants to hear something."""


def reconcile(view: View) -> Decision:
    infrastructure = view.get(RKE_CLUSTER, view.name)
    if infrastructure is None or is_deleting(infrastructure):
        return DONE
    cluster = _owner(view, infrastructure)
    if cluster is None:
        return waiting("waiting for the Cluster that it belongs to, to take it over")
    if is_paused(cluster, infrastructure):
        return waiting("it is paused", ref(CLUSTER, cluster))
    endpoint = _endpoint(view, infrastructure)
    wanted = {**infrastructure, "spec": {**(infrastructure.get("spec") or {}), "controlPlaneEndpoint": endpoint}}
    writes = object_patch(RKE_CLUSTER, infrastructure, wanted, "where the API answers")
    done = {"initialization": {"provisioned": True}}
    return Decision(
        writes=(*writes, *status_patch(RKE_CLUSTER, infrastructure, done, "machines are all that it needs"))
    )


def _owner(view: View, infrastructure: Object) -> Object | None:
    for reference in infrastructure["metadata"].get("ownerReferences") or ():
        if (reference["apiVersion"].rpartition("/")[0], reference["kind"]) == CLUSTER.group_kind:
            cluster = view.get(CLUSTER, reference["name"])
            if cluster is not None and cluster["metadata"]["uid"] == reference["uid"]:
                return cluster
    return None


def _endpoint(view: View, infrastructure: Object) -> Object:
    plane = view.get(CONTROL_PLANE, view.name) or {}
    known = (plane.get("spec") or {}).get("controlPlaneEndpoint")
    before = (infrastructure.get("spec") or {}).get("controlPlaneEndpoint") or {}
    return known or (before if before.get("host") and before.get("port") else PLACEHOLDER)


CONTROLLER = Controller(
    name="rke-infrastructure",
    kind=RKE_CLUSTER,
    reconcile=reconcile,
    watches=(
        Watches(CLUSTER, itself, changed("spec.paused", "metadata.annotations")),
        Watches(CONTROL_PLANE, itself, changed("spec.controlPlaneEndpoint")),
    ),
)
