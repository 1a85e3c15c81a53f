"""Members of etcd: none goes while the others would be left without a quorum, or while others have joined it."""

from __future__ import annotations

from collections.abc import Sequence

from herder.api.capi.kinds import MACHINE, SECRET_METADATA
from herder.api.capi.names import CLUSTER_NAME, annotations_of, cluster_key, is_deleting, kubeconfig_secret
from herder.api.capi.nodes import node_by_machine, node_by_name, node_condition
from herder.api.guards.plan_acts import plans_of, stays
from herder.api.guards.plans import cluster_goes, is_member
from herder.api.rke import names
from herder.api.rke.distributions import Facts, version_of
from herder.api.rke.kinds import BOOTSTRAP, CONTROL_PLANE, PLAN_SECRET
from herder.api.rke.plan_secret import PlanSecret
from herder.api.rke.strategy import is_lost, quorum
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Delete, Observe, Patch, Refusal
from herder.engine.runtime.executor import Act
from herder.engine.runtime.view import Observed, UndeclaredKind, View


def no_member_that_the_others_need(act: Act, view: View, before: Sequence[Act]) -> Refusal | None:
    """Those that stay must keep the quorum. Where none is to stay, the cluster's owner has given all of them up."""
    machine = _deleted(act, view)
    found = _planned(machine, view, before)
    if machine is None or found is None:
        return None
    _, others = found
    leaving = {other.ref.name for other in before if isinstance(other, Delete) and other.ref.kind == MACHINE}
    staying = [each for each in others if stays(view, each) and each.labels.get(names.MACHINE_NAME) not in leaving]
    well = sum(not each.is_down for each in staying)
    if not staying or well >= quorum(len(staying)):
        return None
    needed = quorum(len(staying))
    message = f"stays: {well} of the {len(staying)} other etcd members are well, and {needed} must be before one goes"
    return _refuse("no-member-that-the-others-need", machine, message)


def no_release_while_joined(act: Act, view: View, before: Sequence[Act]) -> Refusal | None:
    """A machine's last hook goes when its member has gone: not while others were told to join it, unless it is lost or
    out already and nobody can."""
    machine = _released(act, view)
    found = _planned(machine, view, before)
    if machine is None or found is None or _is_forced(machine, view) or is_out_of_reach(machine, view):
        return None
    plan, _ = found
    facts = _facts(machine, view)
    if facts is not None and _is_out(machine, view, facts.member_removal):
        return None
    url = plan.annotations.get(names.JOIN_URL)
    cluster = machine["metadata"]["labels"][CLUSTER_NAME]
    for other in plans_of(view, machine["metadata"]["namespace"], cluster, before):
        if url and other.name != plan.name and other.annotations.get(names.JOINED_TO) == url:
            message = f"is not let go: {other.labels.get(names.MACHINE_NAME)} has joined it"
            return _refuse("no-release-while-joined", machine, message)
    return None


def no_release_of_a_member(act: Act, view: View, before: Sequence[Act]) -> Refusal | None:
    """Nor before the cluster itself says that its member is out: a machine that is gone would count for ever, and with
    the last one all data would go, though another machine is there to have it."""
    machine = _released(act, view)
    found = _planned(machine, view, before)
    if machine is None or found is None or _is_forced(machine, view):
        return None
    plan, _ = found
    facts, node = _facts(machine, view), ((machine.get("status") or {}).get("nodeRef") or {}).get("name")
    if facts is not None and not facts.member_removal:
        return None
    namespace, cluster = machine["metadata"]["namespace"], machine["metadata"]["labels"][CLUSTER_NAME]
    answered = view.get(SECRET_METADATA, kubeconfig_secret(cluster), namespace) is not None
    others = [each for each in plans_of(view, namespace, cluster, before) if each.is_etcd and each.name != plan.name]
    if not node or not answered or not any(stays(view, each) for each in others):
        return None
    if _nodes_of(machine, view) == () or (facts is not None and _is_out(machine, view, facts.member_removal)):
        return None
    return _refuse("no-release-of-a-member", machine, f"is not let go: Node {node} may still be a member of etcd")


def node_of(machine: Object) -> Observe:
    """By its name, or before that is known by what the Node says of itself."""
    meta, known = machine["metadata"], ((machine.get("status") or {}).get("nodeRef") or {}).get("name")
    where = cluster_key(meta["namespace"], meta["labels"][CLUSTER_NAME])
    return node_by_name(where, known) if known else node_by_machine(where, meta["uid"])


def is_out_of_reach(machine: Object, view: View) -> bool:
    """As is told of the Machine, which is nothing before its cluster is there as a whole: then the Node itself is
    asked, where somebody looks at it."""
    if is_lost(machine):
        return True
    readiness = [node_condition(node, "Ready") for node in _nodes_of(machine, view) or ()]
    return bool(readiness) and all(ready is not None and ready["status"] != "True" for ready in readiness)


def _is_out(machine: Object, view: View, prefix: str) -> bool:
    """As its Node says: its member was taken out."""
    reported = [annotations_of(node) for node in _nodes_of(machine, view) or ()]
    return bool(prefix and reported) and all(f"{prefix}/removed-node-name" in marks for marks in reported)


def _nodes_of(machine: Object, view: View) -> tuple[Object, ...] | None:
    """None where nobody has looked, or the cluster does not answer."""
    seen = view.observed(node_of(machine))
    return tuple(seen.objects) if isinstance(seen, Observed) else None


def _facts(machine: Object, view: View) -> Facts | None:
    """Of its cluster's distribution, by what the control plane is to run: what the node reports may be a lie. None
    where nobody can say how a member leaves; then it is taken for one."""
    meta = machine["metadata"]
    control_plane = view.get(CONTROL_PLANE, meta["labels"][CLUSTER_NAME], meta["namespace"]) or {}
    version = version_of(str((control_plane.get("spec") or {}).get("kubernetesVersion") or ""))
    return version.facts if version else None


# --- what acts are about --------------------------------------------------------------------------------------------


def _deleted(act: Act, view: View) -> Object | None:
    if not isinstance(act, Delete) or act.ref.kind != MACHINE or act.target:
        return None
    machine = view.get(MACHINE, act.ref.name, act.ref.namespace)
    return None if machine is None or is_deleting(machine) else machine


def _released(act: Act, view: View) -> Object | None:
    """The Machine whose hook the act takes away."""
    if not isinstance(act, Patch) or act.ref.kind != MACHINE or act.target:
        return None
    annotations = (act.patch.get("metadata") or {}).get("annotations") or {}
    if names.ETCD_HOOK not in annotations or annotations[names.ETCD_HOOK] is not None:
        return None
    return view.get(MACHINE, act.ref.name, act.ref.namespace)


def _planned(machine: Object | None, view: View, before: Sequence[Act]) -> tuple[PlanSecret, list[PlanSecret]] | None:
    """The plan of a Machine that is a member of etcd, and those of the other members; None where there is nothing to
    protect, or the whole cluster goes."""
    cluster = ((machine or {}).get("metadata", {}).get("labels") or {}).get(CLUSTER_NAME)
    reference = (((machine or {}).get("spec") or {}).get("bootstrap") or {}).get("configRef") or {}
    if machine is None or not cluster or reference.get("kind") != BOOTSTRAP.kind:
        return None
    namespace = machine["metadata"]["namespace"]
    try:
        secret = view.get(PLAN_SECRET, names.plan_secret(reference["name"]), namespace)
        if secret is None or cluster_goes(view, namespace, cluster):
            return None
        plan = PlanSecret(secret)
        if not is_member(plan):
            return None
        members = [each for each in plans_of(view, namespace, cluster, before) if is_member(each)]
        return plan, [each for each in members if each.name != plan.name]
    except UndeclaredKind:
        return None  # nobody here reads plans: this cluster is another's


def _is_forced(machine: Object, view: View) -> bool:
    name = machine["spec"]["bootstrap"]["configRef"]["name"]
    bootstrap = view.get(BOOTSTRAP, name, machine["metadata"]["namespace"])
    marks = ((bootstrap or {}).get("metadata") or {}).get("annotations") or {}
    return bootstrap is None or marks.get(names.ETCD_FORCE_REMOVE) == "true"


def _refuse(guard: str, machine: Object, message: str) -> Refusal:
    return Refusal(guard, f"Machine {machine['metadata']['namespace']}/{machine['metadata']['name']} {message}")
