"""A MachineHealthCheck with its Cluster, Machines and Nodes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_HEALTH_CHECK, NODE
from herder.api.capi.names import CLUSTER_NAME
from herder.controllers.capi.machinehealthcheck import CONTROLLER
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Decision, Observe, Parallel, Patch, Write
from herder.engine.runtime.view import Observed, Unreachable
from tests.support.views import NOW, view_of


def ago(seconds: float) -> str:
    return timestamp(NOW - timedelta(seconds=seconds))


def known(type_: str, status: str, seconds: float = 3600, **more: str) -> Object:
    return {"type": type_, "status": status, "reason": f"{type_}Reason", "lastTransitionTime": ago(seconds), **more}


def made(kind: Kind, name: str, namespace: str = "ns", **parts: Any) -> Object:
    meta: Object = {"name": name, "uid": f"{kind.kind}-{name}", **parts.pop("meta", {})}
    if namespace:
        meta["namespace"] = namespace
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, **parts}


def cluster(*, initialized: str = "True", infrastructure: str = "True", since: float = 3600, **spec: Any) -> Object:
    told = [
        known("ControlPlaneInitialized", initialized, since),
        known("InfrastructureReady", infrastructure, since),
    ]
    return made(CLUSTER, "c", spec=spec, status={"conditions": told})


def machine(
    name: str,
    *,
    node: str | None = "",
    created: float = 7200,
    conditions: Iterable[Object] = (),
    legacy: Iterable[Object] = (),
    labels: dict[str, str] | None = None,
    **meta: Any,
) -> Object:
    """Its Node is named like it, unless it is None."""
    given = {
        "labels": {CLUSTER_NAME: "c", "pool": "p", **(labels or {})},
        "creationTimestamp": ago(created),
        "generation": 1,
        **meta,
    }
    status: Object = {
        "conditions": list(conditions),
        "deprecated": {"v1beta1": {"conditions": list(legacy)}},
    }
    if node is not None:
        status["nodeRef"] = {"name": node or name}
    return made(MACHINE, name, meta=given, spec={"clusterName": "c"}, status=status)


def node(name: str, ready: str = "True", seconds: float = 3600) -> Object:
    return made(NODE, name, "", spec={}, status={"conditions": [known("Ready", ready, seconds)]})


UNREADY = [
    {"type": "Ready", "status": "Unknown", "timeoutSeconds": 300},
    {"type": "Ready", "status": "False", "timeoutSeconds": 300},
]


def check(
    *,
    checks: Object | None = None,
    remediation: Object | None = None,
    annotations: dict[str, str] | None = None,
    status: Object | None = None,
    claimed: bool = True,
) -> Object:
    meta: Object = {"generation": 2, "annotations": annotations or {}}
    if claimed:
        meta["labels"] = {CLUSTER_NAME: "c"}
        owner = {"apiVersion": CLUSTER.api_version, "kind": "Cluster", "name": "c", "uid": "Cluster-c"}
        meta["ownerReferences"] = [owner]
    spec: Object = {
        "clusterName": "c",
        "selector": {"matchLabels": {"pool": "p"}},
        "checks": {"unhealthyNodeConditions": UNREADY} if checks is None else checks,
    }
    if remediation:
        spec["remediation"] = remediation
    return made(MACHINE_HEALTH_CHECK, "mhc", meta=meta, spec=spec, status=status or {})


def decide(
    given: Object,
    machines: Iterable[Object] = (),
    nodes: Iterable[Object] | None = None,
    *,
    of: Object | None = None,
    others: Iterable[Object] = (),
    followed: Iterable[Kind] = (),
    unreachable: str = "",
    looked: bool = True,
    now: datetime = NOW,
) -> Decision:
    """One pass; without Nodes given, all that the Machines name are there and ready."""
    everyone = list(machines)
    if nodes is None:
        named = [each["status"]["nodeRef"]["name"] for each in everyone if "nodeRef" in each["status"]]
        nodes = [node(name) for name in named]
    shown = tuple(nodes)

    def observed(wish: Observe) -> Observed | Unreachable | None:
        assert (wish.cluster, wish.kind) == ("ns/c", NODE)
        if unreachable:
            return Unreachable(unreachable, now)
        return Observed(shown, now) if looked else None

    view = view_of(
        CONTROLLER,
        "ns/mhc",
        [given, *([of] if of else [cluster()]), *everyone, *others],
        now=now,
        observed=observed,
        followed=followed,
    )
    decision = CONTROLLER.reconcile(view)
    view.check_unchanged()
    return decision


def writes(decision: Decision) -> list[Write]:
    return [write for step in decision.writes for write in (step.writes if isinstance(step, Parallel) else (step,))]


def patches(decision: Decision, kind: Kind) -> dict[str, Patch]:
    found = [write for write in writes(decision) if isinstance(write, Patch) and write.ref.kind == kind]
    return {patch.ref.name: patch for patch in found}


def told(decision: Decision) -> dict[str, dict[str, str]]:
    """What is written about each Machine: `status/reason` by type of condition."""
    return {
        name: {
            each["type"]: f"{each['status']}/{each['reason']}" for each in patch.patch["status"].get("conditions", [])
        }
        for name, patch in patches(decision, MACHINE).items()
    }


def status(decision: Decision) -> Object:
    found = [
        write
        for write in writes(decision)
        if isinstance(write, Patch) and write.ref.kind == MACHINE_HEALTH_CHECK and write.subresource == "status"
    ]
    return found[0].patch["status"] if found else {}
