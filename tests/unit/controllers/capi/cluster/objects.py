"""Clusters, their members and provider objects, and one reconcile of the Cluster controller over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from herder.api.capi.conditions import Condition, condition
from herder.api.capi.kinds import CLUSTER, MACHINE_DEPLOYMENT, MACHINE_POOL, MACHINE_SET, SECRET_METADATA
from herder.api.capi.names import CLUSTER_FINALIZER, CLUSTER_NAME
from herder.controllers.capi.cluster.controller import CONTROLLER
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Decision, Patch
from herder.engine.runtime.view import ConnectionStatus, View
from tests.support.builders import (
    condition_fields,
    new_definition,
    new_machine,
    new_object,
    object_reference,
    owner_reference,
    patched,
    patches_of,
    reconcile,
)
from tests.support.views import view_of

INFRA = Kind("infrastructure.example", "v1", "FarmCluster", "farmclusters")
PLANE = Kind("controlplane.example", "v1", "FarmControlPlane", "farmcontrolplanes")
DELETING = {"deletionTimestamp": "2026-01-01T11:59:00Z"}
ENDPOINT = {"host": "10.0.0.1", "port": 6443}
INFRA_REF = object_reference(INFRA, "c-infra")
PLANE_REF = object_reference(PLANE, "c-plane")
OWNER = owner_reference(CLUSTER, "c", controller=False)
PROVISIONED = {"initialization": {"provisioned": True}}
INITIALIZED = {"initialization": {"controlPlaneInitialized": True}}
FULLY_INITIALIZED = {"infrastructureProvisioned": True, "controlPlaneInitialized": True}
DEFINITIONS = (new_definition(INFRA), new_definition(PLANE))

CREATED = {"generation": 1, "creationTimestamp": "2026-01-01T10:00:00Z"}


def cluster(
    *,
    infrastructure: bool = True,
    control_plane: bool = True,
    metadata: Object | None = None,
    status: Object | None = None,
    **spec: Any,
) -> Object:
    """The reconciled Cluster, which references an infrastructure object and a control plane object."""
    references = ({"infrastructureRef": INFRA_REF} if infrastructure else {}) | (
        {"controlPlaneRef": PLANE_REF} if control_plane else {}
    )
    return new_object(
        CLUSTER,
        "c",
        "ns",
        finalizers=[CLUSTER_FINALIZER],
        metadata=CREATED | (metadata or {}),
        spec=references | spec,
        status=status or {},
    )


def infra(status: Object | None = None, **options: Any) -> Object:
    return _provider_object(INFRA, "c-infra", status, **options)


def plane(status: Object | None = None, **options: Any) -> Object:
    return _provider_object(PLANE, "c-plane", status, **options)


def _provider_object(
    kind: Kind, name: str, status: Object | None, *, metadata: Object | None = None, **spec: Any
) -> Object:
    """An adopted object of a provider, unless `metadata` overrides its owner or labels."""
    return new_object(
        kind,
        name,
        "ns",
        owners=[OWNER],
        labels={CLUSTER_NAME: "c"},
        metadata=CREATED | (metadata or {}),
        spec=spec,
        status=status or {},
    )


def machine(
    name: str,
    *conditions: Condition,
    control_plane: bool = False,
    owned: bool = False,
    metadata: Object | None = None,
    **status: Any,
) -> Object:
    return new_machine(
        name,
        "ns",
        cluster="c",
        control_plane=control_plane,
        owners=[OWNER] if owned else [],
        metadata=CREATED | (metadata or {}),
        status={"conditions": [*conditions], **status},
    )


def healthy_machine(name: str, **options: Any) -> Object:
    types = ("Ready", "Available", "UpToDate")
    return machine(name, *(condition(type_, "True", type_) for type_ in types), **options)


def pool(
    name: str,
    *conditions: Condition,
    kind: Kind = MACHINE_DEPLOYMENT,
    owned: bool = True,
    desired: int = 3,
    metadata: Object | None = None,
    **status: Any,
) -> Object:
    """A MachineDeployment, or another kind that has replicas."""
    return new_object(
        kind,
        name,
        "ns",
        labels={CLUSTER_NAME: "c"},
        owners=[OWNER] if owned else [],
        metadata=CREATED | (metadata or {}),
        spec={"replicas": desired},
        status={"conditions": [*conditions], **status},
    )


def machine_set(name: str, *conditions: Condition, **options: Any) -> Object:
    return pool(name, *conditions, kind=MACHINE_SET, **options)


def machine_pool(name: str, **options: Any) -> Object:
    return pool(name, kind=MACHINE_POOL, **options)


def secret(name: str, *, revision: str = "77", annotations: Mapping[str, str] | None = None) -> Object:
    metadata = CREATED | {"resourceVersion": revision, "annotations": dict(annotations or {})}
    return new_object(SECRET_METADATA, name, "ns", metadata=metadata)


def new_view(*objects: Object, **options: Any) -> View:
    """A view of Cluster ns/c; `options` are those of `reconcile_cluster`."""
    return view_of(CONTROLLER, "ns/c", objects, **_view_options(**options))


def reconcile_cluster(*objects: Object, **options: Any) -> Decision:
    """One reconcile of Cluster ns/c; `options` are `connection`, its connection status, and those of `view_of`."""
    return reconcile(CONTROLLER, "ns/c", *objects, **_view_options(**options))


def _view_options(*, connection: ConnectionStatus | None = None, **options: Any) -> dict[str, Any]:
    return {"dynamic_kinds": (INFRA, PLANE), "connections": {"ns/c": connection} if connection else {}, **options}


def patches(decision: Decision, kind: Kind, subresource: str = "") -> list[Patch]:
    return [patch for patch in patches_of(decision, kind) if patch.subresource == subresource]


def status_after(*objects: Object, **options: Any) -> Object:
    """The Cluster's status after one reconcile."""
    found = next(obj for obj in objects if obj["kind"] == "Cluster")
    status: Object = patched(found, reconcile_cluster(*objects, **options)).get("status") or {}
    return status


def status_condition(status: Object, type_: str) -> tuple[str, str, str]:
    """Status, reason and message of a condition."""
    return condition_fields({"status": status}, type_)


def legacy_condition(status: Object, type_: str) -> Condition | None:
    """A condition of the v1beta1 list, without its lastTransitionTime."""
    conditions: Iterable[Condition] = status["deprecated"]["v1beta1"]["conditions"]
    found = next((known for known in conditions if known["type"] == type_), None)
    return {field: value for field, value in found.items() if field != "lastTransitionTime"} if found else None
