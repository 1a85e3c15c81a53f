"""MachineSets and their Machines for tests."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from herder.api.capi.kinds import MACHINE, MACHINE_SET
from herder.engine.meta.kinds import Object
from tests.support.views import NOW
from tests.unit.controllers.capi.world import World, machine_template, made, stamp, surroundings

SET = "set"
LABELS = {"cluster.x-k8s.io/cluster-name": "herd", "pool": "workers"}


def machine_set(replicas: int | None = 3, *, annotations: dict[str, str] | None = None, **spec: Any) -> Object:
    pattern = machine_template()
    pattern["metadata"]["labels"] = LABELS
    wanted = {"clusterName": "herd", "selector": {"matchLabels": LABELS}, "template": pattern, **spec}
    if replicas is not None:
        wanted["replicas"] = replicas
    return made(MACHINE_SET, SET, spec=wanted, uid="set-uid", annotations=annotations or {})


def ready_set(replicas: int | None = 3, **given: Any) -> Object:
    """One that has its finalizer, owner and labels."""
    obj = machine_set(replicas, **given)
    obj["metadata"] |= {
        "finalizers": ["cluster.x-k8s.io/machineset"],
        "labels": {"cluster.x-k8s.io/cluster-name": "herd"},
        "ownerReferences": [
            {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "herd", "uid": "Cluster-herd"}
        ],
    }
    return obj


def world(machine_set: Object, *others: Object) -> World:
    return World([*surroundings(), machine_set, *others])


def machine(
    name: str,
    *,
    days: float = 0,
    owner: str = "set-uid",
    deleting: bool = False,
    node: bool = True,
    annotations: dict[str, str] | None = None,
    **conditions: str,
) -> Object:
    """Conditions as `Type="True"`, or with a reason and a message: `Type="False/Reason/message"`."""
    obj = made(MACHINE, name, spec={"clusterName": "herd"}, uid=f"uid-{name}", annotations=annotations or {})
    obj["metadata"]["creationTimestamp"] = stamp(NOW - timedelta(days=days))
    obj["metadata"]["labels"] = LABELS
    obj["metadata"]["finalizers"] = ["machine.cluster.x-k8s.io"]
    if owner:
        obj["metadata"]["ownerReferences"] = [
            {
                "apiVersion": "cluster.x-k8s.io/v1beta2",
                "kind": "MachineSet",
                "name": SET,
                "uid": owner,
                "controller": True,
            }
        ]
    if deleting:
        obj["metadata"]["deletionTimestamp"] = stamp(NOW)
    obj["status"] = {"conditions": [_condition(type_, told) for type_, told in conditions.items()]}
    if node:
        obj["status"] |= {"nodeRef": {"name": name}, "initialization": {"infrastructureProvisioned": True}}
    return obj


def _condition(type_: str, told: str) -> Object:
    status, reason, message = [*told.split("/", 2), "", ""][:3]
    return {
        "type": type_,
        "status": status,
        "reason": reason or type_,
        "message": message,
        "lastTransitionTime": stamp(NOW),
    }
