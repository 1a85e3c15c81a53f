"""What a person sees of a cluster: the NodesHealthy condition, and `status.display` with the columns of `kubectl get`.

Columns can only show stored fields, so controllers store state and message in one line each. Fleet's kinds have the
same field for the same purpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from herder.api import observe_only
from herder.api.capi.conditions import Condition, condition, find, is_false, is_true
from herder.api.capi.names import is_deleting
from herder.api.management import clusters
from herder.api.rke.machines.removal import REMOVED
from herder.engine.meta.kinds import Object
from herder.engine.meta.printable import printable

NODES_HEALTHY = "NodesHealthy"
NODES_NOT_READY = "NodesNotReady"
MAX_MESSAGE = 240
"""Longest message of a column, in characters."""
_MAX_CAUSE = 100
_NAMED = 3  # of more lost nodes, only the number is shown

# States. Each is one word, so that a column of it can be searched and sorted.
PENDING, PROVISIONING, UPDATING = "Pending", "Provisioning", "Updating"
READY, DEGRADED, DISCONNECTED = "Ready", "Degraded", "Disconnected"
STALLED, DELETING = "Stalled", "Deleting"
OBSERVE_ONLY = "ObserveOnly"


def one_line(text: str, max_length: int = MAX_MESSAGE) -> str:
    """Join the lines of a message and truncate it. Nodes and providers may have written it."""
    line = " ".join(printable(text).split())
    return line if len(line) <= max_length else line[: max_length - 1] + "…"


# --- nodes ------------------------------------------------------------------------------------------------------------


class LostNode(NamedTuple):
    """A Node that is not ready or gone; `name` includes its Machine if the cluster has Machines."""

    name: str
    since: str
    cause: str

    def __str__(self) -> str:
        since = f" since {self.since}" if self.since else ""
        return f"{one_line(self.name, _MAX_CAUSE)} is not ready{since}: {one_line(self.cause, _MAX_CAUSE)}"


def nodes_condition(lost: Sequence[LostNode]) -> Condition:
    if not lost:
        return condition(NODES_HEALTHY, "True", NODES_HEALTHY)
    more = f"; and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
    message = "; ".join(str(each) for each in sorted(lost)[:_NAMED]) + more
    return condition(NODES_HEALTHY, "False", NODES_NOT_READY, message)


def unknown_nodes_condition(connected: Condition) -> Condition:
    """The last known state of Nodes is not their state now."""
    return condition(NODES_HEALTHY, "Unknown", clusters.DISCONNECTED, connected.get("message", ""))


# --- agent ------------------------------------------------------------------------------------------------------------


def is_disconnected(obj: Object | None) -> bool:
    """Whether the agent was connected before and is not now."""
    connected = find(obj, clusters.CONNECTED) or {}
    return connected.get("status") == "False" and connected.get("reason") == clusters.DISCONNECTED


def disconnected_since(management: Object) -> str:
    """The message about a lost agent, with the time of the loss."""
    since = (find(management, clusters.CONNECTED) or {}).get("lastTransitionTime")
    return f"{clusters.NOT_CONNECTED} since {since}" if since else clusters.NOT_CONNECTED


# --- summary ----------------------------------------------------------------------------------------------------------


def summarize(obj: Object, *, was_ready: bool, is_applied: bool, initial: str) -> Object:
    """State and message of a provisioning or management Cluster, from its conditions.

    `is_applied`: its current spec was applied on all machines. `initial`: the state until it is ready for the first
    time.
    """
    state, message = _state(obj, initial if not was_ready else UPDATING, is_applied)
    return {"state": state, "message": one_line(message)}


def _state(obj: Object, changing: str, is_applied: bool) -> tuple[str, str]:
    mark = observe_only.mark_of(obj)
    if mark is not None:  # not even a deletion makes progress
        return OBSERVE_ONLY, observe_only.message(_name(obj), mark)
    if is_deleting(obj):
        return DELETING, _message(obj, REMOVED)
    if is_disconnected(obj):
        return DISCONNECTED, _message(obj, clusters.CONNECTED)
    if is_true(obj, clusters.STALLED):
        return STALLED, _message(obj, clusters.STALLED)
    lost = _message(obj, NODES_HEALTHY) if is_false(obj, NODES_HEALTHY) else ""
    if not is_true(obj, clusters.READY) or is_true(obj, clusters.RECONCILING):
        progress = _message(obj, clusters.READY) or _message(obj, clusters.RECONCILING)
        if lost and is_applied:
            return DEGRADED, "; ".join(filter(None, (lost, progress)))
        return changing, "; ".join(filter(None, (progress, lost)))
    return (DEGRADED, lost) if lost else (READY, "")


def _name(obj: Object) -> str:
    """The name that users know: that of a management Cluster is generated."""
    return str((obj.get("spec") or {}).get("displayName") or obj["metadata"]["name"])


def _message(obj: Object, type_: str) -> str:
    return str((find(obj, type_) or {}).get("message") or "")


def health_message(cluster: Object) -> str:
    """What is wrong with a cluster although nothing is rolled out; empty if nothing is."""
    parts = [_message(cluster, clusters.CONNECTED)] if is_disconnected(cluster) else []
    parts += [_message(cluster, NODES_HEALTHY)] if is_false(cluster, NODES_HEALTHY) else []
    return "; ".join(filter(None, parts))
