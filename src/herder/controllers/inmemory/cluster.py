"""InMemoryCluster reconciler: certificate authority and API endpoint of a simulated workload cluster.

The CA comes first, because the API server's certificate needs it. The port is recorded in the spec and reused after a
restart, so that existing kubeconfigs stay valid.
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
from herder.api.inmemory.behavior import Behavior, behavior_of
from herder.api.inmemory.kinds import IN_MEMORY_CLUSTER
from herder.api.inmemory.names import (
    CLUSTER_FINALIZER,
    MAKE_AUTHORITY,
    SERVE_WORKLOAD,
    SET_WORKLOAD_FAULT,
    STOP_WORKLOAD,
    STUCK_DELETION,
)
from herder.api.writes import object_patch, owner_reference, status_patch
from herder.controllers.inmemory.conditions import failure, health, not_ready, simulated_failure, status_with
from herder.controllers.inmemory.owners import (
    BY_CLUSTER,
    cluster_label,
    created_at,
    group,
    objects_needing_secret,
    owner_cluster,
    referenced,
)
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Create, Decision, Effect, EffectResult, Patch, Wait, waiting
from herder.engine.runtime.handlers import Watches, changed
from herder.engine.runtime.view import View

SERVING_FAILED = "ServingFailed"
REFERENCE = ("spec", "infrastructureRef")  # of the Cluster


def reconcile(view: View) -> Decision:
    infra = view.get(IN_MEMORY_CLUSTER, view.name)
    if infra is None or MANAGED_BY in annotations_of(infra):
        return DONE
    cluster = owner_cluster(view, infra, IN_MEMORY_CLUSTER, *REFERENCE)
    if is_paused(cluster, infra):
        return _report_status(infra, {}, [paused_condition(cluster, infra)], "report that it is paused", view)
    if is_deleting(infra):
        return _reconcile_delete(infra, view)
    if cluster is None or _belongs_to_other(infra, view):
        return waiting("waiting for the Cluster controller to set the owner reference")
    if CLUSTER_FINALIZER not in (infra["metadata"].get("finalizers") or []):
        return _add_finalizer(infra)
    return (
        _wait_until_provisionable(infra, cluster, view)
        or _ensure_ca(infra, cluster, view)
        or _serve(infra, cluster, behavior_of(infra), view)
    )


def _add_finalizer(infra: Object) -> Decision:
    finalizers = [*(infra["metadata"].get("finalizers") or []), CLUSTER_FINALIZER]
    return Decision(writes=_with_finalizers(infra, finalizers, "add the finalizer to stop the workload API"))


def _wait_until_provisionable(infra: Object, cluster: Object, view: View) -> Decision | None:
    """What keeps it from being provisioned; a provisioned cluster stays so."""
    if _provisioned(infra):
        return None
    behavior = behavior_of(infra)
    condition = simulated_failure(behavior, "the cluster")
    if condition is not None:
        conditions = [condition, paused_condition(cluster, infra)]
        return _report_status(infra, failure(behavior, condition), conditions, "report why it is not provisioned", view)
    at = created_at(infra) + behavior.api_delay
    if behavior.api_delay and at > view.now:
        return waiting("simulated delay of the workload API", wake_at=at)
    return None


def _ensure_ca(infra: Object, cluster: Object, view: View) -> Decision | None:
    """Create the CA Secret once. An effect generates the key pair; its result is kept until the Secret exists."""
    name = authority_secret(cluster["metadata"]["name"])
    if view.get(SECRET_METADATA, name) is not None:
        return None
    key = (infra["metadata"]["uid"], "authority")
    result = view.result(key)
    if result is None or not result.done:
        effect = Effect(
            MAKE_AUTHORITY,
            key,
            {"name": cluster["metadata"]["name"]},
            "generate the certificate authority of the cluster",
        )
        return Decision(effects=(effect,), wait=Wait(_error(result) or "waiting for the certificate authority"))
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


def _serve(infra: Object, cluster: Object, behavior: Behavior, view: View) -> Decision:
    """Requested in each pass: the effect runs once per process, and again after a restart."""
    recorded = (infra.get("spec") or {}).get("controlPlaneEndpoint") or {}
    arguments = _cluster_arguments(infra) | {"port": recorded.get("port", 0), "fault": behavior.api_fault}
    effect = Effect(SERVE_WORKLOAD, (infra["metadata"]["uid"], "serve"), arguments, "serve the workload API")
    result = view.result(effect.key)
    served = Decision(effects=(effect,))
    if result is None:
        return served + waiting("waiting for the workload API to start")
    if not result.done:
        conditions = [not_ready(SERVING_FAILED, _error(result)), paused_condition(cluster, infra)]
        return (
            served
            + _report_status(infra, {}, conditions, "report why the workload API is not served", view)
            + waiting(_error(result))
        )
    endpoint = {"host": recorded.get("host") or result.value["host"], "port": result.value["port"]}
    if endpoint != recorded:
        return served + _record(infra, endpoint)
    return served + _report_served(infra, cluster, behavior, result.value.get("fault", ""), view)


def _record(infra: Object, endpoint: Object) -> Decision:
    wanted = {**infra, "spec": {**(infra.get("spec") or {}), "controlPlaneEndpoint": endpoint}}
    return Decision(writes=object_patch(IN_MEMORY_CLUSTER, infra, wanted, "record the endpoint of the workload API"))


def _report_served(infra: Object, cluster: Object, behavior: Behavior, first_fault: str, view: View) -> Decision:
    condition = health(behavior, "the cluster")
    fields: Object = {"initialization": {"provisioned": True}, "ready": True, **failure(behavior, condition)}
    domains = (infra.get("spec") or {}).get("failureDomains")
    if domains:
        fields["failureDomains"] = domains
    before = (infra.get("status") or {}).get("apiFault", "") if _provisioned(infra) else first_fault
    setting, fault = _set_fault(infra, behavior, before, view)
    if fault or "apiFault" in (infra.get("status") or {}):
        fields["apiFault"] = fault
    return setting + _report_status(
        infra, fields, [condition, paused_condition(cluster, infra)], "the cluster is provisioned", view
    )


def _set_fault(infra: Object, behavior: Behavior, before: str, view: View) -> tuple[Decision, str]:
    """Inject or clear the API fault; returns the fault that is active now.

    The revision is part of the effect's key because the same fault may be set, cleared and set again.
    """
    if behavior.api_fault == before:
        return DONE, before
    meta = infra["metadata"]
    key = (meta["uid"], "fault", behavior.api_fault, meta["resourceVersion"])
    result = view.result(key)
    if result is not None and result.done:
        return DONE, behavior.api_fault
    arguments = _cluster_arguments(infra) | {"fault": behavior.api_fault}
    return Decision(effects=(Effect(SET_WORKLOAD_FAULT, key, arguments, "inject the annotated fault"),)), before


def _reconcile_delete(infra: Object, view: View) -> Decision:
    if CLUSTER_FINALIZER not in (infra["metadata"].get("finalizers") or []):
        return DONE
    if behavior_of(infra).stuck_deletion:
        return waiting(f"annotation {STUCK_DELETION} blocks the deletion")
    key = (infra["metadata"]["uid"], "stop")
    result = view.result(key)
    if (result is None or not result.done) and not _belongs_to_other(infra, view):
        effect = Effect(STOP_WORKLOAD, key, _cluster_arguments(infra), "stop the workload API")
        return Decision(effects=(effect,), wait=Wait(_error(result) or "waiting for the workload API to stop"))
    left = [name for name in infra["metadata"]["finalizers"] if name != CLUSTER_FINALIZER]
    return Decision(writes=_with_finalizers(infra, left, "the workload API is stopped"))


def _belongs_to_other(infra: Object, view: View) -> bool:
    """Whether the labeled Cluster references another object: users choose labels and owner references freely."""
    cluster = view.get(CLUSTER, labels_of(infra).get(CLUSTER_NAME, ""))
    reference = ((cluster or {}).get("spec") or {}).get("infrastructureRef") or {}
    own = (*IN_MEMORY_CLUSTER.group_kind, infra["metadata"]["name"])
    return bool(reference) and (reference_group(reference), reference.get("kind"), reference.get("name")) != own


def _cluster_arguments(infra: Object) -> dict[str, str | int]:
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
        Watches(CLUSTER, referenced(IN_MEMORY_CLUSTER, *REFERENCE), changed("spec.paused", ".".join(REFERENCE))),
        Watches(SECRET_METADATA, objects_needing_secret(authority_secret), changed(), fields=f"type={SECRET_TYPE}"),
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
    cluster_of=group,
)
