"""Status and conditions of a MachineSet."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import MACHINE, MACHINE_SET
from herder.controllers.capi.machineset.controller import CONTROLLER
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision, Patch, Refusal
from tests.support.builders import condition_fields
from tests.support.views import NOW
from tests.unit.controllers.capi.fake_server import FakeServer
from tests.unit.controllers.capi.machineset.objects import SET, machine, ready_set, server_with

HEALTHY: dict[str, Any] = {"Ready": "True", "Available": "True", "UpToDate": "True", "NodeReady": "True"}
UNHEALTHY: dict[str, Any] = {
    "Ready": "False/NotReady/* Node: gone",
    "UpToDate": "False/NotUpToDate/* Version v1, v2 required",
}


def _condition(server: FakeServer, type_: str) -> tuple[str, str, str]:
    return condition_fields(server.get(MACHINE_SET, SET), type_)


def _settled(replicas: int | None, *machines: Object) -> FakeServer:
    server = server_with(ready_set(replicas), *machines)
    server.settle(CONTROLLER, SET)
    return server


def test_counters() -> None:
    server = _settled(
        4,
        machine("a", **HEALTHY),
        machine("b", Ready="True", UpToDate="True"),
        machine("c", UpToDate="False"),
        machine("d", deleting=True),
    )
    status = server.get(MACHINE_SET, SET)["status"]
    assert {name: status[name] for name in status if name.endswith("eplicas")} == {
        "replicas": 4,
        "readyReplicas": 2,
        "availableReplicas": 1,
        "upToDateReplicas": 2,
    }
    assert status["selector"] == "cluster.x-k8s.io/cluster-name=herd,pool=workers"
    assert status["observedGeneration"] == 1
    v1beta1 = status["deprecated"]["v1beta1"]
    assert (v1beta1["readyReplicas"], v1beta1["availableReplicas"], v1beta1["fullyLabeledReplicas"]) == (1, 1, 4)


def test_conditions_of_an_empty_set() -> None:
    server = _settled(0)
    assert _condition(server, "MachinesReady") == ("True", "NoReplicas", "")
    assert _condition(server, "MachinesUpToDate") == ("True", "NoReplicas", "")
    assert _condition(server, "ScalingUp") == ("False", "NotScalingUp", "")
    assert _condition(server, "ScalingDown") == ("False", "NotScalingDown", "")
    assert _condition(server, "Remediating") == ("False", "NotRemediating", "")
    assert _condition(server, "Deleting") == ("False", "NotDeleting", "")
    assert _condition(server, "Paused") == ("False", "NotPaused", "")


def test_set_without_replicas_waits() -> None:
    server = _settled(None)
    for type_ in ("ScalingUp", "ScalingDown"):
        assert _condition(server, type_) == ("Unknown", "WaitingForReplicasSet", "Waiting for spec.replicas set")


@pytest.mark.parametrize(
    ("machines", "ready", "up_to_date"),
    [
        ([machine("a", **HEALTHY), machine("b", **HEALTHY)], ("True", "Ready", ""), ("True", "UpToDate", "")),
        (
            [machine("a", **HEALTHY), machine("b", **UNHEALTHY)],
            ("False", "NotReady", "* Machine b:\n  * Node: gone"),
            ("False", "NotUpToDate", "* Machine b:\n  * Version v1, v2 required"),
        ),
        (
            [machine("a", days=1)],
            ("Unknown", "ReadyUnknown", "* Machine a: Condition Ready not yet reported"),
            ("Unknown", "UpToDateUnknown", "* Machine a: Condition UpToDate not yet reported"),
        ),
    ],
)
def test_conditions_aggregate_the_machines(
    machines: list[Object], ready: tuple[str, str, str], up_to_date: tuple[str, str, str]
) -> None:
    server = _settled(len(machines), *machines)
    assert _condition(server, "MachinesReady") == ready
    assert _condition(server, "MachinesUpToDate") == up_to_date


def test_new_machines_get_ten_seconds_to_report_up_to_date() -> None:
    server = server_with(ready_set(1), machine("new", Ready="True"))
    decision = server.reconcile(CONTROLLER, SET, passes=3)
    assert _condition(server, "MachinesUpToDate") == ("True", "NoReplicas", "")
    assert decision.wake_at == NOW + timedelta(seconds=10)
    server.pass_time(seconds=11)
    server.settle(CONTROLLER, SET)
    assert _condition(server, "MachinesUpToDate")[1] == "UpToDateUnknown"


def test_scaling_down_reports_stale_deletions() -> None:
    slow = machine(
        "slow",
        days=1,
        deleting=True,
        Deleting="True/DrainingNode/* Pod x: cannot evict pod as it would violate the pod's disruption budget.",
    )
    slow["status"]["deletion"] = {"nodeDrainStartTime": timestamp(NOW)}
    server = server_with(ready_set(0), slow)
    decision = server.reconcile(CONTROLLER, SET, passes=3)
    assert _condition(server, "ScalingDown") == ("True", "ScalingDown", "Scaling down from 1 to 0 replicas")
    assert decision.wake_at == NOW + timedelta(minutes=15)
    server.pass_time(minutes=16)
    server.settle(CONTROLLER, SET)
    assert _condition(server, "ScalingDown")[2] == (
        "Scaling down from 1 to 0 replicas\n"
        "* Machine slow is in deletion since more than 15m, delay likely due to PodDisruptionBudgets"
    )


REFUSED = Refusal("some-guard", "not now")


@pytest.mark.parametrize(
    ("replicas", "options", "type_", "message"),
    [
        (1, {}, "ScalingDown", "Scaling down from 2 to 1 replicas\n* refused: some-guard: not now"),
        (3, {}, "ScalingUp", "Scaling up from 2 to 3 replicas is blocked because:\n* refused: some-guard: not now"),
        (2, {"going": True}, "Deleting", "Deleting 2 Machines\n* refused: some-guard: not now"),
    ],
)
def test_refusals_are_reported_before_the_next_attempt(
    replicas: int, options: dict[str, bool], type_: str, message: str
) -> None:
    owner = ready_set(replicas)
    if options:
        owner["metadata"]["deletionTimestamp"] = timestamp(NOW)
    server = server_with(owner, machine("a", **HEALTHY), machine("b", **HEALTHY))
    server.refused = REFUSED
    decision = server.decide(CONTROLLER, SET)
    patches = [write for write in decision.writes if isinstance(write, Patch) and write.subresource == "status"]
    messages = {each["type"]: each["message"] for each in patches[0].patch["status"]["conditions"]}
    assert messages[type_] == message
    assert decision.writes[-1] is not patches[0]


def test_obsolete_refusals_are_not_reported() -> None:
    server = server_with(ready_set(2), machine("a", **HEALTHY), machine("b", **HEALTHY))
    server.refused = REFUSED
    server.settle(CONTROLLER, SET)
    assert _condition(server, "ScalingDown") == ("False", "NotScalingDown", "")


def test_long_lists_of_names_are_truncated() -> None:
    server = _settled(5, *[machine(f"m{number}", HealthCheckSucceeded="False") for number in range(5)])
    assert _condition(server, "Remediating")[2] == (
        "Machines m0, m1, m2, ... (2 more) are not healthy (not to be remediated by MachineSet)"
    )


def test_versions_are_sorted() -> None:
    machines = [machine(name) for name in ("a", "b", "c", "d")]
    for each, version in zip(machines, ("v1.10.0", "v1.9.3", "v1.10.0", ""), strict=True):
        each["status"]["nodeInfo"] = {"kubeletVersion": version}
    server = _settled(4, *machines)
    assert server.get(MACHINE_SET, SET)["status"]["versions"] == [
        {"version": "v1.9.3", "replicas": 1},
        {"version": "v1.10.0", "replicas": 2},
    ]


def test_legacy_conditions_during_scale_up() -> None:
    server = server_with(ready_set(1))
    server.reconcile(CONTROLLER, SET)
    assert _legacy_conditions(server)["Resized"] == (
        "False",
        "ScalingUp",
        "Scaling up MachineSet to 1 replicas (actual 0)",
    )
    server.settle(CONTROLLER, SET)
    assert _legacy_conditions(server)["Ready"][1] == "ScalingUp"
    server.make_available(server.all(MACHINE))
    server.settle(CONTROLLER, SET)
    assert {type_: condition[0] for type_, condition in _legacy_conditions(server).items()} == {
        "Ready": "True",
        "MachinesCreated": "True",
        "MachinesReady": "True",
        "Resized": "True",
    }


def test_legacy_machines_ready_names_the_most_severe_issue() -> None:
    machines = [machine(name) for name in ("a", "b", "c")]
    ready_conditions = [("True", "", ""), ("False", "Draining", "Info"), ("False", "Failed", "Error")]
    for each, (status, reason, severity) in zip(machines, ready_conditions, strict=True):
        ready = {"type": "Ready", "status": status, "reason": reason, "severity": severity}
        each["status"]["deprecated"] = {"v1beta1": {"conditions": [ready]}}
    server = _settled(3, *machines)
    assert _legacy_conditions(server)["MachinesReady"] == ("False", "Failed @ Machine/c", "1 of 3 completed")


def test_progress_is_debounced_and_completion_is_not() -> None:
    server = server_with(ready_set(2), machine("a", Ready="True"), machine("b"))
    server.settle(CONTROLLER, SET)
    server.change(
        server.get(MACHINE, "b"), {"status": {"conditions": machine("b", Ready="True")["status"]["conditions"]}}
    )
    assert _debounce(server.decide(CONTROLLER, SET)) == 2.0
    server.reconcile(CONTROLLER, SET)
    server.change(server.get(MACHINE, "a"), {"status": {"conditions": machine("a", **HEALTHY)["status"]["conditions"]}})
    assert _debounce(server.decide(CONTROLLER, SET)) == 0.5
    server.reconcile(CONTROLLER, SET)
    server.change(server.get(MACHINE, "b"), {"status": {"conditions": machine("b", **HEALTHY)["status"]["conditions"]}})
    assert _debounce(server.decide(CONTROLLER, SET)) == 0.0


def _debounce(decision: Decision) -> float:
    (patch,) = [write for write in decision.writes if isinstance(write, Patch)]
    return patch.debounce


def _legacy_conditions(server: FakeServer) -> dict[str, tuple[str, str, str]]:
    conditions = server.get(MACHINE_SET, SET)["status"]["deprecated"]["v1beta1"]["conditions"]
    return {each["type"]: (each["status"], each.get("reason", ""), each.get("message", "")) for each in conditions}
