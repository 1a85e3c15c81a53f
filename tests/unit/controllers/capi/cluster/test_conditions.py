"""Conditions of a Cluster: one table of expected reasons and messages for each condition."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.conditions import Condition, condition, legacy
from herder.api.capi.kinds import CLUSTER
from herder.engine.meta.kinds import Object
from herder.engine.runtime.view import ConnectionStatus
from tests.support.builders import new_definition
from tests.support.views import NOW
from tests.unit.controllers.capi.cluster.objects import (
    DEFINITIONS,
    DELETING,
    ENDPOINT,
    FULLY_INITIALIZED,
    INFRA,
    INITIALIZED,
    PLANE,
    PROVISIONED,
    cluster,
    infra,
    legacy_condition,
    machine,
    patches,
    plane,
    pool,
    reconcile_cluster,
    secret,
    status_after,
    status_condition,
)

ConditionFields = tuple[str, str, str]


def ready(status: str, reason: str, message: str = "") -> Object:
    return {"conditions": [condition("Ready", status, reason, message)]}


def available(status: str, reason: str, message: str = "") -> Object:
    return {"conditions": [condition("Available", status, reason, message)]}


PREVIOUSLY_INITIALIZED = {"initialization": FULLY_INITIALIZED}
MISSING_CONTRACT_LABEL = (
    "CustomResourceDefinition {} has no version for a supported contract: "
    "label cluster.x-k8s.io/v1beta2 or cluster.x-k8s.io/v1beta1 is not set"
)


# --- infrastructure and control plane --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cluster_object", "objects", "expected"),
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
            id="reported by the provider",
        ),
        pytest.param(
            cluster(),
            [new_definition(INFRA, "v1beta1"), infra({"ready": True, "conditions": [legacy("Ready", "True")]})],
            ("True", "Ready", ""),
            id="reported by a v1beta1 provider",
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
            cluster(),
            [*DEFINITIONS],
            ("False", "ObjectDoesNotExist", "FarmCluster does not exist"),
            id="does not exist yet",
        ),
        pytest.param(
            cluster(), [], ("False", "ObjectDoesNotExist", "FarmCluster does not exist"), id="its kind does not exist"
        ),
        pytest.param(
            cluster(status=PREVIOUSLY_INITIALIZED),
            [*DEFINITIONS],
            ("False", "ObjectDeleted", "FarmCluster has been deleted while the cluster still exists"),
            id="deleted",
        ),
        pytest.param(
            cluster(),
            [new_definition(INFRA, "")],
            ("Unknown", "InternalError", MISSING_CONTRACT_LABEL.format("farmclusters.infrastructure.example")),
            id="kind without a contract label",
        ),
        pytest.param(
            cluster(status=PREVIOUSLY_INITIALIZED, metadata=DELETING),
            [*DEFINITIONS, machine("w")],
            ("False", "ObjectDeleted", "FarmCluster has been deleted"),
            id="deleted with the cluster",
        ),
        pytest.param(
            cluster(metadata=DELETING),
            [*DEFINITIONS, machine("w")],
            ("False", "ObjectDoesNotExist", "FarmCluster does not exist"),
            id="never existed",
        ),
    ],
)
def test_infrastructure_ready(cluster_object: Object, objects: list[Object], expected: ConditionFields) -> None:
    assert status_condition(status_after(cluster_object, *objects), "InfrastructureReady") == expected


@pytest.mark.parametrize(
    ("cluster_object", "objects", "expected"),
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
            id="reported by the provider",
        ),
        pytest.param(
            cluster(),
            [
                new_definition(PLANE, "v1beta1"),
                plane({"initialized": True, "conditions": [legacy("Available", "True")]}),
            ],
            ("True", "Available", ""),
            id="reported by a v1beta1 provider",
        ),
        pytest.param(
            cluster(),
            [*DEFINITIONS],
            ("False", "ObjectDoesNotExist", "FarmControlPlane does not exist"),
            id="does not exist yet",
        ),
        pytest.param(
            cluster(status=PREVIOUSLY_INITIALIZED),
            [*DEFINITIONS],
            ("False", "ObjectDeleted", "FarmControlPlane has been deleted while the cluster still exists"),
            id="deleted",
        ),
        pytest.param(
            cluster(status=PREVIOUSLY_INITIALIZED, metadata=DELETING),
            [*DEFINITIONS, machine("w")],
            ("False", "ObjectDeleted", "FarmControlPlane has been deleted"),
            id="deleted with the cluster",
        ),
        pytest.param(
            cluster(control_plane=False),
            [*DEFINITIONS],
            ("False", "NotAvailable", "Control plane not yet initialized"),
            id="Machines without a Node",
        ),
        pytest.param(
            cluster(control_plane=False),
            [*DEFINITIONS, machine("cp", control_plane=True, nodeRef={"name": "n"})],
            ("True", "Available", ""),
            id="Machines with a Node",
        ),
    ],
)
def test_control_plane_available(cluster_object: Object, objects: list[Object], expected: ConditionFields) -> None:
    assert status_condition(status_after(cluster_object, *objects), "ControlPlaneAvailable") == expected


def initialized(status: str) -> Object:
    kept = condition("ControlPlaneInitialized", status, "Before", "as it was")
    return PREVIOUSLY_INITIALIZED | {
        "conditions": [kept],
        "deprecated": {"v1beta1": {"conditions": [legacy("ControlPlaneInitialized", status, "Before", "Info")]}},
    }


@pytest.mark.parametrize(
    ("cluster_object", "objects", "expected"),
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
            [new_definition(PLANE, "")],
            ("Unknown", "InternalError", MISSING_CONTRACT_LABEL.format("farmcontrolplanes.controlplane.example")),
            id="unreadable control plane",
        ),
        pytest.param(
            cluster(control_plane=False),
            [*DEFINITIONS],
            ("False", "NotInitialized", "Waiting for the first control plane machine to have status.nodeRef set"),
            id="control plane of Machines",
        ),
        pytest.param(
            cluster(status=initialized("True")), [*DEFINITIONS, plane()], ("True", "Before", "as it was"), id="kept"
        ),
        pytest.param(
            cluster(status=initialized("False")),
            [*DEFINITIONS, plane(INITIALIZED)],
            ("True", "Initialized", ""),
            id="restored after a user reset it",
        ),
        pytest.param(
            cluster(status=initialized("False")),
            [*DEFINITIONS, plane()],
            ("False", "NotInitialized", "Control plane not yet initialized"),
            id="reset, and the control plane is not initialized",
        ),
    ],
)
def test_control_plane_initialized(cluster_object: Object, objects: list[Object], expected: ConditionFields) -> None:
    status = status_after(cluster_object, *objects)
    assert status_condition(status, "ControlPlaneInitialized") == expected
    legacy_entry = legacy_condition(status, "ControlPlaneInitialized")
    assert legacy_entry is not None
    assert (legacy_entry["status"] == "True") is (expected[0] == "True"), "both lists agree"


# --- Available -------------------------------------------------------------------------------------------------------

CONNECTED = ConnectionStatus(since=NOW, last_contact=NOW)


def running(*more: Object, spec: Object | None = None, metadata: Object | None = None, **status: Any) -> list[Object]:
    cluster_object = cluster(controlPlaneEndpoint=ENDPOINT, metadata=metadata, status=status, **(spec or {}))
    return [cluster_object, *DEFINITIONS, infra(PROVISIONED), plane(INITIALIZED), secret("c-kubeconfig"), *more]


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        pytest.param(running(), ("True", "Available", ""), id="all conditions are good"),
        pytest.param(
            running(pool("d", condition("Available", "False", "R", "0 of 3"))),
            ("False", "NotAvailable", "* WorkersAvailable:\n  * MachineDeployment d: 0 of 3"),
            id="workers are unavailable",
        ),
        pytest.param(
            running(pool("d")),
            (
                "Unknown",
                "AvailableUnknown",
                "* WorkersAvailable:\n  * MachineDeployment d: Condition Available not yet reported",
            ),
            id="unknown",
        ),
        pytest.param(
            running(spec={"availabilityGates": [{"conditionType": "Fed"}]}),
            ("Unknown", "AvailableUnknown", "* Fed: Condition not yet reported"),
            id="gate not reported",
        ),
        pytest.param(
            running(
                spec={"availabilityGates": [{"conditionType": "Fed"}]},
                conditions=[condition("Fed", "False", "Hungry", "no hay")],
            ),
            ("False", "NotAvailable", "* Fed: no hay"),
            id="gate is false",
        ),
        pytest.param(
            running(
                spec={"availabilityGates": [{"conditionType": "Sick", "polarity": "Negative"}]},
                conditions=[condition("Sick", "False", "Healthy")],
            ),
            ("True", "Available", ""),
            id="gate with negative polarity",
        ),
        pytest.param(
            running(conditions=[condition("TopologyReconciled", "False", "ClusterUpgrading", "on the way")]),
            ("True", "Available", "* TopologyReconciled: on the way"),
            id="upgrading topology is no issue",
        ),
        pytest.param(
            running(conditions=[condition("TopologyReconciled", "False", "ReconcileFailed", "bad class")]),
            ("False", "NotAvailable", "* TopologyReconciled: bad class"),
            id="failed topology is an issue",
        ),
    ],
)
def test_available(objects: list[Object], expected: ConditionFields) -> None:
    assert status_condition(status_after(*objects, connection=CONNECTED), "Available") == expected


def test_deleted_objects_do_not_affect_available_during_deletion() -> None:
    objects = [
        cluster(metadata=DELETING, status=PREVIOUSLY_INITIALIZED, controlPlaneEndpoint=ENDPOINT),
        *DEFINITIONS,
        secret("c-kubeconfig"),
        machine("w"),
    ]
    expected = "* Deleting:\n  * Worker Machines: w"
    assert status_condition(status_after(*objects, connection=CONNECTED), "Available") == (
        "False",
        "NotAvailable",
        expected,
    )


# --- v1beta1 conditions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cluster_object", "objects", "type_", "expected"),
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
            cluster(metadata=DELETING, status=PREVIOUSLY_INITIALIZED),
            [infra(PROVISIONED), plane(INITIALIZED), machine("w")],
            "InfrastructureReady",
            legacy("InfrastructureReady", "False", "Deleting", "Info"),
        ),
        (
            cluster(metadata=DELETING, status=PREVIOUSLY_INITIALIZED),
            [infra(PROVISIONED)],
            "ControlPlaneReady",
            legacy("ControlPlaneReady", "False", "Deleted", "Info"),
        ),
    ],
)
def test_v1beta1_conditions(
    cluster_object: Object, objects: list[Object], type_: str, expected: Condition | None
) -> None:
    assert legacy_condition(status_after(cluster_object, *DEFINITIONS, *objects), type_) == expected


def test_conditions_of_other_controllers_are_kept_in_both_lists() -> None:
    theirs, old = condition("Reconciled", "True", "Theirs"), legacy("Reconciled", "True")
    status = {"conditions": [theirs], "deprecated": {"v1beta1": {"conditions": [old]}}}
    after = status_after(cluster(status=status), *DEFINITIONS)
    assert theirs in after["conditions"]
    assert old in after["deprecated"]["v1beta1"]["conditions"]


def test_status_patch_carries_the_resource_version() -> None:
    (patch,) = patches(reconcile_cluster(cluster(metadata={"resourceVersion": "42"}), *DEFINITIONS), CLUSTER, "status")
    assert patch.resource_version == "42"
