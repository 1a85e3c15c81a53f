"""What a MachineSet tells about itself."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from herder.api.capi.kinds import MACHINE, MACHINE_SET
from herder.controllers.capi.machineset.controller import CONTROLLER
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision, Patch, Refusal
from tests.support.views import NOW
from tests.unit.controllers.capi.machineset.sets import SET, machine, ready_set, world
from tests.unit.controllers.capi.world import World, condition_of, stamp

GOOD: dict[str, Any] = {"Ready": "True", "Available": "True", "UpToDate": "True", "NodeReady": "True"}
BAD: dict[str, Any] = {
    "Ready": "False/NotReady/* Node: gone",
    "UpToDate": "False/NotUpToDate/* Version v1, v2 required",
}


def _told(w: World, type_: str) -> tuple[str, str, str]:
    told = condition_of(w.get(MACHINE_SET, SET), type_)
    return told["status"], told["reason"], told["message"]


def _settled(replicas: int | None, *machines: Object) -> World:
    w = world(ready_set(replicas), *machines)
    w.settle(CONTROLLER, SET)
    return w


def test_counters() -> None:
    w = _settled(
        4,
        machine("a", **GOOD),
        machine("b", Ready="True", UpToDate="True"),
        machine("c", UpToDate="False"),
        machine("d", deleting=True),
    )
    status = w.get(MACHINE_SET, SET)["status"]
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


def test_an_empty_set_is_well() -> None:
    w = _settled(0)
    assert _told(w, "MachinesReady") == ("True", "NoReplicas", "")
    assert _told(w, "MachinesUpToDate") == ("True", "NoReplicas", "")
    assert _told(w, "ScalingUp") == ("False", "NotScalingUp", "")
    assert _told(w, "ScalingDown") == ("False", "NotScalingDown", "")
    assert _told(w, "Remediating") == ("False", "NotRemediating", "")
    assert _told(w, "Deleting") == ("False", "NotDeleting", "")
    assert _told(w, "Paused") == ("False", "NotPaused", "")


def test_without_replicas_it_waits_for_them() -> None:
    w = _settled(None)
    for type_ in ("ScalingUp", "ScalingDown"):
        assert _told(w, type_) == ("Unknown", "WaitingForReplicasSet", "Waiting for spec.replicas set")


@pytest.mark.parametrize(
    ("machines", "ready", "up_to_date"),
    [
        ([machine("a", **GOOD), machine("b", **GOOD)], ("True", "Ready", ""), ("True", "UpToDate", "")),
        (
            [machine("a", **GOOD), machine("b", **BAD)],
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
def test_what_the_machines_say(
    machines: list[Object], ready: tuple[str, str, str], up_to_date: tuple[str, str, str]
) -> None:
    w = _settled(len(machines), *machines)
    assert _told(w, "MachinesReady") == ready
    assert _told(w, "MachinesUpToDate") == up_to_date


def test_a_machine_is_not_asked_at_once_whether_it_is_up_to_date() -> None:
    w = world(ready_set(1), machine("new", Ready="True"))
    decision = w.reconcile(CONTROLLER, SET, passes=3)
    assert _told(w, "MachinesUpToDate") == ("True", "NoReplicas", "")
    assert decision.wake_at == NOW + timedelta(seconds=10)
    w.pass_time(seconds=11)
    w.settle(CONTROLLER, SET)
    assert _told(w, "MachinesUpToDate")[1] == "UpToDateUnknown"


def test_scaling_down_tells_what_holds_it_up() -> None:
    slow = machine(
        "slow",
        days=1,
        deleting=True,
        Deleting="True/DrainingNode/* Pod x: cannot evict pod as it would violate the pod's disruption budget.",
    )
    slow["status"]["deletion"] = {"nodeDrainStartTime": stamp(NOW)}
    w = world(ready_set(0), slow)
    decision = w.reconcile(CONTROLLER, SET, passes=3)
    assert _told(w, "ScalingDown") == ("True", "ScalingDown", "Scaling down from 1 to 0 replicas")
    assert decision.wake_at == NOW + timedelta(minutes=15)
    w.pass_time(minutes=16)
    w.settle(CONTROLLER, SET)
    assert _told(w, "ScalingDown")[2] == (
        "Scaling down from 1 to 0 replicas\n"
        "* Machine slow is in deletion since more than 15m, delay likely due to PodDisruptionBudgets"
    )


REFUSED = Refusal("some-guard", "not now")


@pytest.mark.parametrize(
    ("replicas", "given", "type_", "message"),
    [
        (1, {}, "ScalingDown", "Scaling down from 2 to 1 replicas\n* refused: some-guard: not now"),
        (3, {}, "ScalingUp", "Scaling up from 2 to 3 replicas is blocked because:\n* refused: some-guard: not now"),
        (2, {"going": True}, "Deleting", "Deleting 2 Machines\n* refused: some-guard: not now"),
    ],
)
def test_what_a_guard_refuses_is_told_before_it_is_tried_again(
    replicas: int, given: dict[str, bool], type_: str, message: str
) -> None:
    owner = ready_set(replicas)
    if given:
        owner["metadata"]["deletionTimestamp"] = stamp(NOW)
    w = world(owner, machine("a", **GOOD), machine("b", **GOOD))
    w.refused = REFUSED
    decision = w.decide(CONTROLLER, SET)
    told = [write for write in decision.writes if isinstance(write, Patch) and write.subresource == "status"]
    found = {each["type"]: each["message"] for each in told[0].patch["status"]["conditions"]}
    assert found[type_] == message
    assert decision.writes[-1] is not told[0]


def test_what_is_not_tried_any_more_is_no_longer_refused() -> None:
    w = world(ready_set(2), machine("a", **GOOD), machine("b", **GOOD))
    w.refused = REFUSED
    w.settle(CONTROLLER, SET)
    assert _told(w, "ScalingDown") == ("False", "NotScalingDown", "")


def test_many_names_are_shortened() -> None:
    w = _settled(5, *[machine(f"m{number}", HealthCheckSucceeded="False") for number in range(5)])
    assert _told(w, "Remediating")[2] == (
        "Machines m0, m1, m2, ... (2 more) are not healthy (not to be remediated by MachineSet)"
    )


def test_versions_in_use_the_oldest_first() -> None:
    machines = [machine(name) for name in ("a", "b", "c", "d")]
    for each, version in zip(machines, ("v1.10.0", "v1.9.3", "v1.10.0", ""), strict=True):
        each["status"]["nodeInfo"] = {"kubeletVersion": version}
    w = _settled(4, *machines)
    assert w.get(MACHINE_SET, SET)["status"]["versions"] == [
        {"version": "v1.9.3", "replicas": 1},
        {"version": "v1.10.0", "replicas": 2},
    ]


def test_legacy_conditions_of_a_set_that_grows_and_arrives() -> None:
    w = world(ready_set(1))
    w.reconcile(CONTROLLER, SET)
    assert _legacies(w)["Resized"] == ("False", "ScalingUp", "Scaling up MachineSet to 1 replicas (actual 0)")
    w.settle(CONTROLLER, SET)
    assert _legacies(w)["Ready"][1] == "ScalingUp"
    w.make_available(w.all(MACHINE))
    w.settle(CONTROLLER, SET)
    assert {type_: told[0] for type_, told in _legacies(w).items()} == {
        "Ready": "True",
        "MachinesCreated": "True",
        "MachinesReady": "True",
        "Resized": "True",
    }


def test_legacy_aggregate_counts_and_names_the_worst() -> None:
    machines = [machine(name) for name in ("a", "b", "c")]
    told = [("True", "", ""), ("False", "Draining", "Info"), ("False", "Failed", "Error")]
    for each, (status, reason, severity) in zip(machines, told, strict=True):
        ready = {"type": "Ready", "status": status, "reason": reason, "severity": severity}
        each["status"]["deprecated"] = {"v1beta1": {"conditions": [ready]}}
    w = _settled(3, *machines)
    assert _legacies(w)["MachinesReady"] == ("False", "Failed @ Machine/c", "1 of 3 completed")


def test_progress_may_wait_to_be_told_but_arrival_may_not() -> None:
    w = world(ready_set(2), machine("a", Ready="True"), machine("b"))
    w.settle(CONTROLLER, SET)
    w.change(w.get(MACHINE, "b"), {"status": {"conditions": machine("b", Ready="True")["status"]["conditions"]}})
    assert _debounce(w.decide(CONTROLLER, SET)) == 2.0
    w.reconcile(CONTROLLER, SET)
    w.change(w.get(MACHINE, "a"), {"status": {"conditions": machine("a", **GOOD)["status"]["conditions"]}})
    assert _debounce(w.decide(CONTROLLER, SET)) == 0.5
    w.reconcile(CONTROLLER, SET)
    w.change(w.get(MACHINE, "b"), {"status": {"conditions": machine("b", **GOOD)["status"]["conditions"]}})
    assert _debounce(w.decide(CONTROLLER, SET)) == 0.0


def _debounce(decision: Decision) -> float:
    (patch,) = [write for write in decision.writes if isinstance(write, Patch)]
    return patch.debounce


def _legacies(w: World) -> dict[str, tuple[str, str, str]]:
    conditions = w.get(MACHINE_SET, SET)["status"]["deprecated"]["v1beta1"]["conditions"]
    return {each["type"]: (each["status"], each.get("reason", ""), each.get("message", "")) for each in conditions}
