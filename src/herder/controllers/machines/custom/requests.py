"""A machine that somebody else made asks to be taken in: its request becomes a Machine with all that belongs to it.

Who answers the machine waits for the label that is written last, or for the words that say why not.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from herder.api.capi.kinds import CLUSTER, MACHINE, SECRET, SECRET_METADATA
from herder.api.capi.names import CLUSTER_NAME, annotations_of, cluster_key, is_deleting, labels_of
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.rke import names
from herder.api.rke.admission.pools import MACHINES_AT_MOST
from herder.api.rke.kinds import BOOTSTRAP, CUSTOM_MACHINE
from herder.api.rke.removal import BY_CLUSTER, NODE_DELETION_SECONDS, cluster_of
from herder.api.rke.requests import BadClaim, MachineRequest, check_roles, parsed
from herder.api.writing import delete, ref
from herder.controllers.machines.managed import provisioning_of
from herder.engine.control.cache import Change
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Create, Decision, Effect, Parallel, Patch, Write, requesting, waiting
from herder.engine.runtime.handlers import Indexed, Watches, changed
from herder.engine.runtime.view import View

KEPT = timedelta(minutes=3)
"""Longer than anybody waits for an answer; who asked deletes it sooner."""

BY_ID = "machine-id"
PENDING = "pending-requests"


def reconcile(view: View) -> Decision:
    request = view.get(SECRET_METADATA, view.name)
    if request is None or is_deleting(request) or not _is_request(request):
        return DONE
    ends = datetime.fromisoformat(request["metadata"]["creationTimestamp"]) + KEPT
    if view.now >= ends:
        return Decision(writes=(delete(SECRET, request, "nobody waits for it any more"),))
    return Decision(wake_at=ends) + (_answer(view, request) if _is_pending(request) else DONE)


def _answer(view: View, request: Object) -> Decision:
    management = view.get(MANAGEMENT_CLUSTER, view.namespace)
    if management is None or labels_of(request)[names.REQUEST_FOR] != view.namespace:
        return _refuse(request, "there is no such cluster")
    provisioning = provisioning_of(view, management)
    if provisioning is None or (provisioning.get("spec") or {}).get("rkeConfig") is None:
        return _refuse(request, "the cluster was imported: its nodes come and go without the manager")
    meta = provisioning["metadata"]
    cluster = view.get(CLUSTER, meta["name"], meta["namespace"])
    if is_deleting(provisioning) or (cluster is not None and is_deleting(cluster)):
        return _refuse(request, "the cluster is being deleted")
    if cluster is None:
        return waiting(f"Cluster {meta['namespace']}/{meta['name']} is not there yet")
    return _with_claims(view, request, cluster)


def _with_claims(view: View, request: Object, cluster: Object) -> Decision:
    """What it says of itself is in a Secret, of which controllers see the metadata alone; so an effect reads it."""
    meta = request["metadata"]
    key = (names.READ_REQUEST, meta["uid"], meta["resourceVersion"])
    result = view.result(key)
    if result is None or not result.done:
        place = {"namespace": meta["namespace"], "name": meta["name"]}
        effect = Effect(names.READ_REQUEST, key, place, "what the machine says of itself")
        return requesting(effect, result, "waiting for the request to be read")
    try:
        claims = parsed(result.value or {})
        check_roles(claims)
    except BadClaim as problem:
        return _refuse(request, str(problem))
    return _taken_in(view, request, cluster, claims)


def _taken_in(view: View, request: Object, cluster: Object, claims: MachineRequest) -> Decision:
    name, namespace = view.name, cluster["metadata"]["namespace"]
    there = view.get(MACHINE, name, namespace)
    if there is not None and there["spec"]["clusterName"] != cluster["metadata"]["name"]:
        return _refuse(request, "the machine belongs to another cluster: uninstall its agent first")
    if there is None:
        known = view.select(MACHINE, index=(BY_ID, _own(namespace, cluster["metadata"]["name"], claims.id)))
        there = known[0] if len(known) == 1 else None
    if there is not None and is_deleting(there):
        return waiting("its Machine is being deleted", ref(MACHINE, there))
    if there is not None:
        return Decision(writes=(_acknowledge(request, there),))
    if view.count(MACHINE, (BY_CLUSTER, cluster_key(namespace, cluster["metadata"]["name"]))) >= MACHINES_AT_MOST:
        return _refuse(request, f"the cluster has {MACHINES_AT_MOST} machines, the most that it may have; delete some")
    made = _made(view, name, cluster, claims)
    return Decision(writes=made) if made else DONE


def _made(view: View, name: str, cluster: Object, claims: MachineRequest) -> tuple[Write | Parallel, ...]:
    """The Machine last: what it refers to is there then. Its own change wakes this once more."""
    namespace, of = cluster["metadata"]["namespace"], cluster["metadata"]["name"]
    labels, reason = claims.machine_labels(of), "somebody registered the machine"

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


# --- the answer -----------------------------------------------------------------------------------------------------


def _acknowledge(request: Object, machine: Object) -> Patch:
    meta = machine["metadata"]
    labels = {names.MACHINE_NAMESPACE: meta["namespace"], names.MACHINE_NAME: meta["name"]}
    return Patch(ref(SECRET, request), {"metadata": {"labels": labels}}, "the machine is taken in")


def _refuse(request: Object, problem: str) -> Decision:
    status = {"metadata": {"annotations": {names.REQUEST_PROBLEM: problem}}}
    return Decision(writes=(Patch(ref(SECRET, request), status, problem),))


# --- what sets it off -----------------------------------------------------------------------------------------------


def _is_request(secret: Object) -> bool:
    return names.REQUEST_FOR in labels_of(secret)


def _is_pending(request: Object) -> bool:
    return names.MACHINE_NAME not in labels_of(request) and names.REQUEST_PROBLEM not in annotations_of(request)


def _matters(change: Change) -> bool:
    return change.new is not None and _is_request(change.new)


def _pending(secret: Object) -> Iterable[str]:
    """Indexer: requests that nobody has answered; there are never many."""
    return (PENDING,) if _is_request(secret) and _is_pending(secret) else ()


def _all_pending(_obj: Object) -> Iterable[str]:
    return (PENDING,)


def _custom(machine: Object) -> Iterable[str]:
    """Machines that may have been asked for, or are to make room."""
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
    predicate=_matters,
    indexes={SECRET_METADATA: {PENDING: _pending}, MACHINE: {BY_ID: _by_id, BY_CLUSTER: cluster_of}},
)
