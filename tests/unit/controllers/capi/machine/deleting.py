"""A Machine that is being deleted, with all that its deletion looks at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from herder.api.capi.kinds import CLUSTER, DEFINITION, MACHINE, NODE, POD
from herder.api.capi.names import CLUSTER_NAME, CONTROL_PLANE, MACHINE_FINALIZER
from herder.controllers.capi.externals import External
from herder.controllers.capi.machine.deletion import INDEXES, WATCHES, DeletionStep, step
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, EffectKey, EffectResult, Observe, Refusal
from herder.engine.runtime.handlers import DynamicWatches, Watches, owner
from herder.engine.runtime.view import Observed, Unreachable
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
CONTROL_PLANES = Kind("controlplane.example", "v1", "Brain", "brains")
BEFORE = "2026-01-01T11:59:00Z"


def made(kind: Kind, name: str, namespace: str = "", **parts: Any) -> Object:
    meta: Object = {"name": name, "uid": f"{kind.kind}-{name}", "resourceVersion": "1", **parts.pop("meta", {})}
    if namespace:
        meta["namespace"] = namespace
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, **parts}


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
        "clusterName": "c",
        "infrastructureRef": {"apiGroup": INFRA.group, "kind": INFRA.kind, "name": name},
        "bootstrap": {"configRef": {"apiGroup": BOOTSTRAP.group, "kind": BOOTSTRAP.kind, "name": name}},
    }
    if provider_id:
        spec["providerID"] = provider_id
    if limits:
        spec["deletion"] = limits
    meta: Object = {
        "labels": {CLUSTER_NAME: "c", **(labels or {})},
        "annotations": dict(annotations or {}),
        "finalizers": [MACHINE_FINALIZER],
        "ownerReferences": list(owners),
    }
    if deleting:
        meta["deletionTimestamp"] = BEFORE
    told = {**({"nodeRef": {"name": node}} if node else {}), **(status or {})}
    return made(MACHINE, name, "ns", meta=meta, spec=spec, status=told)


def other_control_plane_machine() -> Object:
    return machine("cp", labels={CONTROL_PLANE: ""}, deleting=False)


def cluster(*, spec: Object | None = None, **meta: Any) -> Object:
    return made(CLUSTER, "c", "ns", meta=meta, spec=spec or {})


def node(
    name: str = "n", *, ready: str = "True", cordoned: bool = True, volumes: Iterable[str] = (), **meta: Any
) -> Object:
    spec: Object = {"providerID": "x://1"}
    if cordoned:
        spec["unschedulable"] = True
    attached = [{"name": volume} for volume in volumes]
    status = {"conditions": [{"type": "Ready", "status": ready}], "volumesAttached": attached}
    return made(NODE, name, meta=meta, spec=spec, status=status)


def pod(
    name: str,
    namespace: str = "apps",
    *,
    controller: str = "ReplicaSet",
    labels: Mapping[str, str] | None = None,
    phase: str = "Running",
    volumes: Iterable[Object] = (),
    **meta: Any,
) -> Object:
    owners = [{"kind": controller, "name": "owner", "controller": True}] if controller else []
    given = {"labels": dict(labels or {}), "ownerReferences": owners, **meta}
    return made(POD, name, namespace, meta=given, spec={"volumes": list(volumes)}, status={"phase": phase})


def infrastructure(name: str = "m", **meta: Any) -> External:
    return External(made(INFRA, name, "ns", meta=meta, spec={}), INFRA)


def bootstrap(name: str = "m", **meta: Any) -> External:
    return External(made(BOOTSTRAP, name, "ns", meta=meta, spec={}), BOOTSTRAP)


MISSING = External()


@dataclass
class Workload:
    """What a workload cluster shows; None for what nobody has looked at yet."""

    objects: Iterable[Object] = ()
    reason: str = ""
    unmatched: Iterable[Kind] = ()
    asked: list[Observe] = field(default_factory=list)

    def __call__(self, subscription: Observe) -> Observed | Unreachable | None:
        self.asked.append(subscription)
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


def deletion_of(
    deleted: Object,
    *,
    workload: Workload | None = None,
    of: Object | None = None,
    infra: External | None = None,
    boot: External | None = None,
    others: Iterable[Object] | None = None,
    followed: Iterable[Kind] = (),
    results: Mapping[EffectKey, EffectResult] | None = None,
    now: datetime = NOW,
    refused: Refusal | None = None,
) -> DeletionStep:
    """One pass; unless told otherwise, the Machine's Node is cordoned and empty, and everything else still there."""
    view = view_of(
        CONTROLLER,
        "ns/m",
        [deleted, *((other_control_plane_machine(),) if others is None else others)],
        now=now,
        followed=followed,
        results=results,
        observed=workload or Workload([node()]),
        refused=refused,
    )
    seen = view.get(MACHINE, "m")
    assert seen is not None
    made_step = step(
        view,
        seen,
        of or cluster(),
        infrastructure=infra or infrastructure(),
        bootstrap=boot or bootstrap(),
    )
    view.check_unchanged()
    return made_step


def told(made_step: DeletionStep) -> tuple[str, str]:
    return made_step.deleting["reason"], made_step.deleting["message"]


def legacy_of(made_step: DeletionStep) -> dict[str, str]:
    return {known["type"]: f"{known['status']}/{known.get('reason', '')}" for known in made_step.legacy}


def subscriptions(made_step: DeletionStep) -> list[Observe]:
    return [subscription for subscription in made_step.decision.observe if isinstance(subscription, Observe)]
