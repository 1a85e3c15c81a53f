"""Generate the cluster-wide objects: RKECluster, RKEControlPlane, Cluster API Cluster and Beacon."""

from __future__ import annotations

from collections.abc import Mapping

from herder.api.capi.contract import reference_group
from herder.api.capi.kinds import CLUSTER
from herder.api.capi.names import annotations_of, labels_of
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.references.approvals import derived_record
from herder.api.rke import cluster_spec, names
from herder.api.rke.etcd.restore import restores_spec
from herder.api.rke.kinds import BEACON, CONTROL_PLANE, RKE_CLUSTER
from herder.api.rke.operations import AGENTS, RESTORE
from herder.api.rke.schema.configuration import CONFIGURATION, OPERATIONS
from herder.api.writes import appliable, owner_reference
from herder.controllers.provisioning.cluster.desired import Problem, pools_of, rke_config
from herder.engine.meta.kinds import Kind, Object

AUTOSCALER_ENABLED = "provisioning.cattle.io/cluster-autoscaler-enabled"
AUTOSCALER_PAUSED = "provisioning.cattle.io/cluster-autoscaler-paused"

_MAX_ANNOTATION = 256
_MAX_ANNOTATIONS = 240 << 10
"""Of all that the control plane gets; the API server allows 256 KiB."""


def infrastructure(cluster: Object) -> Object:
    after = annotations_of(cluster).get(names.DELETE_MISSING_AFTER)
    annotations = {names.DELETE_MISSING_AFTER: after} if after else {}
    return _object(RKE_CLUSTER, cluster, annotations=annotations) | {"spec": {}}


def control_plane(cluster: Object, existing: Object | None = None) -> Object:
    """The RKEControlPlane, as it is applied to the existing one."""
    spec = cluster["spec"]
    known = annotations_of(existing) if existing is not None else {}
    encoded = cluster_spec.encode_spec(spec, known.get(names.CLUSTER_SPEC, ""))
    approved = derived_record(cluster, lambda each: _path_in_control_plane(each.path))
    marks = {names.CLUSTER_SPEC: encoded, **approved, **_copied_annotations(cluster)}
    if len(encoded) > cluster_spec.MAX_ENCODED or _size(marks) > _MAX_ANNOTATIONS:
        raise Problem("spec: too large to be stored with the control plane; move files and manifests into Secrets")
    previous = _previous_spec(cluster, existing, encoded)
    if previous and _size(marks) + len(previous) <= _MAX_ANNOTATIONS:
        marks[names.PREVIOUS_SPEC] = previous
    machine_id = labels_of(cluster).get(names.INIT_NODE_MACHINE_ID)
    obj = _object(
        CONTROL_PLANE,
        cluster,
        labels={names.INIT_NODE_MACHINE_ID: machine_id} if machine_id else {},
        annotations=marks,
    )
    identity = {"clusterName": cluster["metadata"]["name"], "managementClusterName": cluster["status"]["clusterName"]}
    return obj | {"spec": appliable({**_copied_fields(cluster), **identity}, (existing or {}).get("spec") or {})}


_OF_CONFIG = (*CONFIGURATION, *OPERATIONS)
_OF_SPEC = ("agentEnvVars", "localClusterAuthEndpoint", "kubernetesVersion", AGENTS)


def _copied_fields(cluster: Object) -> Object:
    """Fields of the Cluster that the control plane has too."""
    spec, config = cluster["spec"], rke_config(cluster)
    found = {name: config.get(name) for name in _OF_CONFIG}
    found |= {name: spec.get(name) for name in _OF_SPEC if name != AGENTS or spec.get(name)}
    return {name: value for name, value in found.items() if value is not None}


def surplus_fields(cluster: Object, existing: Object) -> Object:
    """Merge patch that removes what the Cluster does not have from the control plane; empty if there is nothing.

    Server-side apply keeps what others add. It would configure the cluster for ever, and the Cluster would not show it.
    """
    spec, marks = existing.get("spec") or {}, annotations_of(existing)
    copied = {name: spec[name] for name in (*_OF_CONFIG, *_OF_SPEC) if name in spec}
    known = {name: marks[name] for name in names.COPIED_TO_CONTROL_PLANE if name in marks}
    annotations = _surplus(known, _copied_annotations(cluster))
    patch = {"spec": _surplus(copied, _copied_fields(cluster)), "metadata": {"annotations": annotations}}
    return {part: patch[part] for part, found in (("spec", patch["spec"]), ("metadata", annotations)) if found}


def _surplus(found: Object, wanted: Object) -> Object:
    patch: Object = {}
    for name, value in found.items():
        if name not in wanted:
            patch[name] = None
        elif isinstance(value, dict) and isinstance(wanted[name], dict) and (inner := _surplus(value, wanted[name])):
            patch[name] = inner
    return patch


def _copied_annotations(cluster: Object) -> dict[str, str]:
    """Annotations of the Cluster that the planner reads. None has a long value; users write any."""
    found = {name: annotations_of(cluster).get(name, "") for name in names.COPIED_TO_CONTROL_PLANE}
    return {name: value for name, value in found.items() if 0 < len(value) <= _MAX_ANNOTATION}


def _size(annotations: Mapping[str, str]) -> int:
    return sum(len(name) + len(value.encode()) for name, value in annotations.items())


def _previous_spec(cluster: Object, existing: Object | None, encoded: str) -> str:
    """The spec that all machines had before the version was changed, or before a restore changed the spec.

    Snapshots that are taken before the change contain it. Without enough space, they have no copy of the spec.
    """
    if existing is None:
        return ""
    marks, before = annotations_of(existing), existing.get("spec") or {}
    request = rke_config(cluster).get(RESTORE)
    changes_version = before.get("kubernetesVersion") != cluster["spec"].get("kubernetesVersion")
    is_restored = request != before.get(RESTORE) and restores_spec(request)
    is_new = (changes_version or is_restored) and cluster_spec.is_applied(existing)
    previous = marks.get(names.CLUSTER_SPEC if is_new else names.PREVIOUS_SPEC, "")
    return previous if len(previous) + len(encoded) <= cluster_spec.MAX_ENCODED else ""


def _path_in_control_plane(path: str) -> str | None:
    """The path in the RKEControlPlane of a field of rkeConfig; None if it is not copied."""
    field = path.removeprefix("spec.rkeConfig.")
    copied = field != path and field.partition(".")[0].partition("[")[0] in CONFIGURATION
    return f"spec.{field}" if copied else None


def core_cluster(cluster: Object, plane: Object | None) -> Object:
    """Cluster API's Cluster, with the endpoint that the control plane reports.

    Cluster API copies an endpoint once; this follows when the machine behind it is replaced. With infrastructure of
    another provider, which may have a load balancer, the endpoint is left to Cluster API.
    """
    owners = [owner_reference(PROVISIONING_CLUSTER, cluster, controller=True)]
    obj = _object(CLUSTER, cluster, annotations=_autoscaling(cluster), ownerReferences=owners)
    spec = {
        "infrastructureRef": infrastructure_reference(cluster),
        "controlPlaneRef": _reference(CONTROL_PLANE, cluster["metadata"]["name"]),
    }
    reported = ((plane or {}).get("spec") or {}).get("controlPlaneEndpoint")
    endpoint = reported if has_own_infrastructure(cluster) else None
    return obj | {"spec": spec | ({"controlPlaneEndpoint": endpoint} if endpoint else {})}


def infrastructure_reference(cluster: Object) -> Object:
    """A Cluster API reference: group without version, which the CRD determines."""
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
    """An object with the cluster's name and namespace."""
    identity = {"name": cluster["metadata"]["name"], "namespace": cluster["metadata"]["namespace"]}
    given = {name: value for name, value in meta.items() if value}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {**identity, **given}}
