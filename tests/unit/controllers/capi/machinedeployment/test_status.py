"""Status and conditions of a MachineDeployment."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.conditions import condition
from herder.api.capi.kinds import MACHINE
from herder.controllers.capi.machinedeployment.controller import CONTROLLER
from herder.engine.runtime.decision import Decision, Patch
from tests.support.builders import condition_fields
from tests.unit.controllers.capi.machinedeployment.objects import NAME, DeploymentServer, deployment, settled

NOT_AVAILABLE = condition("Available", "False", "NotReady")


def _condition(server: DeploymentServer, type_: str) -> tuple[str, str, str]:
    return condition_fields(server.deployment, type_)


def _make_unavailable(server: DeploymentServer, count: int) -> None:
    for each in server.all(MACHINE)[:count]:
        server.report_conditions(each, NOT_AVAILABLE)
    server.reconcile_all()
    server.reconcile_all()


def test_conditions_of_an_available_deployment() -> None:
    server = settled(deployment(2))
    assert _condition(server, "Available") == ("True", "Available", "")
    assert _condition(server, "MachinesReady") == ("True", "Ready", "")
    assert _condition(server, "MachinesUpToDate") == ("True", "UpToDate", "")
    assert _condition(server, "RollingOut") == ("False", "NotRollingOut", "")
    assert _condition(server, "ScalingUp") == ("False", "NotScalingUp", "")
    assert _condition(server, "ScalingDown") == ("False", "NotScalingDown", "")
    assert _condition(server, "Remediating") == ("False", "NotRemediating", "")
    assert _condition(server, "Deleting") == ("False", "NotDeleting", "")
    assert _condition(server, "Paused") == ("False", "NotPaused", "")
    status = server.deployment["status"]
    assert status["selector"] == "cluster.x-k8s.io/cluster-name=herd,cluster.x-k8s.io/deployment-name=pool"
    assert status["observedGeneration"] == server.deployment["metadata"]["generation"]


@pytest.mark.parametrize(
    ("options", "unavailable_count", "available"),
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
def test_deployment_is_available_while_enough_machines_are(
    options: dict[str, Any], unavailable_count: int, available: tuple[str, str, str]
) -> None:
    server = settled(deployment(**options))
    _make_unavailable(server, unavailable_count)
    assert _condition(server, "Available") == available


@pytest.mark.parametrize(
    ("before", "after", "phase", "expected"),
    [
        (1, 3, "ScalingUp", ("ScalingUp", "Scaling up from 1 to 3 replicas")),
        (3, 1, "ScalingDown", ("ScalingDown", "Scaling down from 3 to 1 replicas")),
    ],
)
def test_phases(before: int, after: int, phase: str, expected: tuple[str, str]) -> None:
    server = settled(deployment(before))
    server.edit(replicas=after)
    server.reconcile(CONTROLLER, NAME, passes=2)
    assert server.deployment["status"]["phase"] == phase
    assert _condition(server, expected[0]) == ("True", expected[0], expected[1])


def test_missing_templates_are_reported_even_without_scale_up() -> None:
    server = settled(deployment(1))
    server.edit_template(infrastructureRef={"name": "nowhere"})
    server.reconcile(CONTROLLER, NAME, passes=2)
    assert _condition(server, "ScalingUp") == (
        "False",
        "NotScalingUp",
        "Scaling up would be blocked because TestMachineTemplate does not exist",
    )


def test_refusals_to_its_sets_are_reported() -> None:
    server = settled(deployment(2))
    server.edit(replicas=1)
    (owned,) = server.sets
    message = "Scaling down from 2 to 1 replicas\n* refused: some-guard: not now"
    server.change(owned, {"status": {"conditions": [condition("ScalingDown", "True", "ScalingDown", message)]}})
    server.reconcile(CONTROLLER, NAME, passes=2)
    name = owned["metadata"]["name"]
    assert _condition(server, "ScalingDown")[2].endswith(f"\n* MachineSet {name}: refused: some-guard: not now")


def test_rollout_reasons_are_deduplicated_with_the_version_first() -> None:
    server = settled(deployment(3))
    messages = ["* TestMachine is not up-to-date\n* Version v1, v2 required", "* Failure domain a, b required", ""]
    for each, message in zip(server.all(MACHINE), messages, strict=True):
        server.report_conditions(each, condition("UpToDate", "False", "NotUpToDate", message))
    server.reconcile(CONTROLLER, NAME)
    assert _condition(server, "RollingOut")[2].split("\n") == [
        "Rolling out 3 not up-to-date replicas",
        "* Version v1, v2 required",
        "* Failure domain a, b required",
        "* TestMachine is not up-to-date",
    ]


def test_v1beta1_status() -> None:
    server = settled(deployment(3))
    server.report_conditions(server.all(MACHINE)[0], condition("NodeReady", "False", "X"))
    server.reconcile_all()
    server.reconcile_all()
    v1beta1 = server.deployment["status"]["deprecated"]["v1beta1"]
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


def test_versions_are_sorted() -> None:
    server = settled(deployment(2))
    for each, version in zip(server.all(MACHINE), ("v1.31.0", "v1.30.1"), strict=True):
        server.change(each, {"status": {"nodeInfo": {"kubeletVersion": version}}})
    server.reconcile(CONTROLLER, NAME)
    assert [each["version"] for each in server.deployment["status"]["versions"]] == ["v1.30.1", "v1.31.0"]


def test_progress_is_debounced_and_availability_is_not() -> None:
    server = settled(deployment(3, unavailable=1))
    first, second, _ = server.all(MACHINE)
    server.report_conditions(first, NOT_AVAILABLE)
    assert _debounce(server.decide(CONTROLLER, NAME)) == 2.0
    server.report_conditions(second, NOT_AVAILABLE)
    assert _debounce(server.decide(CONTROLLER, NAME)) == 0.0


def _debounce(decision: Decision) -> float:
    (patch,) = [write for write in decision.writes if isinstance(write, Patch)]
    return patch.debounce
