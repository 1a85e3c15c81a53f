"""What a Machine's conditions say, in both lists: status, reason and message for each state of the world."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from herder.api.capi.nodes import NODE_RECORD
from herder.engine.meta.kinds import Object
from tests.unit.controllers.capi.machine.stage import (
    CONFIG,
    HEALTHY,
    INFRA,
    LONG_AGO,
    Stage,
    cluster,
    config,
    deployment,
    infra,
    machine,
    machine_set,
    node,
    patches,
    provisioned,
    running,
)


def said(type_: str, status: str, reason: str = "", message: str = "", **more: Any) -> Object:
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": LONG_AGO,
    } | more


# --- mirrored from providers -----------------------------------------------------------------------------------------

MADE = {"initialization": {"dataSecretCreated": True}, "dataSecretName": "ewe-data"}


@pytest.mark.parametrize(
    ("status", "told"),
    [
        ({}, ("False", "NotReady", "PaddockConfig status.initialization.dataSecretCreated is false")),
        (MADE, ("True", "Ready", "")),
        ({"conditions": [said("Ready", "False", "Baking", "in the oven")]}, ("False", "Baking", "in the oven")),
        ({"conditions": [said("Ready", "True")]}, ("True", "Ready", "")),
        ({"conditions": [said("Ready", "Unknown", "Lost")]}, ("Unknown", "Lost", "")),
        (
            {"conditions": [said("Ready", "Perhaps")]},
            (
                "Unknown",
                "InvalidConditionReported",
                "status for the Ready condition must be one of True, False, Unknown",
            ),
        ),
    ],
)
def test_bootstrap_config_ready(status: Object, told: tuple[str, str, str]) -> None:
    assert Stage(objects=[cluster(), infra(), config(status=status)]).condition("BootstrapConfigReady") == told


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (infra(), ("False", "NotReady", "PaddockMachine status.initialization.provisioned is false")),
        (provisioned()(), ("True", "Ready", "")),
        (
            infra(status={"conditions": [said("Ready", "False", "Digging", "a hole")]}),
            ("False", "Digging", "a hole"),
        ),
        (None, ("False", "ObjectDoesNotExist", "PaddockMachine does not exist")),
    ],
)
def test_infrastructure_ready(made: Object | None, told: tuple[str, str, str]) -> None:
    objects = [cluster(), config(), *([made] if made else [])]
    assert Stage(objects=objects).condition("InfrastructureReady") == told


@pytest.mark.parametrize(
    ("kind", "type_", "deleting", "told"),
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
def test_objects_that_vanish(kind: Any, type_: str, deleting: bool, told: tuple[str, str]) -> None:
    stage = running()
    stage.settle()
    stage.objects = [known for known in stage.objects if known["kind"] != kind.kind]
    assert stage.condition(type_) == ("False", *told)


# --- the Node --------------------------------------------------------------------------------------------------------


def test_nothing_is_known_of_nodes_before_the_cluster_has_infrastructure() -> None:
    stage = running()
    stage.objects[0] = cluster(status={})
    told = "Waiting for Cluster status.initialization.infrastructureProvisioned to be true"
    assert stage.condition("NodeHealthy") == ("Unknown", "InspectionFailed", told)
    assert stage.decide().observe == ()


def test_nodes_are_not_judged_before_the_control_plane_is_initialized() -> None:
    """They are looked for all the same: the first Machine with a Node is what initializes some control planes."""
    stage = running()
    stage.objects[0] = cluster(status={"initialization": {"infrastructureProvisioned": True}})
    told = ("Unknown", "InspectionFailed", "Waiting for Cluster control plane to be initialized")
    assert stage.condition("NodeReady") == stage.condition("NodeHealthy") == told
    assert stage.status()["nodeRef"] == {"name": "ewe-node"}


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
    stage = running(nodes=[node(conditions=conditions)])
    assert stage.condition("NodeReady") == ready
    assert stage.condition("NodeHealthy") == healthy


@pytest.mark.parametrize("status", ["Perhaps", "true", "\x1b[2J", "9" * 5000, 7, None, ["True"]])
def test_a_kubelet_writes_any_status_and_its_machine_is_still_reconciled(status: object) -> None:
    """No API server checks a Node's conditions: a pass that fails would neither report nor delete the Machine."""
    stage = running(nodes=[node(conditions=HEALTHY | {"Ready": (status, "odd\x1b[2J")})])
    assert stage.condition("NodeReady") == ("Unknown", "NodeReadyUnknown", "* Node.Ready: odd [2J")
    assert stage.condition("NodeHealthy") == ("Unknown", "NodeHealthyUnknown", "* Node.Ready: odd [2J")


@pytest.mark.parametrize("since", ["20260101T000000Z", "2026-W01-4T00:00:00Z", "2026-01-01T02:00:00,5+02:00"])
def test_a_time_in_another_format_is_rewritten_as_the_api_accepts_it(since: str) -> None:
    record = NODE_RECORD.project({"status": {"conditions": [{"type": "Ready", "lastTransitionTime": since}]}})
    assert record["status"]["conditions"][0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"


def test_node_ready_is_as_old_as_the_nodes_own_condition() -> None:
    conditions = running().status()["conditions"]
    assert next(known for known in conditions if known["type"] == "NodeReady")["lastTransitionTime"] == LONG_AGO


def test_two_nodes_with_the_same_provider_id_are_named() -> None:
    stage = running(nodes=[node("b"), node("a")])
    told = "Nodes a, b have the same spec.providerID paddock://ewe"
    assert stage.condition("NodeHealthy") == ("Unknown", "InternalError", told)
    assert stage.legacy("NodeHealthy")[:2] == ("Unknown", "NodeInspectionFailed")
    assert "nodeRef" not in stage.status()


def test_another_node_that_claims_a_provider_id_changes_nothing_of_the_machine_that_has_its_node() -> None:
    """Whoever holds a join token registers Nodes with any provider ID; names of Nodes are taken."""
    stage = running()
    stage.settle()
    before = stage.condition("NodeReady"), stage.condition("NodeHealthy"), stage.legacy("NodeHealthy")
    stage.nodes = [node("a-forged", conditions={"Ready": ("False", "forged")}), node()]
    assert (stage.condition("NodeReady"), stage.condition("NodeHealthy"), stage.legacy("NodeHealthy")) == before
    assert stage.status()["nodeRef"] == {"name": "ewe-node"}


def test_no_other_node_takes_the_place_of_one_that_was_deleted() -> None:
    """It would get the Machine's labels, some of which no node may give itself, and stand for its health."""
    stage = running(machine=machine(metadata={"labels": {"node-restriction.kubernetes.io/vault": "true"}}))
    stage.settle()
    stage.nodes = [node("forged")]
    told = "Node ewe-node has been deleted while the Machine still exists"
    assert stage.condition("NodeHealthy") == ("False", "NodeDeleted", told)
    assert "labels" not in stage.nodes[0]["metadata"]


def test_a_machine_does_not_refer_to_a_node_of_another_machine() -> None:
    """A worker that joins claims the provider ID of a server: deleting its Machine would drain the server's Node."""
    labels = {"rke.cattle.io/machine": "uid-of-a-server"}
    stage = running(nodes=[node("server", metadata={"labels": labels})])
    stage.settle()
    assert "nodeRef" not in stage.status()
    own = node("own", metadata={"labels": {"rke.cattle.io/machine": stage.machine["metadata"]["uid"]}})
    stage.nodes = [node("server", metadata={"labels": labels}), own]
    assert stage.status()["nodeRef"] == {"name": "own"}


def test_a_node_is_found_by_its_whole_provider_id() -> None:
    stage = running(nodes=[node("other", spec={"providerID": "paddock://ewe2"})])
    told = "Waiting for a Node with spec.providerID paddock://ewe to exist"
    assert stage.condition("NodeHealthy") == ("Unknown", "InspectionFailed", told)
    assert stage.legacy("NodeHealthy") == (
        "False",
        "NodeProvisioning",
        "Warning",
        "Waiting for a node with matching ProviderID to exist",
    )


def test_a_machine_without_a_provider_id_waits_for_it() -> None:
    stage = Stage()
    told = "Waiting for PaddockMachine to report spec.providerID"
    assert stage.condition("NodeReady") == ("Unknown", "InspectionFailed", told)
    assert stage.legacy("NodeHealthy") == ("False", "WaitingForNodeRef", "Info", "")


def test_a_node_that_vanishes_is_an_issue() -> None:
    stage = running()
    stage.settle()
    stage.nodes = []
    assert [write.debounce for write in patches(stage.decide())] == [0.0]
    told = "Node ewe-node has been deleted while the Machine still exists"
    assert stage.condition("NodeHealthy") == ("False", "NodeDeleted", told)
    assert stage.legacy("NodeHealthy") == ("False", "NodeNotFound", "Error", "")
    assert stage.status()["nodeRef"] == {"name": "ewe-node"}


@pytest.mark.parametrize(
    ("conditions", "told"),
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
def test_the_older_lists_node_healthy(conditions: dict[str, Any], told: tuple[str, ...]) -> None:
    assert running(nodes=[node(conditions=conditions)]).legacy("NodeHealthy") == told


# --- sums ------------------------------------------------------------------------------------------------------------


def test_a_machine_is_ready_when_all_is_well() -> None:
    assert running().condition("Ready") == ("True", "Ready", "")
    assert running().condition("Available") == ("True", "Available", "")


def test_a_machine_that_is_not_ready_says_why() -> None:
    assert Stage().condition("Ready") == (
        "False",
        "NotReady",
        "* BootstrapConfigReady: PaddockConfig status.initialization.dataSecretCreated is false\n"
        "* InfrastructureReady: PaddockMachine status.initialization.provisioned is false\n"
        "* NodeHealthy: Waiting for PaddockMachine to report spec.providerID",
    )
    assert Stage().condition("Available") == ("False", "NotReady", "")


def test_a_machine_of_which_something_is_unknown_is_not_known_to_be_ready() -> None:
    stage = running(nodes=[])
    assert stage.condition("Ready") == (
        "Unknown",
        "ReadyUnknown",
        "* NodeHealthy: Waiting for a Node with spec.providerID paddock://ewe to exist",
    )


def test_what_the_health_check_says_counts_if_it_says_anything() -> None:
    unhealthy = said("HealthCheckSucceeded", "False", "UnhealthyNode", "Ready is Unknown for 300s")
    stage = running(machine=machine(status={"conditions": [unhealthy]}))
    assert stage.condition("Ready") == ("False", "NotReady", "* HealthCheckSucceeded: Ready is Unknown for 300s")
    assert stage.condition("HealthCheckSucceeded") == ("False", "UnhealthyNode", "Ready is Unknown for 300s")


GATES = [{"conditionType": "Fenced"}, {"conditionType": "Sick", "polarity": "Negative"}]


@pytest.mark.parametrize(
    ("conditions", "told"),
    [
        ([said("Fenced", "True"), said("Sick", "False")], ("True", "Ready", "")),
        (
            [said("Fenced", "False", "Hole", "a hole"), said("Sick", "True", "Flu", "flu")],
            ("False", "NotReady", "* Fenced: a hole\n* Sick: flu"),
        ),
        ([said("Sick", "False")], ("Unknown", "ReadyUnknown", "* Fenced: Condition not yet reported")),
    ],
)
def test_readiness_gates(conditions: list[Object], told: tuple[str, str, str]) -> None:
    stage = running(machine=machine(spec={"readinessGates": GATES}, status={"conditions": conditions}))
    assert stage.condition("Ready") == told


@pytest.mark.parametrize(
    ("scheduler", "told"),
    [
        ("no pod", "* Control plane components: no pod\n* Fenced: a hole"),
        ("late", "* APIServerPodHealthy: no pod\n* Fenced: a hole\n* SchedulerPodHealthy: late"),
        ("", "* APIServerPodHealthy: no pod\n* Fenced: a hole"),
    ],
)
def test_the_components_of_a_control_plane_that_say_the_same_say_it_once(scheduler: str, told: str) -> None:
    gates = [{"conditionType": type_} for type_ in ("APIServerPodHealthy", "Fenced", "SchedulerPodHealthy")]
    conditions = [
        said("APIServerPodHealthy", "False", "Bad", "no pod"),
        said("Fenced", "False", "Hole", "a hole"),
        said("SchedulerPodHealthy", "False" if scheduler else "True", "Bad", scheduler),
    ]
    stage = running(machine=machine(spec={"readinessGates": gates}, status={"conditions": conditions}))
    assert stage.condition("Ready") == ("False", "NotReady", told)


def test_a_machine_is_available_after_it_was_ready_for_long_enough() -> None:
    stage = running(machine=machine(spec={"minReadySeconds": 60}))
    assert stage.condition("Available") == ("False", "WaitingForMinReadySeconds", "")
    due = stage.now + timedelta(seconds=60)
    assert stage.decide().wake_at == due
    stage.now = due
    (write,) = patches(stage.decide())
    assert write.debounce == 0.0
    assert stage.condition("Available") == ("True", "Available", "")
    assert stage.decide().wake_at is None


def test_a_machine_that_was_unready_in_between_waits_anew() -> None:
    stage = running(machine=machine(spec={"minReadySeconds": 60}))
    stage.settle()
    stage.now += timedelta(seconds=30)
    stage.nodes = [node(conditions={"Ready": "False"})]
    stage.settle()
    stage.now += timedelta(seconds=40)
    stage.nodes = [node()]
    assert stage.condition("Available") == ("False", "WaitingForMinReadySeconds", "")
    assert stage.decide().wake_at == stage.now + timedelta(seconds=60)


def test_conditions_tell_the_generation_they_were_made_from() -> None:
    status = running().status()
    assert {known["observedGeneration"] for known in status["conditions"]} == {2}
    assert status["observedGeneration"] == 2


# --- the older list --------------------------------------------------------------------------------------------------


def test_while_a_machine_is_provisioned_the_older_list_counts_the_steps() -> None:
    stage = Stage()
    assert stage.legacy("Ready") == ("False", "WaitingForInfrastructure", "Info", "0 of 2 completed")
    assert stage.legacy("BootstrapReady") == ("False", "WaitingForDataSecret", "Info", "")
    assert stage.legacy("InfrastructureReady") == ("False", "WaitingForInfrastructure", "Info", "")
    stage.objects[2] = config(status=MADE)
    assert stage.legacy("Ready") == ("False", "WaitingForInfrastructure", "Info", "1 of 2 completed")
    stage.objects[1] = provisioned()()
    assert stage.legacy("Ready") == ("True", "", "", "")


# --- up to date ------------------------------------------------------------------------------------------------------


def reference(kind: str, name: str) -> Object:
    return {"apiGroup": "example", "kind": kind, "name": name}


@pytest.mark.parametrize(
    ("current", "desired", "told"),
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
def test_up_to_date_follows_the_templates(current: Object, desired: Object, told: tuple[str, str, str]) -> None:
    stage = running()
    stage.objects += [machine_set(current), deployment(desired)]
    assert stage.condition("UpToDate") == told


def test_machines_of_no_deployment_are_judged_by_others() -> None:
    outdated = said("UpToDate", "False", "Theirs", "says the control plane")
    stage = running(machine=machine(status={"conditions": [outdated]}))
    stage.objects += [machine_set()]
    assert stage.condition("UpToDate") == ("False", "Theirs", "says the control plane")


def test_a_restart_that_is_due_makes_older_machines_outdated_when_its_time_comes() -> None:
    stage = running()
    later = stage.now + timedelta(hours=1)
    stage.objects += [machine_set(), deployment(rollout={"after": later.strftime("%Y-%m-%dT%H:%M:%SZ")})]
    assert stage.condition("UpToDate") == ("True", "UpToDate", "")
    assert stage.decide().wake_at == later
    stage.now = later + timedelta(seconds=1)
    told = "* MachineDeployment spec.rolloutAfter expired"
    assert stage.condition("UpToDate") == ("False", "NotUpToDate", told)


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("v1.36.0", ("True", "UpToDate", "")),
        ("v1.35.0", ("False", "Updating", "* Node runs version v1.36.0, v1.35.0 required")),
        (None, ("True", "UpToDate", "")),
    ],
)
def test_a_node_must_run_the_version_of_its_machine_if_that_names_one(
    version: str | None, told: tuple[str, str, str]
) -> None:
    stage = running(machine=machine(spec={"version": version} if version else {}))
    stage.objects += [machine_set(), deployment()]
    assert stage.condition("UpToDate") == told


def test_an_update_in_place_is_told() -> None:
    annotated = {"annotations": {"in-place-updates.internal.cluster.x-k8s.io/update-in-progress": ""}}
    stage = running(machine=machine(metadata=annotated))
    stage.objects += [machine_set(), deployment()]
    assert stage.condition("Updating") == ("True", "InPlaceUpdating", "In-place update in progress")
    assert stage.condition("UpToDate") == ("False", "Updating", "* In-place update in progress")
    assert stage.status()["phase"] == "Updating"
