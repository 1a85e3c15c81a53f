"""Machines, plan Secrets and control planes as the API server would show them."""

from __future__ import annotations

from typing import Any

from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.capi.names import CLUSTER_NAME as CAPI_CLUSTER_NAME
from herder.api.rke import names
from herder.api.rke.kinds import BEACON, BOOTSTRAP, CONTROL_PLANE
from herder.api.rke.node.plan import Instruction, Plan, file
from herder.api.rke.node.plan_secret import PlanSecret, encoded
from herder.controllers.planner.rollout.machines import PlanEntry
from herder.engine.meta.kinds import Object

NAMESPACE, NAME = "fleet-default", "demo"
ETCD, PLANE, WORKER = names.ETCD_ROLE, names.CONTROL_PLANE_ROLE, names.WORKER_ROLE
ALL = (ETCD, PLANE, WORKER)
SERVER = (ETCD, PLANE)


def made(api_version: str, kind: str, name: str, **parts: Any) -> Object:
    meta = {"name": name, "namespace": NAMESPACE, "uid": f"{kind}-{name}", "resourceVersion": "1"}
    meta |= parts.pop("metadata", {})
    return {"apiVersion": api_version, "kind": kind, "metadata": meta, **parts}


def machine(name: str, *, deleting: bool = False, ready: bool = True, address: str = "", **status: Any) -> Object:
    infrastructure = {"type": "InfrastructureReady", "status": "True" if ready else "False", "message": ""}
    status = {"conditions": [infrastructure], **status}
    if address:
        status |= {
            "addresses": [{"type": "InternalIP", "address": address}],
            "nodeInfo": {"kubeletVersion": "v1.33.4+k3s1"},
            "nodeRef": {"name": name},
        }
    reference = {"apiGroup": BOOTSTRAP.group, "kind": BOOTSTRAP.kind, "name": name}
    meta: Object = {"labels": {CAPI_CLUSTER_NAME: NAME}}
    if deleting:
        meta["deletionTimestamp"] = "2026-01-01T11:59:50Z"
    return made(
        MACHINE.api_version,
        MACHINE.kind,
        name,
        metadata=meta,
        spec={"clusterName": NAME, "bootstrap": {"configRef": reference}},
        status=status,
    )


def plan_of(version: str = "v1.33.4", *, stamp: str = "1", minor: str = "") -> Plan:
    install = Instruction(
        name="install",
        image=f"rancher/system-agent-installer-k3s:{version}-k3s1",
        command="sh",
        env=(f"RESTART_STAMP={stamp}", f"DRAIN_HASH={stamp}"),
    )
    return Plan(files=(file("/minor", minor, dynamic=True, minor=True),), instructions=(install,))


def plan_secret(
    name: str,
    roles: tuple[str, ...] = SERVER,
    *,
    init: bool = False,
    plan: Plan | None = None,
    state: str = "succeeded",
    unhealthy: bool = False,
    marks: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    data: dict[str, str] | None = None,
) -> Object:
    held = {CAPI_CLUSTER_NAME: NAME, names.CLUSTER_NAME: NAME, names.MACHINE_NAME: name, **dict.fromkeys(roles, "true")}
    held |= {names.INIT_NODE: "true"} if init else {}
    contents = dict(data or {})
    if plan is not None:
        contents |= {"plan": plan.to_json().decode(), "plan-state": state}
        if state == "succeeded":
            contents["appliedPlan"] = contents["plan"]
    if unhealthy:
        contents["probe-statuses"] = '{"kubelet":{"failureCount":3}}'
    meta = {"labels": held | (labels or {}), "annotations": marks or {}}
    written = {key: encoded(value) for key, value in contents.items()}
    secret = made("v1", "Secret", names.plan_secret(name), metadata=meta, data=written)
    return {**secret, "type": names.PLAN_SECRET_TYPE}


def entry(
    name: str,
    roles: tuple[str, ...] = SERVER,
    *,
    join_url: str = "",
    deleting: bool = False,
    ready: bool = True,
    address: str = "",
    status: dict[str, Any] | None = None,
    **secret: Any,
) -> PlanEntry:
    marks = {names.JOIN_URL: join_url} if join_url else {}
    given = secret.pop("marks", None) or {}
    held = plan_secret(name, roles, marks=marks | given, **secret)
    return PlanEntry(
        machine(name, deleting=deleting, ready=ready, address=address, **(status or {})),
        PlanSecret(held),
    )


def control_plane(status: Object | None = None, annotations: dict[str, str] | None = None, **spec: Any) -> Object:
    owner = {"apiVersion": CLUSTER.api_version, "kind": "Cluster", "name": NAME, "uid": f"Cluster-{NAME}"}
    wanted = {"kubernetesVersion": "v1.33.4+k3s1", "clusterName": NAME, "managementClusterName": "", **spec}
    meta = {"ownerReferences": [owner], "generation": 1, "annotations": annotations or {}}
    return made(CONTROL_PLANE.api_version, CONTROL_PLANE.kind, NAME, metadata=meta, spec=wanted, status=status or {})


def cluster(*, paused: bool = False, deleting: bool = False) -> Object:
    meta = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {}
    status = {"initialization": {"infrastructureProvisioned": True}}
    reference = {"apiGroup": CONTROL_PLANE.group, "kind": CONTROL_PLANE.kind, "name": NAME}
    spec = {"controlPlaneRef": reference, **({"paused": True} if paused else {})}
    return made(CLUSTER.api_version, "Cluster", NAME, metadata=meta, spec=spec, status=status)


def beacon(owner: str = "") -> Object:
    return made(BEACON.api_version, "Beacon", NAME, status={"owner": owner} if owner else {})


def bootstrap(name: str, **annotations: str) -> Object:
    meta = {"labels": {CAPI_CLUSTER_NAME: NAME}, "annotations": annotations}
    return made(BOOTSTRAP.api_version, BOOTSTRAP.kind, name, metadata=meta, spec={"clusterName": NAME})
