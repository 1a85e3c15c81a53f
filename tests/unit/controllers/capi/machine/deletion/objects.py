"""Machines that are being deleted, their Nodes and Pods, and one deletion step over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from herder.api.capi.kinds import CLUSTER, DEFINITION, MACHINE, NODE, POD
from herder.api.capi.names import CONTROL_PLANE, MACHINE_FINALIZER
from herder.controllers.capi.externals import External
from herder.controllers.capi.machine.deletion import INDEXES, WATCHES, DeletionStep, step
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, EffectKey, EffectResult, Observe, Refusal
from herder.engine.runtime.handlers import DynamicWatches, Watches, owner
from herder.engine.runtime.view import Observed, Unreachable
from tests.support.builders import new_condition, new_machine, new_object, object_reference
from tests.support.views import NOW, view_of

CONTROLLER = Controller(
    name="machine",
    kind=MACHINE,
    reconcile=lambda _view: DONE,
    watches=(Watches(DEFINITION), *WATCHES),
    indexes=INDEXES,
    dynamic_watches=DynamicWatches(owner(MACHINE)),
)

INFRA = Kind("infrastructure.example", "v1", "Server", "servers")
BOOTSTRAP = Kind("bootstrap.example", "v1", "Script", "scripts")
CONTROL_PLANE_KIND = Kind("controlplane.example", "v1", "Brain", "brains")
A_MINUTE_AGO = "2026-01-01T11:59:00Z"


def machine(
    name: str = "m",
    *,
    node: str = "n",
    provider_id: str = "x://1",
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    owners: Iterable[Object] = (),
    limits: Object | None = None,
    status: Object | None = None,
    deleting: bool = True,
) -> Object:
    spec: Object = {
        "infrastructureRef": object_reference(INFRA, name),
        "bootstrap": {"configRef": object_reference(BOOTSTRAP, name)},
    }
    if provider_id:
        spec["providerID"] = provider_id
    if limits:
        spec["deletion"] = limits
    return new_machine(
        name,
        "ns",
        cluster="c",
        labels=dict(labels or {}),
        annotations=dict(annotations or {}),
        owners=owners,
        finalizers=[MACHINE_FINALIZER],
        metadata={"deletionTimestamp": A_MINUTE_AGO} if deleting else {},
        spec=spec,
        status=({"nodeRef": {"name": node}} if node else {}) | (status or {}),
    )


def other_control_plane_machine() -> Object:
    return machine("cp", labels={CONTROL_PLANE: ""}, deleting=False)


def cluster(*, spec: Object | None = None, **metadata: Any) -> Object:
    return new_object(CLUSTER, "c", "ns", metadata=metadata, spec=spec or {})


def node(
    name: str = "n", *, ready: str = "True", cordoned: bool = True, volumes: Iterable[str] = (), **metadata: Any
) -> Object:
    spec: Object = {"providerID": "x://1"}
    if cordoned:
        spec["unschedulable"] = True
    attached = [{"name": volume} for volume in volumes]
    status = {"conditions": [new_condition("Ready", ready)], "volumesAttached": attached}
    return new_object(NODE, name, metadata=metadata, spec=spec, status=status)


def pod(
    name: str,
    namespace: str = "apps",
    *,
    controller: str = "ReplicaSet",
    labels: Mapping[str, str] | None = None,
    phase: str = "Running",
    volumes: Iterable[Object] = (),
    **metadata: Any,
) -> Object:
    owners = [{"kind": controller, "name": "owner", "controller": True}] if controller else []
    return new_object(
        POD,
        name,
        namespace,
        labels=dict(labels or {}),
        owners=owners,
        metadata=metadata,
        spec={"volumes": list(volumes)},
        status={"phase": phase},
    )


def infrastructure(name: str = "m", **metadata: Any) -> External:
    return External(new_object(INFRA, name, "ns", metadata=metadata, spec={}), INFRA)


def bootstrap(name: str = "m", **metadata: Any) -> External:
    return External(new_object(BOOTSTRAP, name, "ns", metadata=metadata, spec={}), BOOTSTRAP)


MISSING = External()


@dataclass
class Workload:
    """Observations of a fake workload cluster. Kinds in `unmatched` are not synced yet, and observed as None."""

    objects: Iterable[Object] = ()
    reason: str = ""
    unmatched: Iterable[Kind] = ()
    requests: list[Observe] = field(default_factory=list)

    def __call__(self, subscription: Observe) -> Observed | Unreachable | None:
        self.requests.append(subscription)
        assert subscription.cluster == "ns/c"
        if self.reason:
            return Unreachable(self.reason, NOW)
        if subscription.kind in self.unmatched:
            return None
        found = [obj for obj in self.objects if obj["kind"] == subscription.kind.kind]
        if subscription.projection is not None:
            found = [subscription.projection.project(obj) for obj in found]
            if subscription.focus is not None:
                index, value = subscription.focus
                found = [obj for obj in found if value in subscription.projection.indexes[index](obj)]
        return Observed(tuple(found), NOW)


def reconcile_deletion(
    deleting_machine: Object,
    *,
    workload: Workload | None = None,
    in_cluster: Object | None = None,
    infra: External | None = None,
    boot: External | None = None,
    others: Iterable[Object] | None = None,
    dynamic_kinds: Iterable[Kind] = (),
    results: Mapping[EffectKey, EffectResult] | None = None,
    now: datetime = NOW,
    refused: Refusal | None = None,
) -> DeletionStep:
    """One deletion step. By default, the Node is cordoned and empty, and all other objects still exist."""
    view = view_of(
        CONTROLLER,
        "ns/m",
        [deleting_machine, *((other_control_plane_machine(),) if others is None else others)],
        now=now,
        dynamic_kinds=dynamic_kinds,
        results=results,
        observed=workload or Workload([node()]),
        refused=refused,
    )
    machine_object = view.get(MACHINE, "m")
    assert machine_object is not None
    result = step(
        view,
        machine_object,
        in_cluster or cluster(),
        infrastructure=infra or infrastructure(),
        bootstrap=boot or bootstrap(),
    )
    view.check_unchanged()
    return result


def deleting_condition(result: DeletionStep) -> tuple[str, str]:
    """Reason and message of the Deleting condition."""
    return result.deleting["reason"], result.deleting["message"]


def legacy_conditions(result: DeletionStep) -> dict[str, str]:
    return {known["type"]: f"{known['status']}/{known.get('reason', '')}" for known in result.legacy}


def subscriptions(result: DeletionStep) -> list[Observe]:
    return [subscription for subscription in result.decision.observe if isinstance(subscription, Observe)]
