"""Manifests of a whole in-memory cluster, with a standalone MachineSet for its workers."""

from __future__ import annotations

from typing import Any

from herder.api.capi.kinds import MACHINE_DEPLOYMENT, MACHINE_SET
from herder.api.capi.names import CLUSTER_NAME
from herder.api.inmemory.kinds import IN_MEMORY_BOOTSTRAP_TEMPLATE, IN_MEMORY_MACHINE_TEMPLATE
from herder.api.inmemory.manifest import in_memory_cluster, new_object, reference
from herder.engine.meta.kinds import Kind, Object


def cluster(name: str, *, workers: int = 3, version: str = "v1.35.0", **options: Any) -> list[tuple[Kind, Object]]:
    """All objects of a cluster, with all fields set: these tests have no defaulting webhooks."""
    labels = {CLUSTER_NAME: name, "pool": "workers"}
    machine = {
        "clusterName": name,
        "version": version,
        "bootstrap": {"configRef": reference(IN_MEMORY_BOOTSTRAP_TEMPLATE, name)},
        "infrastructureRef": reference(IN_MEMORY_MACHINE_TEMPLATE, name),
    }
    pool = {
        "clusterName": name,
        "replicas": workers,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": machine},
    }
    objects = in_memory_cluster(name, version=version, **options)
    others = [(kind, obj) for kind, obj in objects if kind != MACHINE_DEPLOYMENT]
    return [*others, new_object(MACHINE_SET, f"{name}-workers", pool)]
