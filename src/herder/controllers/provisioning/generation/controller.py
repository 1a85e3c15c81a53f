"""The provisioning Cluster of a cluster that is built here: what it stands for is made, changed and deleted with it."""

from __future__ import annotations

from collections.abc import Iterable

from herder.api.capi.kinds import (
    CLUSTER,
    DEFINITION,
    MACHINE,
    MACHINE_DEPLOYMENT,
    MACHINE_HEALTH_CHECK,
    SECRET_METADATA,
)
from herder.api.capi.names import is_deleting
from herder.api.management.clusters import BY_MANAGEMENT, belongs, management_name
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.rke import names
from herder.api.rke.kinds import BEACON, BOOTSTRAP_TEMPLATE, CONTROL_PLANE, RKE_CLUSTER
from herder.api.rke.removal import BY_CLUSTER, cluster_of
from herder.api.rke.sets import hash_of, made_from
from herder.api.writing import object_patch
from herder.controllers.provisioning.generation.asked import Problem
from herder.controllers.provisioning.generation.generating import (
    SET,
    bind_references,
    credentials_of,
    definitions_of,
    fill_schemas,
    generate,
    references_of,
)
from herder.controllers.provisioning.generation.removal import remove
from herder.controllers.provisioning.generation.reports import report_status
from herder.engine.control.cache import Change, Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision
from herder.engine.runtime.handlers import Follows, Indexed, Watches, changed, itself
from herder.engine.runtime.view import View

REFERENCES, DEFINITIONS, CREDENTIALS = "pool-references", "pool-definitions", "pool-credentials"


def reconcile(view: View) -> Decision:
    cluster = view.get(PROVISIONING_CLUSTER, view.name)
    if cluster is None:
        return DONE
    if is_deleting(cluster):
        return remove(view, cluster)
    if (cluster.get("spec") or {}).get("rkeConfig") is None or not (cluster.get("status") or {}).get("clusterName"):
        return DONE  # imported, or not named yet
    if names.REMOVE_CLUSTER not in (cluster["metadata"].get("finalizers") or ()):
        return _with_finalizer(cluster)
    plane = view.get(CONTROL_PLANE, view.name)
    if not cluster["spec"].get("kubernetesVersion"):
        return report_status(view, cluster, plane, "spec.kubernetesVersion: required, such as v1.34.1+k3s1")
    try:
        _check_management_cluster(view, cluster)
        if written := bind_references(view, cluster) or fill_schemas(view, cluster):
            return Decision(writes=written)
        return Decision(writes=generate(view, cluster)) + report_status(view, cluster, plane)
    except Problem as problem:
        return report_status(view, cluster, plane, str(problem))


def _check_management_cluster(view: View, cluster: Object) -> None:
    """Machines get the registration token of the management Cluster, and admission does not see who writes the status
    that names it."""
    management = view.get(MANAGEMENT_CLUSTER, cluster["status"]["clusterName"])
    if management is not None and not belongs(management, view.namespace, view.name):
        name = management["metadata"]["name"]
        raise Problem(f"status.clusterName: management Cluster {name} belongs to another cluster; correct the status")


def _with_finalizer(cluster: Object) -> Decision:
    finalizers = [*(cluster["metadata"].get("finalizers") or ()), names.REMOVE_CLUSTER]
    held = {**cluster, "metadata": {**cluster["metadata"], "finalizers": finalizers}}
    return Decision(writes=object_patch(PROVISIONING_CLUSTER, cluster, held, "its machines are to go with it"))


# --- what sets it off -----------------------------------------------------------------------------------------------


def _name(obj: Object) -> Iterable[str]:
    return (obj["metadata"]["name"],)


def _place(secret: Object) -> Iterable[str]:
    return (f"{secret['metadata']['namespace']}/{secret['metadata']['name']}",)


def _met(obj: Object) -> Iterable[str]:
    """What an object of a kind that was met at run time is known as among the references."""
    meta = obj["metadata"]
    yield f"{obj['kind']} {meta.get('namespace', '')}/{meta['name']}"
    yield from (f"{SET} {mark}" for mark in hash_of(obj))


def _gone(change: Change) -> bool:
    return change.new is None


def _clusters_of_machine(machine: Object) -> Iterable[Key]:
    return (Key(*place.split("/", 1)) for place in cluster_of(machine))


_METADATA = ("metadata.labels", "metadata.annotations", "metadata.ownerReferences", "metadata.deletionTimestamp")
_edited = changed("spec", *_METADATA)

CONTROLLER = Controller(
    name="rke-cluster",
    kind=PROVISIONING_CLUSTER,
    reconcile=reconcile,
    predicate=changed("spec", "metadata.finalizers", "status.clusterName", *_METADATA),
    watches=(
        Watches(CONTROL_PLANE, itself, changed("spec", "status.conditions", "status.observedGeneration", *_METADATA)),
        Watches(CLUSTER, itself, _edited),
        Watches(RKE_CLUSTER, itself, _edited),
        Watches(BEACON, itself, _edited),
        Watches(BOOTSTRAP_TEMPLATE, made_from, _edited),
        Watches(MACHINE_DEPLOYMENT, made_from, _edited),
        Watches(MACHINE_HEALTH_CHECK, made_from, _edited),
        Watches(MACHINE, _clusters_of_machine, _gone),
        Watches(
            MANAGEMENT_CLUSTER, Indexed(BY_MANAGEMENT, _name), changed("status.conditions", "status.readyReconciling")
        ),
        Watches(SECRET_METADATA, Indexed(CREDENTIALS, _place), changed()),
        Watches(DEFINITION, Indexed(DEFINITIONS, _name), changed()),
    ),
    indexes={
        PROVISIONING_CLUSTER: {
            REFERENCES: references_of,
            DEFINITIONS: definitions_of,
            CREDENTIALS: credentials_of,
            BY_MANAGEMENT: management_name,
        },
        MACHINE: {BY_CLUSTER: cluster_of},
        **{
            kind: {SET: hash_of}
            for kind in (RKE_CLUSTER, CONTROL_PLANE, BOOTSTRAP_TEMPLATE, MACHINE_DEPLOYMENT, MACHINE_HEALTH_CHECK)
        },
    },
    follows=Follows(Indexed(REFERENCES, _met)),
)
