"""Registration requests of custom machines: create the Machine, RKEBootstrap and CustomMachine.

The gateway, which answers the machine, waits for the label that is written last, or for the annotation with the
refusal.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from herder.api.capi.kinds import CLUSTER, MACHINE, SECRET, SECRET_METADATA
from herder.api.capi.names import CLUSTER_NAME, annotations_of, cluster_key, is_deleting, labels_of
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.rke import names
from herder.api.rke.admission.pools import MAX_MACHINES
from herder.api.rke.kinds import BOOTSTRAP, CUSTOM_MACHINE
from herder.api.rke.machines.removal import BY_CLUSTER, NODE_DELETION_SECONDS, cluster_of
from herder.api.rke.node.requests import BadClaim, MachineRequest, check_roles, parse_request
from herder.api.writes import delete, ref
from herder.controllers.machines.cluster_access import provisioning_of
from herder.engine.control.cache import Change
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Create, Decision, Effect, Parallel, Patch, Write, requesting, waiting
from herder.engine.runtime.handlers import Indexed, Watches, changed
from herder.engine.runtime.view import View

RETENTION = timedelta(minutes=3)
"""Longer than any client waits for an answer; the gateway usually deletes the request sooner."""

BY_ID = "machine-id"
PENDING = "pending-requests"


def reconcile(view: View) -> Decision:
    request = view.get(SECRET_METADATA, view.name)
    if request is None or is_deleting(request) or not _is_request(request):
        return DONE
    ends = datetime.fromisoformat(request["metadata"]["creationTimestamp"]) + RETENTION
    if view.now >= ends:
        return Decision(writes=(delete(SECRET, request, "the request has expired"),))
    return Decision(wake_at=ends) + (_answer(view, request) if _is_pending(request) else DONE)


def _answer(view: View, request: Object) -> Decision:
    management = view.get(MANAGEMENT_CLUSTER, view.namespace)
    if management is None or labels_of(request)[names.REQUEST_FOR] != view.namespace:
        return _refuse(request, "the cluster does not exist")
    provisioning = provisioning_of(view, management)
    if provisioning is None or (provisioning.get("spec") or {}).get("rkeConfig") is None:
        return _refuse(request, "the cluster is imported: its nodes are not managed by Herder")
    meta = provisioning["metadata"]
    cluster = view.get(CLUSTER, meta["name"], meta["namespace"])
    if is_deleting(provisioning) or (cluster is not None and is_deleting(cluster)):
        return _refuse(request, "the cluster is being deleted")
    if cluster is None:
        return waiting(f"Cluster {meta['namespace']}/{meta['name']} does not exist yet")
    return _read_claims(view, request, cluster)


def _read_claims(view: View, request: Object, cluster: Object) -> Decision:
    """Read the claims of the request by an effect, since the cache holds only metadata of Secrets."""
    meta = request["metadata"]
    key = (names.READ_REQUEST, meta["uid"], meta["resourceVersion"])
    result = view.result(key)
    if result is None or not result.done:
        place = {"namespace": meta["namespace"], "name": meta["name"]}
        effect = Effect(names.READ_REQUEST, key, place, "read the claims of the machine")
        return requesting(effect, result, "waiting for the request to be read")
    try:
        claims = parse_request(result.value or {})
        check_roles(claims)
    except BadClaim as problem:
        return _refuse(request, str(problem))
    return _admit(view, request, cluster, claims)


def _admit(view: View, request: Object, cluster: Object, claims: MachineRequest) -> Decision:
    name, namespace = view.name, cluster["metadata"]["namespace"]
    existing = view.get(MACHINE, name, namespace)
    if existing is not None and existing["spec"]["clusterName"] != cluster["metadata"]["name"]:
        return _refuse(request, "the machine belongs to another cluster: uninstall its agent first")
    if existing is None:
        known = view.select(MACHINE, index=(BY_ID, _own(namespace, cluster["metadata"]["name"], claims.id)))
        existing = known[0] if len(known) == 1 else None
    if existing is not None and is_deleting(existing):
        return waiting("its Machine is being deleted", ref(MACHINE, existing))
    if existing is not None:
        return Decision(writes=(_acknowledge(request, existing),))
    if view.count(MACHINE, (BY_CLUSTER, cluster_key(namespace, cluster["metadata"]["name"]))) >= MAX_MACHINES:
        return _refuse(request, f"the cluster has {MAX_MACHINES} machines, the most that it may have; delete some")
    created = _new_objects(view, name, cluster, claims)
    return Decision(writes=created) if created else DONE


def _new_objects(view: View, name: str, cluster: Object, claims: MachineRequest) -> tuple[Write | Parallel, ...]:
    """Objects of a new machine; the Machine comes last, when the objects that it references exist."""
    namespace, of = cluster["metadata"]["namespace"], cluster["metadata"]["name"]
    labels, reason = claims.machine_labels(of), "a user registered the machine"

    def wanted(kind: Kind, annotations: Object, spec: Object) -> Object:
        meta = {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations}
        return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, "spec": spec}

    parts = {
        BOOTSTRAP: wanted(BOOTSTRAP, claims.node_annotations(), {"clusterName": of}),
        CUSTOM_MACHINE: wanted(CUSTOM_MACHINE, claims.taint_annotations(), {}),
    }
    machine = wanted(
        MACHINE,
        claims.taint_annotations(),
        {
            "clusterName": of,
            "bootstrap": {"configRef": _reference(BOOTSTRAP, name)},
            "infrastructureRef": _reference(CUSTOM_MACHINE, name),
            "deletion": {"nodeDeletionTimeoutSeconds": NODE_DELETION_SECONDS},
        },
    )
    missing = [Create(kind, obj, reason) for kind, obj in parts.items() if view.get(kind, name, namespace) is None]
    return (*((Parallel(tuple(missing)),) if missing else ()), Create(MACHINE, machine, reason))


def _reference(kind: Kind, name: str) -> Object:
    return {"apiGroup": kind.group, "kind": kind.kind, "name": name}


# --- answer ---------------------------------------------------------------------------------------------------------


def _acknowledge(request: Object, machine: Object) -> Patch:
    meta = machine["metadata"]
    labels = {names.MACHINE_NAMESPACE: meta["namespace"], names.MACHINE_NAME: meta["name"]}
    return Patch(ref(SECRET, request), {"metadata": {"labels": labels}}, "the machine is registered")


def _refuse(request: Object, problem: str) -> Decision:
    status = {"metadata": {"annotations": {names.REQUEST_PROBLEM: problem}}}
    return Decision(writes=(Patch(ref(SECRET, request), status, problem),))


# --- watches --------------------------------------------------------------------------------------------------------


def _is_request(secret: Object) -> bool:
    return names.REQUEST_FOR in labels_of(secret)


def _is_pending(request: Object) -> bool:
    return names.MACHINE_NAME not in labels_of(request) and names.REQUEST_PROBLEM not in annotations_of(request)


def _is_request_change(change: Change) -> bool:
    return change.new is not None and _is_request(change.new)


def _pending(secret: Object) -> Iterable[str]:
    """Indexer: unanswered requests, of which there are never many."""
    return (PENDING,) if _is_request(secret) and _is_pending(secret) else ()


def _all_pending(_obj: Object) -> Iterable[str]:
    return (PENDING,)


def _custom(machine: Object) -> Iterable[str]:
    """Index key for Machines that answer a request, or whose deletion makes room for one."""
    reference = (machine.get("spec") or {}).get("infrastructureRef") or {}
    return (PENDING,) if reference.get("kind") == CUSTOM_MACHINE.kind else ()


def _own(namespace: str, cluster: str, machine_id: str) -> str:
    return f"{namespace}/{cluster}/{machine_id}"


def _by_id(machine: Object) -> Iterable[str]:
    labels = labels_of(machine)
    if names.MACHINE_ID in labels:
        yield _own(machine["metadata"]["namespace"], labels.get(CLUSTER_NAME, ""), labels[names.MACHINE_ID])


CONTROLLER = Controller(
    name="machine-request",
    kind=SECRET_METADATA,
    reconcile=reconcile,
    watches=(
        Watches(MANAGEMENT_CLUSTER, Indexed(PENDING, _all_pending), changed("metadata.annotations")),
        Watches(PROVISIONING_CLUSTER, Indexed(PENDING, _all_pending), changed("status.clusterName", "spec.rkeConfig")),
        Watches(CLUSTER, Indexed(PENDING, _all_pending), changed("metadata.deletionTimestamp")),
        Watches(MACHINE, Indexed(PENDING, _custom), changed()),
        Watches(BOOTSTRAP),
        Watches(CUSTOM_MACHINE),
    ),
    predicate=_is_request_change,
    indexes={SECRET_METADATA: {PENDING: _pending}, MACHINE: {BY_ID: _by_id, BY_CLUSTER: cluster_of}},
    cluster_of=lambda request: str(request["metadata"]["namespace"]),
)
