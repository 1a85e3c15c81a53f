"""Node phase of a Machine: find the Node by provider ID, and compute NodeReady and NodeHealthy."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from herder.api.capi.conditions import Condition, condition, find, is_true, legacy, timestamp
from herder.api.capi.names import is_deleting
from herder.api.capi.nodes import belongs_to_other_machine, node_by_provider_id, node_condition, node_names
from herder.controllers.capi.machine.scope import MachineScope, status_of
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Observe
from herder.engine.runtime.view import ConnectionStatus, Observed, Unreachable, View

READY, HEALTHY = "NodeReady", "NodeHealthy"
UNREACHABLE_GRACE = timedelta(minutes=5)
"""How long the last known state of a Node is kept after its cluster became unreachable."""


class NodeObservation(NamedTuple):
    """Nodes with the Machine's provider ID."""

    observe: tuple[Observe, ...] = ()
    nodes: tuple[Object, ...] | None = None  # None if the cluster has not been observed or is unreachable
    unreachable: Unreachable | None = None
    connection: ConnectionStatus | None = None

    @property
    def node(self) -> Object | None:
        return self.nodes[0] if self.nodes and len(self.nodes) == 1 else None


NO_NODE = NodeObservation(nodes=())


def observe_node(view: View, scope: MachineScope, provider_id: str) -> NodeObservation:
    """Subscribe to the Nodes with this provider ID."""
    if not provider_id or not _infrastructure_provisioned(scope):
        return NO_NODE
    subscription = node_by_provider_id(scope.cluster_key, provider_id)
    seen = view.observed(subscription)
    if isinstance(seen, Observed):
        return NodeObservation((subscription,), _own(scope, seen.objects))
    return NodeObservation((subscription,), None, seen, view.connection(scope.cluster_key))


def _own(scope: MachineScope, nodes: tuple[Object, ...]) -> tuple[Object, ...]:
    """The Node that belongs to the Machine, among those with its provider ID.

    A join token can register Nodes with any provider ID, but not under an existing name. So once status.nodeRef is set,
    only that Node counts, even after its deletion: otherwise the Machine's labels would move to another Node. Before
    that, Nodes labeled as another Machine's are ignored.
    """
    if name := status_of(scope.machine, "nodeRef", {}).get("name", ""):
        return tuple(node for node in nodes if node["metadata"]["name"] == name)
    return tuple(node for node in nodes if not belongs_to_other_machine(node, scope.machine))


def node_name(scope: MachineScope, observation: NodeObservation) -> str:
    """Name for status.nodeRef; it never changes once set."""
    known: str = status_of(scope.machine, "nodeRef", {}).get("name", "")
    return known or (observation.node["metadata"]["name"] if observation.node else "")


class NodeReport(NamedTuple):
    """NodeReady and NodeHealthy conditions, and when to check again."""

    ready: Condition
    healthy: Condition
    wake_at: datetime | None = None
    waits: str = ""


def report(scope: MachineScope, observation: NodeObservation, provider_id: str, now: datetime) -> NodeReport:
    """Compute NodeReady and NodeHealthy."""
    if not _infrastructure_provisioned(scope):
        return _unknown(
            "InspectionFailed", "Waiting for Cluster status.initialization.infrastructureProvisioned to be true"
        )
    initialized = find(scope.cluster, "ControlPlaneInitialized")
    if initialized is None or not is_true(scope.cluster, "ControlPlaneInitialized"):
        return _unknown("InspectionFailed", "Waiting for Cluster control plane to be initialized")
    if observation.nodes is None:
        return _unobserved(scope, observation, datetime.fromisoformat(initialized["lastTransitionTime"]), now)
    if len(observation.nodes) > 1:
        names = node_names(observation.nodes)
        return _unknown("InternalError", f"Nodes {names} have the same spec.providerID {provider_id}")
    if observation.node is not None:
        return NodeReport(_ready(observation.node), _healthy(observation.node))
    return _missing_node(scope, provider_id)


def _unobserved(scope: MachineScope, observation: NodeObservation, initialized: datetime, now: datetime) -> NodeReport:
    """Keep the last known state for a grace period."""
    deadline = None
    if observation.unreachable is not None:
        deadline = max(observation.unreachable.since, initialized) + UNREACHABLE_GRACE
        if now >= deadline and observation.connection and observation.connection.healthy:
            return _unknown("InternalError", f"Nodes cannot be read: {observation.unreachable.reason}")
        if now >= deadline:
            return _unknown("ConnectionDown", _last_probe(observation))
    waits = f"the API server of cluster {scope.cluster_key} does not answer"
    ready, healthy = find(scope.machine, READY), find(scope.machine, HEALTHY)
    if ready is None or healthy is None:
        message = _last_probe(observation) or "Remote connection not established yet"
        return _unknown("ConnectionDown", message)._replace(wake_at=deadline, waits=waits)
    return NodeReport(ready, healthy, deadline, waits)


def _last_probe(observation: NodeObservation) -> str:
    last_contact = observation.connection.last_contact if observation.connection else None
    return f"Last successful probe at {timestamp(last_contact)}" if last_contact else ""


def _missing_node(scope: MachineScope, provider_id: str) -> NodeReport:
    name = status_of(scope.machine, "nodeRef", {}).get("name", "")
    if scope.deleting and name:
        return _both("False", "NodeDeleted", f"Node {name} has been deleted")
    if scope.deleting:
        return _unknown("NodeDoesNotExist", "Node does not exist")
    if name:
        return _both("False", "NodeDeleted", f"Node {name} has been deleted while the Machine still exists")
    if provider_id:
        return _unknown("InspectionFailed", f"Waiting for a Node with spec.providerID {provider_id} to exist")
    kind = scope.infrastructure_reference.get("kind", "")
    return _unknown("InspectionFailed", f"Waiting for {kind} to report spec.providerID")


def _ready(node: Object) -> Condition:
    found = node_condition(node, "Ready")
    if found is None:
        return condition(READY, "Unknown", "NodeReadyUnknown", "* Node.Ready: Condition not yet reported")
    status = found["status"]
    message = found.get("message", "") if status != "True" else ""
    made = condition(READY, status, _READY_REASONS[status], f"* Node.Ready: {message}" if message else "")
    since = found.get("lastTransitionTime")
    return made | {"lastTransitionTime": since} if since else made


def _healthy(node: Object) -> Condition:
    """True if the Node is ready and has no memory, disk or PID pressure."""
    lines, messages, statuses = [], [], set()
    for type_, good in _HEALTHY_STATUS.items():
        found = node_condition(node, type_)
        if found is None:
            lines.append(f"* Node.{type_}: Condition not yet reported")
            statuses.add("Unknown")
        elif found["status"] != good:
            messages.append(found.get("message") or f"Condition is {found['status']}")
            lines.append(f"* Node.{type_}: {messages[-1]}")
            statuses.add("Unknown" if found["status"] == "Unknown" else "False")
    if len(messages) > 1 and len(set(messages)) == 1:
        lines = [f"* Node.AllConditions: {messages[0]}"]
    if "False" in statuses:
        return condition(HEALTHY, "False", "NodeNotHealthy", "\n".join(lines))
    if "Unknown" in statuses:
        return condition(HEALTHY, "Unknown", "NodeHealthyUnknown", "\n".join(lines))
    return condition(HEALTHY, "True", "NodeHealthy")


def legacy_report(scope: MachineScope, observation: NodeObservation, provider_id: str) -> Condition | None:
    """NodeHealthy in v1beta1; None keeps the previous one."""
    if not provider_id:
        return legacy(HEALTHY, "False", "WaitingForNodeRef", "Info")
    if observation.nodes is None:
        return None
    if len(observation.nodes) > 1:
        message = "Failed to get the Node for this Machine by ProviderID"
        return legacy(HEALTHY, "Unknown", "NodeInspectionFailed", message=message)
    if observation.node is not None:
        return _legacy_health(scope, observation.node)
    if scope.deleting:
        return None
    if status_of(scope.machine, "nodeRef", {}):
        return legacy(HEALTHY, "False", "NodeNotFound", "Error")
    message = "Waiting for a node with matching ProviderID to exist"
    return legacy(HEALTHY, "False", "NodeProvisioning", "Warning", message)


def _legacy_health(scope: MachineScope, node: Object) -> Condition:
    """v1beta1 reports Unknown only if all four conditions are unknown."""
    if scope.infrastructure.obj is None or is_deleting(scope.infrastructure.obj):
        return legacy(HEALTHY, "False", "Deleting", "Info")
    found = [known for type_ in _HEALTHY_STATUS if (known := node_condition(node, type_)) is not None]
    bad = [known for known in found if known["status"] != _HEALTHY_STATUS[known["type"]]]
    message = ". ".join(f"Node condition {known['type']} is {known['status']}" for known in bad)
    if any(known["status"] != "Unknown" for known in bad):
        return legacy(HEALTHY, "False", "NodeConditionsFailed", "Warning", message)
    if len(bad) == len(_HEALTHY_STATUS):
        return legacy(HEALTHY, "Unknown", "NodeConditionsFailed", message=message)
    return legacy(HEALTHY, "True")


def _infrastructure_provisioned(scope: MachineScope) -> bool:
    return bool(status_of(scope.cluster, "initialization", {}).get("infrastructureProvisioned"))


def _unknown(reason: str, message: str) -> NodeReport:
    return _both("Unknown", reason, message)


def _both(status: str, reason: str, message: str) -> NodeReport:
    ready, healthy = (condition(type_, status, reason, message) for type_ in (READY, HEALTHY))
    return NodeReport(ready, healthy, waits=message)


_READY_REASONS = {"True": "NodeReady", "False": "NodeNotReady", "Unknown": "NodeReadyUnknown"}
_HEALTHY_STATUS = {"Ready": "True", "MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False"}
"""The relevant Node conditions in the order of the message, with their good status."""
