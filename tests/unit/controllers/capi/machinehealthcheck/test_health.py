"""Health of a Machine: its state, conditions and the time of the next check."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from herder.api.capi.names import CONTROL_PLANE, REMEDIATE_MACHINE
from herder.controllers.capi.machinehealthcheck.health import Health, State, Target, evaluate, go_duration
from herder.engine.meta.kinds import Object
from tests.support.views import NOW
from tests.unit.controllers.capi.machinehealthcheck.objects import (
    aged_condition,
    ago,
    cluster,
    health_check,
    machine,
    node,
)

BOTH: Object = {
    "unhealthyNodeConditions": [{"type": "Ready", "status": "Unknown", "timeoutSeconds": 300}],
    "unhealthyMachineConditions": [{"type": "Available", "status": "False", "timeoutSeconds": 60}],
    "nodeStartupTimeoutSeconds": 600,
}


def health(target: Target, in_cluster: Object | None = None, checks: Object | None = None) -> Health:
    return evaluate(target, health_check(checks=checks or BOTH), in_cluster or cluster(), NOW)


def unavailable_machine(seconds: float) -> Object:
    return machine("m", conditions=[aged_condition("Available", "False", seconds)])


@pytest.mark.parametrize(
    ("target", "in_cluster", "state"),
    [
        pytest.param(Target(machine("m"), node("m")), cluster(), State.HEALTHY, id="Node ready"),
        pytest.param(Target(machine("m"), node("m", "False")), cluster(), State.HEALTHY, id="status is not checked"),
        pytest.param(Target(machine("m"), node("m", "Unknown", 301)), cluster(), State.UNHEALTHY, id="Node unknown"),
        pytest.param(
            Target(machine("m"), node("m", "Unknown", 300)), cluster(), State.SUSPECT, id="before the timeout"
        ),
        pytest.param(Target(unavailable_machine(61), node("m")), cluster(), State.UNHEALTHY, id="Machine condition"),
        pytest.param(
            Target(unavailable_machine(59), node("m")),
            cluster(),
            State.SUSPECT,
            id="Machine condition before the timeout",
        ),
        pytest.param(Target(machine("m"), None, True), cluster(), State.UNHEALTHY, id="Node deleted"),
        pytest.param(Target(machine("m", node=None, created=601)), cluster(), State.UNHEALTHY, id="never started"),
        pytest.param(Target(machine("m", node=None, created=600)), cluster(), State.STARTING, id="still starting"),
        pytest.param(
            Target(machine("m", node=None)),
            cluster(since=60),
            State.STARTING,
            id="the cluster became ready a minute ago",
        ),
        pytest.param(
            Target(machine("m", node=None, conditions=[aged_condition("InfrastructureReady", "True", 60)])),
            cluster(),
            State.STARTING,
            id="its infrastructure became ready a minute ago",
        ),
        pytest.param(
            Target(machine("m", node=None, conditions=[aged_condition("InfrastructureReady", "False", 60)])),
            cluster(),
            State.UNHEALTHY,
            id="its infrastructure never became ready",
        ),
        pytest.param(
            Target(machine("m"), None, True),
            cluster(infrastructure="False"),
            State.STARTING,
            id="no infrastructure yet",
        ),
        pytest.param(
            Target(machine("m", node=None)), cluster(initialized="False"), State.STARTING, id="no control plane yet"
        ),
        pytest.param(
            Target(machine("m", node=None, labels={CONTROL_PLANE: ""})),
            cluster(initialized="False"),
            State.UNHEALTHY,
            id="the first control plane Machine may be replaced",
        ),
        pytest.param(
            Target(machine("m", deletionTimestamp=ago(5)), node("m")), cluster(), State.DELETING, id="being deleted"
        ),
        pytest.param(
            Target(machine("m", annotations={REMEDIATE_MACHINE: ""}), node("m")),
            cluster(),
            State.UNHEALTHY,
            id="annotated",
        ),
        pytest.param(
            Target(machine("m", node=None, annotations={REMEDIATE_MACHINE: ""})),
            cluster(infrastructure="False"),
            State.UNHEALTHY,
            id="annotated, regardless of the cluster",
        ),
    ],
)
def test_states(target: Target, in_cluster: Object, state: State) -> None:
    assert health(target, in_cluster).state is state


@pytest.mark.parametrize(
    ("target", "reason", "message", "legacy_reason", "legacy_message"),
    [
        pytest.param(
            Target(machine("m"), node("m", "Unknown")),
            "UnhealthyNode",
            "Health check failed:\n"
            "  * Condition Ready on Node is reporting status Unknown with reason ReadyReason for more than 5m0s",
            "UnhealthyNode",
            "Condition Ready on Node is reporting status Unknown with reason ReadyReason for more than 5m0s",
            id="Node",
        ),
        pytest.param(
            Target(unavailable_machine(61), None, True),
            "UnhealthyMachine",
            "Health check failed:\n"
            "  * Condition Available on Machine is reporting status False with reason AvailableReason "
            "for more than 1m0s\n"
            "  * Node m has been deleted",
            "UnhealthyMachine",
            "Condition Available on Machine is reporting status False with reason AvailableReason for more than 1m0s; "
            "Node m has been deleted",
            id="both, the Machine's reason first",
        ),
        pytest.param(
            Target(machine("m"), None, True),
            "NodeDeleted",
            "Health check failed:\n  * Node m has been deleted",
            "NodeNotFound",
            "",
            id="Node deleted",
        ),
        pytest.param(
            Target(machine("m", node=None)),
            "NodeStartupTimeout",
            "Health check failed:\n  * Node failed to report startup in 10m0s",
            "NodeStartupTimeout",
            "Node failed to report startup in 10m0s",
            id="never started",
        ),
        pytest.param(
            Target(machine("m", annotations={REMEDIATE_MACHINE: "true"})),
            "HasRemediateAnnotation",
            "Health check failed: marked for remediation via cluster.x-k8s.io/remediate-machine annotation",
            "HasRemediateMachineAnnotation",
            "Marked for remediation via remediate-machine annotation",
            id="annotated",
        ),
    ],
)
def test_conditions_of_unhealthy_machines(
    target: Target, reason: str, message: str, legacy_reason: str, legacy_message: str
) -> None:
    found = health(target)
    assert found.condition is not None
    assert found.legacy_condition is not None
    assert (found.condition["status"], found.condition["reason"], found.condition["message"]) == (
        "False",
        reason,
        message,
    )
    assert (found.legacy_condition["reason"], found.legacy_condition.get("message", "")) == (
        legacy_reason,
        legacy_message,
    )
    assert found.legacy_condition["severity"] == "Warning"


@pytest.mark.parametrize(
    ("target", "recheck_at"),
    [
        (Target(machine("m"), node("m", "Unknown", 200)), NOW + timedelta(seconds=101)),
        (Target(unavailable_machine(30), node("m", "Unknown", 200)), NOW + timedelta(seconds=31)),
        (Target(machine("m", node=None, created=100)), NOW + timedelta(seconds=501)),
        (Target(machine("m"), node("m")), None),
    ],
)
def test_recheck_time(target: Target, recheck_at: datetime | None) -> None:
    assert health(target).recheck_at == recheck_at


@pytest.mark.parametrize(("seconds", "state"), [(0, State.STARTING), (30, State.UNHEALTHY), (None, State.UNHEALTHY)])
def test_node_startup_timeout(seconds: int | None, state: State) -> None:
    checks: dict[str, Any] = {} if seconds is None else {"nodeStartupTimeoutSeconds": seconds}
    assert health(Target(machine("m", node=None, created=3600)), checks=checks or {"x": 1}).state is state


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0s"), (30, "30s"), (300, "5m0s"), (3600, "1h0m0s"), (3661, "1h1m1s"), (90000, "25h0m0s")],
)
def test_durations_are_formatted_as_in_go(seconds: int, expected: str) -> None:
    assert go_duration(timedelta(seconds=seconds)) == expected
