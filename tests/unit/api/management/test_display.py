"""The columns of a cluster: state and message follow from its conditions."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.management import display
from herder.api.management.display import LostNode
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.engine.meta.kinds import Object
from tests.support.builders import new_condition, new_object

READY = new_condition("Ready")
LOST = new_condition("NodesHealthy", "False", "NodesNotReady", "machine a is not ready")
WAITING = new_condition("Ready", "Unknown", "Waiting", "waiting for probes: etcd")
DISCONNECTED = new_condition("Connected", "False", "Disconnected", "Cluster agent is not connected since t")
NEVER_CONNECTED = new_condition("Connected", "False", "NeverConnected", "waiting for the cluster's agent")
STALLED = new_condition("Stalled", "True", "Error", "spec.kubernetesVersion: required")
REMOVED = new_condition("Removed", "Unknown", "Waiting", "waiting for machine [a] to delete")


def cluster(*conditions: Object, **options: Any) -> Object:
    return new_object(PROVISIONING_CLUSTER, "meadow", "ws", status={"conditions": [*conditions]}, **options)


CASES: dict[str, tuple[Object, bool, tuple[str, str]]] = {
    "new": (cluster(), False, ("Provisioning", "")),
    "being built": (cluster(WAITING, NEVER_CONNECTED), False, ("Provisioning", "waiting for probes: etcd")),
    "ready": (cluster(READY), True, ("Ready", "")),
    "being changed": (cluster(WAITING), True, ("Updating", "waiting for probes: etcd")),
    "edited, not observed": (
        cluster(READY, new_condition("Reconciling", "True", "Progressing", "Waiting")),
        True,
        ("Updating", "Waiting"),
    ),
    "with a lost node": (cluster(READY, LOST), True, ("Degraded", "machine a is not ready")),
    "being changed with a lost node": (
        cluster(WAITING, LOST),
        True,
        ("Updating", "waiting for probes: etcd; machine a is not ready"),
    ),
    "without its agent": (
        cluster(WAITING, LOST, DISCONNECTED),
        True,
        ("Disconnected", "Cluster agent is not connected since t"),
    ),
    "with an invalid spec": (cluster(READY, STALLED), True, ("Stalled", "spec.kubernetesVersion: required")),
    "being deleted": (
        cluster(READY, REMOVED, DISCONNECTED, deleting=True),
        True,
        ("Deleting", "waiting for machine [a] to delete"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_state_and_message(case: str) -> None:
    obj, was_ready, expected = CASES[case]
    summary = display.summarize(obj, was_ready=was_ready, is_applied=False, initial=display.PROVISIONING)
    assert (summary["state"], summary["message"]) == expected


def test_a_lost_node_degrades_a_cluster_whose_probes_fail_too() -> None:
    found = cluster(WAITING, LOST)
    summary = display.summarize(found, was_ready=True, is_applied=True, initial=display.PROVISIONING)
    assert summary == {"state": "Degraded", "message": "machine a is not ready; waiting for probes: etcd"}


def test_messages_are_one_line_of_limited_length() -> None:
    assert display.one_line("two\nlines \x1b[31m") == "two lines [31m"
    assert len(display.one_line("x" * 1000)) == display.MAX_MESSAGE


def test_at_most_three_lost_nodes_are_named() -> None:
    lost = [LostNode(f"Node {name}", "2026-01-01T00:00:00Z", "gone " * 100) for name in "dcba"]
    condition = display.nodes_condition(lost)
    assert (condition["status"], condition["reason"]) == ("False", "NodesNotReady")
    assert condition["message"].startswith("Node a is not ready since 2026-01-01T00:00:00Z: gone gone")
    assert condition["message"].endswith("; and 1 more")
    assert "Node d" not in condition["message"]
    assert len(condition["message"]) < 600
