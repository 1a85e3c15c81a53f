"""Connection to the workload cluster and the RemoteConnectionProbe condition."""

from __future__ import annotations

from datetime import timedelta

from herder.api.capi.conditions import Condition, condition, find, timestamp
from herder.controllers.capi.cluster.scope import ClusterScope
from herder.engine.runtime.decision import Connect, Decision

PROBE = "RemoteConnectionProbe"
GRACE = timedelta(seconds=50)
"""A cluster whose last successful probe is more recent than this counts as reachable."""


def ensure(scope: ClusterScope) -> Decision:
    """Keep a connection open from when the infrastructure is provisioned and the kubeconfig exists until the Cluster
    is deleted."""
    if not scope.provisioned or scope.kubeconfig is None:
        return Decision()
    connect = Connect(scope.key, credential=scope.kubeconfig["metadata"]["resourceVersion"])
    connection = scope.view.connection(scope.key)
    if connection is None or connection.healthy:
        return Decision(observe=(connect,))
    deadline = (connection.last_contact or connection.since) + GRACE
    return Decision(observe=(connect,), wake_at=deadline if deadline > scope.view.now else None)


def probe(scope: ClusterScope) -> Condition:
    if scope.kubeconfig is None:
        return _failed("Remote connection not established yet")
    connection, now = scope.view.connection(scope.key), scope.view.now
    if connection is None or (connection.last_contact is None and now - connection.since < GRACE):
        # The first probe is still pending: keep the previous condition until its result is known.
        return find(scope.cluster, PROBE) or _failed("Remote connection not established yet")
    if connection.last_contact is None:
        return _failed("Remote connection probe failed")
    if connection.healthy or now - connection.last_contact < GRACE:
        return condition(PROBE, "True", "ProbeSucceeded")
    return _failed(f"Remote connection probe failed, probe last succeeded at {timestamp(connection.last_contact)}")


def _failed(message: str) -> Condition:
    return condition(PROBE, "False", "ProbeFailed", message)
