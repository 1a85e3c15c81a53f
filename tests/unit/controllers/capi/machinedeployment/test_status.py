"""What a MachineDeployment tells about itself."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.kinds import MACHINE
from herder.controllers.capi.machinedeployment.controller import CONTROLLER
from herder.engine.runtime.decision import Decision, Patch
from tests.unit.controllers.capi.machinedeployment.deployments import NAME, Herd, deployment, settled
from tests.unit.controllers.capi.world import condition_of


def _told(herd: Herd, type_: str) -> tuple[str, str, str]:
    told = condition_of(herd.deployment, type_)
    return told["status"], told["reason"], told["message"]


def _broken(herd: Herd, count: int, **changes: Any) -> None:
    told = {"type": "Available", "status": "False", "reason": "NotReady", "message": "", **changes}
    for each in herd.all(MACHINE)[:count]:
        herd.says(each, told)
    herd.work()
    herd.work()


def test_all_is_well() -> None:
    herd = settled(deployment(2))
    assert _told(herd, "Available") == ("True", "Available", "")
    assert _told(herd, "MachinesReady") == ("True", "Ready", "")
    assert _told(herd, "MachinesUpToDate") == ("True", "UpToDate", "")
    assert _told(herd, "RollingOut") == ("False", "NotRollingOut", "")
    assert _told(herd, "ScalingUp") == ("False", "NotScalingUp", "")
    assert _told(herd, "ScalingDown") == ("False", "NotScalingDown", "")
    assert _told(herd, "Remediating") == ("False", "NotRemediating", "")
    assert _told(herd, "Deleting") == ("False", "NotDeleting", "")
    assert _told(herd, "Paused") == ("False", "NotPaused", "")
    status = herd.deployment["status"]
    assert status["selector"] == "cluster.x-k8s.io/cluster-name=herd,cluster.x-k8s.io/deployment-name=pool"
    assert status["observedGeneration"] == herd.deployment["metadata"]["generation"]


@pytest.mark.parametrize(
    ("given", "broken", "available"),
    [
        ({"replicas": 3, "unavailable": 1}, 1, ("True", "Available", "")),
        (
            {"replicas": 3, "unavailable": 1},
            2,
            (
                "False",
                "NotAvailable",
                "1 available replicas, at least 2 required"
                " (spec.strategy.rollout.maxUnavailable is 1, spec.replicas is 3)",
            ),
        ),
        (
            {"replicas": 4, "unavailable": "25%"},
            2,
            (
                "False",
                "NotAvailable",
                "2 available replicas, at least 3 required"
                " (spec.strategy.rollout.maxUnavailable is 25%, spec.replicas is 4)",
            ),
        ),
        (
            {"replicas": 2, "strategy": "OnDelete"},
            1,
            ("False", "NotAvailable", "1 available replicas, at least 2 required"),
        ),
    ],
)
def test_it_is_available_while_enough_machines_are(
    given: dict[str, Any], broken: int, available: tuple[str, str, str]
) -> None:
    herd = settled(deployment(**given))
    _broken(herd, broken)
    assert _told(herd, "Available") == available


@pytest.mark.parametrize(
    ("before", "after", "phase", "condition"),
    [
        (1, 3, "ScalingUp", ("ScalingUp", "Scaling up from 1 to 3 replicas")),
        (3, 1, "ScalingDown", ("ScalingDown", "Scaling down from 3 to 1 replicas")),
    ],
)
def test_phases(before: int, after: int, phase: str, condition: tuple[str, str]) -> None:
    herd = settled(deployment(before))
    herd.edit(replicas=after)
    herd.reconcile(CONTROLLER, NAME, passes=2)
    assert herd.deployment["status"]["phase"] == phase
    assert _told(herd, condition[0]) == ("True", condition[0], condition[1])


def test_missing_templates_are_told_even_when_none_is_needed() -> None:
    herd = settled(deployment(1))
    herd.template(infrastructureRef={"name": "nowhere"})
    herd.reconcile(CONTROLLER, NAME, passes=2)
    assert _told(herd, "ScalingUp") == (
        "False",
        "NotScalingUp",
        "Scaling up would be blocked because TestMachineTemplate does not exist",
    )


def test_what_guards_refuse_to_its_sets_is_told() -> None:
    herd = settled(deployment(2))
    herd.edit(replicas=1)
    (owned,) = herd.sets
    blocked = {"type": "ScalingDown", "status": "True", "reason": "ScalingDown"}
    message = "Scaling down from 2 to 1 replicas\n* refused: some-guard: not now"
    herd.change(owned, {"status": {"conditions": [{**blocked, "message": message}]}})
    herd.reconcile(CONTROLLER, NAME, passes=2)
    name = owned["metadata"]["name"]
    assert _told(herd, "ScalingDown")[2].endswith(f"\n* MachineSet {name}: refused: some-guard: not now")


def test_reasons_for_a_rollout_are_told_once_and_the_version_first() -> None:
    herd = settled(deployment(3))
    messages = ["* TestMachine is not up-to-date\n* Version v1, v2 required", "* Failure domain a, b required", ""]
    for each, message in zip(herd.all(MACHINE), messages, strict=True):
        herd.says(each, {"type": "UpToDate", "status": "False", "reason": "NotUpToDate", "message": message})
    herd.reconcile(CONTROLLER, NAME)
    assert _told(herd, "RollingOut")[2].split("\n") == [
        "Rolling out 3 not up-to-date replicas",
        "* Version v1, v2 required",
        "* Failure domain a, b required",
        "* TestMachine is not up-to-date",
    ]


def test_for_clients_of_v1beta1() -> None:
    herd = settled(deployment(3))
    herd.says(herd.all(MACHINE)[0], {"type": "NodeReady", "status": "False", "reason": "X", "message": ""})
    herd.work()
    herd.work()
    v1beta1 = herd.deployment["status"]["deprecated"]["v1beta1"]
    assert {name: value for name, value in v1beta1.items() if name != "conditions"} == {
        "updatedReplicas": 3,
        "readyReplicas": 2,
        "availableReplicas": 2,
        "unavailableReplicas": 1,
    }
    conditions = {each["type"]: each for each in v1beta1["conditions"]}
    assert conditions["Available"]["message"] == "Minimum availability requires 3 replicas, current 2 available"
    assert conditions["Ready"]["reason"] == "WaitingForAvailableMachines"
    assert conditions["MachineSetReady"]["status"] in ("True", "False")


def test_versions_in_use() -> None:
    herd = settled(deployment(2))
    for each, version in zip(herd.all(MACHINE), ("v1.31.0", "v1.30.1"), strict=True):
        herd.change(each, {"status": {"nodeInfo": {"kubeletVersion": version}}})
    herd.reconcile(CONTROLLER, NAME)
    assert [each["version"] for each in herd.deployment["status"]["versions"]] == ["v1.30.1", "v1.31.0"]


def test_progress_may_wait_to_be_told_but_availability_may_not() -> None:
    herd = settled(deployment(3, unavailable=1))
    first, second, _ = herd.all(MACHINE)
    not_available = {"type": "Available", "status": "False", "reason": "NotReady", "message": ""}
    herd.says(first, not_available)
    assert _debounce(herd.decide(CONTROLLER, NAME)) == 2.0
    herd.says(second, not_available)
    assert _debounce(herd.decide(CONTROLLER, NAME)) == 0.0


def _debounce(decision: Decision) -> float:
    (patch,) = [write for write in decision.writes if isinstance(write, Patch)]
    return patch.debounce
