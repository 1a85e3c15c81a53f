"""Make the creator of a cluster its owner, once."""

from __future__ import annotations

from herder.api.capi.kinds import NAMESPACE
from herder.api.capi.names import annotations_of, is_deleting
from herder.api.identity.creators import CREATOR_BOUND, creator_binding
from herder.api.identity.roles import subject_of
from herder.api.machines.credentials import CREATOR
from herder.api.management.clusters import is_internal
from herder.api.management.kinds import CLUSTER_BINDING, MANAGEMENT_CLUSTER
from herder.api.writes import ref
from herder.controllers.identity import cluster_rights
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Create, Decision, Patch, Write, waiting
from herder.engine.runtime.handlers import Watches, changed, itself
from herder.engine.runtime.view import View


def reconcile(view: View) -> Decision:
    cluster = view.get(MANAGEMENT_CLUSTER, view.name)
    if cluster is None or is_deleting(cluster) or is_internal(cluster):
        return DONE
    annotations = annotations_of(cluster)
    creator = annotations.get(CREATOR)
    if not creator or annotations.get(CREATOR_BOUND) == "true":
        return DONE
    if not cluster_rights.has_namespace(view, cluster):
        return waiting(f"namespace {view.name} does not exist yet")
    wanted = creator_binding(view.name, creator)
    subject = subject_of(wanted)
    if isinstance(subject, str):
        return waiting(f"annotation {CREATOR}: {subject}", ref(MANAGEMENT_CLUSTER, cluster))
    writes: list[Write] = []
    if view.get(CLUSTER_BINDING, wanted["metadata"]["name"], view.name) is None:
        writes.append(Create(CLUSTER_BINDING, wanted, "make the creator the owner of the cluster"))
    bound = {"metadata": {"annotations": {CREATOR_BOUND: "true"}}}
    writes.append(Patch(ref(MANAGEMENT_CLUSTER, cluster), bound, "record that the creator is the owner"))
    return Decision(writes=tuple(writes))


CONTROLLER = Controller(
    name="cluster-creator",
    kind=MANAGEMENT_CLUSTER,
    reconcile=reconcile,
    watches=(
        Watches(NAMESPACE, itself, changed("metadata.deletionTimestamp")),
        Watches(CLUSTER_BINDING),
    ),
    predicate=changed("metadata.annotations"),
    cluster_of=lambda cluster: str(cluster["metadata"]["name"]),
)
