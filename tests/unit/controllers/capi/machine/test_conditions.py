"""Conditions of a Machine in both lists: status, reason and message for each state of its objects."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from herder.api.capi.nodes import NODE_RECORD
from herder.engine.meta.kinds import Object
from tests.support.builders import new_condition
from tests.unit.controllers.capi.machine.harness import MachineHarness, patches, running
from tests.unit.controllers.capi.machine.objects import (
    CONFIG,
    HEALTHY,
    INFRA,
    TWO_HOURS_AGO,
    cluster,
    config,
    deployment,
    infra,
    machine,
    machine_set,
    node,
    provisioned_infra,
)


def reported_condition(type_: str, status: str, reason: str = "", message: str = "") -> Object:
    """A condition whose reason may be empty, as providers may report it."""
    return new_condition(type_, status, reason, message, since=TWO_HOURS_AGO) | {"reason": reason}


# --- conditions of providers -----------------------------------------------------------------------------------------

BOOTSTRAPPED = {"initialization": {"dataSecretCreated": True}, "dataSecretName": "ewe-data"}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, ("False", "NotReady", "PaddockConfig status.initialization.dataSecretCreated is false")),
        (BOOTSTRAPPED, ("True", "Ready", "")),
        (
            {"conditions": [reported_condition("Ready", "False", "Baking", "in the oven")]},
            ("False", "Baking", "in the oven"),
        ),
        ({"conditions": [reported_condition("Ready", "True")]}, ("True", "Ready", "")),
        ({"conditions": [reported_condition("Ready", "Unknown", "Lost")]}, ("Unknown", "Lost", "")),
        (
            {"conditions": [reported_condition("Ready", "Perhaps")]},
            (
                "Unknown",
                "InvalidConditionReported",
                "status for the Ready condition must be one of True, False, Unknown",
            ),
        ),
    ],
)
def test_bootstrap_config_ready(status: Object, expected: tuple[str, str, str]) -> None:
    assert (
        MachineHarness(objects=[cluster(), infra(), config(status=status)]).condition("BootstrapConfigReady")
        == expected
    )


@pytest.mark.parametrize(
    ("infra_object", "expected"),
    [
        (infra(), ("False", "NotReady", "PaddockMachine status.initialization.provisioned is false")),
        (provisioned_infra(), ("True", "Ready", "")),
        (
            infra(status={"conditions": [reported_condition("Ready", "False", "Digging", "a hole")]}),
            ("False", "Digging", "a hole"),
        ),
        (None, ("False", "ObjectDoesNotExist", "PaddockMachine does not exist")),
    ],
)
def test_infrastructure_ready(infra_object: Object | None, expected: tuple[str, str, str]) -> None:
    objects = [cluster(), config(), *([infra_object] if infra_object else [])]
    assert MachineHarness(objects=objects).condition("InfrastructureReady") == expected


@pytest.mark.parametrize(
    ("kind", "type_", "deleting", "expected"),
    [
        (CONFIG, "BootstrapConfigReady", False, ("ObjectDoesNotExist", "PaddockConfig does not exist")),
        (
            INFRA,
            "InfrastructureReady",
            False,
            ("ObjectDeleted", "PaddockMachine has been deleted while the Machine still exists"),
        ),
    ],
)
def test_deleted_provider_objects(kind: Any, type_: str, deleting: bool, expected: tuple[str, str]) -> None:
    harness = running()
    harness.settle()
    harness.objects = [known for known in harness.objects if known["kind"] != kind.kind]
    assert harness.condition(type_) == ("False", *expected)


# --- Node conditions -------------------------------------------------------------------------------------------------


def test_node_conditions_wait_for_the_cluster_infrastructure() -> None:
    harness = running()
    harness.objects[0] = cluster(status={})
    message = "Waiting for Cluster status.initialization.infrastructureProvisioned to be true"
    assert harness.condition("NodeHealthy") == ("Unknown", "InspectionFailed", message)
    assert harness.reconcile().observe == ()


def test_node_conditions_wait_for_the_control_plane() -> None:
    """The Node is still looked up: the first Machine with a Node initializes some control planes."""
    harness = running()
    harness.objects[0] = cluster(status={"initialization": {"infrastructureProvisioned": True}})
    expected = ("Unknown", "InspectionFailed", "Waiting for Cluster control plane to be initialized")
    assert harness.condition("NodeReady") == harness.condition("NodeHealthy") == expected
    assert harness.status()["nodeRef"] == {"name": "ewe-node"}


PRESSURES = {"MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False"}


@pytest.mark.parametrize(
    ("conditions", "ready", "healthy"),
    [
        (HEALTHY, ("True", "NodeReady", ""), ("True", "NodeHealthy", "")),
        (
            {"Ready": ("False", "kubelet stopped"), **PRESSURES},
            ("False", "NodeNotReady", "* Node.Ready: kubelet stopped"),
            ("False", "NodeNotHealthy", "* Node.Ready: kubelet stopped"),
        ),
        (
            {"Ready": "False", **PRESSURES},
            ("False", "NodeNotReady", ""),
            ("False", "NodeNotHealthy", "* Node.Ready: Condition is False"),
        ),
        (
            HEALTHY | {"DiskPressure": ("True", "full")},
            ("True", "NodeReady", ""),
            ("False", "NodeNotHealthy", "* Node.DiskPressure: full"),
        ),
        (
            {"Ready": "True", "MemoryPressure": "Unknown", "DiskPressure": "False", "PIDPressure": "False"},
            ("True", "NodeReady", ""),
            ("Unknown", "NodeHealthyUnknown", "* Node.MemoryPressure: Condition is Unknown"),
        ),
        (
            dict.fromkeys(HEALTHY, ("Unknown", "kubelet is silent")),
            ("Unknown", "NodeReadyUnknown", "* Node.Ready: kubelet is silent"),
            ("Unknown", "NodeHealthyUnknown", "* Node.AllConditions: kubelet is silent"),
        ),
        (
            {"MemoryPressure": ("True", "no room"), "DiskPressure": "False", "PIDPressure": "False"},
            ("Unknown", "NodeReadyUnknown", "* Node.Ready: Condition not yet reported"),
            ("False", "NodeNotHealthy", "* Node.Ready: Condition not yet reported\n* Node.MemoryPressure: no room"),
        ),
    ],
)
def test_node_ready_and_healthy(
    conditions: dict[str, Any], ready: tuple[str, str, str], healthy: tuple[str, str, str]
) -> None:
    harness = running(nodes=[node(conditions=conditions)])
    assert harness.condition("NodeReady") == ready
    assert harness.condition("NodeHealthy") == healthy


@pytest.mark.parametrize("status", ["Perhaps", "true", "\x1b[2J", "9" * 5000, 7, None, ["True"]])
def test_malformed_node_condition_does_not_stop_reconciliation(status: object) -> None:
    """API servers do not validate Node conditions. A failing reconcile would neither report nor delete the Machine."""
    harness = running(nodes=[node(conditions=HEALTHY | {"Ready": (status, "odd\x1b[2J")})])
    assert harness.condition("NodeReady") == ("Unknown", "NodeReadyUnknown", "* Node.Ready: odd [2J")
    assert harness.condition("NodeHealthy") == ("Unknown", "NodeHealthyUnknown", "* Node.Ready: odd [2J")


@pytest.mark.parametrize("since", ["20260101T000000Z", "2026-W01-4T00:00:00Z", "2026-01-01T02:00:00,5+02:00"])
def test_node_condition_times_are_normalized(since: str) -> None:
    record = NODE_RECORD.project({"status": {"conditions": [{"type": "Ready", "lastTransitionTime": since}]}})
    assert record["status"]["conditions"][0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"


def test_node_ready_keeps_the_transition_time_of_the_node() -> None:
    conditions = running().status()["conditions"]
    assert next(known for known in conditions if known["type"] == "NodeReady")["lastTransitionTime"] == TWO_HOURS_AGO


def test_duplicate_provider_ids_are_reported() -> None:
    harness = running(nodes=[node("b"), node("a")])
    message = "Nodes a, b have the same spec.providerID paddock://ewe"
    assert harness.condition("NodeHealthy") == ("Unknown", "InternalError", message)
    assert harness.legacy_condition("NodeHealthy")[:2] == ("Unknown", "NodeInspectionFailed")
    assert "nodeRef" not in harness.status()


def test_the_message_about_many_duplicates_fits_into_a_condition() -> None:
    harness = running(nodes=[node(f"{number:03}-{'n' * 240}") for number in range(200)])
    assert len(harness.condition("Ready")[2]) < 32768, "otherwise the API rejects the whole status"


def test_forged_provider_id_does_not_affect_a_machine_with_a_node() -> None:
    """A client with a join token can register Nodes with any provider ID, but not under an existing Node name."""
    harness = running()
    harness.settle()
    before = harness.condition("NodeReady"), harness.condition("NodeHealthy"), harness.legacy_condition("NodeHealthy")
    harness.nodes = [node("a-forged", conditions={"Ready": ("False", "forged")}), node()]
    assert (
        harness.condition("NodeReady"),
        harness.condition("NodeHealthy"),
        harness.legacy_condition("NodeHealthy"),
    ) == before
    assert harness.status()["nodeRef"] == {"name": "ewe-node"}


def test_deleted_node_is_not_replaced_by_a_forged_one() -> None:
    """It would get the Machine's labels, some of which nodes may not set themselves, and report its health."""
    harness = running(machine=machine(metadata={"labels": {"node-restriction.kubernetes.io/vault": "true"}}))
    harness.settle()
    harness.nodes = [node("forged")]
    message = "Node ewe-node has been deleted while the Machine still exists"
    assert harness.condition("NodeHealthy") == ("False", "NodeDeleted", message)
    assert "labels" not in harness.nodes[0]["metadata"]


def test_machine_does_not_reference_a_node_of_another_machine() -> None:
    """A worker may claim the provider ID of a server. Deleting the worker's Machine would drain the server's Node."""
    labels = {"rke.cattle.io/machine": "uid-of-a-server"}
    harness = running(nodes=[node("server", metadata={"labels": labels})])
    harness.settle()
    assert "nodeRef" not in harness.status()
    own = node("own", metadata={"labels": {"rke.cattle.io/machine": harness.machine["metadata"]["uid"]}})
    harness.nodes = [node("server", metadata={"labels": labels}), own]
    assert harness.status()["nodeRef"] == {"name": "own"}


def test_node_lookup_matches_the_whole_provider_id() -> None:
    harness = running(nodes=[node("other", spec={"providerID": "paddock://ewe2"})])
    message = "Waiting for a Node with spec.providerID paddock://ewe to exist"
    assert harness.condition("NodeHealthy") == ("Unknown", "InspectionFailed", message)
    assert harness.legacy_condition("NodeHealthy") == (
        "False",
        "NodeProvisioning",
        "Warning",
        "Waiting for a node with matching ProviderID to exist",
    )


def test_machine_waits_for_its_provider_id() -> None:
    harness = MachineHarness()
    message = "Waiting for PaddockMachine to report spec.providerID"
    assert harness.condition("NodeReady") == ("Unknown", "InspectionFailed", message)
    assert harness.legacy_condition("NodeHealthy") == ("False", "WaitingForNodeRef", "Info", "")


def test_deleted_node_is_reported() -> None:
    harness = running()
    harness.settle()
    harness.nodes = []
    assert [write.debounce for write in patches(harness.reconcile())] == [0.0]
    message = "Node ewe-node has been deleted while the Machine still exists"
    assert harness.condition("NodeHealthy") == ("False", "NodeDeleted", message)
    assert harness.legacy_condition("NodeHealthy") == ("False", "NodeNotFound", "Error", "")
    assert harness.status()["nodeRef"] == {"name": "ewe-node"}


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (HEALTHY, ("True", "", "", "")),
        (
            HEALTHY | {"Ready": "False", "PIDPressure": "Unknown"},
            (
                "False",
                "NodeConditionsFailed",
                "Warning",
                "Node condition Ready is False. Node condition PIDPressure is Unknown",
            ),
        ),
        (HEALTHY | {"Ready": "Unknown"}, ("True", "", "", "")),
        (
            dict.fromkeys(HEALTHY, "Unknown"),
            (
                "Unknown",
                "NodeConditionsFailed",
                "",
                ". ".join(f"Node condition {type_} is Unknown" for type_ in HEALTHY),
            ),
        ),
    ],
)
def test_legacy_node_healthy(conditions: dict[str, Any], expected: tuple[str, ...]) -> None:
    assert running(nodes=[node(conditions=conditions)]).legacy_condition("NodeHealthy") == expected


# --- Ready and Available ---------------------------------------------------------------------------------------------


def test_running_machine_is_ready_and_available() -> None:
    assert running().condition("Ready") == ("True", "Ready", "")
    assert running().condition("Available") == ("True", "Available", "")


def test_ready_lists_all_issues() -> None:
    assert MachineHarness().condition("Ready") == (
        "False",
        "NotReady",
        "* BootstrapConfigReady: PaddockConfig status.initialization.dataSecretCreated is false\n"
        "* InfrastructureReady: PaddockMachine status.initialization.provisioned is false\n"
        "* NodeHealthy: Waiting for PaddockMachine to report spec.providerID",
    )
    assert MachineHarness().condition("Available") == ("False", "NotReady", "")


def test_ready_is_unknown_while_a_condition_is_unknown() -> None:
    harness = running(nodes=[])
    assert harness.condition("Ready") == (
        "Unknown",
        "ReadyUnknown",
        "* NodeHealthy: Waiting for a Node with spec.providerID paddock://ewe to exist",
    )


def test_failed_health_check_makes_a_machine_unready() -> None:
    unhealthy = reported_condition("HealthCheckSucceeded", "False", "UnhealthyNode", "Ready is Unknown for 300s")
    harness = running(machine=machine(status={"conditions": [unhealthy]}))
    assert harness.condition("Ready") == ("False", "NotReady", "* HealthCheckSucceeded: Ready is Unknown for 300s")
    assert harness.condition("HealthCheckSucceeded") == ("False", "UnhealthyNode", "Ready is Unknown for 300s")


GATES = [{"conditionType": "Fenced"}, {"conditionType": "Sick", "polarity": "Negative"}]


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([reported_condition("Fenced", "True"), reported_condition("Sick", "False")], ("True", "Ready", "")),
        (
            [reported_condition("Fenced", "False", "Hole", "a hole"), reported_condition("Sick", "True", "Flu", "flu")],
            ("False", "NotReady", "* Fenced: a hole\n* Sick: flu"),
        ),
        ([reported_condition("Sick", "False")], ("Unknown", "ReadyUnknown", "* Fenced: Condition not yet reported")),
    ],
)
def test_readiness_gates(conditions: list[Object], expected: tuple[str, str, str]) -> None:
    harness = running(machine=machine(spec={"readinessGates": GATES}, status={"conditions": conditions}))
    assert harness.condition("Ready") == expected


@pytest.mark.parametrize(
    ("scheduler", "message"),
    [
        ("no pod", "* Control plane components: no pod\n* Fenced: a hole"),
        ("late", "* APIServerPodHealthy: no pod\n* Fenced: a hole\n* SchedulerPodHealthy: late"),
        ("", "* APIServerPodHealthy: no pod\n* Fenced: a hole"),
    ],
)
def test_identical_messages_of_control_plane_components_are_merged(scheduler: str, message: str) -> None:
    gates = [{"conditionType": type_} for type_ in ("APIServerPodHealthy", "Fenced", "SchedulerPodHealthy")]
    conditions = [
        reported_condition("APIServerPodHealthy", "False", "Bad", "no pod"),
        reported_condition("Fenced", "False", "Hole", "a hole"),
        reported_condition("SchedulerPodHealthy", "False" if scheduler else "True", "Bad", scheduler),
    ]
    harness = running(machine=machine(spec={"readinessGates": gates}, status={"conditions": conditions}))
    assert harness.condition("Ready") == ("False", "NotReady", message)


def test_machine_is_available_after_min_ready_seconds() -> None:
    harness = running(machine=machine(spec={"minReadySeconds": 60}))
    assert harness.condition("Available") == ("False", "WaitingForMinReadySeconds", "")
    due = harness.now + timedelta(seconds=60)
    assert harness.reconcile().wake_at == due
    harness.now = due
    (write,) = patches(harness.reconcile())
    assert write.debounce == 0.0
    assert harness.condition("Available") == ("True", "Available", "")
    assert harness.reconcile().wake_at is None


def test_min_ready_seconds_restart_when_a_machine_becomes_unready() -> None:
    harness = running(machine=machine(spec={"minReadySeconds": 60}))
    harness.settle()
    harness.now += timedelta(seconds=30)
    harness.nodes = [node(conditions={"Ready": "False"})]
    harness.settle()
    harness.now += timedelta(seconds=40)
    harness.nodes = [node()]
    assert harness.condition("Available") == ("False", "WaitingForMinReadySeconds", "")
    assert harness.reconcile().wake_at == harness.now + timedelta(seconds=60)


def test_conditions_carry_the_observed_generation() -> None:
    status = running().status()
    assert {known["observedGeneration"] for known in status["conditions"]} == {2}
    assert status["observedGeneration"] == 2


# --- legacy conditions -----------------------------------------------------------------------------------------------


def test_legacy_ready_counts_provisioning_steps() -> None:
    harness = MachineHarness()
    assert harness.legacy_condition("Ready") == ("False", "WaitingForInfrastructure", "Info", "0 of 2 completed")
    assert harness.legacy_condition("BootstrapReady") == ("False", "WaitingForDataSecret", "Info", "")
    assert harness.legacy_condition("InfrastructureReady") == ("False", "WaitingForInfrastructure", "Info", "")
    harness.objects[2] = config(status=BOOTSTRAPPED)
    assert harness.legacy_condition("Ready") == ("False", "WaitingForInfrastructure", "Info", "1 of 2 completed")
    harness.objects[1] = provisioned_infra()
    assert harness.legacy_condition("Ready") == ("True", "", "", "")


# --- UpToDate --------------------------------------------------------------------------------------------------------


def reference(kind: str, name: str) -> Object:
    return {"apiGroup": "example", "kind": kind, "name": name}


@pytest.mark.parametrize(
    ("current", "desired", "expected"),
    [
        ({}, {}, ("True", "UpToDate", "")),
        ({"minReadySeconds": 1, "taints": []}, {"readinessGates": GATES}, ("True", "UpToDate", "")),
        (
            {"version": "v1.35.0"},
            {"version": "v1.36.0"},
            ("False", "NotUpToDate", "* Version v1.35.0, v1.36.0 required"),
        ),
        (
            {"failureDomain": "east", "infrastructureRef": reference("PaddockMachineTemplate", "a")},
            {"failureDomain": "west", "infrastructureRef": reference("PaddockMachineTemplate", "b")},
            (
                "False",
                "NotUpToDate",
                "* PaddockMachine is not up-to-date\n* Failure domain east, west required",
            ),
        ),
        (
            {"bootstrap": {"configRef": reference("PaddockConfigTemplate", "a")}},
            {"bootstrap": {"configRef": reference("PaddockConfigTemplate", "b")}},
            ("False", "NotUpToDate", "* PaddockConfig is not up-to-date"),
        ),
        (
            {"bootstrap": {"dataSecretName": "a"}},
            {"bootstrap": {"configRef": reference("PaddockConfigTemplate", "b")}},
            ("False", "NotUpToDate", "* spec.bootstrap.dataSecretName a, nil required"),
        ),
    ],
)
def test_up_to_date_compares_the_templates(current: Object, desired: Object, expected: tuple[str, str, str]) -> None:
    harness = running()
    harness.objects += [machine_set(current), deployment(desired)]
    assert harness.condition("UpToDate") == expected


def test_up_to_date_of_standalone_machines_is_left_to_their_owner() -> None:
    outdated = reported_condition("UpToDate", "False", "Theirs", "says the control plane")
    harness = running(machine=machine(status={"conditions": [outdated]}))
    harness.objects += [machine_set()]
    assert harness.condition("UpToDate") == ("False", "Theirs", "says the control plane")


def test_rollout_after_outdates_older_machines_when_due() -> None:
    harness = running()
    later = harness.now + timedelta(hours=1)
    harness.objects += [machine_set(), deployment(rollout={"after": later.strftime("%Y-%m-%dT%H:%M:%SZ")})]
    assert harness.condition("UpToDate") == ("True", "UpToDate", "")
    assert harness.reconcile().wake_at == later
    harness.now = later + timedelta(seconds=1)
    message = "* MachineDeployment spec.rolloutAfter expired"
    assert harness.condition("UpToDate") == ("False", "NotUpToDate", message)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("v1.36.0", ("True", "UpToDate", "")),
        ("v1.35.0", ("False", "Updating", "* Node runs version v1.36.0, v1.35.0 required")),
        (None, ("True", "UpToDate", "")),
    ],
)
def test_up_to_date_requires_the_node_to_run_the_machine_version(
    version: str | None, expected: tuple[str, str, str]
) -> None:
    harness = running(machine=machine(spec={"version": version} if version else {}))
    harness.objects += [machine_set(), deployment()]
    assert harness.condition("UpToDate") == expected


def test_in_place_update_is_reported() -> None:
    annotated = {"annotations": {"in-place-updates.internal.cluster.x-k8s.io/update-in-progress": ""}}
    harness = running(machine=machine(metadata=annotated))
    harness.objects += [machine_set(), deployment()]
    assert harness.condition("Updating") == ("True", "InPlaceUpdating", "In-place update in progress")
    assert harness.condition("UpToDate") == ("False", "Updating", "* In-place update in progress")
    assert harness.status()["phase"] == "Updating"
