"""Remove the etcd member of a Machine that is being deleted before Cluster API deletes its infrastructure.

The pre-terminate hook stays on the Machine until machines that joined it have joined another server and the
distribution has removed the member (annotation `<prefix>/removed-node-name` of the Node). K3s and RKE2 ignore the first
request for a member that was removed before and has joined again; it is requested again then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from herder.api.capi.kinds import CLUSTER, MACHINE, NODE, SECRET_METADATA
from herder.api.capi.names import CLUSTER_NAME, annotations_of, cluster_key, is_deleting, kubeconfig_secret, labels_of
from herder.api.events import normal
from herder.api.guards import plan_changes
from herder.api.guards.members import WORKER_TIMEOUT, delays_removal, is_removed_member, is_unreachable, node_of
from herder.api.rke import names
from herder.api.rke.events import cluster_events
from herder.api.rke.kinds import BOOTSTRAP, CONTROL_PLANE, PLAN_SECRET
from herder.api.rke.machines.strategy import is_lost, quorum
from herder.api.rke.node.plan_secret import FAILED
from herder.api.writes import PROGRESS_DEBOUNCE, ref
from herder.controllers.planner.distributions.lookup import UnknownVersion, distribution_of
from herder.controllers.planner.rollout.machines import (
    BY_CLUSTER,
    RECONCILED,
    PlanEntry,
    awaits_etcd_removal,
    bootstrap_of,
    by_cluster,
    entries_of,
    machines_of,
)
from herder.controllers.planner.rollout.status import machine_condition
from herder.engine.control.cache import Change
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Events, Observe, Patch, Ref, waiting
from herder.engine.runtime.handlers import Indexed, Watches, changed
from herder.engine.runtime.view import Observed, Unreachable, View

HELD_BY_CLUSTER = "leaving-members"
LAST_MEMBER_DELAY = timedelta(seconds=20)
"""Of two members, the remaining one gets this long to apply its plan before the other is removed."""
RETRY_INTERVAL = timedelta(seconds=20)
JOIN_TIMEOUT = timedelta(minutes=5)
"""A machine that has a plan but no Node may still join etcd. Wait this long, so that its member is not orphaned."""


def reconcile(view: View) -> Decision:
    machine = view.get(MACHINE, view.name)
    if machine is None or not awaits_etcd_removal(machine):
        return DONE
    if names.AGENT_HOOK in annotations_of(machine):
        # K3s and RKE2 stop a server whose member is removed, and with it the cluster agent that must move first.
        return waiting("waiting for the cluster agent to leave the machine", ref(MACHINE, machine))
    cluster = labels_of(machine).get(CLUSTER_NAME, "")
    entries = entries_of(view, machines_of(view, view.namespace, cluster))
    own = next((entry for entry in entries if entry.name == view.name), None)
    prefix = _removal_prefix(view, cluster)
    if own is None or not prefix or _needs_no_removal(view, own, cluster):
        return _report_wait(view, machine, _release(machine))
    subscription = node_of(machine)
    return _report_wait(
        view, machine, Decision(observe=(subscription,)) + _remove_member(view, own, entries, subscription, prefix)
    )


def _report_wait(view: View, machine: Object, decision: Decision) -> Decision:
    """Report in the Machine's conditions why its deletion waits, or why a guard refused the last write."""
    refused = view.refused if decision.writes else None
    reason = str(refused or (decision.wait.reason if decision.wait else ""))
    if not reason:
        return decision
    condition = ("Unknown", "Waiting", reason)
    return Decision(machine_condition(machine, RECONCILED, condition, view.now, debounce=PROGRESS_DEBOUNCE)) + decision


def _release(machine: Object, events: Events = ()) -> Decision:
    released = {"metadata": {"annotations": {names.ETCD_HOOK: None}}}
    why = "its etcd member is removed, or was never needed"
    return Decision(writes=(Patch(ref(MACHINE, machine), released, why, events=events),))


def _removed_events(view: View, machine: Object, node: Object) -> Events:
    cluster = labels_of(machine).get(CLUSTER_NAME, "")
    message = f"etcd member of Node {node['metadata']['name']} is removed"
    reason = "EtcdMemberRemoved"
    on_cluster = cluster_events(view.get(CLUSTER, cluster), view.get(CONTROL_PLANE, cluster), reason, message)
    return (normal(MACHINE, machine, reason, message), *on_cluster)


def _removal_prefix(view: View, cluster: str) -> str:
    """The annotation prefix for member removal; empty if the cluster is being deleted or needs no removal."""
    objects = [view.get(CLUSTER, cluster), view.get(CONTROL_PLANE, cluster)]
    if any(obj is None or is_deleting(obj) for obj in objects):
        return ""
    try:
        version = ((objects[1] or {}).get("spec") or {}).get("kubernetesVersion") or ""
        return distribution_of(version).member_removal()
    except UnknownVersion:
        return ""


def _needs_no_removal(view: View, own: PlanEntry, cluster: str) -> bool:
    bootstrap = view.get(BOOTSTRAP, bootstrap_of(own.machine))
    forced = bootstrap is not None and annotations_of(bootstrap).get(names.ETCD_FORCE_REMOVE) == "true"
    reachable = view.get(SECRET_METADATA, kubeconfig_secret(cluster)) is not None
    return forced or not own.roles.etcd or not reachable or not (own.has_node or _may_join(own))


def _may_join(own: PlanEntry) -> bool:
    return own.plan.has_plan and own.plan.state != FAILED


def _remove_member(
    view: View, own: PlanEntry, entries: Sequence[PlanEntry], subscription: Observe, prefix: str
) -> Decision:
    known = (own.machine["status"].get("nodeRef") or {}).get("name")
    match view.observed(subscription):
        case Observed(objects):
            node = _member_node(objects, prefix)
        case Unreachable(reason):
            message = f"cluster is unreachable: {reason}"
            return _wait_for_others(view, own, entries) or waiting(message, wake_at=view.now + RETRY_INTERVAL)
        case _:
            return waiting(f"reading Node {known or 'of the machine'}")
    if node is not None and is_removed_member(node, prefix):
        return _release(own.machine, _removed_events(view, own.machine, node))
    wait = _wait_for_others(view, own, entries)
    if node is not None:
        return _cancel_removal(own, node, prefix, wait) if wait else _request_removal(own, node, prefix)
    if not wait and not known and view.now < _deleted_at(own) + JOIN_TIMEOUT:
        return waiting(
            "waiting for Node registration: the machine may still join etcd", wake_at=_deleted_at(own) + JOIN_TIMEOUT
        )
    return wait or _release(own.machine)


def _member_node(nodes: Sequence[Object], prefix: str) -> Object | None:
    """The Node whose member must be removed.

    Before the Node's name is known, Nodes are found by a label, which a compromised worker may set on its own Node.
    A Node that claims its member is removed therefore counts only if no other Node has the label.
    """
    staying = [node for node in nodes if not is_removed_member(node, prefix)]
    return next(iter((*staying, *nodes)), None)


def _wait_for_others(view: View, own: PlanEntry, entries: Sequence[PlanEntry]) -> Decision | None:
    """What the removal waits for; None if the member can be removed now.

    A lost machine waits for nothing: its member is unavailable already, and the others can remove it only while they
    have a quorum.
    """
    if is_unreachable(own.machine, view):
        return None
    joined = [entry for entry in entries if entry is not own and own.join_url and entry.joined_to == own.join_url]
    joined = [entry for entry in joined if delays_removal(entry.plan, own.machine, view.now)]
    if joined:
        due = _deleted_at(own) + WORKER_TIMEOUT
        reason = f"waiting for machines that have joined it to join another: {', '.join(each.name for each in joined)}"
        return waiting(reason, wake_at=due if view.now < due else None)
    others = [entry for entry in entries if entry.roles.etcd and entry is not own]
    staying = [entry for entry in others if not entry.is_deleting and entry.plan.has_applied_plan]
    newcomers = [entry.name for entry in others if not entry.is_deleting and not entry.plan.has_applied_plan]
    if newcomers and not staying:
        return waiting(f"no other etcd member remains; waiting for one of these to join: {', '.join(newcomers)}")
    healthy = sum(not entry.plan.is_down for entry in staying)
    if staying and healthy < quorum(len(staying)):
        return waiting(
            f"healthy etcd members that remain: {healthy} of {len(staying)}, quorum needs {quorum(len(staying))}; "
            "waiting for the others"
        )
    ready_at = _deleted_at(own) + LAST_MEMBER_DELAY
    if len(others) == 1 and staying and view.now < ready_at:
        return waiting("waiting 20 s for the remaining etcd member to settle", wake_at=ready_at)
    return None


def _deleted_at(own: PlanEntry) -> datetime:
    return datetime.fromisoformat(own.machine["metadata"]["deletionTimestamp"])


def _cancel_removal(own: PlanEntry, node: Object, prefix: str, wait: Decision) -> Decision:
    """Withdraw a removal that was requested before other members were lost."""
    requested = annotations_of(node).get(f"{prefix}/remove") == "true"
    return (
        _annotate(own, node, prefix, None, "other members were lost; it is needed again") if requested else DONE
    ) + wait


def _request_removal(own: PlanEntry, node: Object, prefix: str) -> Decision:
    if annotations_of(node).get(f"{prefix}/remove") != "true":
        return _annotate(own, node, prefix, "true", "its Machine is being deleted")
    name = node["metadata"]["name"]
    return waiting(f"waiting for the etcd member of Node {name} to leave", Ref(NODE, name))


def _annotate(own: PlanEntry, node: Object, prefix: str, value: str | None, reason: str) -> Decision:
    meta = own.machine["metadata"]
    target = cluster_key(meta["namespace"], meta["labels"][CLUSTER_NAME])
    patch = {"metadata": {"annotations": {f"{prefix}/remove": value}}}
    return Decision(writes=(Patch(Ref(NODE, node["metadata"]["name"]), patch, reason, target=target),))


# --- watches ----------------------------------------------------------------------------------------------------------


def _held_by_cluster(machine: Object) -> Iterable[str]:
    return by_cluster(machine) if awaits_etcd_removal(machine) else ()


def _in_cluster(label: str) -> Indexed:
    def keys(obj: Object) -> Iterable[str]:
        cluster = labels_of(obj).get(label)
        return (cluster_key(obj["metadata"]["namespace"], cluster),) if cluster else ()

    return Indexed(HELD_BY_CLUSTER, keys)


def _cluster_key(obj: Object) -> Iterable[str]:
    return (cluster_key(obj["metadata"]["namespace"], obj["metadata"]["name"]),)


_machine_changed = changed("metadata.deletionTimestamp", "metadata.annotations", "status.nodeRef")


def _is_relevant(change: Change) -> bool:
    """A Machine that becomes lost during its deletion no longer waits for the others."""
    return _machine_changed(change) or is_lost(change.old) != is_lost(change.new)


CONTROLLER = Controller(
    name="etcd-member",
    kind=MACHINE,
    reconcile=reconcile,
    predicate=_is_relevant,
    watches=(
        Watches(PLAN_SECRET, _in_cluster(names.CLUSTER_NAME)),
        Watches(BOOTSTRAP, _in_cluster(CLUSTER_NAME), changed("metadata.annotations")),
        Watches(CLUSTER, Indexed(HELD_BY_CLUSTER, _cluster_key), changed("metadata.deletionTimestamp")),
        Watches(CONTROL_PLANE, Indexed(HELD_BY_CLUSTER, _cluster_key), changed("metadata.deletionTimestamp")),
        Watches(SECRET_METADATA),
    ),
    indexes={
        MACHINE: {BY_CLUSTER: by_cluster, HELD_BY_CLUSTER: _held_by_cluster},
        PLAN_SECRET: {**plan_changes.INDEXES},
    },
    groupings=(plan_changes.TRAITS,),
    cluster_of=lambda machine: cluster_key(machine["metadata"]["namespace"], labels_of(machine).get(CLUSTER_NAME, "")),
)
