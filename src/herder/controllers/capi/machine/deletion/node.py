"""The Machine's Node in its workload cluster: whether it may be touched at all, and its deletion at the end."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from herder.api.capi.conditions import is_true, legacy, timestamp
from herder.api.capi.contract import control_plane, infra_machine
from herder.api.capi.kinds import MACHINE, NODE
from herder.api.capi.names import (
    CONTROL_PLANE,
    NODE_DELETION_STARTED,
    annotations_of,
    cluster_key,
    is_deleting,
    labels_of,
)
from herder.api.capi.nodes import (
    is_anothers,
    node_by_machine,
    node_by_name,
    node_by_provider_id,
    node_condition,
    provider_id,
)
from herder.api.rke.kinds import GROUP as PROVISIONED
from herder.api.rke.names import MACHINE_UID
from herder.api.writing import PROGRESS_PATIENCE, delete, ref
from herder.controllers.capi.externals import External, look_up
from herder.controllers.capi.machine.deletion.reports import STARTED, Held, Passed, Stage
from herder.controllers.capi.machine.deletion.scope import Clock, NodeOperations, Scope, earlier
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision, Effect, Observe, Patch, Wait, waiting
from herder.engine.runtime.view import Observed, Unreachable, View

ACTIVE_CONTROL_PLANE = "active-control-plane"
"""The index of Machines by which a Cluster's control plane Machines are counted, those being deleted left out."""

_FIELDS = {"providerID": ("spec", "providerID"), "machine": ("metadata", "labels", MACHINE_UID)}
"""Of a Node: by what it is found, as the indexes of its records are called."""

RETRY = timedelta(seconds=2)
LOOK_AGAIN = timedelta(seconds=20)
ASK_AGAIN = timedelta(seconds=5)


def active_control_plane(machine: Object) -> Iterable[str]:
    if CONTROL_PLANE in labels_of(machine) and not is_deleting(machine):
        yield cluster_key(machine["metadata"]["namespace"], machine["spec"]["clusterName"])


def look_at_node(view: View, machine: Object, cluster: Object, infrastructure: External) -> NodeOperations:
    """By the name that the Machine remembers, else by the provider ID, else by what the Node itself says."""
    if is_deleting(cluster):
        return NodeOperations(off="its Cluster is being deleted, and the Nodes with it")
    wish, name = _wish(machine, cluster, infrastructure)
    if wish is None:
        return NodeOperations(off="it has no Node")
    off = _control_plane_is_gone(view, cluster)
    if off:
        return NodeOperations(off=off)
    match view.observed(wish):
        case None:
            return NodeOperations(name=name, looking=True, observe=(wish,))
        case Unreachable() as cut_off:
            return NodeOperations(name=name, unreachable=cut_off, observe=(wish,))
        case Observed(objects):
            own = [node for node in objects if _is_of(machine, node) and (name or not is_anothers(node, machine))]
            if objects and not own and not name:
                return NodeOperations(off="the Node with its provider ID is another Machine's", observe=(wish,))
            return _found(wish, name, own)


def _found(wish: Observe, name: str, nodes: list[Object]) -> NodeOperations:
    if len(nodes) == 1:
        return NodeOperations(name=nodes[0]["metadata"]["name"], record=nodes[0], observe=(wish,))
    if name:
        return NodeOperations(name=name, observe=(wish,))
    if nodes:
        return NodeOperations(off="several Nodes have its provider ID")
    return NodeOperations(off="it has no Node", unseen=wish.focus, observe=(wish,))


def _wish(machine: Object, cluster: Object, infrastructure: External) -> tuple[Observe | None, str]:
    where = cluster_key(cluster["metadata"]["namespace"], cluster["metadata"]["name"])
    name: str = ((machine.get("status") or {}).get("nodeRef") or {}).get("name", "")
    if name:
        return node_by_name(where, name), name
    known: str = machine["spec"].get("providerID") or ""
    if not known and infrastructure.obj is not None:
        known = infra_machine.provider_id(infrastructure.obj, infrastructure.contract)
    if known:
        return node_by_provider_id(where, known), ""
    return (node_by_machine(where, machine["metadata"]["uid"]) if _may_be_named(machine, cluster) else None), ""


def _may_be_named(machine: Object, cluster: Object) -> bool:
    """Nodes of provisioned clusters say from the start whose they are. Such a Node may be there, and its etcd member
    have come and gone, before anybody has written down its provider ID."""
    reference = (machine["spec"].get("bootstrap") or {}).get("configRef") or {}
    return reference.get("apiGroup") == PROVISIONED and is_true(cluster, "ControlPlaneInitialized")


def _is_of(machine: Object, node: Object) -> bool:
    """A Node of the same name may by now belong to the Machine that came after: that one must be left alone."""
    mine: str = machine["spec"].get("providerID") or ""
    return not mine or provider_id(node) in ("", mine)


def _control_plane_is_gone(view: View, cluster: Object) -> str:
    """Why the Nodes of this Cluster cannot be reached any more, or need not be; empty where they can."""
    reference = cluster["spec"].get("controlPlaneRef")
    if reference:
        found = look_up(view, reference, cluster["metadata"]["namespace"])
        if found.obj is not None and is_deleting(found.obj):
            return "the control plane is being deleted"
        if found.obj is not None and control_plane.externally_managed(found.obj, found.contract):
            return ""
    where = cluster_key(cluster["metadata"]["namespace"], cluster["metadata"]["name"])
    if view.count(MACHINE, (ACTIVE_CONTROL_PLANE, where)):
        return ""
    return "no other Machine of the control plane is left"


def is_unreachable(node: Object) -> bool:
    """Its kubelet does not report: what runs there cannot be told to end."""
    ready = node_condition(node, "Ready")
    return ready is not None and ready.get("status") == "Unknown"


def why_unreachable(node: NodeOperations) -> str:
    return _in_words(node.unreachable) if node.unreachable else ""


def _in_words(cluster: Unreachable) -> str:
    return f"the workload cluster cannot be reached: {cluster.reason}"


# --- the end of a Node ------------------------------------------------------------------------------------------


def delete_node(scope: Scope) -> Stage:
    """Tried until it is done, or until the time for it ran out, which counts from the first try and is kept in an
    annotation. In the usual case the Node is gone before the annotation is worth a write."""
    node = scope.node
    if node.looking:
        return Held(*STARTED)
    if node.unseen:
        return _make_sure_of_none(scope)
    if node.off or (node.unreachable is None and (node.record is None or is_deleting(node.record))):
        return Passed()
    clock = node_deletion_clock(scope)
    if clock.ran_out(scope.view.now):
        return Passed()
    if node.unreachable is not None or node.record is None:
        return _cannot_be_deleted(scope, clock)
    gone = delete(NODE, node.record, "its machine is gone", target=scope.workload)
    decision = Decision(
        writes=(*_keep_start(scope, clock, PROGRESS_PATIENCE), gone),
        wait=Wait(f"Node {node.name} is deleted", ref(NODE, node.record)),
        wake_at=earlier(scope.view.now + RETRY, clock.deadline),
    )
    return Held("DeletingNode", f"Deleting Node {node.name}", decision)


def _make_sure_of_none(scope: Scope) -> Stage:
    """A watch may be behind, and a Node have come while the machine went. Now that nothing can make one any more, the
    cluster itself is asked."""
    clock = node_deletion_clock(scope)
    if clock.ran_out(scope.view.now):
        return Passed()
    moment = int(scope.view.now.timestamp()) // int(ASK_AGAIN.total_seconds())
    key = ("find", scope.machine["metadata"]["uid"], str(moment))
    result = scope.view.result(key)
    if result is not None and result.done and not result.value:
        return Passed()
    index, value = scope.node.unseen or ("", "")
    about = {"cluster": scope.workload, "kind": NODE, "field": _FIELDS[index], "value": value}
    question = Decision(effects=(Effect("find", key, about, "whether it left a Node behind"),))
    if result is None:
        return Held("DeletingNode", "Making sure that it has no Node", question)
    message = (
        f"Node {', '.join(result.value)} has yet to be seen" if result.done else f"Nodes not listed: {result.error}"
    )
    wake_at = earlier(scope.view.now + ASK_AGAIN, clock.deadline)
    decision = Decision(writes=_keep_start(scope, clock, 0.0)) + waiting(message, wake_at=wake_at)
    return Held("DeletingNode", message, decision if result.done else question + decision, patience=0.0)


def node_deletion_clock(scope: Scope) -> Clock:
    started = annotations_of(scope.machine).get(NODE_DELETION_STARTED)
    return Clock(scope.running_since(started), scope.limit("nodeDeletionTimeoutSeconds"))


def _cannot_be_deleted(scope: Scope, clock: Clock) -> Held:
    known = scope.machine["spec"].get("providerID")
    which = scope.node.name or (f"with provider ID {known}" if known else "that it may have")
    message = f"Error deleting Node {which}: {why_unreachable(scope.node)}"
    running = Clock(clock.started or scope.view.now, clock.limit)
    wake_at = earlier(scope.view.now + LOOK_AGAIN, running.deadline)
    decision = Decision(writes=_keep_start(scope, clock, 0.0)) + waiting(message, wake_at=wake_at)
    condition = legacy("NodeHealthy", "False", "DeletionFailed", "Warning")
    return Held("DeletingNode", message, decision, (condition,), patience=0.0)


def _keep_start(scope: Scope, clock: Clock, patience: float) -> tuple[Patch, ...]:
    if clock.started is not None or clock.limit is None:
        return ()
    started = {"metadata": {"annotations": {NODE_DELETION_STARTED: timestamp(scope.view.now)}}}
    return (Patch(ref(MACHINE, scope.machine), started, "the time to delete the Node runs", patience=patience),)
