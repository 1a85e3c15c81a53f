"""What a Cluster tells of its Machines: how many are ready and current, and what goes on among them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from herder.api.capi.conditions import Condition, condition
from herder.api.capi.names import CLUSTER_NAME, POOL_NAME
from herder.engine.meta.kinds import Object
from tests.support.views import NOW
from tests.unit.controllers.capi.cluster.herd import (
    DEFINITIONS,
    PLANE,
    cluster,
    decide,
    definition,
    good,
    machine,
    machine_set,
    plane,
    pool,
    status_after,
    told,
)

Told = tuple[str, str, str]


UNLABELLED = (
    "CustomResourceDefinition {} has no version for a supported contract: "
    "label cluster.x-k8s.io/v1beta2 or cluster.x-k8s.io/v1beta1 is not set"
)


# --- workers and machines -------------------------------------------------------------------------------------------


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
def test_workers_available(pools: list[Object], expected: Told) -> None:
    assert told(status_after(cluster(), *DEFINITIONS, *pools), "WorkersAvailable") == expected


UNREADY = condition("Ready", "False", "NotReady", "no node")
POOLED = {"labels": {CLUSTER_NAME: "c", POOL_NAME: "p"}}


@pytest.mark.parametrize(
    ("machines", "workers", "control_plane"),
    [
        pytest.param([], ("True", "NoReplicas", ""), ("True", "NoReplicas", ""), id="none"),
        pytest.param(
            [good("w"), good("cp", control_plane=True)], ("True", "Ready", ""), ("True", "Ready", ""), id="all ready"
        ),
        pytest.param(
            [machine("w-1", UNREADY), good("w-2"), machine("cp", UNREADY, control_plane=True)],
            ("False", "NotReady", "* Machine w-1: no node"),
            ("False", "NotReady", "* Machine cp: no node"),
            id="each kind for itself",
        ),
        pytest.param(
            [machine("w", condition("Ready", "Unknown", "?", "who knows"))],
            ("Unknown", "ReadyUnknown", "* Machine w: who knows"),
            ("True", "NoReplicas", ""),
            id="unknown",
        ),
        pytest.param(
            [good("a"), machine("b", condition("Ready", "True", "Ready", "* note"))],
            ("True", "Ready", "* Machine b:\n  * note"),
            ("True", "NoReplicas", ""),
            id="ready with something to say",
        ),
        pytest.param(
            [machine("w", UNREADY, meta=POOLED)],
            ("True", "NoReplicas", ""),
            ("True", "NoReplicas", ""),
            id="Machines of pools are not judged",
        ),
    ],
)
def test_machines_ready(machines: list[Object], workers: Told, control_plane: Told) -> None:
    status = status_after(cluster(), *DEFINITIONS, *machines)
    assert told(status, "WorkerMachinesReady") == workers
    assert told(status, "ControlPlaneMachinesReady") == control_plane


JUST_MADE = {"labels": {CLUSTER_NAME: "c"}, "creationTimestamp": "2026-01-01T11:59:55Z"}
OUTDATED = condition("UpToDate", "False", "NotUpToDate", "* Version v1.30.0, v1.31.0 required")


@pytest.mark.parametrize(
    ("machines", "expected"),
    [
        pytest.param([], ("True", "NoReplicas", ""), id="none"),
        pytest.param([good("w")], ("True", "UpToDate", ""), id="all"),
        pytest.param(
            [good("a"), machine("b", OUTDATED)],
            ("False", "NotUpToDate", "* Machine b:\n  * Version v1.30.0, v1.31.0 required"),
            id="one is not",
        ),
        pytest.param(
            [machine("w")],
            ("Unknown", "UpToDateUnknown", "* Machine w: Condition UpToDate not yet reported"),
            id="one does not say",
        ),
        pytest.param([good("a"), machine("w", meta=JUST_MADE)], ("True", "UpToDate", ""), id="one is too new to say"),
        pytest.param([machine("w", meta=JUST_MADE)], ("True", "NoReplicas", ""), id="only new ones"),
    ],
)
def test_machines_up_to_date(machines: list[Object], expected: Told) -> None:
    assert told(status_after(cluster(), *DEFINITIONS, *machines), "WorkerMachinesUpToDate") == expected


def test_a_new_machine_is_looked_at_again_when_it_should_have_spoken() -> None:
    decision = decide(cluster(), *DEFINITIONS, machine("w", meta=JUST_MADE))
    assert decision.wake_at == NOW + timedelta(seconds=5)


# --- what goes on ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", ["RollingOut", "ScalingUp", "ScalingDown"])
@pytest.mark.parametrize(
    ("in_plane", "in_pool", "status", "reason", "message"),
    [
        pytest.param(None, None, "False", "Not{}", "", id="nobody there"),
        pytest.param(None, ("False", ""), "False", "Not{}", "", id="quiet"),
        pytest.param(None, ("True", "busy"), "True", "{}", "* MachineDeployment d: busy", id="workers"),
        pytest.param(
            ("True", "busy"), ("False", ""), "True", "{}", "* FarmControlPlane c-plane: busy", id="control plane"
        ),
        pytest.param(("False", ""), ("Unknown", "?"), "Unknown", "{}Unknown", "* MachineDeployment d: ?", id="unknown"),
    ],
)
def test_activities(
    type_: str,
    in_plane: tuple[str, str] | None,
    in_pool: tuple[str, str] | None,
    status: str,
    reason: str,
    message: str,
) -> None:
    def conditions(said: tuple[str, str] | None) -> list[Condition]:
        return [condition(type_, said[0], "R", said[1])] if said else []

    pools = [pool("d", *conditions(in_pool))] if in_pool else []
    after = status_after(cluster(), *DEFINITIONS, plane({"conditions": conditions(in_plane)}), *pools)
    assert told(after, type_) == (status, reason.format(type_), message)


@pytest.mark.parametrize(("owned", "reason"), [(True, "ScalingUp"), (False, "NotScalingUp")])
def test_sets_count_when_no_deployment_speaks_for_them(owned: bool, reason: str) -> None:
    busy = machine_set("s", condition("ScalingUp", "True", "ScalingUp", "busy"), owned=owned)
    assert told(status_after(cluster(), *DEFINITIONS, busy), "ScalingUp")[1] == reason


def test_a_control_plane_that_cannot_be_read_leaves_activities_unknown() -> None:
    status = status_after(cluster(), definition(PLANE, ""))
    problem = UNLABELLED.format("farmcontrolplanes.controlplane.example")
    assert told(status, "RollingOut") == ("Unknown", "InternalError", problem)


SICK = condition("HealthCheckSucceeded", "False", "UnhealthyNode", "node is gone")
WAITS = condition("OwnerRemediated", "False", "WaitingForRemediation", "Waiting for remediation")


@pytest.mark.parametrize(
    ("machines", "expected"),
    [
        ([good("a")], ("False", "NotRemediating", "")),
        ([machine("a", SICK)], ("False", "NotRemediating", "Machine a is not healthy (not to be remediated)")),
        (
            [machine(name, SICK) for name in "abcde"],
            ("False", "NotRemediating", "Machines a, b, c, ... (2 more) are not healthy (not to be remediated)"),
        ),
        (
            [machine("a", SICK, WAITS), machine("b", SICK)],
            ("True", "Remediating", "* Machine a: Waiting for remediation"),
        ),
    ],
)
def test_remediating(machines: list[Object], expected: Told) -> None:
    assert told(status_after(cluster(), *DEFINITIONS, *machines), "Remediating") == expected


def test_a_cluster_that_stays_is_not_deleting() -> None:
    assert told(status_after(cluster()), "Deleting") == ("False", "NotDeleting", "")
    assert told(status_after(cluster()), "Paused") == ("False", "NotPaused", "")
