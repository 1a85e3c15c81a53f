"""The connection to the workload cluster, and what its health says about the Cluster."""

from __future__ import annotations

from datetime import timedelta

from herder.api.capi.conditions import Condition, condition, find, timestamp
from herder.controllers.capi.cluster.scene import Scene
from herder.engine.runtime.decision import Connect, Decision

PROBE = "RemoteConnectionProbe"
GRACE = timedelta(seconds=50)
"""A cluster that was heard less long ago counts as reached."""


def keep(scene: Scene) -> Decision:
    """From when there is something to connect to, and a way to prove who we are, until the Cluster is gone."""
    if not scene.provisioned or scene.kubeconfig is None:
        return Decision()
    connect = Connect(scene.key, credential=scene.kubeconfig["metadata"]["resourceVersion"])
    link = scene.view.connection(scene.key)
    if link is None or link.healthy:
        return Decision(observe=(connect,))
    deadline = (link.heard or link.since) + GRACE
    return Decision(observe=(connect,), wake_at=deadline if deadline > scene.view.now else None)


def probe(scene: Scene) -> Condition:
    if scene.kubeconfig is None:
        return _failed("Remote connection not established yet")
    link, now = scene.view.connection(scene.key), scene.view.now
    if link is None or (link.heard is None and now - link.since < GRACE):
        # We have only just begun to look; what was known before holds until we know better.
        return find(scene.cluster, PROBE) or _failed("Remote connection not established yet")
    if link.heard is None:
        return _failed("Remote connection probe failed")
    if link.healthy or now - link.heard < GRACE:
        return condition(PROBE, "True", "ProbeSucceeded")
    return _failed(f"Remote connection probe failed, probe last succeeded at {timestamp(link.heard)}")


def _failed(message: str) -> Condition:
    return condition(PROBE, "False", "ProbeFailed", message)
