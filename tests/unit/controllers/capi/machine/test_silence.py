"""A workload cluster that does not answer: what was last known stands for five minutes."""

from __future__ import annotations

from datetime import timedelta

from herder.engine.runtime.view import ConnectionStatus, Unreachable
from tests.unit.controllers.capi.machine.stage import Stage, cluster, patches, running

MINUTE = timedelta(minutes=1)


def fallen_silent(stage: Stage) -> Stage:
    stage.settle()
    stage.nodes = Unreachable("no answer in time", stage.now)
    stage.connection = ConnectionStatus(stage.now - MINUTE, last_contact=stage.now, reason="no answer in time")
    stage.now += MINUTE
    return stage


def test_the_last_known_state_stands_at_first() -> None:
    stage = fallen_silent(running())
    assert patches(stage.decide()) == []
    assert stage.condition("NodeReady") == ("True", "NodeReady", "")
    assert stage.condition("NodeHealthy") == ("True", "NodeHealthy", "")


def test_the_deadline_counts_from_the_last_answer() -> None:
    stage = fallen_silent(running())
    assert stage.decide().wake_at == stage.now + 4 * MINUTE


def test_after_five_minutes_the_connection_is_down() -> None:
    stage = fallen_silent(running())
    stage.now += 4 * MINUTE
    told = ("Unknown", "ConnectionDown", "Last successful probe at 2026-01-01T12:00:00Z")
    assert stage.condition("NodeReady") == stage.condition("NodeHealthy") == told
    assert stage.condition("Ready")[0] == "Unknown"
    assert stage.decide().wake_at is None


def test_a_control_plane_that_has_just_come_up_gets_its_five_minutes_too() -> None:
    stage = fallen_silent(running())
    stage.now += 10 * MINUTE
    since = stage.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    initialized = {"type": "ControlPlaneInitialized", "status": "True", "lastTransitionTime": since}
    status = {"initialization": {"infrastructureProvisioned": True}, "conditions": [initialized]}
    stage.objects[0] = cluster(status=status)
    assert stage.condition("NodeReady") == ("True", "NodeReady", "")
    assert stage.decide().wake_at == stage.now + 5 * MINUTE


def test_when_the_cluster_answers_again_its_word_counts() -> None:
    stage = fallen_silent(running())
    nodes = running().nodes
    stage.now += 10 * MINUTE
    stage.settle()
    stage.nodes = nodes
    assert stage.condition("NodeHealthy") == ("True", "NodeHealthy", "")


def test_a_cluster_that_was_never_reached_is_told_as_such() -> None:
    stage = running(nodes=None)
    told = ("Unknown", "ConnectionDown", "Remote connection not established yet")
    assert stage.condition("NodeReady") == stage.condition("NodeHealthy") == told
    (subscription,) = stage.decide().observe
    assert subscription.cluster == "farm/north"


def test_a_cluster_that_never_answered_is_down_after_five_minutes_too() -> None:
    stage = running()
    stage.nodes = Unreachable("connection refused", stage.now)
    assert stage.condition("NodeReady")[2] == "Remote connection not established yet"
    stage.now += 5 * MINUTE
    assert stage.condition("NodeReady") == ("Unknown", "ConnectionDown", "")


def test_a_cluster_that_answers_but_shows_no_nodes_is_told_after_five_minutes() -> None:
    stage = fallen_silent(running())
    stage.nodes = Unreachable("nodes is forbidden", stage.now)
    stage.connection = ConnectionStatus(stage.now, last_contact=stage.now)
    assert stage.condition("NodeReady") == ("True", "NodeReady", "")
    stage.now += 5 * MINUTE
    assert stage.condition("NodeReady") == ("Unknown", "InternalError", "Nodes cannot be read: nodes is forbidden")


def test_the_older_list_keeps_what_it_said() -> None:
    stage = fallen_silent(running())
    stage.now += 10 * MINUTE
    assert stage.legacy("NodeHealthy") == ("True", "", "", "")
