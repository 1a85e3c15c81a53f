"""Which Machines count as ready, lost or registered, and what is said about them."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.rke import names
from herder.api.rke.machines.health import lost_in, lost_node, machine_reason, ready_in, registered_in
from herder.engine.meta.kinds import Object
from tests.support.builders import new_condition, new_machine

NODE_LOST = new_condition(
    "NodeReady", "Unknown", "NodeReadyUnknown", "* Node.Ready: Kubelet stopped posting node status."
)
NODE_NOT_READY = new_condition("NodeReady", "False", "NodeNotReady", "* Node.Ready: cni plugin not initialized")
NODE_DELETED = new_condition("NodeReady", "False", "NodeDeleted", "Node b has been deleted")
NO_CONNECTION = new_condition("NodeReady", "Unknown", "ConnectionDown", "Last successful probe at t")
RECONCILED = new_condition("Reconciled")


def machine(*conditions: Object, **options: Any) -> Object:
    status = {"nodeRef": {"name": "b"}, "conditions": [*conditions]}
    return new_machine("a", "ws", cluster="meadow", status=status, **options)


@pytest.mark.parametrize(
    ("obj", "lost"),
    [
        (machine(), False),
        (machine(NODE_LOST), True),
        (machine(NODE_DELETED), True),
        (machine(NODE_NOT_READY), False),  # joining
        (machine(NODE_NOT_READY, RECONCILED), True),
        (machine(NO_CONNECTION), False),  # the cluster is disconnected; its Nodes are unknown
        (machine(NODE_LOST, deleting=True), False),
    ],
)
def test_lost_machines(obj: Object, lost: bool) -> None:
    assert [*lost_in(obj)] == (["ws/meadow"] if lost else [])


def test_ready_and_registered_machines() -> None:
    assert [*ready_in(machine(new_condition("Ready")))] == ["ws/meadow"]
    assert [*ready_in(machine(new_condition("Ready"), deleting=True))] == []
    assert [*registered_in(machine())] == ["ws/meadow"]
    assert [*registered_in(machine(labels={names.POOL_NAME: "workers"}))] == []


def test_a_lost_node_is_reported_with_machine_time_and_cause() -> None:
    since = NODE_LOST["lastTransitionTime"]
    cause = "Kubelet stopped posting node status."
    assert str(lost_node(machine(NODE_LOST))) == f"machine a (Node b) is not ready since {since}: {cause}"


def test_the_reason_of_a_machine_is_one_line() -> None:
    not_ready = new_condition("Ready", "False", "NotReady", "* NodeHealthy:\n  * Node.Ready: no network")
    assert machine_reason(machine(not_ready)) == "NodeHealthy: * Node.Ready: no network"
    waiting = new_condition("Reconciled", "Unknown", "Waiting", "waiting for probes: kubelet")
    assert machine_reason(machine(new_condition("Ready"), waiting)) == "waiting for probes: kubelet"
    assert machine_reason(machine(new_condition("Ready"), RECONCILED)) == ""
