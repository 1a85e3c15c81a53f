"""A whole cluster of the in-memory provider as a user would write it: for demonstrations, tests and benchmarks."""

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
    """All objects of one cluster; `annotations` go on the infrastructure cluster, `machine_annotations` on each
    machine and bootstrap object, `deployment` into the MachineDeployment's spec."""
    marked: Object = {"annotations": dict(machine_annotations or {})}
    template = {"template": {"metadata": marked, "spec": {}}}
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
        made(kinds.IN_MEMORY_CLUSTER, name, {}, {"annotations": dict(annotations or {})}),
        made(kinds.IN_MEMORY_MACHINE_TEMPLATE, name, template),
        made(kinds.IN_MEMORY_BOOTSTRAP_TEMPLATE, name, template),
        made(kinds.IN_MEMORY_CONTROL_PLANE, name, control_plane),
        made(capi.CLUSTER, name, cluster),
        made(capi.MACHINE_DEPLOYMENT, f"{name}-workers", machines),
    ]


def reference(kind: Kind, name: str) -> Object:
    return {"apiGroup": kind.group, "kind": kind.kind, "name": name}


def made(kind: Kind, name: str, spec: Any, metadata: Object | None = None) -> tuple[Kind, Object]:
    meta = {"name": name} | (metadata or {})
    return kind, {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, "spec": spec}
