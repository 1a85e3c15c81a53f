"""InMemoryCluster: the certificate authority of a cluster, and the endpoint where its workload API answers.

The authority comes first, because the API proves with it who it is. The port is recorded in the spec: after a restart
the API is served there again, so kubeconfigs that were handed out stay good.
"""

from __future__ import annotations

from herder.api.capi.conditions import Condition, paused_condition
from herder.api.capi.contract import reference_group
from herder.api.capi.kinds import CLUSTER, SECRET, SECRET_METADATA
from herder.api.capi.names import (
    CLUSTER_NAME,
    MANAGED_BY,
    SECRET_TYPE,
    annotations_of,
    authority_secret,
    is_deleting,
    is_paused,
    labels_of,
)
from herder.api.inmemory.behaviour import Behaviour, behaviour
from herder.api.inmemory.kinds import IN_MEMORY_CLUSTER
from herder.api.inmemory.names import (
    CLUSTER_FINALIZER,
    MAKE_AUTHORITY,
    SERVE_WORKLOAD,
    SET_WORKLOAD_FAULT,
    STOP_WORKLOAD,
    STUCK_DELETION,
)
from herder.api.writing import object_patch, owner_reference, status_patch
from herder.controllers.inmemory.reports import failure, health, not_ready, status_with, trouble
from herder.controllers.inmemory.surroundings import (
    BY_CLUSTER,
    all_that_need,
    cluster_label,
    created_at,
    owner_cluster,
    referred,
)
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Create, Decision, Effect, EffectResult, Patch, Wait, waiting
from herder.engine.runtime.handlers import Watches, changed
from herder.engine.runtime.view import View

SERVING_FAILED = "ServingFailed"


def reconcile(view: View) -> Decision:
    infra = view.get(IN_MEMORY_CLUSTER, view.name)
    if infra is None or MANAGED_BY in annotations_of(infra):
        return DONE
    cluster = owner_cluster(view, infra)
    if is_paused(cluster, infra):
        return _report_status(infra, {}, [paused_condition(cluster, infra)], "tell that it is paused", view)
    if is_deleting(infra):
        return _remove(infra, view)
    if cluster is None or _is_anothers(infra, view):
        return waiting("the core has yet to make it a Cluster's")
    if CLUSTER_FINALIZER not in (infra["metadata"].get("finalizers") or []):
        return _add_finalizer(infra)
    return (
        _not_now(infra, cluster, view)
        or _have_authority(infra, cluster, view)
        or _serve(infra, cluster, behaviour(infra), view)
    )


def _add_finalizer(infra: Object) -> Decision:
    finalizers = [*(infra["metadata"].get("finalizers") or []), CLUSTER_FINALIZER]
    return Decision(writes=_with_finalizers(infra, finalizers, "its workload API must end before it goes"))


def _not_now(infra: Object, cluster: Object, view: View) -> Decision | None:
    """What keeps it from being provisioned; what is provisioned stays so."""
    if _provisioned(infra):
        return None
    asked = behaviour(infra)
    condition = trouble(asked, "the cluster")
    if condition is not None:
        conditions = [condition, paused_condition(cluster, infra)]
        return _report_status(infra, failure(asked, condition), conditions, "tell why it is not provisioned", view)
    at = created_at(infra) + asked.api_delay
    if asked.api_delay and at > view.now:
        return waiting("the workload API takes its time", wake_at=at)
    return None


def _have_authority(infra: Object, cluster: Object, view: View) -> Decision | None:
    """The key pair is made by the operating system's generator, once, and lives in the Secret."""
    name = authority_secret(cluster["metadata"]["name"])
    if view.get(SECRET_METADATA, name) is not None:
        return None
    key = (infra["metadata"]["uid"], "authority")
    result = view.result(key)
    if result is None or not result.done:
        effect = Effect(MAKE_AUTHORITY, key, {"name": cluster["metadata"]["name"]}, "each cluster has its own")
        return Decision(effects=(effect,), wait=Wait(_error(result) or "the certificate authority is being made"))
    secret: Object = {
        "apiVersion": SECRET.api_version,
        "kind": SECRET.kind,
        "metadata": {
            "name": name,
            "namespace": cluster["metadata"]["namespace"],
            "labels": {CLUSTER_NAME: cluster["metadata"]["name"]},
            "ownerReferences": [owner_reference(CLUSTER, cluster, controller=False)],
        },
        "type": SECRET_TYPE,
        "data": result.value,
    }
    return Decision(writes=(Create(SECRET, secret, "keep the cluster's certificate authority"),))


def _serve(infra: Object, cluster: Object, asked: Behaviour, view: View) -> Decision:
    """Asked for in each pass: it is performed once in a process, and again by the next one."""
    recorded = (infra.get("spec") or {}).get("controlPlaneEndpoint") or {}
    arguments = _which(infra) | {"port": recorded.get("port", 0), "fault": asked.api_fault}
    effect = Effect(SERVE_WORKLOAD, (infra["metadata"]["uid"], "serve"), arguments, "a cluster has an API")
    result = view.result(effect.key)
    served = Decision(effects=(effect,))
    if result is None:
        return served + waiting("the workload API starts")
    if not result.done:
        conditions = [not_ready(SERVING_FAILED, _error(result)), paused_condition(cluster, infra)]
        return (
            served + _report_status(infra, {}, conditions, "tell why it is not served", view) + waiting(_error(result))
        )
    endpoint = {"host": recorded.get("host") or result.value["host"], "port": result.value["port"]}
    if endpoint != recorded:
        return served + _record(infra, endpoint)
    return served + _told_served(infra, cluster, asked, result.value.get("fault", ""), view)


def _record(infra: Object, endpoint: Object) -> Decision:
    wanted = {**infra, "spec": {**(infra.get("spec") or {}), "controlPlaneEndpoint": endpoint}}
    return Decision(writes=object_patch(IN_MEMORY_CLUSTER, infra, wanted, "the workload API answers here"))


def _told_served(infra: Object, cluster: Object, asked: Behaviour, first_fault: str, view: View) -> Decision:
    condition = health(asked, "the cluster")
    fields: Object = {"initialization": {"provisioned": True}, "ready": True, **failure(asked, condition)}
    domains = (infra.get("spec") or {}).get("failureDomains")
    if domains:
        fields["failureDomains"] = domains
    before = (infra.get("status") or {}).get("apiFault", "") if _provisioned(infra) else first_fault
    setting, fault = _have_fault(infra, asked, before, view)
    if fault or "apiFault" in (infra.get("status") or {}):
        fields["apiFault"] = fault
    return setting + _report_status(
        infra, fields, [condition, paused_condition(cluster, infra)], "the cluster is provisioned", view
    )


def _have_fault(infra: Object, asked: Behaviour, before: str, view: View) -> tuple[Decision, str]:
    """Bring the API's fault from what it was to what is asked for, and which one it has now.

    The revision is in the effect's key because the same fault may be asked for, taken back and asked for again.
    """
    if asked.api_fault == before:
        return DONE, before
    meta = infra["metadata"]
    key = (meta["uid"], "fault", asked.api_fault, meta["resourceVersion"])
    result = view.result(key)
    if result is not None and result.done:
        return DONE, asked.api_fault
    arguments = _which(infra) | {"fault": asked.api_fault}
    return Decision(effects=(Effect(SET_WORKLOAD_FAULT, key, arguments, "as annotated"),)), before


def _remove(infra: Object, view: View) -> Decision:
    if CLUSTER_FINALIZER not in (infra["metadata"].get("finalizers") or []):
        return DONE
    if behaviour(infra).stuck_deletion:
        return waiting(f"annotation {STUCK_DELETION} keeps it")
    key = (infra["metadata"]["uid"], "stop")
    result = view.result(key)
    if (result is None or not result.done) and not _is_anothers(infra, view):
        effect = Effect(STOP_WORKLOAD, key, _which(infra), "the cluster goes")
        return Decision(effects=(effect,), wait=Wait(_error(result) or "the workload API ends"))
    left = [name for name in infra["metadata"]["finalizers"] if name != CLUSTER_FINALIZER]
    return Decision(writes=_with_finalizers(infra, left, "its workload API has ended"))


def _is_anothers(infra: Object, view: View) -> bool:
    """Whether the Cluster of the label names another object: users choose labels and owner references freely."""
    cluster = view.get(CLUSTER, labels_of(infra).get(CLUSTER_NAME, ""))
    reference = ((cluster or {}).get("spec") or {}).get("infrastructureRef") or {}
    own = (*IN_MEMORY_CLUSTER.group_kind, infra["metadata"]["name"])
    return bool(reference) and (reference_group(reference), reference.get("kind"), reference.get("name")) != own


def _which(infra: Object) -> dict[str, str | int]:
    return {"namespace": infra["metadata"]["namespace"], "cluster": labels_of(infra).get(CLUSTER_NAME, "")}


def _error(result: EffectResult | None) -> str:
    return result.error if result else ""


def _provisioned(infra: Object) -> bool:
    return bool(((infra.get("status") or {}).get("initialization") or {}).get("provisioned"))


def _with_finalizers(infra: Object, finalizers: list[str], reason: str) -> tuple[Patch, ...]:
    wanted = {**infra, "metadata": {**infra["metadata"], "finalizers": finalizers}}
    return object_patch(IN_MEMORY_CLUSTER, infra, wanted, reason)


def _report_status(infra: Object, fields: Object, conditions: list[Condition], reason: str, view: View) -> Decision:
    known = {"observedGeneration": infra["metadata"].get("generation", 1), **fields}
    status = status_with(infra, known, conditions, view.now)
    return Decision(writes=status_patch(IN_MEMORY_CLUSTER, infra, status, reason))


CONTROLLER = Controller(
    name="inmemory-cluster",
    kind=IN_MEMORY_CLUSTER,
    reconcile=reconcile,
    watches=(
        Watches(CLUSTER, referred(IN_MEMORY_CLUSTER, "spec", "infrastructureRef"), changed("spec.paused")),
        Watches(SECRET_METADATA, all_that_need(authority_secret), changed(), fields=f"type={SECRET_TYPE}"),
    ),
    predicate=changed(
        "metadata.annotations",
        "metadata.labels",
        "metadata.ownerReferences",
        "metadata.finalizers",
        "metadata.deletionTimestamp",
        "spec",
    ),
    indexes={IN_MEMORY_CLUSTER: {BY_CLUSTER: cluster_label}},
)
