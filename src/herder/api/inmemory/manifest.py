"""Build the objects of an in-memory cluster, for demos, tests and benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from herder.api.capi import kinds as capi
from herder.api.inmemory import kinds
from herder.engine.meta.kinds import Kind, Object


def in_memory_cluster(
    name: str,
    *,
    control_planes: int = 1,
    workers: int = 2,
    version: str = "v1.35.0",
    annotations: Mapping[str, str] | None = None,
    machine_annotations: Mapping[str, str] | None = None,
    deployment: Mapping[str, Any] | None = None,
) -> list[tuple[Kind, Object]]:
    """Return all objects of a cluster.

    `annotations` are set on the InMemoryCluster, `machine_annotations` on each machine and bootstrap object;
    `deployment` is merged into the MachineDeployment's spec.
    """
    metadata: Object = {"annotations": dict(machine_annotations or {})}
    template = {"template": {"metadata": metadata, "spec": {}}}
    infrastructure = reference(kinds.IN_MEMORY_MACHINE_TEMPLATE, name)
    control_plane = {
        "replicas": control_planes,
        "version": version,
        "machineTemplate": {"spec": {"infrastructureRef": infrastructure}},
    }
    cluster = {
        "infrastructureRef": reference(kinds.IN_MEMORY_CLUSTER, name),
        "controlPlaneRef": reference(kinds.IN_MEMORY_CONTROL_PLANE, name),
    }
    machine = {
        "clusterName": name,
        "version": version,
        "bootstrap": {"configRef": reference(kinds.IN_MEMORY_BOOTSTRAP_TEMPLATE, name)},
        "infrastructureRef": infrastructure,
    }
    machines = {"clusterName": name, "replicas": workers, "template": {"spec": machine}} | dict(deployment or {})
    return [
        new_object(kinds.IN_MEMORY_CLUSTER, name, {}, {"annotations": dict(annotations or {})}),
        new_object(kinds.IN_MEMORY_MACHINE_TEMPLATE, name, template),
        new_object(kinds.IN_MEMORY_BOOTSTRAP_TEMPLATE, name, template),
        new_object(kinds.IN_MEMORY_CONTROL_PLANE, name, control_plane),
        new_object(capi.CLUSTER, name, cluster),
        new_object(capi.MACHINE_DEPLOYMENT, f"{name}-workers", machines),
    ]


def reference(kind: Kind, name: str) -> Object:
    return {"apiGroup": kind.group, "kind": kind.kind, "name": name}


def new_object(kind: Kind, name: str, spec: Any, metadata: Object | None = None) -> tuple[Kind, Object]:
    meta = {"name": name} | (metadata or {})
    return kind, {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, "spec": spec}
