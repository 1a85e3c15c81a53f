"""Machines with their Cluster, owners, provider objects and Nodes."""

from __future__ import annotations

from typing import Any

from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET, NODE
from herder.api.capi.names import CLUSTER_NAME, MACHINE_FINALIZER
from herder.api.capi.nodes import NODE_RECORD
from herder.engine.meta.kinds import Kind, Object
from tests.support.builders import new_condition, new_machine, new_object, object_reference, owner_reference

TWO_HOURS_AGO = "2026-01-01T10:00:00Z"

INFRA = Kind("infrastructure.example", "v1", "PaddockMachine", "paddockmachines")
CONFIG = Kind("bootstrap.example", "v1", "PaddockConfig", "paddockconfigs")
CONTROL_PLANE = Kind("controlplane.example", "v1", "PaddockControlPlane", "paddockcontrolplanes")


def cluster(**options: Any) -> Object:
    """The Machine's Cluster; by default, its infrastructure and control plane are initialized."""
    initialized = new_condition("ControlPlaneInitialized", since=TWO_HOURS_AGO)
    status = {"initialization": {"infrastructureProvisioned": True}, "conditions": [initialized]}
    return _existing_object(CLUSTER, "north", **({"status": status} | options))


def machine(spec: Object | None = None, *, metadata: Object | None = None, status: Object | None = None) -> Object:
    """The reconciled Machine, which a MachineSet controls; `spec` and `metadata` override single fields."""
    references = {
        "bootstrap": {"configRef": object_reference(CONFIG, "ewe")},
        "infrastructureRef": object_reference(INFRA, "ewe"),
    }
    return new_machine(
        "ewe",
        "farm",
        cluster="north",
        labels={"cluster.x-k8s.io/set-name": "wool"},
        owners=[owner_reference(MACHINE_SET, "wool")],
        finalizers=[MACHINE_FINALIZER],
        metadata={"generation": 1, "creationTimestamp": TWO_HOURS_AGO} | (metadata or {}),
        spec=references | (spec or {}),
        status=status or {},
    )


def infra(**options: Any) -> Object:
    return _provider_object(INFRA, **options)


def provisioned_infra(**status: Any) -> Object:
    """The Machine's infrastructure object after its provider has finished."""
    return infra(spec={"providerID": "paddock://ewe"}, status={"initialization": {"provisioned": True}} | status)


def config(**options: Any) -> Object:
    return _provider_object(CONFIG, **options)


def _provider_object(kind: Kind, **options: Any) -> Object:
    """An object of a provider that the Machine controls."""
    owners, labels = [owner_reference(MACHINE, "ewe")], {CLUSTER_NAME: "north"}
    return _existing_object(kind, "ewe", owners=owners, labels=labels, **options)


def _existing_object(kind: Kind, name: str, *, metadata: Object | None = None, **options: Any) -> Object:
    created = {"creationTimestamp": TWO_HOURS_AGO}
    return new_object(kind, name, "farm", metadata=created | (metadata or {}), **({"spec": {}, "status": {}} | options))


def machine_set(spec: Object | None = None, *, revision: str = "1") -> Object:
    return _existing_object(
        MACHINE_SET,
        "wool",
        labels={"cluster.x-k8s.io/deployment-name": "flock"},
        annotations={"machinedeployment.clusters.x-k8s.io/revision": revision},
        spec={"template": {"spec": spec or {}}},
    )


def deployment(spec: Object | None = None, *, revision: str = "1", **more: Any) -> Object:
    return _existing_object(
        MACHINE_DEPLOYMENT,
        "flock",
        annotations={"machinedeployment.clusters.x-k8s.io/revision": revision},
        spec={"template": {"spec": spec or {}}, **more},
    )


HEALTHY = {"Ready": "True", "MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False"}


def node(
    name: str = "ewe-node",
    conditions: dict[str, Any] | None = None,
    *,
    metadata: Object | None = None,
    spec: Object | None = None,
) -> Object:
    """A Node as observed. The value of each condition is its status, or a tuple of status and message."""
    node_conditions = []
    for type_, value in (HEALTHY if conditions is None else conditions).items():
        status, message = value if isinstance(value, tuple) else (value, "")
        node_conditions.append(new_condition(type_, status, message=message, since=TWO_HOURS_AGO))
    full_node = new_object(
        NODE,
        name,
        metadata={"resourceVersion": "77"} | (metadata or {}),
        spec={"providerID": "paddock://ewe"} | (spec or {}),
        status={"conditions": node_conditions, "nodeInfo": {"kubeletVersion": "v1.36.0"}},
    )
    return NODE_RECORD.project(full_node)
