"""Conditions that a Cluster aggregates from its Machines, MachineDeployments, MachineSets and control plane."""

from __future__ import annotations

from datetime import timedelta

import pytest

from herder.api.capi.conditions import Condition, condition
from herder.api.capi.names import CLUSTER_NAME, POOL_NAME
from herder.engine.meta.kinds import Object
from tests.support.builders import new_definition
from tests.support.views import NOW
from tests.unit.controllers.capi.cluster.objects import (
    DEFINITIONS,
    PLANE,
    cluster,
    healthy_machine,
    machine,
    machine_set,
    plane,
    pool,
    reconcile_cluster,
    status_after,
    status_condition,
)

ConditionFields = tuple[str, str, str]


MISSING_CONTRACT_LABEL = (
    "CustomResourceDefinition {} has no version for a supported contract: "
    "label cluster.x-k8s.io/v1beta2 or cluster.x-k8s.io/v1beta1 is not set"
)


# --- workers and machines --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pools", "expected"),
    [
        ([], ("True", "NoWorkers", "")),
        ([pool("a", condition("Available", "True", "Available"))], ("True", "Available", "")),
        (
            [pool("a", condition("Available", "False", "NotAvailable", "0 of 3")), pool("b")],
            (
                "False",
                "NotAvailable",
                "* MachineDeployment a: 0 of 3\n* MachineDeployment b: Condition Available not yet reported",
            ),
        ),
        ([pool("b")], ("Unknown", "AvailableUnknown", "* MachineDeployment b: Condition Available not yet reported")),
    ],
)
def test_workers_available(pools: list[Object], expected: ConditionFields) -> None:
    assert status_condition(status_after(cluster(), *DEFINITIONS, *pools), "WorkersAvailable") == expected


UNREADY = condition("Ready", "False", "NotReady", "no node")
POOLED = {"labels": {CLUSTER_NAME: "c", POOL_NAME: "p"}}


@pytest.mark.parametrize(
    ("machines", "workers", "control_plane"),
    [
        pytest.param([], ("True", "NoReplicas", ""), ("True", "NoReplicas", ""), id="none"),
        pytest.param(
            [healthy_machine("w"), healthy_machine("cp", control_plane=True)],
            ("True", "Ready", ""),
            ("True", "Ready", ""),
            id="all ready",
        ),
        pytest.param(
            [machine("w-1", UNREADY), healthy_machine("w-2"), machine("cp", UNREADY, control_plane=True)],
            ("False", "NotReady", "* Machine w-1: no node"),
            ("False", "NotReady", "* Machine cp: no node"),
            id="workers and control plane separately",
        ),
        pytest.param(
            [machine("w", condition("Ready", "Unknown", "?", "who knows"))],
            ("Unknown", "ReadyUnknown", "* Machine w: who knows"),
            ("True", "NoReplicas", ""),
            id="unknown",
        ),
        pytest.param(
            [healthy_machine("a"), machine("b", condition("Ready", "True", "Ready", "* note"))],
            ("True", "Ready", "* Machine b:\n  * note"),
            ("True", "NoReplicas", ""),
            id="ready with a message",
        ),
        pytest.param(
            [machine("w", UNREADY, metadata=POOLED)],
            ("True", "NoReplicas", ""),
            ("True", "NoReplicas", ""),
            id="Machines of MachinePools are ignored",
        ),
    ],
)
def test_machines_ready(machines: list[Object], workers: ConditionFields, control_plane: ConditionFields) -> None:
    status = status_after(cluster(), *DEFINITIONS, *machines)
    assert status_condition(status, "WorkerMachinesReady") == workers
    assert status_condition(status, "ControlPlaneMachinesReady") == control_plane


JUST_CREATED = {"labels": {CLUSTER_NAME: "c"}, "creationTimestamp": "2026-01-01T11:59:55Z"}
OUTDATED = condition("UpToDate", "False", "NotUpToDate", "* Version v1.30.0, v1.31.0 required")


@pytest.mark.parametrize(
    ("machines", "expected"),
    [
        pytest.param([], ("True", "NoReplicas", ""), id="none"),
        pytest.param([healthy_machine("w")], ("True", "UpToDate", ""), id="all"),
        pytest.param(
            [healthy_machine("a"), machine("b", OUTDATED)],
            ("False", "NotUpToDate", "* Machine b:\n  * Version v1.30.0, v1.31.0 required"),
            id="one is outdated",
        ),
        pytest.param(
            [machine("w")],
            ("Unknown", "UpToDateUnknown", "* Machine w: Condition UpToDate not yet reported"),
            id="one does not report",
        ),
        pytest.param(
            [healthy_machine("a"), machine("w", metadata=JUST_CREATED)],
            ("True", "UpToDate", ""),
            id="one is too new to report",
        ),
        pytest.param([machine("w", metadata=JUST_CREATED)], ("True", "NoReplicas", ""), id="only new ones"),
    ],
)
def test_machines_up_to_date(machines: list[Object], expected: ConditionFields) -> None:
    assert status_condition(status_after(cluster(), *DEFINITIONS, *machines), "WorkerMachinesUpToDate") == expected


def test_cluster_is_requeued_when_a_new_machine_should_report() -> None:
    decision = reconcile_cluster(cluster(), *DEFINITIONS, machine("w", metadata=JUST_CREATED))
    assert decision.wake_at == NOW + timedelta(seconds=5)


# --- activities ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", ["RollingOut", "ScalingUp", "ScalingDown"])
@pytest.mark.parametrize(
    ("control_plane_condition", "pool_condition", "status", "reason", "message"),
    [
        pytest.param(None, None, "False", "Not{}", "", id="no members"),
        pytest.param(None, ("False", ""), "False", "Not{}", "", id="no activity"),
        pytest.param(None, ("True", "busy"), "True", "{}", "* MachineDeployment d: busy", id="workers"),
        pytest.param(
            ("True", "busy"), ("False", ""), "True", "{}", "* FarmControlPlane c-plane: busy", id="control plane"
        ),
        pytest.param(("False", ""), ("Unknown", "?"), "Unknown", "{}Unknown", "* MachineDeployment d: ?", id="unknown"),
    ],
)
def test_activities(
    type_: str,
    control_plane_condition: tuple[str, str] | None,
    pool_condition: tuple[str, str] | None,
    status: str,
    reason: str,
    message: str,
) -> None:
    def conditions(reported: tuple[str, str] | None) -> list[Condition]:
        return [condition(type_, reported[0], "R", reported[1])] if reported else []

    pools = [pool("d", *conditions(pool_condition))] if pool_condition else []
    after = status_after(cluster(), *DEFINITIONS, plane({"conditions": conditions(control_plane_condition)}), *pools)
    assert status_condition(after, type_) == (status, reason.format(type_), message)


@pytest.mark.parametrize(("owned", "reason"), [(True, "ScalingUp"), (False, "NotScalingUp")])
def test_standalone_machine_sets_are_aggregated(owned: bool, reason: str) -> None:
    busy = machine_set("s", condition("ScalingUp", "True", "ScalingUp", "busy"), owned=owned)
    assert status_condition(status_after(cluster(), *DEFINITIONS, busy), "ScalingUp")[1] == reason


def test_unreadable_control_plane_leaves_activities_unknown() -> None:
    status = status_after(cluster(), new_definition(PLANE, ""))
    problem = MISSING_CONTRACT_LABEL.format("farmcontrolplanes.controlplane.example")
    assert status_condition(status, "RollingOut") == ("Unknown", "InternalError", problem)


UNHEALTHY = condition("HealthCheckSucceeded", "False", "UnhealthyNode", "node is gone")
WAITING_FOR_REMEDIATION = condition("OwnerRemediated", "False", "WaitingForRemediation", "Waiting for remediation")


@pytest.mark.parametrize(
    ("machines", "expected"),
    [
        ([healthy_machine("a")], ("False", "NotRemediating", "")),
        ([machine("a", UNHEALTHY)], ("False", "NotRemediating", "Machine a is not healthy (not to be remediated)")),
        (
            [machine(name, UNHEALTHY) for name in "abcde"],
            ("False", "NotRemediating", "Machines a, b, c, ... (2 more) are not healthy (not to be remediated)"),
        ),
        (
            [machine("a", UNHEALTHY, WAITING_FOR_REMEDIATION), machine("b", UNHEALTHY)],
            ("True", "Remediating", "* Machine a: Waiting for remediation"),
        ),
    ],
)
def test_remediating(machines: list[Object], expected: ConditionFields) -> None:
    assert status_condition(status_after(cluster(), *DEFINITIONS, *machines), "Remediating") == expected


def test_idle_cluster_is_neither_deleting_nor_paused() -> None:
    assert status_condition(status_after(cluster()), "Deleting") == ("False", "NotDeleting", "")
    assert status_condition(status_after(cluster()), "Paused") == ("False", "NotPaused", "")
