"""Machines, plan Secrets and control planes as the API server serves them, and reconciles of the planner."""

from __future__ import annotations

from typing import Any

from herder.api.capi.kinds import CLUSTER, SECRET
from herder.api.capi.names import CLUSTER_NAME as CAPI_CLUSTER_NAME
from herder.api.rke import names
from herder.api.rke.kinds import BEACON, BOOTSTRAP, CONTROL_PLANE, PLAN_SECRET
from herder.api.rke.node.plan import Instruction, Plan, file
from herder.api.rke.node.plan_secret import PlanSecret, encoded
from herder.api.settings import Settings
from herder.controllers.planner import controller
from herder.controllers.planner.rollout.machines import PlanEntry
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision
from tests.support.builders import (
    new_cluster,
    new_condition,
    new_machine,
    new_object,
    object_reference,
    owner_reference,
    patches_of,
    reconcile,
)

NAMESPACE, NAME = "fleet-default", "demo"
ETCD, PLANE, WORKER = names.ETCD_ROLE, names.CONTROL_PLANE_ROLE, names.WORKER_ROLE
ALL = (ETCD, PLANE, WORKER)
SERVER = (ETCD, PLANE)


def machine(name: str, *, deleting: bool = False, ready: bool = True, address: str = "", **status: Any) -> Object:
    """A Machine of the cluster; with `address`, it has a Node. `status` are further fields of its status."""
    status = {"conditions": [new_condition("InfrastructureReady", "True" if ready else "False")], **status}
    if address:
        status |= {
            "addresses": [{"type": "InternalIP", "address": address}],
            "nodeInfo": {"kubeletVersion": "v1.33.4+k3s1"},
            "nodeRef": {"name": name},
        }
    spec = {"bootstrap": {"configRef": object_reference(BOOTSTRAP, name)}}
    return new_machine(name, NAMESPACE, cluster=NAME, deleting=deleting, spec=spec, status=status)


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
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    data: dict[str, str] | None = None,
) -> Object:
    meta_labels = {
        CAPI_CLUSTER_NAME: NAME,
        names.CLUSTER_NAME: NAME,
        names.MACHINE_NAME: name,
        **dict.fromkeys(roles, "true"),
    }
    meta_labels |= {names.INIT_NODE: "true"} if init else {}
    contents = dict(data or {})
    if plan is not None:
        contents |= {"plan": plan.to_json().decode(), "plan-state": state}
        if state == "succeeded":
            contents["appliedPlan"] = contents["plan"]
    if unhealthy:
        contents["probe-statuses"] = '{"kubelet":{"failureCount":3}}'
    return new_object(
        PLAN_SECRET,
        names.plan_secret(name),
        NAMESPACE,
        labels=meta_labels | (labels or {}),
        metadata={"annotations": annotations or {}, "resourceVersion": "1"},
        data={key: encoded(value) for key, value in contents.items()},
        type=names.PLAN_SECRET_TYPE,
    )


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
    annotations = {names.JOIN_URL: join_url} if join_url else {}
    more_annotations = secret.pop("annotations", None) or {}
    secret_object = plan_secret(name, roles, annotations=annotations | more_annotations, **secret)
    return PlanEntry(
        machine(name, deleting=deleting, ready=ready, address=address, **(status or {})),
        PlanSecret(secret_object),
    )


def control_plane(status: Object | None = None, annotations: dict[str, str] | None = None, **spec: Any) -> Object:
    desired = {"kubernetesVersion": "v1.33.4+k3s1", "clusterName": NAME, "managementClusterName": "", **spec}
    owner = owner_reference(CLUSTER, NAME, controller=False)
    metadata = {"generation": 1, "annotations": annotations or {}}
    return new_object(
        CONTROL_PLANE, NAME, NAMESPACE, owners=[owner], metadata=metadata, spec=desired, status=status or {}
    )


def cluster(*, paused: bool = False, deleting: bool = False) -> Object:
    spec = {"controlPlaneRef": object_reference(CONTROL_PLANE, NAME)}
    return new_cluster(NAME, NAMESPACE, paused=paused, deleting=deleting, spec=spec)


def beacon(owner: str = "") -> Object:
    return new_object(BEACON, NAME, NAMESPACE, status={"owner": owner} if owner else {})


def bootstrap(name: str, **annotations: str) -> Object:
    labels, spec = {CAPI_CLUSTER_NAME: NAME}, {"clusterName": NAME}
    return new_object(BOOTSTRAP, name, NAMESPACE, labels=labels, metadata={"annotations": annotations}, spec=spec)


def secret(name: str, namespace: str = NAMESPACE, **options: Any) -> Object:
    """A Secret of the cluster; `options` are those of `new_object`."""
    return new_object(SECRET, name, namespace, **options)


# --- reconciles of the planner --------------------------------------------------------------------------------------

TOKENS = secret(
    names.tokens_secret(NAME),
    type=names.TOKENS_SECRET_TYPE,
    data={"serverToken": encoded("S"), "agentToken": encoded("A")},
)
CLUSTER_OBJECTS = (cluster(), control_plane(), beacon(), TOKENS)


def machine_with_plan(name: str = "a", roles: tuple[str, ...] = ALL, **options: Any) -> tuple[Object, Object]:
    """A Machine and its plan Secret; `options` are those of `plan_secret`."""
    annotations = {names.INTERNAL_ADDRESS: "10.0.0.1"} | (options.pop("annotations", None) or {})
    return machine(name), plan_secret(name, roles, annotations=annotations, **options)


def reconcile_planner(
    *existing: Object, cluster_objects: tuple[Object, ...] = CLUSTER_OBJECTS, results: Any = None, flags: Any = None
) -> Decision:
    """One reconcile of the control plane; `flags` are settings of the manager."""
    settings = Settings(flags=flags or {}).get
    objects = (*cluster_objects, *existing)
    return reconcile(controller.CONTROLLER, f"{NAMESPACE}/{NAME}", *objects, results=results, settings=settings)


def control_plane_conditions(decision: Decision) -> dict[str, tuple[str, str]]:
    """Status and message of each condition that a decision sets on the control plane."""
    (patch,) = (each for each in patches_of(decision, CONTROL_PLANE) if each.subresource == "status")
    return {each["type"]: (each["status"], each["message"]) for each in patch.patch["status"]["conditions"]}
