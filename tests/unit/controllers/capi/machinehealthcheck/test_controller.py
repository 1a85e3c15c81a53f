"""MachineHealthCheck controller: conditions, remediation requests, limits and watches."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from herder.api.capi.kinds import MACHINE, MACHINE_HEALTH_CHECK, NODE
from herder.api.capi.names import CLUSTER_NAME, PAUSED, REMEDIATE_MACHINE, REMEDIATION_PACE, SKIP_REMEDIATION
from herder.api.references.approvals import APPROVED
from herder.controllers.capi.machinehealthcheck import CONTROLLER
from herder.engine.control.cache import Change, Key
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Create, Delete, Observe, Patch
from tests.support.builders import new_definition, new_object, owner_reference, writes_of
from tests.support.views import NOW
from tests.unit.controllers.capi.machinehealthcheck.objects import (
    aged_condition,
    ago,
    cluster,
    health_check,
    health_check_status,
    machine,
    machine_conditions,
    node,
    patches,
    reconcile_health_check,
)

HEALTHY = {"HealthCheckSucceeded": "True/HealthCheckSucceeded"}
UNHEALTHY = {"HealthCheckSucceeded": "False/UnhealthyNode"}
WAITING_FOR_REMEDIATION = {"OwnerRemediated": "False/WaitingForRemediation"}


def test_healthy_machines_are_reported_with_a_debounce() -> None:
    decision = reconcile_health_check(health_check(), [machine("a"), machine("b")])
    assert machine_conditions(decision) == {"a": HEALTHY, "b": HEALTHY}
    assert all(patch.debounce > 0 for patch in patches(decision, MACHINE).values())
    assert health_check_status(decision) == {
        "expectedMachines": 2,
        "currentHealthy": 2,
        "remediationsAllowed": 2,
        "targets": ["a", "b"],
        "observedGeneration": 2,
        "conditions": [
            {
                "type": "RemediationAllowed",
                "status": "True",
                "reason": "RemediationAllowed",
                "message": "",
                "observedGeneration": 2,
                "lastTransitionTime": ago(0),
            },
            {
                "type": "Paused",
                "status": "False",
                "reason": "NotPaused",
                "message": "",
                "observedGeneration": 2,
                "lastTransitionTime": ago(0),
            },
        ],
        "deprecated": {
            "v1beta1": {"conditions": [{"type": "RemediationAllowed", "status": "True", "lastTransitionTime": ago(0)}]}
        },
    }


def test_unchanged_conditions_are_not_written() -> None:
    succeeded = aged_condition("HealthCheckSucceeded", "True", reason="HealthCheckSucceeded", message="")
    decision = reconcile_health_check(
        health_check(), [machine("a", generation=9, conditions=[succeeded], legacy=[{**succeeded, "reason": ""}])]
    )
    assert machine_conditions(decision) == {}


def test_unhealthy_machine_requests_remediation_in_both_lists() -> None:
    decision = reconcile_health_check(health_check(), [machine("a"), machine("b")], [node("a"), node("b", "Unknown")])
    assert machine_conditions(decision) == {"a": HEALTHY, "b": UNHEALTHY | WAITING_FOR_REMEDIATION}
    patch = patches(decision, MACHINE)["b"]
    legacy_conditions = patch.patch["status"]["deprecated"]["v1beta1"]["conditions"]
    assert [(each["type"], each["status"], each["severity"]) for each in legacy_conditions] == [
        ("HealthCheckSucceeded", "False", "Warning"),
        ("OwnerRemediated", "False", "Warning"),
    ]
    assert patch.debounce == 0


def test_conditions_of_other_controllers_are_kept() -> None:
    decision = reconcile_health_check(
        health_check(), [machine("a", conditions=[aged_condition("NodeHealthy", "False")])], [node("a", "Unknown")]
    )
    assert set(machine_conditions(decision)["a"]) == {"NodeHealthy", "HealthCheckSucceeded", "OwnerRemediated"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("RemediationDeferred", "False/RemediationDeferred", id="in progress: the owner reports it"),
        pytest.param("", "False/WaitingForRemediation", id="finished: it starts again"),
    ],
)
def test_remediation_in_progress_is_left_to_the_owner(before: str, after: str) -> None:
    status = "False" if before else "True"
    owner_remediated = aged_condition("OwnerRemediated", status, reason=before or "Done")
    decision = reconcile_health_check(
        health_check(), [machine("a", conditions=[owner_remediated], legacy=[owner_remediated])], [node("a", "Unknown")]
    )
    assert machine_conditions(decision)["a"]["OwnerRemediated"] == after


def test_deleting_machine_is_not_remediated() -> None:
    decision = reconcile_health_check(health_check(), [machine("a", deletionTimestamp=ago(5))], [])
    assert machine_conditions(decision) == {"a": {"HealthCheckSucceeded": "False/NodeDeleted"}}


@pytest.mark.parametrize("annotation", [PAUSED, SKIP_REMEDIATION])
def test_annotated_machines_are_not_targets(annotation: str) -> None:
    decision = reconcile_health_check(
        health_check(), [machine("a", annotations={annotation: ""}), machine("b")], [node("b")]
    )
    assert health_check_status(decision)["targets"] == ["b"]


def test_targets_are_selected_machines_of_the_same_cluster() -> None:
    elsewhere = machine("c")
    elsewhere["spec"]["clusterName"] = "d"
    others = [machine("b", labels={"pool": "q"}), elsewhere]
    assert health_check_status(reconcile_health_check(health_check(), [machine("a"), *others]))["targets"] == ["a"]


# --- too many unhealthy Machines -------------------------------------------------------------------------------------

AT_MOST_ONE = {"triggerIf": {"unhealthyLessThanOrEqualTo": 1}}


def test_too_many_unhealthy_machines_stop_remediation_and_are_reported() -> None:
    unhealthy = [node("a", "Unknown"), node("b", "False")]
    decision = reconcile_health_check(
        health_check(remediation=AT_MOST_ONE), [machine("a"), machine("b"), machine("c")], [*unhealthy, node("c")]
    )
    assert machine_conditions(decision) == {"a": UNHEALTHY, "b": UNHEALTHY, "c": HEALTHY}
    allowed = health_check_status(decision)["conditions"][0]
    assert (allowed["type"], allowed["status"], allowed["reason"]) == (
        "RemediationAllowed",
        "False",
        "TooManyUnhealthy",
    )
    assert allowed["message"].endswith("(total: 3, unhealthy: 2, maxUnhealthy: 1)")
    assert health_check_status(decision)["remediationsAllowed"] == 0
    (legacy_condition,) = health_check_status(decision)["deprecated"]["v1beta1"]["conditions"]
    assert (legacy_condition["status"], legacy_condition["reason"], legacy_condition["severity"]) == (
        "False",
        "TooManyUnhealthy",
        "Warning",
    )


def test_starting_machines_do_not_stop_remediation() -> None:
    new = [machine(name, node=None, created=10) for name in ("b", "c", "d")]
    decision = reconcile_health_check(
        health_check(remediation=AT_MOST_ONE), [machine("a"), *new], [node("a", "Unknown")]
    )
    assert machine_conditions(decision) == {"a": UNHEALTHY | WAITING_FOR_REMEDIATION}
    assert health_check_status(decision)["currentHealthy"] == 0


def test_check_is_requeued_when_a_target_may_fail() -> None:
    decision = reconcile_health_check(
        health_check(), [machine("a"), machine("b")], [node("a", "Unknown", 200), node("b", "Unknown", 100)]
    )
    assert decision.wake_at == NOW + timedelta(seconds=101)
    assert machine_conditions(decision) == {}


def test_check_is_requeued_while_remediation_is_stopped() -> None:
    at_most_none = {"triggerIf": {"unhealthyLessThanOrEqualTo": 0}}
    decision = reconcile_health_check(
        health_check(remediation=at_most_none), [machine("a")], [node("a", "Unknown", 200)]
    )
    assert decision.wake_at == NOW + timedelta(seconds=101)


# --- rate limit ------------------------------------------------------------------------------------------------------


def test_rate_limit_defers_remediations_and_reports_all_machines() -> None:
    names = [f"m{number}" for number in range(5)]
    decision = reconcile_health_check(
        health_check(), [machine(name) for name in names], [node(name, "Unknown") for name in names]
    )
    assert {name for name, conditions in machine_conditions(decision).items() if "OwnerRemediated" in conditions} == {
        "m0",
        "m1",
        "m2",
    }
    assert all("HealthCheckSucceeded" in conditions for conditions in machine_conditions(decision).values())
    assert decision.wake_at == NOW + timedelta(minutes=1)
    assert health_check_status(decision)["conditions"][0]["message"] == (
        "2 remediations are deferred until 2026-01-01T12:01:00Z by the rate limit"
    )


def test_remediations_are_counted_before_they_start() -> None:
    decision = reconcile_health_check(health_check(), [machine("a")], [node("a", "Unknown")])
    written = writes_of(decision)
    counted_at = next(index for index, write in enumerate(written) if _counts_remediations(write))
    first_at = next(
        index for index, write in enumerate(written) if isinstance(write, Patch) and write.ref.kind == MACHINE
    )
    assert counted_at < first_at


def _counts_remediations(write: object) -> bool:
    return isinstance(write, Patch) and REMEDIATION_PACE in write.patch.get("metadata", {}).get("annotations", {})


def test_annotated_machines_bypass_the_rate_limit() -> None:
    marked = [machine(f"m{number}", annotations={REMEDIATE_MACHINE: ""}) for number in range(5)]
    decision = reconcile_health_check(health_check(), marked)
    assert all("OwnerRemediated" in conditions for conditions in machine_conditions(decision).values())
    assert not any(_counts_remediations(write) for write in writes_of(decision))


# --- paused, deleting and unreachable clusters -----------------------------------------------------------------------


def test_no_remediation_while_the_cluster_is_unreachable() -> None:
    decision = reconcile_health_check(health_check(), [machine("a")], unreachable="no route to host")
    assert not decision.writes
    assert decision.wait is not None
    assert decision.wait.reason == "the workload cluster cannot be reached: no route to host"
    assert [subscription.kind for subscription in decision.observe if isinstance(subscription, Observe)] == [NODE]


def test_no_remediation_while_the_cluster_is_deleting() -> None:
    deleting_cluster = cluster()
    deleting_cluster["metadata"]["deletionTimestamp"] = ago(1)
    decision = reconcile_health_check(health_check(), [machine("a")], [], in_cluster=deleting_cluster)
    assert not decision.writes
    assert decision.wait is not None


def test_check_waits_until_nodes_are_synced() -> None:
    decision = reconcile_health_check(health_check(), [machine("a")], synced=False)
    assert not decision.writes
    assert decision.observe


def test_nodes_are_not_observed_before_the_control_plane_is_initialized() -> None:
    decision = reconcile_health_check(
        health_check(), [machine("a", node=None)], in_cluster=cluster(initialized="False")
    )
    assert not decision.observe
    assert machine_conditions(decision) == {}


@pytest.mark.parametrize(
    ("health_check_object", "in_cluster", "message"),
    [
        (health_check(), cluster(paused=True), "Cluster spec.paused is set to true"),
        (health_check(annotations={PAUSED: ""}), cluster(), f"MachineHealthCheck has the {PAUSED} annotation"),
    ],
)
def test_paused_check_only_reports_its_pause(health_check_object: Object, in_cluster: Object, message: str) -> None:
    decision = reconcile_health_check(health_check_object, [machine("a")], [], in_cluster=in_cluster)
    (paused,) = health_check_status(decision)["conditions"]
    assert (paused["type"], paused["status"], paused["message"]) == ("Paused", "True", message)
    assert machine_conditions(decision) == {}


def test_check_is_owned_by_its_cluster() -> None:
    (patch,) = reconcile_health_check(health_check(adopted=False), [machine("a")]).writes
    assert isinstance(patch, Patch)
    assert patch.patch["metadata"]["labels"] == {CLUSTER_NAME: "c"}
    (owner,) = patch.patch["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner.get("controller")) == ("Cluster", "c", None)


# --- external remediation --------------------------------------------------------------------------------------------

REBOOT = Kind("infra.example", "v1", "Reboot", "reboots")
REBOOT_TEMPLATE = Kind("infra.example", "v1", "RebootTemplate", "reboottemplates")
REBOOT_REMEDIATION = {"templateRef": {"apiVersion": "infra.example/v1", "kind": "RebootTemplate", "name": "gently"}}
DEFINITIONS = [new_definition(kind, contract="") for kind in (REBOOT, REBOOT_TEMPLATE)]
TEMPLATE = new_object(
    REBOOT_TEMPLATE,
    "gently",
    "ns",
    spec={"template": {"metadata": {"labels": {"by": "us"}}, "spec": {"times": 3}}},
)
KINDS = (REBOOT, REBOOT_TEMPLATE)
UNHEALTHY_NODES = [node("a", "Unknown"), node("b", "Unknown"), node("c")]


def test_remediation_request_is_created_for_each_unhealthy_machine() -> None:
    existing = new_object(REBOOT, "a", "ns", spec={})
    decision = reconcile_health_check(
        health_check(remediation=REBOOT_REMEDIATION),
        [machine("a"), machine("b"), machine("c")],
        UNHEALTHY_NODES,
        others=[*DEFINITIONS, TEMPLATE, existing],
        dynamic_kinds=KINDS,
    )
    (create,) = [write for write in writes_of(decision) if isinstance(write, Create)]
    assert create.kind == REBOOT
    assert create.obj["spec"] == {"times": 3}
    meta = create.obj["metadata"]
    assert (meta["name"], meta["namespace"], meta["labels"]) == ("b", "ns", {"by": "us", CLUSTER_NAME: "c"})
    assert [(owner["kind"], owner["name"]) for owner in meta["ownerReferences"]] == [("Machine", "b")]
    assert machine_conditions(decision) == {
        "a": UNHEALTHY,
        "b": UNHEALTHY | {"ExternallyRemediated": "False/WaitingForRemediation"},
        "c": HEALTHY,
    }


def _remediation_request(name: str, **metadata: str) -> Object:
    owner = owner_reference(MACHINE, name, controller=False)
    return new_object(REBOOT, name, "ns", owners=[owner], metadata=metadata, spec={})


def test_remediation_request_is_deleted_when_its_machine_is_healthy() -> None:
    requests = [_remediation_request("a"), _remediation_request("b", deletionTimestamp=ago(1))]
    decision = reconcile_health_check(
        health_check(remediation=REBOOT_REMEDIATION),
        [machine("a"), machine("b")],
        others=[*DEFINITIONS, TEMPLATE, *requests],
        dynamic_kinds=KINDS,
    )
    assert [write.ref.name for write in writes_of(decision) if isinstance(write, Delete)] == ["a"]
    assert machine_conditions(decision) == {"a": HEALTHY, "b": HEALTHY}


@pytest.mark.parametrize("others", [DEFINITIONS, []])
def test_missing_template_is_reported(others: list[Object]) -> None:
    decision = reconcile_health_check(
        health_check(remediation=REBOOT_REMEDIATION),
        [machine("a")],
        UNHEALTHY_NODES,
        others=others,
        dynamic_kinds=KINDS,
    )
    assert not [write for write in writes_of(decision) if isinstance(write, Create)]
    assert machine_conditions(decision)["a"]["ExternallyRemediated"] == "False/RemediationTemplateNotFound"
    legacy_conditions = health_check_status(decision)["deprecated"]["v1beta1"]["conditions"]
    assert ("ExternalRemediationTemplateAvailable", "False") in [
        (each["type"], each["status"]) for each in legacy_conditions
    ]
    assert not any(_counts_remediations(write) for write in writes_of(decision))


def test_foreign_object_with_the_name_of_a_machine_is_kept() -> None:
    """The author of a check needs rights on the template only, and chooses the kind and the Machine's name freely."""
    decision = reconcile_health_check(
        health_check(remediation=REBOOT_REMEDIATION),
        [machine("a")],
        others=[*DEFINITIONS, TEMPLATE, new_object(REBOOT, "a", "ns", spec={})],
        dynamic_kinds=KINDS,
    )
    assert not [write for write in writes_of(decision) if isinstance(write, Delete)]


def test_only_template_kinds_are_cloned() -> None:
    other = {"templateRef": {"apiVersion": "infra.example/v1", "kind": "Reboot", "name": "gently"}}
    template = {**TEMPLATE, "kind": "Reboot"}
    decision = reconcile_health_check(
        health_check(remediation=other),
        [machine("a")],
        [node("a", "Unknown")],
        others=[*DEFINITIONS, template],
        dynamic_kinds=KINDS,
    )
    assert not [write for write in writes_of(decision) if isinstance(write, Create)]
    assert machine_conditions(decision)["a"]["ExternallyRemediated"] == "False/RemediationTemplateNotFound"


def _approval_record(**fields: str) -> dict[str, str]:
    return {APPROVED: json.dumps([fields])}


def test_remediation_request_carries_only_the_approvals_of_its_template() -> None:
    """Without a record, or with one that a user forged, references to recreated Secrets would count as approved."""
    approved = {"path": "spec.template.spec.secret", "resource": "secrets", "name": "s", "uid": "u"}
    template = new_object(
        REBOOT_TEMPLATE,
        "gently",
        "ns",
        annotations=_approval_record(**approved),
        spec={
            "template": {"metadata": {"annotations": _approval_record(**approved | {"path": "spec.secret", "uid": ""})}}
        },
    )
    decision = reconcile_health_check(
        health_check(remediation=REBOOT_REMEDIATION),
        [machine("a")],
        UNHEALTHY_NODES[:1],
        others=[*DEFINITIONS, template],
        dynamic_kinds=KINDS,
    )
    (create,) = [write for write in writes_of(decision) if isinstance(write, Create)]
    (approval,) = json.loads(create.obj["metadata"]["annotations"][APPROVED])
    assert approval == approved | {"path": "spec.secret"}


def test_template_version_follows_its_contract() -> None:
    """Otherwise a reference could make the manager watch any version."""
    labelled = [new_definition(kind) for kind in (REBOOT, REBOOT_TEMPLATE)]
    other = {"templateRef": {**REBOOT_REMEDIATION["templateRef"], "apiVersion": "infra.example/v7"}}
    decision = reconcile_health_check(
        health_check(remediation=other),
        [machine("a")],
        UNHEALTHY_NODES[:1],
        others=[*labelled, TEMPLATE],
        dynamic_kinds=KINDS,
    )
    (create,) = [write for write in writes_of(decision) if isinstance(write, Create)]
    assert create.kind == REBOOT


def test_recreated_template_is_not_used() -> None:
    approved = {"path": "spec.remediation.templateRef", "resource": "reboottemplates", "group": "infra.example"}
    approvals = _approval_record(**approved, namespace="ns", name="gently", uid="of-an-earlier-one")
    decision = reconcile_health_check(
        health_check(remediation=REBOOT_REMEDIATION, annotations=approvals),
        [machine("a")],
        UNHEALTHY_NODES[:1],
        others=[*DEFINITIONS, TEMPLATE],
        dynamic_kinds=KINDS,
    )
    assert not [write for write in writes_of(decision) if isinstance(write, Create)]


# --- watches ---------------------------------------------------------------------------------------------------------


def triggered_by(kind: Kind, old: Object | None, new: Object) -> list[str]:
    checks = {"mhc": health_check(), "elsewhere": health_check()}
    checks["elsewhere"]["spec"]["selector"] = {"matchLabels": {"pool": "q"}}
    indexers = CONTROLLER.indexers(MACHINE_HEALTH_CHECK)

    def lookup(index: tuple[str, str]) -> list[Key]:
        return [Key("ns", name) for name, each in checks.items() if index[1] in indexers[index[0]](each)]

    (watch,) = [watch for watch in CONTROLLER.watches if watch.kind == kind]
    return [key.name for key in watch.affected(Change(Key("ns", "x"), old, new), lookup)]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(None, machine("a"), ["mhc"], id="a new Machine triggers only checks that select it"),
        pytest.param(machine("a", labels={"pool": "x"}), machine("a"), ["mhc"], id="labels"),
        pytest.param(
            machine("a"), machine("a", conditions=[aged_condition("Ready", "True")]), ["mhc"], id="conditions"
        ),
        pytest.param(machine("a"), machine("a", resourceVersion="9"), [], id="nothing that matters"),
        pytest.param(None, machine("a", labels={"pool": "x"}), [], id="another pool"),
    ],
)
def test_machine_changes_trigger_their_checks(old: Object | None, new: Object, expected: list[str]) -> None:
    assert triggered_by(MACHINE, old, new) == expected


def test_relevant_cluster_changes_trigger_its_checks() -> None:
    kind = Kind("cluster.x-k8s.io", "v1beta2", "Cluster", "clusters")
    assert triggered_by(kind, cluster(), cluster(paused=True)) == ["mhc", "elsewhere"]
    assert triggered_by(kind, cluster(initialized="False"), cluster()) == ["mhc", "elsewhere"]
    noisy = cluster()
    noisy["status"]["conditions"].append(aged_condition("RollingOut", "True"))
    assert triggered_by(kind, cluster(), noisy) == []
