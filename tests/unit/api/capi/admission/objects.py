"""Valid objects of each kind with all defaults set, and a helper that returns changed copies."""

from __future__ import annotations

import copy
from typing import Any

from herder.api.capi import kinds
from herder.engine.meta.kinds import Kind, Object
from tests.support.builders import new_manifest

CONFIG = {"apiGroup": "bootstrap.example.com", "kind": "Config", "name": "c"}
INFRASTRUCTURE = {"apiGroup": "infrastructure.example.com", "kind": "Machine", "name": "i"}
CLUSTER_LABEL = {"cluster.x-k8s.io/cluster-name": "prod"}
MISSING: Any = object()


def _valid(kind: Kind, spec: Object, labels: Object | None = None) -> Object:
    return new_manifest(kind, "one", labels=labels, spec=spec)


def edited(obj: Object, **changes: Any) -> Object:
    """A copy in which `spec__template__spec` and so on have the given values; MISSING removes the field."""
    return changed(obj, {name.replace("__", "."): value for name, value in changes.items()})


def changed(obj: Object, changes: dict[str, Any]) -> Object:
    """A copy in which each path ("spec.template.spec") has the given value; MISSING removes the field."""
    result = copy.deepcopy(obj)
    for path, value in changes.items():
        *parents, last = path.split(".")
        parent = result
        for name in parents:
            parent = parent.setdefault(name, {})
        if value is MISSING:
            parent.pop(last, None)
        else:
            parent[last] = value
    return result


def machine_spec(**more: Any) -> Object:
    return {"clusterName": "prod", "bootstrap": {"configRef": CONFIG}, "infrastructureRef": INFRASTRUCTURE, **more}


CLUSTER = _valid(kinds.CLUSTER, {"infrastructureRef": {**INFRASTRUCTURE, "kind": "Cluster"}})
MACHINE = _valid(kinds.MACHINE, machine_spec(deletion={"nodeDeletionTimeoutSeconds": 10}), CLUSTER_LABEL)
MACHINE_SET = _valid(
    kinds.MACHINE_SET,
    {
        "clusterName": "prod",
        "replicas": 3,
        "selector": {"matchLabels": {"pool": "a"}},
        "template": {"metadata": {"labels": {"pool": "a"}}, "spec": machine_spec()},
    },
    CLUSTER_LABEL,
)
_POOL_LABELS = {"pool": "a", **CLUSTER_LABEL}
MACHINE_DEPLOYMENT = _valid(
    kinds.MACHINE_DEPLOYMENT,
    {
        "clusterName": "prod",
        "replicas": 3,
        "selector": {"matchLabels": _POOL_LABELS},
        "rollout": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}},
        "template": {"metadata": {"labels": _POOL_LABELS}, "spec": machine_spec()},
    },
    CLUSTER_LABEL,
)
MACHINE_POOL = _valid(
    kinds.MACHINE_POOL,
    {
        "clusterName": "prod",
        "replicas": 3,
        "template": {"spec": machine_spec(deletion={"nodeDeletionTimeoutSeconds": 10})},
    },
    CLUSTER_LABEL,
)
MACHINE_HEALTH_CHECK = _valid(
    kinds.MACHINE_HEALTH_CHECK,
    {
        "clusterName": "prod",
        "selector": {"matchLabels": {"pool": "a"}},
        "checks": {"nodeStartupTimeoutSeconds": 600},
    },
    CLUSTER_LABEL,
)
MACHINE_DRAIN_RULE = _valid(kinds.MACHINE_DRAIN_RULE, {"drain": {"behavior": "Drain", "order": 5}})
CLUSTER_RESOURCE_SET = _valid(
    kinds.CLUSTER_RESOURCE_SET,
    {
        "clusterSelector": {"matchLabels": {"cni": "x"}},
        "resources": [{"kind": "ConfigMap", "name": "x"}],
        "strategy": "ApplyOnce",
    },
)
CLUSTER_RESOURCE_SET_BINDING = _valid(kinds.CLUSTER_RESOURCE_SET_BINDING, {"clusterName": "prod"})

VALID: dict[Kind, Object] = {
    kinds.CLUSTER: CLUSTER,
    kinds.MACHINE: MACHINE,
    kinds.MACHINE_SET: MACHINE_SET,
    kinds.MACHINE_DEPLOYMENT: MACHINE_DEPLOYMENT,
    kinds.MACHINE_POOL: MACHINE_POOL,
    kinds.MACHINE_HEALTH_CHECK: MACHINE_HEALTH_CHECK,
    kinds.MACHINE_DRAIN_RULE: MACHINE_DRAIN_RULE,
    kinds.CLUSTER_RESOURCE_SET: CLUSTER_RESOURCE_SET,
    kinds.CLUSTER_RESOURCE_SET_BINDING: CLUSTER_RESOURCE_SET_BINDING,
}
