"""A Cluster with all that may be around it, for single passes of its controller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from herder.api.capi.conditions import Condition, condition
from herder.api.capi.kinds import (
    CLUSTER,
    DEFINITION,
    MACHINE,
    MACHINE_DEPLOYMENT,
    MACHINE_POOL,
    MACHINE_SET,
    SECRET_METADATA,
)
from herder.api.capi.names import CLUSTER_FINALIZER, CLUSTER_NAME, CONTROL_PLANE
from herder.controllers.capi.cluster.controller import CONTROLLER, reconcile
from herder.engine.meta.kinds import Kind, Object
from herder.engine.patch import apply_merge_patch
from herder.engine.runtime.decision import Decision, EffectKey, EffectResult, Parallel, Patch, Write
from herder.engine.runtime.view import ConnectionStatus, View
from tests.support.views import NOW, view_of

INFRA = Kind("infrastructure.example", "v1", "FarmCluster", "farmclusters")
PLANE = Kind("controlplane.example", "v1", "FarmControlPlane", "farmcontrolplanes")
LONG_AGO = "2026-01-01T10:00:00Z"
GOING = {"deletionTimestamp": "2026-01-01T11:59:00Z"}
ENDPOINT = {"host": "10.0.0.1", "port": 6443}
INFRA_REF = {"apiGroup": INFRA.group, "kind": INFRA.kind, "name": "c-infra"}
PLANE_REF = {"apiGroup": PLANE.group, "kind": PLANE.kind, "name": "c-plane"}
OWNER = {"apiVersion": CLUSTER.api_version, "kind": "Cluster", "name": "c", "uid": "Cluster-c"}
PROVISIONED = {"initialization": {"provisioned": True}}
INITIALIZED = {"initialization": {"controlPlaneInitialized": True}}
UP = {"infrastructureProvisioned": True, "controlPlaneInitialized": True}


def made(kind: Kind, name: str, *, meta: Object | None = None, **parts: Any) -> Object:
    metadata = {"name": name, "namespace": "ns", "generation": 1, "creationTimestamp": LONG_AGO, **(meta or {})}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **parts}


def cluster(
    *,
    infrastructure: bool = True,
    control_plane: bool = True,
    meta: Object | None = None,
    status: Object | None = None,
    **spec: Any,
) -> Object:
    references = ({"infrastructureRef": INFRA_REF} if infrastructure else {}) | (
        {"controlPlaneRef": PLANE_REF} if control_plane else {}
    )
    return made(
        CLUSTER,
        "c",
        meta={"finalizers": [CLUSTER_FINALIZER], **(meta or {})},
        spec=references | spec,
        status=status or {},
    )


def infra(status: Object | None = None, *, meta: Object | None = None, **spec: Any) -> Object:
    """Adopted already, unless the metadata says otherwise."""
    adopted = {"ownerReferences": [OWNER], "labels": {CLUSTER_NAME: "c"}}
    return made(INFRA, "c-infra", meta=adopted | (meta or {}), spec=spec, status=status or {})


def plane(status: Object | None = None, *, meta: Object | None = None, **spec: Any) -> Object:
    adopted = {"ownerReferences": [OWNER], "labels": {CLUSTER_NAME: "c"}}
    return made(PLANE, "c-plane", meta=adopted | (meta or {}), spec=spec, status=status or {})


def definition(kind: Kind, contract: str = "v1beta2") -> Object:
    name = f"{kind.plural}.{kind.group}"
    labels = {f"cluster.x-k8s.io/{contract}": kind.version} if contract else {}
    return {
        "apiVersion": DEFINITION.api_version,
        "kind": DEFINITION.kind,
        "metadata": {"name": name, "labels": labels},
    }


DEFINITIONS = (definition(INFRA), definition(PLANE))


def machine(
    name: str,
    *conditions: Condition,
    control_plane: bool = False,
    owned: bool = False,
    meta: Object | None = None,
    **status: Any,
) -> Object:
    labels = {CLUSTER_NAME: "c"} | ({CONTROL_PLANE: ""} if control_plane else {})
    merged = {"labels": labels} | ({"ownerReferences": [OWNER]} if owned else {}) | (meta or {})
    return made(MACHINE, name, meta=merged, spec={"clusterName": "c"}, status={"conditions": [*conditions], **status})


def good(name: str, **more: Any) -> Object:
    types = ("Ready", "Available", "UpToDate")
    return machine(name, *(condition(type_, "True", type_) for type_ in types), **more)


def pool(
    name: str,
    *conditions: Condition,
    kind: Kind = MACHINE_DEPLOYMENT,
    owned: bool = True,
    wanted: int = 3,
    meta: Object | None = None,
    **status: Any,
) -> Object:
    merged = {"labels": {CLUSTER_NAME: "c"}} | ({"ownerReferences": [OWNER]} if owned else {}) | (meta or {})
    return made(kind, name, meta=merged, spec={"replicas": wanted}, status={"conditions": [*conditions], **status})


def machine_set(name: str, *conditions: Condition, **more: Any) -> Object:
    return pool(name, *conditions, kind=MACHINE_SET, **more)


def machine_pool(name: str, **more: Any) -> Object:
    return pool(name, kind=MACHINE_POOL, **more)


def secret(name: str, *, revision: str = "77", annotations: Mapping[str, str] | None = None) -> Object:
    meta = {"resourceVersion": revision, "annotations": dict(annotations or {})}
    return made(SECRET_METADATA, name, meta=meta)


def look(
    *objects: Object,
    now: datetime = NOW,
    link: ConnectionStatus | None = None,
    results: Mapping[EffectKey, EffectResult] | None = None,
) -> View:
    connections = {"ns/c": link} if link else {}
    return view_of(
        CONTROLLER, "ns/c", objects, now=now, followed=(INFRA, PLANE), results=results, connections=connections
    )


def decide(*objects: Object, **more: Any) -> Decision:
    view = look(*objects, **more)
    decision = reconcile(view)
    view.check_unchanged()
    return decision


def writes(decision: Decision) -> list[Write]:
    return [write for step in decision.writes for write in (step.writes if isinstance(step, Parallel) else (step,))]


def patches(decision: Decision, kind: Kind, subresource: str = "") -> list[Patch]:
    return [
        write
        for write in writes(decision)
        if isinstance(write, Patch) and write.ref.kind == kind and write.subresource == subresource
    ]


def status_after(*objects: Object, **more: Any) -> Object:
    """The Cluster's status as one pass leaves it."""
    found = next(obj for obj in objects if obj["kind"] == "Cluster")
    for patch in patches(decide(*objects, **more), CLUSTER, "status"):
        found = apply_merge_patch(found, patch.patch)
    status: Object = found.get("status") or {}
    return status


def told(status: Object, type_: str) -> tuple[str, str, str]:
    found = next(known for known in status["conditions"] if known["type"] == type_)
    return found["status"], found["reason"], found["message"]


def told_before(status: Object, type_: str) -> Condition | None:
    """In the list of v1beta1, without its time."""
    conditions: Iterable[Condition] = status["deprecated"]["v1beta1"]["conditions"]
    found = next((known for known in conditions if known["type"] == type_), None)
    return {field: value for field, value in found.items() if field != "lastTransitionTime"} if found else None
