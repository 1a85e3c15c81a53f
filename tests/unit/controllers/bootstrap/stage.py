"""A machine of a provisioned cluster, as far as its bootstrap needs it, and what is decided about it."""

from __future__ import annotations

from collections.abc import Iterable

from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.capi.names import CLUSTER_NAME
from herder.api.rke import names
from herder.api.rke.kinds import BOOTSTRAP, CONTROL_PLANE, CUSTOM_MACHINE
from herder.api.settings import Settings
from herder.controllers.bootstrap import objects, rke_bootstrap
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Decision, Parallel, Write
from tests.support.views import view_of

NAMESPACE, NAME = "fleet-default", "pool-1-abcde"
SERVER = {"server-url": "https://manager.example.com", "cacerts": "---- some certificates"}
UID = "kubernetes.io/service-account.uid"


def made(kind: Kind, name: str, *, going: bool = False, meta: Object | None = None, **parts: object) -> Object:
    whole: Object = {"name": name, "namespace": NAMESPACE, "uid": f"{kind.kind}-{name}", "resourceVersion": "7"}
    if going:
        whole["deletionTimestamp"] = "2026-01-01T12:00:00Z"
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": whole | (meta or {}), **parts}


def owned_by(kind: Kind, name: str) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "name": name, "uid": f"{kind.kind}-{name}"}


def cluster(*, provisioned: bool = True, paused: bool = False) -> Object:
    reference = {"apiGroup": CONTROL_PLANE.group, "kind": CONTROL_PLANE.kind, "name": "meadow"}
    return made(
        CLUSTER,
        "meadow",
        spec={"controlPlaneRef": reference, "paused": paused},
        status={"initialization": {"infrastructureProvisioned": provisioned}},
    )


def control_plane(**spec: object) -> Object:
    return made(CONTROL_PLANE, "meadow", spec={"clusterName": "meadow", **spec})


def machine(
    *,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    infrastructure: str = "rke-machine.cattle.io",
    phase: str = "Pending",
    node: str = "",
    going: bool = False,
) -> Object:
    status: Object = {"phase": phase} | ({"nodeRef": {"name": node}} if node else {})
    spec = {
        "clusterName": "meadow",
        "bootstrap": {"configRef": {"apiGroup": BOOTSTRAP.group, "kind": BOOTSTRAP.kind, "name": NAME}},
        "infrastructureRef": {"apiGroup": infrastructure, "kind": CUSTOM_MACHINE.kind, "name": NAME},
    }
    meta = {"labels": {CLUSTER_NAME: "meadow", **(labels or {})}, "annotations": annotations or {}}
    return made(MACHINE, NAME, going=going, meta=meta, spec=spec, status=status)


def bootstrap(*, owned: bool = True, annotations: dict[str, str] | None = None, **parts: object) -> Object:
    meta = {
        "labels": {CLUSTER_NAME: "meadow", names.WORKER_ROLE: "true"},
        "annotations": annotations or {},
        "ownerReferences": [owned_by(MACHINE, NAME)] if owned else [],
    }
    return made(BOOTSTRAP, NAME, meta=meta, spec={"clusterName": "meadow"}, **parts)


def accounts(*, filled: bool = True) -> list[Object]:
    """All that is made before the script; `filled`: Kubernetes has made the token."""
    whole, whose = bootstrap(), machine()
    found: list[Object] = []
    for account in (objects.plan_account(whole, whose), objects.bootstrap_account(whole, whose)):
        token = objects.token_secret(whole, whose, account)
        token["metadata"] |= {"uid": token["metadata"]["name"], "creationTimestamp": "2026-01-01T12:00:00Z"}
        if filled:
            token["metadata"]["annotations"] |= {UID: "uid"}
        found += [account, token]
    return [*found, objects.plan_secret(whole, whose, cluster()), objects.plan_role(whole), objects.plan_binding(whole)]


def scene(*others: Object) -> list[Object]:
    """The whole of it; what is given stands in the place of what would be there."""
    usual = [cluster(), control_plane(), machine(), bootstrap()]
    given = {(each["kind"], each["metadata"]["name"]) for each in others}
    return [*(each for each in usual if (each["kind"], each["metadata"]["name"]) not in given), *others]


def decide(*objects_: Object, **settings: str) -> Decision:
    flags = SERVER | {name.replace("_", "-"): value for name, value in settings.items()}
    view = view_of(rke_bootstrap.CONTROLLER, f"{NAMESPACE}/{NAME}", objects_, settings=Settings(flags=flags).get)
    return rke_bootstrap.reconcile(view)


def writes(decision: Decision) -> list[Write]:
    return [write for step in decision.writes for write in (step.writes if isinstance(step, Parallel) else (step,))]


def told(decision: Decision) -> Iterable[str]:
    for write in writes(decision):
        kind, name = (
            (write.ref.kind, write.ref.name) if hasattr(write, "ref") else (write.kind, write.obj["metadata"]["name"])
        )
        yield f"{type(write).__name__} {kind.kind} {name}"
