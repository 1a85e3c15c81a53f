"""MachineHealthChecks with their Cluster, Machines and Nodes, and one reconcile over them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_HEALTH_CHECK, NODE
from herder.api.capi.names import CLUSTER_NAME
from herder.controllers.capi.machinehealthcheck import CONTROLLER
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Decision, Observe, Patch
from herder.engine.runtime.view import Observed, Unreachable
from tests.support.builders import (
    new_cluster,
    new_condition,
    new_machine,
    new_object,
    owner_reference,
    patches_of,
    reconcile,
)
from tests.support.views import NOW


def ago(seconds: float) -> str:
    return timestamp(NOW - timedelta(seconds=seconds))


def aged_condition(type_: str, status: str, seconds: float = 3600, **more: str) -> Object:
    """A condition that changed to this status so many seconds ago."""
    return new_condition(type_, status, f"{type_}Reason", since=ago(seconds)) | more


def cluster(*, initialized: str = "True", infrastructure: str = "True", since: float = 3600, **spec: Any) -> Object:
    conditions = [
        aged_condition("ControlPlaneInitialized", initialized, since),
        aged_condition("InfrastructureReady", infrastructure, since),
    ]
    return new_cluster("c", "ns", spec=spec, status={"conditions": conditions})


def machine(
    name: str,
    *,
    node: str | None = "",
    created: float = 7200,
    conditions: Iterable[Object] = (),
    legacy: Iterable[Object] = (),
    labels: dict[str, str] | None = None,
    **metadata: Any,
) -> Object:
    """A Machine. Its Node has the same name by default; None means that it has no Node."""
    status: Object = {
        "conditions": list(conditions),
        "deprecated": {"v1beta1": {"conditions": list(legacy)}},
    }
    if node is not None:
        status["nodeRef"] = {"name": node or name}
    return new_machine(
        name,
        "ns",
        cluster="c",
        labels={"pool": "p", **(labels or {})},
        metadata={"creationTimestamp": ago(created), "generation": 1, **metadata},
        status=status,
    )


def node(name: str, ready: str = "True", seconds: float = 3600) -> Object:
    return new_object(NODE, name, spec={}, status={"conditions": [aged_condition("Ready", ready, seconds)]})


UNREADY = [
    {"type": "Ready", "status": "Unknown", "timeoutSeconds": 300},
    {"type": "Ready", "status": "False", "timeoutSeconds": 300},
]


def health_check(
    *,
    checks: Object | None = None,
    remediation: Object | None = None,
    annotations: dict[str, str] | None = None,
    status: Object | None = None,
    adopted: bool = True,
) -> Object:
    spec: Object = {
        "clusterName": "c",
        "selector": {"matchLabels": {"pool": "p"}},
        "checks": {"unhealthyNodeConditions": UNREADY} if checks is None else checks,
    }
    if remediation:
        spec["remediation"] = remediation
    return new_object(
        MACHINE_HEALTH_CHECK,
        "mhc",
        "ns",
        labels={CLUSTER_NAME: "c"} if adopted else {},
        annotations=annotations,
        owners=[owner_reference(CLUSTER, "c", controller=False)] if adopted else [],
        metadata={"generation": 2},
        spec=spec,
        status=status or {},
    )


def reconcile_health_check(
    health_check_object: Object,
    machines: Iterable[Object] = (),
    nodes: Iterable[Object] | None = None,
    *,
    in_cluster: Object | None = None,
    others: Iterable[Object] = (),
    dynamic_kinds: Iterable[Kind] = (),
    unreachable: str = "",
    synced: bool = True,
    now: datetime = NOW,
) -> Decision:
    """One reconcile. By default, all Nodes that the Machines reference exist and are ready."""
    machine_list = list(machines)
    if nodes is None:
        node_names = [each["status"]["nodeRef"]["name"] for each in machine_list if "nodeRef" in each["status"]]
        nodes = [node(name) for name in node_names]
    observed_nodes = tuple(nodes)

    def observed(subscription: Observe) -> Observed | Unreachable | None:
        assert (subscription.cluster, subscription.kind) == ("ns/c", NODE)
        if unreachable:
            return Unreachable(unreachable, now)
        return Observed(observed_nodes, now) if synced else None

    return reconcile(
        CONTROLLER,
        "ns/mhc",
        health_check_object,
        in_cluster or cluster(),
        *machine_list,
        *others,
        now=now,
        observed=observed,
        dynamic_kinds=dynamic_kinds,
    )


def patches(decision: Decision, kind: Kind) -> dict[str, Patch]:
    """The patches of objects of this kind by name."""
    return {patch.ref.name: patch for patch in patches_of(decision, kind)}


def machine_conditions(decision: Decision) -> dict[str, dict[str, str]]:
    """The conditions written to each Machine: `status/reason` by type."""
    return {
        name: {
            each["type"]: f"{each['status']}/{each['reason']}" for each in patch.patch["status"].get("conditions", [])
        }
        for name, patch in patches(decision, MACHINE).items()
    }


def health_check_status(decision: Decision) -> Object:
    """The status that is written to the MachineHealthCheck, if any."""
    found = [patch for patch in patches_of(decision, MACHINE_HEALTH_CHECK) if patch.subresource == "status"]
    return found[0].patch["status"] if found else {}
