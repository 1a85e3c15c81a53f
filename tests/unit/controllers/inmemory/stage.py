"""Objects as an API server would show them, for one pass of an in-memory reconciler."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import CLUSTER, MACHINE, SECRET
from herder.api.capi.names import CLUSTER_NAME, CONTROL_PLANE, SECRET_TYPE
from herder.api.inmemory import kinds
from herder.engine.meta.kinds import Kind, Object
from herder.engine.patch import apply_merge_patch
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import Decision, Parallel, Patch, Write
from tests.support.views import NOW, view_of

NAMESPACE = "ns"
EARLIER = NOW - timedelta(seconds=60)


def made(
    kind: Kind,
    name: str,
    *,
    owner: Object | None = None,
    controller: bool = True,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    created: datetime = EARLIER,
    deleting: bool = False,
    finalizers: list[str] | None = None,
    **parts: Any,
) -> Object:
    meta: Object = {
        "name": name,
        "namespace": NAMESPACE,
        "uid": f"{kind.kind}-{name}",
        "resourceVersion": "7",
        "generation": 1,
        "creationTimestamp": timestamp(created),
        "labels": {CLUSTER_NAME: "c", **(labels or {})},
    }
    if annotations:
        meta["annotations"] = annotations
    if finalizers:
        meta["finalizers"] = finalizers
    if deleting:
        meta["deletionTimestamp"] = timestamp(NOW)
    if owner is not None:
        reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"]}
        reference["uid"] = owner["metadata"]["uid"]
        meta["ownerReferences"] = [reference | {"controller": True} if controller else reference]
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, **parts}


def cluster(
    *,
    provisioned: bool = True,
    initialized: bool = True,
    paused: bool = False,
    deleting: bool = False,
    endpoint: bool = True,
    since: datetime = EARLIER,
    domains: list[Object] | None = None,
) -> Object:
    spec: Object = {"paused": paused}
    if endpoint:
        spec["controlPlaneEndpoint"] = {"host": "127.0.0.1", "port": 6443}
    turned = {"status": "True", "reason": "Ready", "message": "", "lastTransitionTime": timestamp(since)}
    types = ("InfrastructureReady", "ControlPlaneInitialized")
    status: Object = {
        "initialization": {"infrastructureProvisioned": provisioned, "controlPlaneInitialized": initialized},
        "conditions": [{"type": type_, **turned} for type_ in types],
    }
    if domains:
        status["failureDomains"] = domains
    return made(CLUSTER, "c", deleting=deleting, spec=spec, status=status)


def machine(
    name: str = "m",
    *,
    control_plane: bool = False,
    data: str = "m",
    version: str = "v1.35.0",
    status: Object | None = None,
    domain: str = "",
    **more: Any,
) -> Object:
    spec: Object = {
        "clusterName": "c",
        "version": version,
        "bootstrap": {"configRef": reference(kinds.IN_MEMORY_BOOTSTRAP, name)},
        "infrastructureRef": reference(kinds.IN_MEMORY_MACHINE, name),
    }
    if data:
        spec["bootstrap"]["dataSecretName"] = data
    if domain:
        spec["failureDomain"] = domain
    labels = {CONTROL_PLANE: ""} if control_plane else {}
    return made(MACHINE, name, labels=labels, spec=spec, status=status or {}, **more)


def reference(kind: Kind, name: str) -> Object:
    return {"apiGroup": kind.group, "kind": kind.kind, "name": name}


def secret(name: str, *, created: datetime = EARLIER, annotations: dict[str, str] | None = None) -> Object:
    return made(SECRET, name, created=created, annotations=annotations, type=SECRET_TYPE)


def decide(controller: Controller, name: str, *objects: Object, **more: Any) -> Decision:
    return controller.reconcile(view_of(controller, f"{NAMESPACE}/{name}", objects, **more))


def flat(decision: Decision) -> list[Write]:
    return [w for write in decision.writes for w in (write.writes if isinstance(write, Parallel) else (write,))]


def only_patch(decision: Decision) -> Object:
    """The one write of a decision, which must be a patch."""
    (write,) = flat(decision)
    assert isinstance(write, Patch)
    return write.patch


def condition(obj: Object, type_: str) -> tuple[str, str, str]:
    found = next(known for known in obj["status"]["conditions"] if known["type"] == type_)
    return found["status"], found["reason"], found["message"]


def legacy(obj: Object, type_: str) -> Object:
    conditions = obj["status"]["deprecated"]["v1beta1"]["conditions"]
    found: Object = next(known for known in conditions if known["type"] == type_)
    return found


def patched(obj: Object, decision: Decision) -> Object:
    """The object as the decision's patches leave it."""
    for write in flat(decision):
        if (
            isinstance(write, Patch)
            and write.ref.name == obj["metadata"]["name"]
            and write.ref.kind.kind == obj["kind"]
        ):
            obj = apply_merge_patch(obj, write.patch)
    return obj
