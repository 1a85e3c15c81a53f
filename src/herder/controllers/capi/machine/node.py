"""A Machine's Node: found by its provider ID in the workload cluster, and what its state says about the Machine."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from herder.api.capi.conditions import Condition, condition, find, is_true, legacy, timestamp
from herder.api.capi.names import is_deleting
from herder.api.capi.nodes import is_anothers, node_by_provider_id, node_condition
from herder.controllers.capi.machine.scene import Scene, status_of
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Observe
from herder.engine.runtime.view import Connection, Observed, Unreachable, View

READY, HEALTHY = "NodeReady", "NodeHealthy"
SILENCE_TOLERATED = timedelta(minutes=5)
"""What was last known of a Node stands for so long after its cluster fell silent."""


class Sight(NamedTuple):
    """What can be seen of a Machine's Node."""

    observe: tuple[Observe, ...] = ()
    nodes: tuple[Object, ...] | None = None  # None: the cluster has not been looked at, or does not answer
    silence: Unreachable | None = None
    connection: Connection | None = None

    @property
    def node(self) -> Object | None:
        return self.nodes[0] if self.nodes and len(self.nodes) == 1 else None


NOTHING = Sight(nodes=())


def look(view: View, scene: Scene, provider_id: str) -> Sight:
    if not provider_id or not _infrastructure_provisioned(scene):
        return NOTHING
    wish = node_by_provider_id(scene.cluster_key, provider_id)
    seen = view.observed(wish)
    if isinstance(seen, Observed):
        return Sight((wish,), _own(scene, seen.objects))
    return Sight((wish,), None, seen, view.connection(scene.cluster_key))


def _own(scene: Scene, nodes: tuple[Object, ...]) -> tuple[Object, ...]:
    """Of several Nodes with its provider ID, the one that the Machine refers to: a join token registers Nodes with any
    provider ID, but not under a name that is taken. None replaces it when it is deleted: its labels would go along.
    Before the Machine refers to one, none that says it is another Machine's."""
    if name := status_of(scene.machine, "nodeRef", {}).get("name", ""):
        return tuple(node for node in nodes if node["metadata"]["name"] == name)
    return tuple(node for node in nodes if not is_anothers(node, scene.machine))


def node_name(scene: Scene, sight: Sight) -> str:
    """The name in the Machine's reference; once set, it stays."""
    known: str = status_of(scene.machine, "nodeRef", {}).get("name", "")
    return known or (sight.node["metadata"]["name"] if sight.node else "")


class NodeReport(NamedTuple):
    ready: Condition
    healthy: Condition
    wake_at: datetime | None = None
    waits: str = ""


def report(scene: Scene, sight: Sight, provider_id: str, now: datetime) -> NodeReport:
    """NodeReady and NodeHealthy."""
    if not _infrastructure_provisioned(scene):
        return _unknown(
            "InspectionFailed", "Waiting for Cluster status.initialization.infrastructureProvisioned to be true"
        )
    initialized = find(scene.cluster, "ControlPlaneInitialized")
    if initialized is None or not is_true(scene.cluster, "ControlPlaneInitialized"):
        return _unknown("InspectionFailed", "Waiting for Cluster control plane to be initialized")
    if sight.nodes is None:
        return _silence(scene, sight, datetime.fromisoformat(initialized["lastTransitionTime"]), now)
    if len(sight.nodes) > 1:
        names = ", ".join(sorted(node["metadata"]["name"] for node in sight.nodes))
        return _unknown("InternalError", f"Nodes {names} have the same spec.providerID {provider_id}")
    if sight.node is not None:
        return NodeReport(_ready(sight.node), _healthy(sight.node))
    return _absence(scene, provider_id)


def _silence(scene: Scene, sight: Sight, initialized: datetime, now: datetime) -> NodeReport:
    """The last known state stands for a while."""
    deadline = None
    if sight.silence is not None:
        deadline = max(sight.silence.since, initialized) + SILENCE_TOLERATED
        if now >= deadline and sight.connection and sight.connection.healthy:
            return _unknown("InternalError", f"Nodes cannot be read: {sight.silence.reason}")
        if now >= deadline:
            return _unknown("ConnectionDown", _last_heard(sight))
    waits = f"the API server of cluster {scene.cluster_key} does not answer"
    ready, healthy = find(scene.machine, READY), find(scene.machine, HEALTHY)
    if ready is None or healthy is None:
        message = _last_heard(sight) or "Remote connection not established yet"
        return _unknown("ConnectionDown", message)._replace(wake_at=deadline, waits=waits)
    return NodeReport(ready, healthy, deadline, waits)


def _last_heard(sight: Sight) -> str:
    heard = sight.connection.heard if sight.connection else None
    return f"Last successful probe at {timestamp(heard)}" if heard else ""


def _absence(scene: Scene, provider_id: str) -> NodeReport:
    name = status_of(scene.machine, "nodeRef", {}).get("name", "")
    if scene.deleting and name:
        return _both("False", "NodeDeleted", f"Node {name} has been deleted")
    if scene.deleting:
        return _unknown("NodeDoesNotExist", "Node does not exist")
    if name:
        return _both("False", "NodeDeleted", f"Node {name} has been deleted while the Machine still exists")
    if provider_id:
        return _unknown("InspectionFailed", f"Waiting for a Node with spec.providerID {provider_id} to exist")
    kind = scene.infrastructure_reference.get("kind", "")
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
    """All is well if the Node is ready and under no pressure."""
    lines, messages, statuses = [], [], set()
    for type_, good in _GOOD.items():
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


def legacy_report(scene: Scene, sight: Sight, provider_id: str) -> Condition | None:
    """NodeHealthy of the older list; None leaves it as it was."""
    if not provider_id:
        return legacy(HEALTHY, "False", "WaitingForNodeRef", "Info")
    if sight.nodes is None:
        return None
    if len(sight.nodes) > 1:
        message = "Failed to get the Node for this Machine by ProviderID"
        return legacy(HEALTHY, "Unknown", "NodeInspectionFailed", message=message)
    if sight.node is not None:
        return _legacy_health(scene, sight.node)
    if scene.deleting:
        return None
    if status_of(scene.machine, "nodeRef", {}):
        return legacy(HEALTHY, "False", "NodeNotFound", "Error")
    message = "Waiting for a node with matching ProviderID to exist"
    return legacy(HEALTHY, "False", "NodeProvisioning", "Warning", message)


def _legacy_health(scene: Scene, node: Object) -> Condition:
    """Unknown only where all four conditions are: the older list is that lenient."""
    if scene.infrastructure.obj is None or is_deleting(scene.infrastructure.obj):
        return legacy(HEALTHY, "False", "Deleting", "Info")
    found = [known for type_ in _GOOD if (known := node_condition(node, type_)) is not None]
    bad = [known for known in found if known["status"] != _GOOD[known["type"]]]
    message = ". ".join(f"Node condition {known['type']} is {known['status']}" for known in bad)
    if any(known["status"] != "Unknown" for known in bad):
        return legacy(HEALTHY, "False", "NodeConditionsFailed", "Warning", message)
    if len(bad) == len(_GOOD):
        return legacy(HEALTHY, "Unknown", "NodeConditionsFailed", message=message)
    return legacy(HEALTHY, "True")


def _infrastructure_provisioned(scene: Scene) -> bool:
    return bool(status_of(scene.cluster, "initialization", {}).get("infrastructureProvisioned"))


def _unknown(reason: str, message: str) -> NodeReport:
    return _both("Unknown", reason, message)


def _both(status: str, reason: str, message: str) -> NodeReport:
    ready, healthy = (condition(type_, status, reason, message) for type_ in (READY, HEALTHY))
    return NodeReport(ready, healthy, waits=message)


_READY_REASONS = {"True": "NodeReady", "False": "NodeNotReady", "Unknown": "NodeReadyUnknown"}
_GOOD = {"Ready": "True", "MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False"}
"""The conditions of a Node that count, in the order in which they are told, and when they are good."""
