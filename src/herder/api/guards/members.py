"""Guards of etcd members: none is deleted while the others would lose quorum, or while other servers join
through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from herder.api.capi.kinds import MACHINE, SECRET_METADATA
from herder.api.capi.names import CLUSTER_NAME, annotations_of, cluster_key, is_deleting, kubeconfig_secret
from herder.api.capi.nodes import node_by_machine, node_by_name, node_condition
from herder.api.guards.plan_changes import is_member, machine_remains, plans_of
from herder.api.guards.plans import cluster_is_deleting
from herder.api.rke import names
from herder.api.rke.distributions import Facts, version_of
from herder.api.rke.kinds import BOOTSTRAP, CONTROL_PLANE, PLAN_SECRET
from herder.api.rke.machines.strategy import is_lost, quorum
from herder.api.rke.node.plan_secret import PlanSecret
from herder.api.times import parse_time
from herder.api.writes import ref
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Delete, Observe, Patch, Refusal, Update
from herder.engine.runtime.executor import Action
from herder.engine.runtime.view import Observed, UndeclaredKind, View

WORKER_TIMEOUT = timedelta(minutes=30)
"""How long workers that have joined a server delay its removal."""


def keep_etcd_quorum(act: Action, view: View, before: Sequence[Action]) -> Refusal | None:
    """Deny the deletion unless the remaining members keep quorum; if none is to remain, the cluster's data
    is given up.
    """
    machine = _deleted(act, view)
    found = _member_plans(machine, view, before)
    if machine is None or found is None:
        return None
    _, others = found
    deleted = {other.ref.name for other in before if isinstance(other, Delete) and other.ref.kind == MACHINE}
    remaining = [
        each for each in others if machine_remains(view, each) and each.labels.get(names.MACHINE_NAME) not in deleted
    ]
    healthy = sum(not each.is_down for each in remaining)
    if not remaining or healthy >= quorum(len(remaining)):
        return None
    needed = quorum(len(remaining))
    message = (
        f"deletion refused: {healthy} of {len(remaining)} remaining etcd members are healthy, quorum needs {needed}; "
        "wait for the others or restore them"
    )
    return _refuse("keep-etcd-quorum", machine, message)


def deny_release_of_join_server(act: Action, view: View, before: Sequence[Action]) -> Refusal | None:
    """Deny removing the pre-terminate hook while other machines join through this one.

    Exceptions: the machine is lost, its member has been removed already, or only workers joined it, long ago.
    """
    machine = _released(act, view)
    found = _member_plans(machine, view, before)
    if machine is None or found is None or _is_forced(machine, view) or is_unreachable(machine, view):
        return None
    plan, _ = found
    facts = _facts(machine, view)
    if facts is not None and _is_removed(machine, view, facts.member_removal):
        return None
    url = plan.annotations.get(names.JOIN_URL)
    cluster = machine["metadata"]["labels"][CLUSTER_NAME]
    for other in plans_of(view, machine["metadata"]["namespace"], cluster, before):
        is_joined = url and other.name != plan.name and other.annotations.get(names.JOINED_TO) == url
        if is_joined and delays_removal(other, machine, view.now):
            message = f"release denied: {other.labels.get(names.MACHINE_NAME)} joins through it"
            return _refuse("deny-release-of-join-server", machine, message)
    return None


def require_etcd_member_removal(act: Action, view: View, before: Sequence[Action]) -> Refusal | None:
    """Deny removing the pre-terminate hook before the cluster reports that the etcd member is removed.

    A deleted machine would count as a member forever; with the last one, all data would be lost although another
    machine could take it over.
    """
    machine = _released(act, view)
    found = _member_plans(machine, view, before)
    if machine is None or found is None or _is_forced(machine, view):
        return None
    plan, _ = found
    facts, node = _facts(machine, view), ((machine.get("status") or {}).get("nodeRef") or {}).get("name")
    if facts is not None and not facts.member_removal:
        return None
    namespace, cluster = machine["metadata"]["namespace"], machine["metadata"]["labels"][CLUSTER_NAME]
    reachable = view.get(SECRET_METADATA, kubeconfig_secret(cluster), namespace) is not None
    others = [each for each in plans_of(view, namespace, cluster, before) if each.is_etcd and each.name != plan.name]
    if not node or not reachable or not any(machine_remains(view, each) for each in others):
        return None
    if _nodes_of(machine, view) == () or (facts is not None and _is_removed(machine, view, facts.member_removal)):
        return None
    return _refuse("require-etcd-member-removal", machine, f"release denied: Node {node} may still be an etcd member")


def delays_removal(joined: PlanSecret, server: Object, now: datetime) -> bool:
    """Whether a machine that has joined a server still delays the removal of the server.

    A compromised worker can do without its next plan, and keep it from the other workers of its tier. So it must not
    keep the server for ever.
    """
    deleted_at = parse_time(server["metadata"].get("deletionTimestamp"))
    is_server = joined.is_etcd or joined.is_control_plane or joined.is_init
    return is_server or deleted_at is None or now < deleted_at + WORKER_TIMEOUT


def node_of(machine: Object) -> Observe:
    """Observe the machine's Node by name or, before the name is known, by the Machine UID on the Node."""
    meta, name = machine["metadata"], ((machine.get("status") or {}).get("nodeRef") or {}).get("name")
    cluster = cluster_key(meta["namespace"], meta["labels"][CLUSTER_NAME])
    return node_by_name(cluster, name) if name else node_by_machine(cluster, meta["uid"])


def is_unreachable(machine: Object, view: View) -> bool:
    """Whether the machine is lost.

    The Machine's conditions say nothing before the cluster is fully up; then the Ready condition of the Node decides,
    if it is observed.
    """
    if is_lost(machine):
        return True
    readiness = [node_condition(node, "Ready") for node in _nodes_of(machine, view) or ()]
    return bool(readiness) and all(ready is not None and ready["status"] != "True" for ready in readiness)


def is_removed_member(node: Object, prefix: str) -> bool:
    """Whether the Node reports that its etcd member was removed.

    K3s and RKE2 keep the mark of a removal when the server joins again, as a member with another name.
    """
    marks = annotations_of(node)
    removed = marks.get(f"{prefix}/removed-node-name")
    return bool(removed) and marks.get(f"{prefix}/node-name") in (None, removed)


def _is_removed(machine: Object, view: View, prefix: str) -> bool:
    nodes = _nodes_of(machine, view)
    return bool(prefix and nodes) and all(is_removed_member(node, prefix) for node in nodes or ())


def _nodes_of(machine: Object, view: View) -> tuple[Object, ...] | None:
    """Return the machine's Nodes; None if they are not observed or the cluster does not respond."""
    seen = view.observed(node_of(machine))
    return tuple(seen.objects) if isinstance(seen, Observed) else None


def _facts(machine: Object, view: View) -> Facts | None:
    """Return the facts of the cluster's distribution, from the control plane's version: a node may report a wrong one.

    None if unknown; then the machine counts as a member.
    """
    meta = machine["metadata"]
    control_plane = view.get(CONTROL_PLANE, meta["labels"][CLUSTER_NAME], meta["namespace"]) or {}
    version = version_of(str((control_plane.get("spec") or {}).get("kubernetesVersion") or ""))
    return version.facts if version else None


# --- subjects of writes ---------------------------------------------------------------------------------------------


def _deleted(act: Action, view: View) -> Object | None:
    if not isinstance(act, Delete) or act.ref.kind != MACHINE or act.target:
        return None
    machine = view.get(MACHINE, act.ref.name, act.ref.namespace)
    return None if machine is None or is_deleting(machine) else machine


def _released(act: Action, view: View) -> Object | None:
    """Return the Machine whose pre-terminate hook the write removes."""
    if not isinstance(act, (Patch, Update)) or act.target:
        return None
    written = ref(act.kind, act.obj) if isinstance(act, Update) else act.ref
    if written.kind != MACHINE:
        return None
    machine = view.get(MACHINE, written.name, written.namespace)
    return machine if machine is not None and _removes_hook(act, machine) else None


def _removes_hook(act: Patch | Update, machine: Object) -> bool:
    has_hook = names.ETCD_HOOK in annotations_of(machine)
    if isinstance(act, Update):
        return has_hook and not act.subresource and names.ETCD_HOOK not in annotations_of(act.obj)
    metadata = act.patch.get("metadata", {})
    annotations = metadata.get("annotations", {}) if metadata is not None else None
    return has_hook if annotations is None else annotations.get(names.ETCD_HOOK, "") is None


def _member_plans(
    machine: Object | None, view: View, before: Sequence[Action]
) -> tuple[PlanSecret, list[PlanSecret]] | None:
    """Return the plan of an etcd machine and those of the other members; None if there is nothing to protect."""
    cluster = ((machine or {}).get("metadata", {}).get("labels") or {}).get(CLUSTER_NAME)
    reference = (((machine or {}).get("spec") or {}).get("bootstrap") or {}).get("configRef") or {}
    if machine is None or not cluster or reference.get("kind") != BOOTSTRAP.kind:
        return None
    namespace = machine["metadata"]["namespace"]
    try:
        secret = view.get(PLAN_SECRET, names.plan_secret(reference["name"]), namespace)
        if secret is None or cluster_is_deleting(view, namespace, cluster):
            return None
        plan = PlanSecret(secret)
        if not is_member(plan):
            return None
        members = [each for each in plans_of(view, namespace, cluster, before) if is_member(each)]
        return plan, [each for each in members if each.name != plan.name]
    except UndeclaredKind:
        return None  # plans are not watched here: the cluster is not provisioned by this process


def _is_forced(machine: Object, view: View) -> bool:
    name = machine["spec"]["bootstrap"]["configRef"]["name"]
    bootstrap = view.get(BOOTSTRAP, name, machine["metadata"]["namespace"])
    marks = ((bootstrap or {}).get("metadata") or {}).get("annotations") or {}
    return bootstrap is None or marks.get(names.ETCD_FORCE_REMOVE) == "true"


def _refuse(guard: str, machine: Object, message: str) -> Refusal:
    return Refusal(guard, f"Machine {machine['metadata']['namespace']}/{machine['metadata']['name']} {message}")
