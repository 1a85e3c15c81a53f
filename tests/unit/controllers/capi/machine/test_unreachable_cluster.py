"""Unreachable workload clusters: Node conditions keep their last known state for five minutes."""

from __future__ import annotations

from datetime import timedelta

from herder.engine.runtime.view import ConnectionStatus, Unreachable
from tests.support.builders import new_condition
from tests.unit.controllers.capi.machine.harness import MachineHarness, patches, running
from tests.unit.controllers.capi.machine.objects import cluster

MINUTE = timedelta(minutes=1)


def unreachable(harness: MachineHarness) -> MachineHarness:
    harness.settle()
    harness.nodes = Unreachable("no answer in time", harness.now)
    harness.connection = ConnectionStatus(harness.now - MINUTE, last_contact=harness.now, reason="no answer in time")
    harness.now += MINUTE
    return harness


def test_last_known_state_is_kept_at_first() -> None:
    harness = unreachable(running())
    assert patches(harness.reconcile()) == []
    assert harness.condition("NodeReady") == ("True", "NodeReady", "")
    assert harness.condition("NodeHealthy") == ("True", "NodeHealthy", "")


def test_deadline_counts_from_the_last_contact() -> None:
    harness = unreachable(running())
    assert harness.reconcile().wake_at == harness.now + 4 * MINUTE


def test_connection_is_down_after_five_minutes() -> None:
    harness = unreachable(running())
    harness.now += 4 * MINUTE
    expected = ("Unknown", "ConnectionDown", "Last successful probe at 2026-01-01T12:00:00Z")
    assert harness.condition("NodeReady") == harness.condition("NodeHealthy") == expected
    assert harness.condition("Ready")[0] == "Unknown"
    assert harness.reconcile().wake_at is None


def test_newly_initialized_control_plane_gets_five_minutes() -> None:
    harness = unreachable(running())
    harness.now += 10 * MINUTE
    initialized = new_condition("ControlPlaneInitialized", since=harness.now)
    status = {"initialization": {"infrastructureProvisioned": True}, "conditions": [initialized]}
    harness.objects[0] = cluster(status=status)
    assert harness.condition("NodeReady") == ("True", "NodeReady", "")
    assert harness.reconcile().wake_at == harness.now + 5 * MINUTE


def test_conditions_recover_with_the_connection() -> None:
    harness = unreachable(running())
    nodes = running().nodes
    harness.now += 10 * MINUTE
    harness.settle()
    harness.nodes = nodes
    assert harness.condition("NodeHealthy") == ("True", "NodeHealthy", "")


def test_cluster_that_was_never_reached_is_reported() -> None:
    harness = running(nodes=None)
    expected = ("Unknown", "ConnectionDown", "Remote connection not established yet")
    assert harness.condition("NodeReady") == harness.condition("NodeHealthy") == expected
    (subscription,) = harness.reconcile().observe
    assert subscription.cluster == "farm/north"


def test_cluster_that_never_answered_is_down_after_five_minutes() -> None:
    harness = running()
    harness.nodes = Unreachable("connection refused", harness.now)
    assert harness.condition("NodeReady")[2] == "Remote connection not established yet"
    harness.now += 5 * MINUTE
    assert harness.condition("NodeReady") == ("Unknown", "ConnectionDown", "")


def test_unreadable_nodes_are_reported_after_five_minutes() -> None:
    harness = unreachable(running())
    harness.nodes = Unreachable("nodes is forbidden", harness.now)
    harness.connection = ConnectionStatus(harness.now, last_contact=harness.now)
    assert harness.condition("NodeReady") == ("True", "NodeReady", "")
    harness.now += 5 * MINUTE
    assert harness.condition("NodeReady") == ("Unknown", "InternalError", "Nodes cannot be read: nodes is forbidden")


def test_legacy_node_healthy_is_kept() -> None:
    harness = unreachable(running())
    harness.now += 10 * MINUTE
    assert harness.legacy_condition("NodeHealthy") == ("True", "", "", "")
