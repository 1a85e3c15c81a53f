"""MachineSets and their Machines, and a fake API server that holds them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import MACHINE_SET
from herder.engine.meta.kinds import Object
from tests.support.builders import new_condition, new_machine, new_object, owner_reference
from tests.support.views import NOW
from tests.unit.controllers.capi.fake_server import FakeServer
from tests.unit.controllers.capi.objects import (
    CLUSTER_LABELS,
    CLUSTER_OWNER,
    NAMESPACE,
    cluster_with_templates,
    machine_template,
)

SET = "set"
LABELS = CLUSTER_LABELS | {"pool": "workers"}


def machine_set(replicas: int | None = 3, *, annotations: dict[str, str] | None = None, **spec: Any) -> Object:
    desired = {
        "clusterName": "herd",
        "selector": {"matchLabels": LABELS},
        "template": machine_template(LABELS),
        **({} if replicas is None else {"replicas": replicas}),
        **spec,
    }
    return new_object(MACHINE_SET, SET, NAMESPACE, annotations=annotations, metadata={"uid": "set-uid"}, spec=desired)


def ready_set(replicas: int | None = 3, **options: Any) -> Object:
    """A MachineSet with its finalizer, owner and labels."""
    obj = machine_set(replicas, **options)
    obj["metadata"] |= {
        "finalizers": ["cluster.x-k8s.io/machineset"],
        "labels": dict(CLUSTER_LABELS),
        "ownerReferences": [CLUSTER_OWNER],
    }
    return obj


def server_with(machine_set: Object, *others: Object) -> FakeServer:
    return FakeServer([*cluster_with_templates(), machine_set, *others])


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
    """A Machine. Conditions are given as `Type="True"`, or with reason and message as `Type="False/Reason/message"`."""
    metadata = {"uid": f"uid-{name}", "creationTimestamp": timestamp(NOW - timedelta(days=days))}
    if deleting:
        metadata["deletionTimestamp"] = timestamp(NOW)
    status: Object = {"conditions": [_condition(type_, value) for type_, value in conditions.items()]}
    if node:
        status |= {"nodeRef": {"name": name}, "initialization": {"infrastructureProvisioned": True}}
    return new_machine(
        name,
        NAMESPACE,
        cluster="herd",
        labels=LABELS,
        annotations=annotations,
        owners=[owner_reference(MACHINE_SET, SET) | {"uid": owner}] if owner else [],
        finalizers=["machine.cluster.x-k8s.io"],
        metadata=metadata,
        status=status,
    )


def _condition(type_: str, value: str) -> Object:
    status, reason, message = [*value.split("/", 2), "", ""][:3]
    return new_condition(type_, status, reason, message, since=NOW)
