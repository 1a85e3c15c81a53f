"""The objects that a cluster has once: its infrastructure, its control plane, Cluster API's Cluster and the Beacon."""

from __future__ import annotations

from herder.api.capi.contract import reference_group
from herder.api.capi.kinds import CLUSTER
from herder.api.capi.names import annotations_of, labels_of
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.references.approvals import derived
from herder.api.rke import cluster_spec, names
from herder.api.rke.kinds import BEACON, CONTROL_PLANE, RKE_CLUSTER
from herder.api.rke.schema.configuration import CONFIGURATION, OPERATIONS
from herder.api.writing import appliable, owner_reference
from herder.controllers.provisioning.generation.asked import Problem, pools_of, rke_config
from herder.engine.meta.kinds import Kind, Object

AUTOSCALER_ENABLED = "provisioning.cattle.io/cluster-autoscaler-enabled"
AUTOSCALER_PAUSED = "provisioning.cattle.io/cluster-autoscaler-paused"


def infrastructure(cluster: Object) -> Object:
    after = annotations_of(cluster).get(names.DELETE_MISSING_AFTER)
    annotations = {names.DELETE_MISSING_AFTER: after} if after else {}
    return _object(RKE_CLUSTER, cluster, annotations=annotations) | {"spec": {}}


def control_plane(cluster: Object, there: Object | None = None) -> Object:
    """As it is to be applied to the one that is there."""
    spec, config = cluster["spec"], rke_config(cluster)
    packed = cluster_spec.packed(spec)
    if len(packed) > cluster_spec.LARGEST:
        raise Problem("spec: too large to be kept with the control plane; move files and manifests into Secrets")
    machine_id = labels_of(cluster).get(names.INIT_NODE_MACHINE_ID)
    marks = {name: annotations_of(cluster).get(name) for name in (names.RKE2_PRIME, names.ALLOW_VERSION_SKIP)}
    approved = derived(cluster, lambda each: _path_in_control_plane(each.path))
    made = _object(
        CONTROL_PLANE,
        cluster,
        labels={names.INIT_NODE_MACHINE_ID: machine_id} if machine_id else {},
        annotations={names.CLUSTER_SPEC: packed, **approved} | {name: mark for name, mark in marks.items() if mark},
    )
    asked = {name: config.get(name) for name in (*CONFIGURATION, *OPERATIONS)}
    asked |= {name: spec.get(name) for name in ("agentEnvVars", "localClusterAuthEndpoint", "kubernetesVersion")}
    status = {name: value for name, value in asked.items() if value is not None}
    whose = {"clusterName": cluster["metadata"]["name"], "managementClusterName": cluster["status"]["clusterName"]}
    return made | {"spec": appliable({**status, **whose}, (there or {}).get("spec") or {})}


def _path_in_control_plane(path: str) -> str | None:
    """Where the control plane has a field of the Cluster's rkeConfig."""
    field = path.removeprefix("spec.rkeConfig.")
    copied = field != path and field.partition(".")[0].partition("[")[0] in CONFIGURATION
    return f"spec.{field}" if copied else None


def core_cluster(cluster: Object, plane: Object | None) -> Object:
    """Where the API answers is the control plane's to say; until it does, what infrastructure says is good enough. That
    of another provider may have a balancer, so there Cluster API takes what it is told first."""
    owners = [owner_reference(PROVISIONING_CLUSTER, cluster, controller=True)]
    made = _object(CLUSTER, cluster, annotations=_autoscaling(cluster), ownerReferences=owners)
    spec = {
        "infrastructureRef": infrastructure_reference(cluster),
        "controlPlaneRef": _reference(CONTROL_PLANE, cluster["metadata"]["name"]),
    }
    reported = ((plane or {}).get("spec") or {}).get("controlPlaneEndpoint")
    endpoint = reported if has_own_infrastructure(cluster) else None
    return made | {"spec": spec | ({"controlPlaneEndpoint": endpoint} if endpoint else {})}


def infrastructure_reference(cluster: Object) -> Object:
    """As Cluster API refers to objects: the group alone, because definitions say which version is meant."""
    given = rke_config(cluster).get("infrastructureRef") or {}
    if not given:
        return _reference(RKE_CLUSTER, cluster["metadata"]["name"])
    if not all(given.get(part) for part in ("apiVersion", "kind", "name")):
        raise Problem("spec.rkeConfig.infrastructureRef: apiVersion, kind and name are required")
    return {"apiGroup": reference_group(given), "kind": given["kind"], "name": given["name"]}


def has_own_infrastructure(cluster: Object) -> bool:
    return bool(infrastructure_reference(cluster)["apiGroup"] == RKE_CLUSTER.group)


def beacon(cluster: Object) -> Object:
    owners = [owner_reference(PROVISIONING_CLUSTER, cluster, controller=True)]
    return _object(BEACON, cluster, ownerReferences=owners) | {"spec": {}}


def _autoscaling(cluster: Object) -> dict[str, str]:
    if annotations_of(cluster).get(AUTOSCALER_PAUSED):
        return {AUTOSCALER_PAUSED: "true"}
    return {AUTOSCALER_ENABLED: "true"} if any(pool.is_autoscaled for pool in pools_of(cluster)) else {}


def _reference(kind: Kind, name: str) -> Object:
    return {"apiGroup": kind.group, "kind": kind.kind, "name": name}


def _object(kind: Kind, cluster: Object, **meta: object) -> Object:
    """Of the cluster's own name, in its namespace."""
    whose = {"name": cluster["metadata"]["name"], "namespace": cluster["metadata"]["namespace"]}
    given = {name: value for name, value in meta.items() if value}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {**whose, **given}}
