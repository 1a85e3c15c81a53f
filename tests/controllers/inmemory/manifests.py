"""A whole in-memory cluster as a user writes it."""

from __future__ import annotations

from herder.api.capi.kinds import CLUSTER, MACHINE_SET
from herder.api.inmemory import kinds
from herder.engine.meta.kinds import Kind, Object

NAMESPACE = "default"


def obj(kind: Kind, name: str, spec: Object, *, annotations: dict[str, str] | None = None) -> Object:
    metadata: Object = {"name": name, "namespace": NAMESPACE}
    if annotations:
        metadata["annotations"] = annotations
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec}


def reference(kind: Kind, name: str) -> Object:
    return {"apiGroup": kind.group, "kind": kind.kind, "name": name}


def template(kind: Kind, name: str, annotations: dict[str, str] | None = None) -> Object:
    inner: Object = {"spec": {}}
    if annotations:
        inner["metadata"] = {"annotations": annotations}
    return obj(kind, name, {"template": inner})


def cluster(
    name: str,
    *,
    control_planes: int = 1,
    workers: int = 3,
    version: str = "v1.35.0",
    cluster_annotations: dict[str, str] | None = None,
    machine_annotations: dict[str, str] | None = None,
) -> list[tuple[Kind, Object]]:
    machine_template = reference(kinds.IN_MEMORY_MACHINE_TEMPLATE, f"{name}-machines")
    bootstrap_template = reference(kinds.IN_MEMORY_BOOTSTRAP_TEMPLATE, f"{name}-bootstrap")
    plane: Object = {
        "replicas": control_planes,
        "version": version,
        "machineTemplate": {"spec": {"infrastructureRef": machine_template}},
    }
    worker: Object = {
        "clusterName": name,
        "version": version,
        "bootstrap": {"configRef": bootstrap_template},
        "infrastructureRef": machine_template,
    }
    labels = {"cluster.x-k8s.io/cluster-name": name, "pool": "workers"}
    pool: Object = {
        "clusterName": name,
        "replicas": workers,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": worker},
    }
    whole: Object = {
        "infrastructureRef": reference(kinds.IN_MEMORY_CLUSTER, name),
        "controlPlaneRef": reference(kinds.IN_MEMORY_CONTROL_PLANE, f"{name}-control-plane"),
    }
    return [
        (CLUSTER, obj(CLUSTER, name, whole)),
        (kinds.IN_MEMORY_CLUSTER, obj(kinds.IN_MEMORY_CLUSTER, name, {}, annotations=cluster_annotations)),
        (kinds.IN_MEMORY_CONTROL_PLANE, obj(kinds.IN_MEMORY_CONTROL_PLANE, f"{name}-control-plane", plane)),
        (
            kinds.IN_MEMORY_MACHINE_TEMPLATE,
            template(kinds.IN_MEMORY_MACHINE_TEMPLATE, f"{name}-machines", machine_annotations),
        ),
        (kinds.IN_MEMORY_BOOTSTRAP_TEMPLATE, template(kinds.IN_MEMORY_BOOTSTRAP_TEMPLATE, f"{name}-bootstrap")),
        (MACHINE_SET, obj(MACHINE_SET, f"{name}-workers", pool)),
    ]
