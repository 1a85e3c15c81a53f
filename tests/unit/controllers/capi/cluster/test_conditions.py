"""What a Cluster says about itself: a table for each condition, with the reasons and messages that users know."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.conditions import Condition, condition, legacy
from herder.api.capi.kinds import CLUSTER
from herder.engine.meta.kinds import Object
from herder.engine.runtime.view import ConnectionStatus
from tests.support.views import NOW
from tests.unit.controllers.capi.cluster.herd import (
    DEFINITIONS,
    ENDPOINT,
    GOING,
    INFRA,
    INITIALIZED,
    PLANE,
    PROVISIONED,
    UP,
    cluster,
    decide,
    definition,
    infra,
    machine,
    patches,
    plane,
    pool,
    secret,
    status_after,
    told,
    told_before,
)

Told = tuple[str, str, str]


def ready(status: str, reason: str, message: str = "") -> Object:
    return {"conditions": [condition("Ready", status, reason, message)]}


def available(status: str, reason: str, message: str = "") -> Object:
    return {"conditions": [condition("Available", status, reason, message)]}


UP_BEFORE = {"initialization": UP}
UNLABELLED = (
    "CustomResourceDefinition {} has no version for a supported contract: "
    "label cluster.x-k8s.io/v1beta2 or cluster.x-k8s.io/v1beta1 is not set"
)


# --- infrastructure and control plane -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "objects", "expected"),
    [
        pytest.param(
            cluster(),
            [*DEFINITIONS, infra()],
            ("False", "NotReady", "FarmCluster status.initialization.provisioned is false"),
            id="not provisioned",
        ),
        pytest.param(cluster(), [*DEFINITIONS, infra(PROVISIONED)], ("True", "Ready", ""), id="provisioned"),
        pytest.param(
            cluster(),
            [*DEFINITIONS, infra(PROVISIONED | ready("False", "Flooded", "no dry place"))],
            ("False", "Flooded", "no dry place"),
            id="as the provider says",
        ),
        pytest.param(
            cluster(),
            [definition(INFRA, "v1beta1"), infra({"ready": True, "conditions": [legacy("Ready", "True")]})],
            ("True", "Ready", ""),
            id="as a v1beta1 provider says",
        ),
        pytest.param(
            cluster(),
            [*DEFINITIONS, infra({"conditions": [{"type": "Ready", "status": "Soon"}]})],
            (
                "Unknown",
                "InvalidConditionReported",
                "status for the Ready condition must be one of True, False, Unknown",
            ),
            id="malformed",
        ),
        pytest.param(
            cluster(), [*DEFINITIONS], ("False", "ObjectDoesNotExist", "FarmCluster does not exist"), id="not there yet"
        ),
        pytest.param(cluster(), [], ("False", "ObjectDoesNotExist", "FarmCluster does not exist"), id="nor its kind"),
        pytest.param(
            cluster(status=UP_BEFORE),
            [*DEFINITIONS],
            ("False", "ObjectDeleted", "FarmCluster has been deleted while the cluster still exists"),
            id="lost",
        ),
        pytest.param(
            cluster(),
            [definition(INFRA, "")],
            ("Unknown", "InternalError", UNLABELLED.format("farmclusters.infrastructure.example")),
            id="of a kind that follows no contract",
        ),
        pytest.param(
            cluster(status=UP_BEFORE, meta=GOING),
            [*DEFINITIONS, machine("w")],
            ("False", "ObjectDeleted", "FarmCluster has been deleted"),
            id="gone with the cluster",
        ),
        pytest.param(
            cluster(meta=GOING),
            [*DEFINITIONS, machine("w")],
            ("False", "ObjectDoesNotExist", "FarmCluster does not exist"),
            id="never there",
        ),
    ],
)
def test_infrastructure_ready(made: Object, objects: list[Object], expected: Told) -> None:
    assert told(status_after(made, *objects), "InfrastructureReady") == expected


@pytest.mark.parametrize(
    ("made", "objects", "expected"),
    [
        pytest.param(
            cluster(),
            [*DEFINITIONS, plane()],
            ("False", "NotAvailable", "FarmControlPlane status.initialization.controlPlaneInitialized is false"),
            id="not initialized",
        ),
        pytest.param(cluster(), [*DEFINITIONS, plane(INITIALIZED)], ("True", "Available", ""), id="initialized"),
        pytest.param(
            cluster(),
            [*DEFINITIONS, plane(INITIALIZED | available("False", "Asleep", "2 of 3 answer"))],
            ("False", "Asleep", "2 of 3 answer"),
            id="as the provider says",
        ),
        pytest.param(
            cluster(),
            [definition(PLANE, "v1beta1"), plane({"initialized": True, "conditions": [legacy("Available", "True")]})],
            ("True", "Available", ""),
            id="as a v1beta1 provider says",
        ),
        pytest.param(
            cluster(),
            [*DEFINITIONS],
            ("False", "ObjectDoesNotExist", "FarmControlPlane does not exist"),
            id="not there yet",
        ),
        pytest.param(
            cluster(status=UP_BEFORE),
            [*DEFINITIONS],
            ("False", "ObjectDeleted", "FarmControlPlane has been deleted while the cluster still exists"),
            id="lost",
        ),
        pytest.param(
            cluster(status=UP_BEFORE, meta=GOING),
            [*DEFINITIONS, machine("w")],
            ("False", "ObjectDeleted", "FarmControlPlane has been deleted"),
            id="gone with the cluster",
        ),
        pytest.param(
            cluster(control_plane=False),
            [*DEFINITIONS],
            ("False", "NotAvailable", "Control plane not yet initialized"),
            id="of Machines without a node",
        ),
        pytest.param(
            cluster(control_plane=False),
            [*DEFINITIONS, machine("cp", control_plane=True, nodeRef={"name": "n"})],
            ("True", "Available", ""),
            id="of Machines with a node",
        ),
    ],
)
def test_control_plane_available(made: Object, objects: list[Object], expected: Told) -> None:
    assert told(status_after(made, *objects), "ControlPlaneAvailable") == expected


def initialized(status: str) -> Object:
    kept = condition("ControlPlaneInitialized", status, "Before", "as it was")
    return UP_BEFORE | {
        "conditions": [kept],
        "deprecated": {"v1beta1": {"conditions": [legacy("ControlPlaneInitialized", status, "Before", "Info")]}},
    }


@pytest.mark.parametrize(
    ("made", "objects", "expected"),
    [
        pytest.param(
            cluster(),
            [*DEFINITIONS, plane()],
            ("False", "NotInitialized", "Control plane not yet initialized"),
            id="not yet",
        ),
        pytest.param(cluster(), [*DEFINITIONS, plane(INITIALIZED)], ("True", "Initialized", ""), id="initialized"),
        pytest.param(
            cluster(),
            [*DEFINITIONS],
            ("Unknown", "ObjectDoesNotExist", "FarmControlPlane does not exist"),
            id="no control plane",
        ),
        pytest.param(
            cluster(),
            [definition(PLANE, "")],
            ("Unknown", "InternalError", UNLABELLED.format("farmcontrolplanes.controlplane.example")),
            id="one that cannot be read",
        ),
        pytest.param(
            cluster(control_plane=False),
            [*DEFINITIONS],
            ("False", "NotInitialized", "Waiting for the first control plane machine to have status.nodeRef set"),
            id="of Machines",
        ),
        pytest.param(
            cluster(status=initialized("True")), [*DEFINITIONS, plane()], ("True", "Before", "as it was"), id="kept"
        ),
        pytest.param(
            cluster(status=initialized("False")),
            [*DEFINITIONS, plane(INITIALIZED)],
            ("True", "Initialized", ""),
            id="found out anew after somebody set it back",
        ),
        pytest.param(
            cluster(status=initialized("False")),
            [*DEFINITIONS, plane()],
            ("False", "NotInitialized", "Control plane not yet initialized"),
            id="set back, and the control plane is not up again",
        ),
    ],
)
def test_control_plane_initialized(made: Object, objects: list[Object], expected: Told) -> None:
    status = status_after(made, *objects)
    assert told(status, "ControlPlaneInitialized") == expected
    before = told_before(status, "ControlPlaneInitialized")
    assert before is not None
    assert (before["status"] == "True") is (expected[0] == "True"), "both lists agree"


# --- available ------------------------------------------------------------------------------------------------------

REACHED = ConnectionStatus(since=NOW, last_contact=NOW)


def running(*more: Object, spec: Object | None = None, meta: Object | None = None, **status: Any) -> list[Object]:
    made = cluster(controlPlaneEndpoint=ENDPOINT, meta=meta, status=status, **(spec or {}))
    return [made, *DEFINITIONS, infra(PROVISIONED), plane(INITIALIZED), secret("c-kubeconfig"), *more]


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        pytest.param(running(), ("True", "Available", ""), id="all is well"),
        pytest.param(
            running(pool("d", condition("Available", "False", "R", "0 of 3"))),
            ("False", "NotAvailable", "* WorkersAvailable:\n  * MachineDeployment d: 0 of 3"),
            id="workers are missing",
        ),
        pytest.param(
            running(pool("d")),
            (
                "Unknown",
                "AvailableUnknown",
                "* WorkersAvailable:\n  * MachineDeployment d: Condition Available not yet reported",
            ),
            id="nobody knows",
        ),
        pytest.param(
            running(spec={"availabilityGates": [{"conditionType": "Fed"}]}),
            ("Unknown", "AvailableUnknown", "* Fed: Condition not yet reported"),
            id="a gate that nobody reports",
        ),
        pytest.param(
            running(
                spec={"availabilityGates": [{"conditionType": "Fed"}]},
                conditions=[condition("Fed", "False", "Hungry", "no hay")],
            ),
            ("False", "NotAvailable", "* Fed: no hay"),
            id="a gate that is shut",
        ),
        pytest.param(
            running(
                spec={"availabilityGates": [{"conditionType": "Sick", "polarity": "Negative"}]},
                conditions=[condition("Sick", "False", "Healthy")],
            ),
            ("True", "Available", ""),
            id="a gate that is bad when true",
        ),
        pytest.param(
            running(conditions=[condition("TopologyReconciled", "False", "ClusterUpgrading", "on the way")]),
            ("True", "Available", "* TopologyReconciled: on the way"),
            id="an upgrade is no issue",
        ),
        pytest.param(
            running(conditions=[condition("TopologyReconciled", "False", "ReconcileFailed", "bad class")]),
            ("False", "NotAvailable", "* TopologyReconciled: bad class"),
            id="a failed topology is",
        ),
    ],
)
def test_available(objects: list[Object], expected: Told) -> None:
    assert told(status_after(*objects, link=REACHED), "Available") == expected


def test_while_it_is_deleted_what_is_gone_is_no_further_issue() -> None:
    objects = [
        cluster(meta=GOING, status=UP_BEFORE, controlPlaneEndpoint=ENDPOINT),
        *DEFINITIONS,
        secret("c-kubeconfig"),
        machine("w"),
    ]
    expected = "* Deleting:\n  * Worker Machines: w"
    assert told(status_after(*objects, link=REACHED), "Available") == ("False", "NotAvailable", expected)


# --- the list of v1beta1 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "objects", "type_", "expected"),
    [
        (
            cluster(),
            [infra()],
            "InfrastructureReady",
            legacy("InfrastructureReady", "False", "WaitingForInfrastructure", "Info"),
        ),
        (cluster(), [infra(PROVISIONED)], "InfrastructureReady", legacy("InfrastructureReady", "True")),
        (
            cluster(),
            [infra({"conditions": [legacy("Ready", "False", "Flooded", "Error", "wet")]})],
            "InfrastructureReady",
            legacy("InfrastructureReady", "False", "Flooded", "Error", "wet"),
        ),
        (
            cluster(),
            [plane()],
            "ControlPlaneReady",
            legacy("ControlPlaneReady", "False", "WaitingForControlPlane", "Info"),
        ),
        (cluster(), [plane(INITIALIZED)], "ControlPlaneReady", legacy("ControlPlaneReady", "True")),
        (cluster(control_plane=False), [], "ControlPlaneReady", None),
        (
            cluster(),
            [plane()],
            "ControlPlaneInitialized",
            legacy(
                "ControlPlaneInitialized",
                "False",
                "WaitingForControlPlaneProviderInitialized",
                "Info",
                "Waiting for control plane provider to indicate the control plane has been initialized",
            ),
        ),
        (
            cluster(control_plane=False),
            [],
            "ControlPlaneInitialized",
            legacy(
                "ControlPlaneInitialized",
                "False",
                "MissingNodeRef",
                "Info",
                "Waiting for the first control plane machine to have its status.nodeRef set",
            ),
        ),
        (cluster(), [infra(PROVISIONED), plane(INITIALIZED)], "Ready", legacy("Ready", "True")),
        (cluster(), [infra(), plane()], "Ready", legacy("Ready", "False", "WaitingForControlPlane", "Info")),
        (
            cluster(meta=GOING, status=UP_BEFORE),
            [infra(PROVISIONED), plane(INITIALIZED), machine("w")],
            "InfrastructureReady",
            legacy("InfrastructureReady", "False", "Deleting", "Info"),
        ),
        (
            cluster(meta=GOING, status=UP_BEFORE),
            [infra(PROVISIONED)],
            "ControlPlaneReady",
            legacy("ControlPlaneReady", "False", "Deleted", "Info"),
        ),
    ],
)
def test_conditions_of_v1beta1(made: Object, objects: list[Object], type_: str, expected: Condition | None) -> None:
    assert told_before(status_after(made, *DEFINITIONS, *objects), type_) == expected


def test_conditions_of_others_stay_in_both_lists() -> None:
    theirs, old = condition("Reconciled", "True", "Theirs"), legacy("Reconciled", "True")
    status = {"conditions": [theirs], "deprecated": {"v1beta1": {"conditions": [old]}}}
    after = status_after(cluster(status=status), *DEFINITIONS)
    assert theirs in after["conditions"]
    assert old in after["deprecated"]["v1beta1"]["conditions"]


def test_a_status_with_conditions_is_written_only_over_what_was_read() -> None:
    (patch,) = patches(decide(cluster(meta={"resourceVersion": "42"}), *DEFINITIONS), CLUSTER, "status")
    assert patch.resource_version == "42"
