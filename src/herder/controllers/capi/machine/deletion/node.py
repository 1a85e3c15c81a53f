"""Node of a Machine that is being deleted: whether it may be changed, and its deletion."""

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
    belongs_to_other_machine,
    node_by_machine,
    node_by_name,
    node_by_provider_id,
    node_condition,
    provider_id,
)
from herder.api.rke.kinds import GROUP as PROVISIONED
from herder.api.rke.names import MACHINE_UID
from herder.api.writes import PROGRESS_DEBOUNCE, delete, ref
from herder.controllers.capi.externals import External, look_up
from herder.controllers.capi.machine.deletion.scope import Clock, DeletionScope, NodeOperations, earlier
from herder.controllers.capi.machine.deletion.stage import STARTED, Stage, StageDone, StagePending
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision, Effect, Observe, Patch, Wait, waiting
from herder.engine.runtime.view import Observed, Unreachable, View

ACTIVE_CONTROL_PLANE = "active-control-plane"
"""Index that counts the control plane Machines of a Cluster that are not being deleted."""

_FIELDS = {"providerID": ("spec", "providerID"), "machine": ("metadata", "labels", MACHINE_UID)}
"""Field of a Node by the name of the index that finds it."""

RETRY = timedelta(seconds=2)
RECHECK = timedelta(seconds=20)
QUERY_INTERVAL = timedelta(seconds=5)


def active_control_plane(machine: Object) -> Iterable[str]:
    if CONTROL_PLANE in labels_of(machine) and not is_deleting(machine):
        yield cluster_key(machine["metadata"]["namespace"], machine["spec"]["clusterName"])


def node_operations(view: View, machine: Object, cluster: Object, infrastructure: External) -> NodeOperations:
    """Find the Node by the name in status.nodeRef, else by provider ID, else by the Machine UID in its label."""
    if is_deleting(cluster):
        return NodeOperations(skip_reason="its Cluster is being deleted, and the Nodes with it")
    subscription, name = _subscription(machine, cluster, infrastructure)
    if subscription is None:
        return NodeOperations(skip_reason="it has no Node")
    skip_reason = _control_plane_is_gone(view, cluster)
    if skip_reason:
        return NodeOperations(skip_reason=skip_reason)
    match view.observed(subscription):
        case None:
            return NodeOperations(name=name, pending=True, observe=(subscription,))
        case Unreachable() as cut_off:
            return NodeOperations(name=name, unreachable=cut_off, observe=(subscription,))
        case Observed(objects):
            own = [
                node
                for node in objects
                if _belongs_to(machine, node) and (name or not belongs_to_other_machine(node, machine))
            ]
            if objects and not own and not name:
                return NodeOperations(
                    skip_reason="the Node with its provider ID is another Machine's", observe=(subscription,)
                )
            return _operations_on(subscription, name, own)


def _operations_on(subscription: Observe, name: str, nodes: list[Object]) -> NodeOperations:
    if len(nodes) == 1:
        return NodeOperations(name=nodes[0]["metadata"]["name"], record=nodes[0], observe=(subscription,))
    if name:
        return NodeOperations(name=name, observe=(subscription,))
    if nodes:
        return NodeOperations(skip_reason="several Nodes have its provider ID")
    return NodeOperations(skip_reason="it has no Node", unmatched=subscription.focus, observe=(subscription,))


def _subscription(machine: Object, cluster: Object, infrastructure: External) -> tuple[Observe | None, str]:
    where = cluster_key(cluster["metadata"]["namespace"], cluster["metadata"]["name"])
    name: str = ((machine.get("status") or {}).get("nodeRef") or {}).get("name", "")
    if name:
        return node_by_name(where, name), name
    known: str = machine["spec"].get("providerID") or ""
    if not known and infrastructure.obj is not None:
        known = infra_machine.provider_id(infrastructure.obj, infrastructure.contract)
    if known:
        return node_by_provider_id(where, known), ""
    return (node_by_machine(where, machine["metadata"]["uid"]) if _may_have_node(machine, cluster) else None), ""


def _may_have_node(machine: Object, cluster: Object) -> bool:
    """Nodes of provisioned clusters carry their Machine's UID from the start.

    Such a Node may exist, and its etcd member may have joined and left, before the provider ID is recorded.
    """
    reference = (machine["spec"].get("bootstrap") or {}).get("configRef") or {}
    return reference.get("apiGroup") == PROVISIONED and is_true(cluster, "ControlPlaneInitialized")


def _belongs_to(machine: Object, node: Object) -> bool:
    """A Node of the same name may already belong to the replacement Machine; it must not be touched."""
    mine: str = machine["spec"].get("providerID") or ""
    return not mine or provider_id(node) in ("", mine)


def _control_plane_is_gone(view: View, cluster: Object) -> str:
    """Why the Nodes of this Cluster are unreachable or need no cleanup; empty if they can be changed."""
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
    """Whether the kubelet has stopped reporting, so that Pods there cannot be terminated."""
    ready = node_condition(node, "Ready")
    return ready is not None and ready.get("status") == "Unknown"


def why_unreachable(node: NodeOperations) -> str:
    return _unreachable_message(node.unreachable) if node.unreachable else ""


def _unreachable_message(cluster: Unreachable) -> str:
    return f"the workload cluster cannot be reached: {cluster.reason}"


# --- deletion of the Node -------------------------------------------------------------------------------------------


def delete_node(scope: DeletionScope) -> Stage:
    """Delete the Node, with retries until the timeout.

    The timeout counts from the first attempt, which is recorded in an annotation. The annotation's write is deferred:
    usually the Node is gone before it is needed.
    """
    node = scope.node
    if node.pending:
        return StagePending(*STARTED)
    if node.unmatched:
        return _confirm_no_node(scope)
    if node.skip_reason or (node.unreachable is None and (node.record is None or is_deleting(node.record))):
        return StageDone()
    clock = node_deletion_clock(scope)
    if clock.ran_out(scope.view.now):
        return StageDone()
    if node.unreachable is not None or node.record is None:
        return _cannot_be_deleted(scope, clock)
    gone = delete(NODE, node.record, "the infrastructure of its Machine is deleted", target=scope.workload)
    decision = Decision(
        writes=(*_record_start(scope, clock, PROGRESS_DEBOUNCE), gone),
        wait=Wait(f"Node {node.name} is deleted", ref(NODE, node.record)),
        wake_at=earlier(scope.view.now + RETRY, clock.deadline),
    )
    return StagePending("DeletingNode", f"Deleting Node {node.name}", decision)


def _confirm_no_node(scope: DeletionScope) -> Stage:
    """Query the cluster for a Node, because the watch may be behind.

    A Node may have registered while the machine was being deleted. Now that nothing can register anymore, a query is
    conclusive.
    """
    clock = node_deletion_clock(scope)
    if clock.ran_out(scope.view.now):
        return StageDone()
    moment = int(scope.view.now.timestamp()) // int(QUERY_INTERVAL.total_seconds())
    key = ("find", scope.machine["metadata"]["uid"], str(moment))
    result = scope.view.result(key)
    if result is not None and result.done and not result.value:
        return StageDone()
    index, value = scope.node.unmatched or ("", "")
    about = {"cluster": scope.workload, "kind": NODE, "field": _FIELDS[index], "value": value}
    question = Decision(effects=(Effect("find", key, about, "check whether a Node is left"),))
    if result is None:
        return StagePending("DeletingNode", "Checking that no Node is left", question)
    message = (
        f"Node {', '.join(result.value)} is not visible in the watch yet"
        if result.done
        else f"Nodes not listed: {result.error}"
    )
    wake_at = earlier(scope.view.now + QUERY_INTERVAL, clock.deadline)
    decision = Decision(writes=_record_start(scope, clock, 0.0)) + waiting(message, wake_at=wake_at)
    return StagePending("DeletingNode", message, decision if result.done else question + decision, debounce=0.0)


def node_deletion_clock(scope: DeletionScope) -> Clock:
    started = annotations_of(scope.machine).get(NODE_DELETION_STARTED)
    return Clock(scope.running_since(started), scope.limit("nodeDeletionTimeoutSeconds"))


def _cannot_be_deleted(scope: DeletionScope, clock: Clock) -> StagePending:
    known = scope.machine["spec"].get("providerID")
    which = scope.node.name or (f"with provider ID {known}" if known else "that it may have")
    message = f"Error deleting Node {which}: {why_unreachable(scope.node)}"
    running = Clock(clock.started or scope.view.now, clock.limit)
    wake_at = earlier(scope.view.now + RECHECK, running.deadline)
    decision = Decision(writes=_record_start(scope, clock, 0.0)) + waiting(message, wake_at=wake_at)
    condition = legacy("NodeHealthy", "False", "DeletionFailed", "Warning")
    return StagePending("DeletingNode", message, decision, (condition,), debounce=0.0)


def _record_start(scope: DeletionScope, clock: Clock, debounce: float) -> tuple[Patch, ...]:
    if clock.started is not None or clock.limit is None:
        return ()
    started = {"metadata": {"annotations": {NODE_DELETION_STARTED: timestamp(scope.view.now)}}}
    return (
        Patch(ref(MACHINE, scope.machine), started, "record the start of the Node deletion timeout", debounce=debounce),
    )
