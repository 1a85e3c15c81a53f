"""How a Machine is."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from herder.api.capi.names import CONTROL_PLANE, REMEDIATE_MACHINE
from herder.controllers.capi.machinehealthcheck.health import Health, State, Target, evaluate, go_duration
from herder.engine.meta.kinds import Object
from tests.support.views import NOW
from tests.unit.controllers.capi.machinehealthcheck.checking import ago, check, cluster, known, machine, node

BOTH: Object = {
    "unhealthyNodeConditions": [{"type": "Ready", "status": "Unknown", "timeoutSeconds": 300}],
    "unhealthyMachineConditions": [{"type": "Available", "status": "False", "timeoutSeconds": 60}],
    "nodeStartupTimeoutSeconds": 600,
}


def health(target: Target, of: Object | None = None, checks: Object | None = None) -> Health:
    return evaluate(target, check(checks=checks or BOTH), of or cluster(), NOW)


def broken(seconds: float) -> Object:
    return machine("m", conditions=[known("Available", "False", seconds)])


@pytest.mark.parametrize(
    ("target", "of", "state"),
    [
        pytest.param(Target(machine("m"), node("m")), cluster(), State.HEALTHY, id="Node ready"),
        pytest.param(
            Target(machine("m"), node("m", "False")), cluster(), State.HEALTHY, id="nobody asked for this status"
        ),
        pytest.param(Target(machine("m"), node("m", "Unknown", 301)), cluster(), State.UNHEALTHY, id="Node unknown"),
        pytest.param(Target(machine("m"), node("m", "Unknown", 300)), cluster(), State.SUSPECT, id="not yet too long"),
        pytest.param(Target(broken(61), node("m")), cluster(), State.UNHEALTHY, id="Machine condition"),
        pytest.param(Target(broken(59), node("m")), cluster(), State.SUSPECT, id="Machine condition, not yet"),
        pytest.param(Target(machine("m"), None, True), cluster(), State.UNHEALTHY, id="Node gone"),
        pytest.param(Target(machine("m", node=None, created=601)), cluster(), State.UNHEALTHY, id="never started"),
        pytest.param(Target(machine("m", node=None, created=600)), cluster(), State.STARTING, id="still starting"),
        pytest.param(
            Target(machine("m", node=None)),
            cluster(since=60),
            State.STARTING,
            id="the cluster became ready a minute ago",
        ),
        pytest.param(
            Target(machine("m", node=None, conditions=[known("InfrastructureReady", "True", 60)])),
            cluster(),
            State.STARTING,
            id="its infrastructure became ready a minute ago",
        ),
        pytest.param(
            Target(machine("m", node=None, conditions=[known("InfrastructureReady", "False", 60)])),
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
            id="the first of the control plane may be replaced",
        ),
        pytest.param(
            Target(machine("m", deletionTimestamp=ago(5)), node("m")), cluster(), State.DELETING, id="being deleted"
        ),
        pytest.param(
            Target(machine("m", annotations={REMEDIATE_MACHINE: ""}), node("m")),
            cluster(),
            State.UNHEALTHY,
            id="marked",
        ),
        pytest.param(
            Target(machine("m", node=None, annotations={REMEDIATE_MACHINE: ""})),
            cluster(infrastructure="False"),
            State.UNHEALTHY,
            id="marked, whatever the cluster is like",
        ),
    ],
)
def test_states(target: Target, of: Object, state: State) -> None:
    assert health(target, of).state is state


@pytest.mark.parametrize(
    ("target", "reason", "message", "older", "older_message"),
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
            Target(broken(61), None, True),
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
            id="marked",
        ),
    ],
)
def test_what_is_told(target: Target, reason: str, message: str, older: str, older_message: str) -> None:
    found = health(target)
    assert found.condition is not None
    assert found.legacy_condition is not None
    assert (found.condition["status"], found.condition["reason"], found.condition["message"]) == (
        "False",
        reason,
        message,
    )
    assert (found.legacy_condition["reason"], found.legacy_condition.get("message", "")) == (older, older_message)
    assert found.legacy_condition["severity"] == "Warning"


@pytest.mark.parametrize(
    ("target", "recheck_at"),
    [
        (Target(machine("m"), node("m", "Unknown", 200)), NOW + timedelta(seconds=101)),
        (Target(broken(30), node("m", "Unknown", 200)), NOW + timedelta(seconds=31)),
        (Target(machine("m", node=None, created=100)), NOW + timedelta(seconds=501)),
        (Target(machine("m"), node("m")), None),
    ],
)
def test_the_next_look_is_when_something_can_have_changed(target: Target, recheck_at: datetime | None) -> None:
    assert health(target).recheck_at == recheck_at


@pytest.mark.parametrize(("seconds", "state"), [(0, State.STARTING), (30, State.UNHEALTHY), (None, State.UNHEALTHY)])
def test_the_time_to_start(seconds: int | None, state: State) -> None:
    checks: dict[str, Any] = {} if seconds is None else {"nodeStartupTimeoutSeconds": seconds}
    assert health(Target(machine("m", node=None, created=3600)), checks=checks or {"x": 1}).state is state


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0s"), (30, "30s"), (300, "5m0s"), (3600, "1h0m0s"), (3661, "1h1m1s"), (90000, "25h0m0s")],
)
def test_durations_in_words(seconds: int, words: str) -> None:
    assert go_duration(timedelta(seconds=seconds)) == words
