"""A machine with etcd goes only when its member has left: the others were told to join somebody else, and have taken it
out of their midst. Until then its last hook stays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from herder.api.capi.kinds import CLUSTER, MACHINE, NODE, SECRET_METADATA
from herder.api.capi.names import CLUSTER_NAME, annotations_of, cluster_key, is_deleting, kubeconfig_secret, labels_of
from herder.api.guards import plan_acts
from herder.api.guards.members import is_out_of_reach, node_of
from herder.api.rke import names
from herder.api.rke.kinds import BOOTSTRAP, CONTROL_PLANE, PLAN_SECRET
from herder.api.rke.plan_secret import FAILED
from herder.api.rke.strategy import is_lost, quorum
from herder.api.writing import PROGRESS_PATIENCE, ref
from herder.controllers.planner.distributions.choosing import UnknownVersion, distribution_of
from herder.controllers.planner.entries import (
    BY_CLUSTER,
    RECONCILED,
    Entry,
    bootstrap_of,
    by_cluster,
    entries_of,
    is_held,
    machines_of,
)
from herder.controllers.planner.reports import machine_condition
from herder.engine.control.cache import Change
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Observe, Patch, Ref, waiting
from herder.engine.runtime.handlers import Indexed, Watches, changed
from herder.engine.runtime.view import Observed, Unreachable, View

LEAVING = "leaving-members"
OF_TWO = timedelta(seconds=20)
"""Where two members are left, the one that stays is given that long to notice that it is to be alone."""
LOOK_AGAIN = timedelta(seconds=20)
JOINING = timedelta(minutes=5)
"""A machine that was given a plan and has no Node may be about to join: its member would stay behind."""


def reconcile(view: View) -> Decision:
    machine = view.get(MACHINE, view.name)
    if machine is None or not is_held(machine):
        return DONE
    cluster = labels_of(machine).get(CLUSTER_NAME, "")
    entries = entries_of(view, machines_of(view, view.namespace, cluster))
    own = next((entry for entry in entries if entry.name == view.name), None)
    prefix = _removal(view, cluster)
    if own is None or not prefix or _needs_no_leave(view, own, cluster):
        return _with_report(view, machine, _release(machine))
    wish = node_of(machine)
    return _with_report(view, machine, Decision(observe=(wish,)) + _let_go(view, own, entries, wish, prefix))


def _with_report(view: View, machine: Object, decision: Decision) -> Decision:
    """Why it is held, where people look for it; what a guard refused before that is tried again."""
    refused = view.refused if decision.writes else None
    reason = str(refused or (decision.wait.reason if decision.wait else ""))
    if not reason:
        return decision
    said = ("Unknown", "Waiting", reason)
    return Decision(machine_condition(machine, RECONCILED, said, view.now, patience=PROGRESS_PATIENCE)) + decision


def _release(machine: Object) -> Decision:
    released = {"metadata": {"annotations": {names.ETCD_HOOK: None}}}
    return Decision(writes=(Patch(ref(MACHINE, machine), released, "its etcd member is gone, or nobody misses it"),))


def _removal(view: View, cluster: str) -> str:
    """By which annotations its distribution takes members out; empty where the whole cluster goes or they go alone."""
    objects = [view.get(CLUSTER, cluster), view.get(CONTROL_PLANE, cluster)]
    if any(obj is None or is_deleting(obj) for obj in objects):
        return ""
    try:
        version = ((objects[1] or {}).get("spec") or {}).get("kubernetesVersion") or ""
        return distribution_of(version).member_removal()
    except UnknownVersion:
        return ""


def _needs_no_leave(view: View, own: Entry, cluster: str) -> bool:
    bootstrap = view.get(BOOTSTRAP, bootstrap_of(own.machine))
    forced = bootstrap is not None and annotations_of(bootstrap).get(names.ETCD_FORCE_REMOVE) == "true"
    reachable = view.get(SECRET_METADATA, kubeconfig_secret(cluster)) is not None
    return forced or not own.roles.etcd or not reachable or not (own.has_node or _may_join(own))


def _may_join(own: Entry) -> bool:
    return own.plan.has_plan and own.plan.state != FAILED


def _let_go(view: View, own: Entry, entries: Sequence[Entry], wish: Observe, prefix: str) -> Decision:
    known = (own.machine["status"].get("nodeRef") or {}).get("name")
    match view.observed(wish):
        case Observed(objects):
            node = _still_in(objects, prefix)
        case Unreachable(reason):
            message = f"the cluster does not answer: {reason}"
            return _wait_for_others(view, own, entries) or waiting(message, wake_at=view.now + LOOK_AGAIN)
        case _:
            return waiting(f"looking at Node {known or 'of the machine'}")
    if node is not None and annotations_of(node).get(f"{prefix}/removed-node-name"):
        return _release(own.machine)
    wait = _wait_for_others(view, own, entries)
    if node is not None:
        return _stay(own, node, prefix, wait) if wait else _leave(own, node, prefix)
    if not wait and not known and view.now < _deleted_at(own) + JOINING:
        return waiting("it may be about to join: its Node is waited for", wake_at=_deleted_at(own) + JOINING)
    return wait or _release(own.machine)


def _still_in(nodes: Sequence[Object], prefix: str) -> Object | None:
    """Before its name is known, Nodes are found by a label, which a compromised worker may set on its own: its word on
    the member does not count while another of them says nothing of it."""
    staying = [node for node in nodes if not annotations_of(node).get(f"{prefix}/removed-node-name")]
    return next(iter((*staying, *nodes)), None)


def _wait_for_others(view: View, own: Entry, entries: Sequence[Entry]) -> Decision | None:
    """Nobody is joined any more to one that is lost: its member leaves first, so that the others can do without it. It
    is missed already, and they can take it out only while they have a quorum."""
    if is_out_of_reach(own.machine, view):
        return None
    joined = [entry.name for entry in entries if entry is not own and own.join_url and entry.joined_to == own.join_url]
    if joined:
        return waiting(f"waiting for machines that have joined it to join another: {', '.join(joined)}")
    others = [entry for entry in entries if entry.roles.etcd and entry is not own]
    staying = [entry for entry in others if not entry.is_deleting and entry.plan.has_applied_plan]
    newcomers = [entry.name for entry in others if not entry.is_deleting and not entry.plan.has_applied_plan]
    if newcomers and not staying:
        return waiting(f"no other etcd member stays: it is there until one of these has joined: {', '.join(newcomers)}")
    well = sum(not entry.plan.is_down for entry in staying)
    if staying and well < quorum(len(staying)):
        return waiting(f"{well} of the {len(staying)} other etcd members are well, and {quorum(len(staying))} must be")
    alone = _deleted_at(own) + OF_TWO
    if len(others) == 1 and staying and view.now < alone:
        return waiting("the etcd member that stays is given a moment", wake_at=alone)
    return None


def _deleted_at(own: Entry) -> datetime:
    return datetime.fromisoformat(own.machine["metadata"]["deletionTimestamp"])


def _stay(own: Entry, node: Object, prefix: str, wait: Decision) -> Decision:
    """What was asked before others were lost is taken back."""
    asked = annotations_of(node).get(f"{prefix}/remove") == "true"
    return (_mark(own, node, prefix, None, "it is needed again") if asked else DONE) + wait


def _leave(own: Entry, node: Object, prefix: str) -> Decision:
    if annotations_of(node).get(f"{prefix}/remove") != "true":
        return _mark(own, node, prefix, "true", "its machine goes")
    name = node["metadata"]["name"]
    return waiting(f"waiting for the etcd member of Node {name} to leave", Ref(NODE, name))


def _mark(own: Entry, node: Object, prefix: str, value: str | None, why: str) -> Decision:
    meta = own.machine["metadata"]
    where = cluster_key(meta["namespace"], meta["labels"][CLUSTER_NAME])
    marked = {"metadata": {"annotations": {f"{prefix}/remove": value}}}
    return Decision(writes=(Patch(Ref(NODE, node["metadata"]["name"]), marked, why, target=where),))


# --- what wakes it --------------------------------------------------------------------------------------------------


def _leaving(machine: Object) -> Iterable[str]:
    return by_cluster(machine) if is_held(machine) else ()


def _in_cluster(label: str) -> Indexed:
    def keys(obj: Object) -> Iterable[str]:
        cluster = labels_of(obj).get(label)
        return (cluster_key(obj["metadata"]["namespace"], cluster),) if cluster else ()

    return Indexed(LEAVING, keys)


def _named(obj: Object) -> Iterable[str]:
    return (cluster_key(obj["metadata"]["namespace"], obj["metadata"]["name"]),)


_OF_MACHINES = changed("metadata.deletionTimestamp", "metadata.annotations", "status.nodeRef")


def _matters(change: Change) -> bool:
    """One that is found to be lost on its way out is not waited for any longer."""
    return _OF_MACHINES(change) or is_lost(change.old) != is_lost(change.new)


CONTROLLER = Controller(
    name="etcd-member",
    kind=MACHINE,
    reconcile=reconcile,
    predicate=_matters,
    watches=(
        Watches(PLAN_SECRET, _in_cluster(names.CLUSTER_NAME)),
        Watches(BOOTSTRAP, _in_cluster(CLUSTER_NAME), changed("metadata.annotations")),
        Watches(CLUSTER, Indexed(LEAVING, _named), changed("metadata.deletionTimestamp")),
        Watches(CONTROL_PLANE, Indexed(LEAVING, _named), changed("metadata.deletionTimestamp")),
        Watches(SECRET_METADATA),
    ),
    indexes={MACHINE: {BY_CLUSTER: by_cluster, LEAVING: _leaving}, PLAN_SECRET: {**plan_acts.INDEXES}},
    groupings=(plan_acts.TRAITS,),
    cluster_of=lambda machine: cluster_key(machine["metadata"]["namespace"], labels_of(machine).get(CLUSTER_NAME, "")),
)
