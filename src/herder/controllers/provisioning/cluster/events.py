"""Events about a provisioning Cluster, from the difference between its conditions and the next ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from herder.api.capi.conditions import Condition, find
from herder.api.events import normal, warning
from herder.api.management import clusters
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke.machines.removal import REMOVED
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Event

ERROR = "Error"
MIRRORED = (clusters.PROVISIONED, "Updated", "Stalled")
"""Conditions that repeat the message of another one: its Event is enough."""


def condition_events(cluster: Object, conditions: Iterable[Condition]) -> Iterator[Event]:
    """Report the agent's connection, readiness, deletion, and each new error.

    Messages of progress are in the provisioning log; an Event for each of them would hide the others.
    """
    reported: set[str] = set()
    for new in conditions:
        known = find(cluster, new["type"]) or {}
        before, after, message = known.get("status", ""), new["status"], new.get("message", "")
        if new.get("reason") == ERROR and message and message != known.get("message"):
            if new["type"] not in MIRRORED and message not in reported:
                reported.add(message)
                yield warning(PROVISIONING_CLUSTER, cluster, f"{new['type']}Failed", message)
        elif before != after and new["type"] == clusters.CONNECTED:
            yield from _connection(cluster, before, after, message)
        elif before != after and new["type"] == clusters.READY:
            yield from _readiness(cluster, before, after, message)
        elif not before and new["type"] == REMOVED:
            yield normal(PROVISIONING_CLUSTER, cluster, "Deleting", message or "the cluster is being deleted")


def _connection(cluster: Object, before: str, after: str, message: str) -> Iterator[Event]:
    if after == "True":
        yield normal(PROVISIONING_CLUSTER, cluster, "AgentConnected", "the cluster agent is connected")
    elif before == "True":
        yield warning(PROVISIONING_CLUSTER, cluster, "AgentDisconnected", message or clusters.NOT_CONNECTED)


def _readiness(cluster: Object, before: str, after: str, message: str) -> Iterator[Event]:
    if after == "True":
        yield normal(PROVISIONING_CLUSTER, cluster, "Ready", "the cluster is ready")
    elif before == "True":
        yield normal(PROVISIONING_CLUSTER, cluster, "NotReady", message or "the cluster is not ready")
