"""What a MachineHealthCheck does about its Machines."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from herder.api.capi.kinds import DEFINITION, MACHINE, MACHINE_HEALTH_CHECK, NODE
from herder.api.capi.names import CLUSTER_NAME, PAUSED, REMEDIATE_MACHINE, REMEDIATION_PACE, SKIP_REMEDIATION
from herder.api.references.approvals import APPROVED
from herder.controllers.capi.machinehealthcheck import CONTROLLER
from herder.engine.control.cache import Change, Key
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Create, Delete, Observe, Patch
from tests.support.views import NOW
from tests.unit.controllers.capi.machinehealthcheck.checking import (
    ago,
    check,
    cluster,
    decide,
    known,
    machine,
    made,
    node,
    patches,
    status,
    told,
    writes,
)

HEALTHY = {"HealthCheckSucceeded": "True/HealthCheckSucceeded"}
UNHEALTHY = {"HealthCheckSucceeded": "False/UnhealthyNode"}
HANDED = {"OwnerRemediated": "False/WaitingForRemediation"}


def test_who_is_well_is_told_so_without_hurry() -> None:
    decision = decide(check(), [machine("a"), machine("b")])
    assert told(decision) == {"a": HEALTHY, "b": HEALTHY}
    assert all(patch.debounce > 0 for patch in patches(decision, MACHINE).values())
    assert status(decision) == {
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


def test_what_is_told_already_is_not_written_again() -> None:
    well = known("HealthCheckSucceeded", "True", reason="HealthCheckSucceeded", message="")
    decision = decide(check(), [machine("a", generation=9, conditions=[well], legacy=[{**well, "reason": ""}])])
    assert told(decision) == {}


def test_who_is_not_well_is_handed_to_its_owner_in_both_lists() -> None:
    decision = decide(check(), [machine("a"), machine("b")], [node("a"), node("b", "Unknown")])
    assert told(decision) == {"a": HEALTHY, "b": UNHEALTHY | HANDED}
    patch = patches(decision, MACHINE)["b"]
    older = patch.patch["status"]["deprecated"]["v1beta1"]["conditions"]
    assert [(each["type"], each["status"], each["severity"]) for each in older] == [
        ("HealthCheckSucceeded", "False", "Warning"),
        ("OwnerRemediated", "False", "Warning"),
    ]
    assert patch.debounce == 0


def test_conditions_of_others_are_kept() -> None:
    decision = decide(check(), [machine("a", conditions=[known("NodeHealthy", "False")])], [node("a", "Unknown")])
    assert set(told(decision)["a"]) == {"NodeHealthy", "HealthCheckSucceeded", "OwnerRemediated"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("RemediationDeferred", "False/RemediationDeferred", id="under way: the owner's to tell"),
        pytest.param("", "False/WaitingForRemediation", id="over: it begins anew"),
    ],
)
def test_a_remediation_under_way_is_left_to_the_owner(before: str, after: str) -> None:
    status_ = "False" if before else "True"
    handed = known("OwnerRemediated", status_, reason=before or "Done")
    decision = decide(check(), [machine("a", conditions=[handed], legacy=[handed])], [node("a", "Unknown")])
    assert told(decision)["a"]["OwnerRemediated"] == after


def test_a_machine_that_is_being_deleted_is_not_handed_over() -> None:
    decision = decide(check(), [machine("a", deletionTimestamp=ago(5))], [])
    assert told(decision) == {"a": {"HealthCheckSucceeded": "False/NodeDeleted"}}


@pytest.mark.parametrize("annotation", [PAUSED, SKIP_REMEDIATION])
def test_whom_the_check_leaves_alone(annotation: str) -> None:
    decision = decide(check(), [machine("a", annotations={annotation: ""}), machine("b")], [node("b")])
    assert status(decision)["targets"] == ["b"]


def test_only_machines_that_are_selected_in_the_same_cluster_are_targets() -> None:
    elsewhere = machine("c")
    elsewhere["spec"]["clusterName"] = "d"
    others = [machine("b", labels={"pool": "q"}), elsewhere]
    assert status(decide(check(), [machine("a"), *others]))["targets"] == ["a"]


# --- short circuit ----------------------------------------------------------------------------------------------

ONE = {"triggerIf": {"unhealthyLessThanOrEqualTo": 1}}


def test_too_many_unhealthy_stop_all_remediation_but_are_told() -> None:
    sick = [node("a", "Unknown"), node("b", "False")]
    decision = decide(check(remediation=ONE), [machine("a"), machine("b"), machine("c")], [*sick, node("c")])
    assert told(decision) == {"a": UNHEALTHY, "b": UNHEALTHY, "c": HEALTHY}
    allowed = status(decision)["conditions"][0]
    assert (allowed["type"], allowed["status"], allowed["reason"]) == (
        "RemediationAllowed",
        "False",
        "TooManyUnhealthy",
    )
    assert allowed["message"].endswith("(total: 3, unhealthy: 2, maxUnhealthy: 1)")
    assert status(decision)["remediationsAllowed"] == 0
    (older,) = status(decision)["deprecated"]["v1beta1"]["conditions"]
    assert (older["status"], older["reason"], older["severity"]) == ("False", "TooManyUnhealthy", "Warning")


def test_machines_that_start_do_not_stop_remediation() -> None:
    new = [machine(name, node=None, created=10) for name in ("b", "c", "d")]
    decision = decide(check(remediation=ONE), [machine("a"), *new], [node("a", "Unknown")])
    assert told(decision) == {"a": UNHEALTHY | HANDED}
    assert status(decision)["currentHealthy"] == 0


def test_the_next_look_is_when_a_target_may_fail() -> None:
    decision = decide(check(), [machine("a"), machine("b")], [node("a", "Unknown", 200), node("b", "Unknown", 100)])
    assert decision.wake_at == NOW + timedelta(seconds=101)
    assert told(decision) == {}


def test_the_next_look_is_not_forgotten_when_remediation_is_stopped() -> None:
    none = {"triggerIf": {"unhealthyLessThanOrEqualTo": 0}}
    decision = decide(check(remediation=none), [machine("a")], [node("a", "Unknown", 200)])
    assert decision.wake_at == NOW + timedelta(seconds=101)


# --- storms -----------------------------------------------------------------------------------------------------


def test_in_a_storm_some_are_handed_over_and_all_are_told() -> None:
    names = [f"m{number}" for number in range(5)]
    decision = decide(check(), [machine(name) for name in names], [node(name, "Unknown") for name in names])
    assert {name for name, given in told(decision).items() if "OwnerRemediated" in given} == {"m0", "m1", "m2"}
    assert all("HealthCheckSucceeded" in given for given in told(decision).values())
    assert decision.wake_at == NOW + timedelta(minutes=1)
    assert status(decision)["conditions"][0]["message"] == (
        "2 remediations are deferred until 2026-01-01T12:01:00Z by the rate limit"
    )


def test_remediations_are_counted_before_they_begin() -> None:
    decision = decide(check(), [machine("a")], [node("a", "Unknown")])
    made_writes = writes(decision)
    at = next(index for index, write in enumerate(made_writes) if _counts(write))
    first = next(
        index for index, write in enumerate(made_writes) if isinstance(write, Patch) and write.ref.kind == MACHINE
    )
    assert at < first


def _counts(write: object) -> bool:
    return isinstance(write, Patch) and REMEDIATION_PACE in write.patch.get("metadata", {}).get("annotations", {})


def test_what_a_person_marked_does_not_wait() -> None:
    marked = [machine(f"m{number}", annotations={REMEDIATE_MACHINE: ""}) for number in range(5)]
    decision = decide(check(), marked)
    assert all("OwnerRemediated" in given for given in told(decision).values())
    assert not any(_counts(write) for write in writes(decision))


# --- when nothing can be decided --------------------------------------------------------------------------------


def test_a_cluster_that_does_not_answer_is_not_the_machines_fault() -> None:
    decision = decide(check(), [machine("a")], unreachable="no route to host")
    assert not decision.writes
    assert decision.wait is not None
    assert decision.wait.reason == "the workload cluster cannot be reached: no route to host"
    assert [wish.kind for wish in decision.observe if isinstance(wish, Observe)] == [NODE]


def test_in_a_cluster_that_goes_nothing_is_replaced() -> None:
    going = cluster()
    going["metadata"]["deletionTimestamp"] = ago(1)
    decision = decide(check(), [machine("a")], [], of=going)
    assert not decision.writes
    assert decision.wait is not None


def test_nothing_is_decided_before_the_nodes_have_been_seen() -> None:
    decision = decide(check(), [machine("a")], looked=False)
    assert not decision.writes
    assert decision.observe


def test_before_the_control_plane_is_there_nodes_are_not_looked_at() -> None:
    decision = decide(check(), [machine("a", node=None)], of=cluster(initialized="False"))
    assert not decision.observe
    assert told(decision) == {}


@pytest.mark.parametrize(
    ("given", "of", "message"),
    [
        (check(), cluster(paused=True), "Cluster spec.paused is set to true"),
        (check(annotations={PAUSED: ""}), cluster(), f"MachineHealthCheck has the {PAUSED} annotation"),
    ],
)
def test_paused(given: Object, of: Object, message: str) -> None:
    decision = decide(given, [machine("a")], [], of=of)
    (paused,) = status(decision)["conditions"]
    assert (paused["type"], paused["status"], paused["message"]) == ("Paused", "True", message)
    assert told(decision) == {}


def test_the_check_belongs_to_its_cluster() -> None:
    (patch,) = decide(check(claimed=False), [machine("a")]).writes
    assert isinstance(patch, Patch)
    assert patch.patch["metadata"]["labels"] == {CLUSTER_NAME: "c"}
    (owner,) = patch.patch["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner.get("controller")) == ("Cluster", "c", None)


# --- remediation by a provider ----------------------------------------------------------------------------------

REBOOT = Kind("infra.example", "v1", "Reboot", "reboots")
REBOOT_TEMPLATE = Kind("infra.example", "v1", "RebootTemplate", "reboottemplates")
BY_REBOOT = {"templateRef": {"apiVersion": "infra.example/v1", "kind": "RebootTemplate", "name": "gently"}}
DEFINITIONS = [made(DEFINITION, f"{name}.infra.example", "") for name in ("reboots", "reboottemplates")]
TEMPLATE = made(
    REBOOT_TEMPLATE,
    "gently",
    spec={"template": {"metadata": {"labels": {"by": "us"}}, "spec": {"times": 3}}},
)
KINDS = (REBOOT, REBOOT_TEMPLATE)
SICK = [node("a", "Unknown"), node("b", "Unknown"), node("c")]


def test_a_request_is_made_for_each_that_is_not_well_also_beside_existing_ones() -> None:
    existing = made(REBOOT, "a", spec={})
    decision = decide(
        check(remediation=BY_REBOOT),
        [machine("a"), machine("b"), machine("c")],
        SICK,
        others=[*DEFINITIONS, TEMPLATE, existing],
        followed=KINDS,
    )
    (create,) = [write for write in writes(decision) if isinstance(write, Create)]
    assert create.kind == REBOOT
    assert create.obj["spec"] == {"times": 3}
    meta = create.obj["metadata"]
    assert (meta["name"], meta["namespace"], meta["labels"]) == ("b", "ns", {"by": "us", CLUSTER_NAME: "c"})
    assert [(owner["kind"], owner["name"]) for owner in meta["ownerReferences"]] == [("Machine", "b")]
    assert told(decision) == {
        "a": UNHEALTHY,
        "b": UNHEALTHY | {"ExternallyRemediated": "False/WaitingForRemediation"},
        "c": HEALTHY,
    }


def _request(name: str, **meta: str) -> Object:
    owner = {"apiVersion": MACHINE.api_version, "kind": "Machine", "name": name, "uid": f"Machine-{name}"}
    return made(REBOOT, name, spec={}, meta={"ownerReferences": [owner], **meta})


def test_a_request_goes_when_its_machine_is_well() -> None:
    requests = [_request("a"), _request("b", deletionTimestamp=ago(1))]
    decision = decide(
        check(remediation=BY_REBOOT),
        [machine("a"), machine("b")],
        others=[*DEFINITIONS, TEMPLATE, *requests],
        followed=KINDS,
    )
    assert [write.ref.name for write in writes(decision) if isinstance(write, Delete)] == ["a"]
    assert told(decision) == {"a": HEALTHY, "b": HEALTHY}


@pytest.mark.parametrize("others", [DEFINITIONS, []])
def test_a_template_that_is_missing_is_told(others: list[Object]) -> None:
    decision = decide(check(remediation=BY_REBOOT), [machine("a")], SICK, others=others, followed=KINDS)
    assert not [write for write in writes(decision) if isinstance(write, Create)]
    assert told(decision)["a"]["ExternallyRemediated"] == "False/RemediationTemplateNotFound"
    older = status(decision)["deprecated"]["v1beta1"]["conditions"]
    assert ("ExternalRemediationTemplateAvailable", "False") in [(each["type"], each["status"]) for each in older]
    assert not any(_counts(write) for write in writes(decision))


def test_an_object_that_is_no_request_stays_when_its_machine_is_well() -> None:
    """The author of a check needs rights on the template alone: the kind and the Machine's name are free to choose."""
    decision = decide(
        check(remediation=BY_REBOOT),
        [machine("a")],
        others=[*DEFINITIONS, TEMPLATE, made(REBOOT, "a", spec={})],
        followed=KINDS,
    )
    assert not [write for write in writes(decision) if isinstance(write, Delete)]


def test_only_templates_are_cloned() -> None:
    other = {"templateRef": {"apiVersion": "infra.example/v1", "kind": "Reboot", "name": "gently"}}
    template = {**TEMPLATE, "kind": "Reboot"}
    decision = decide(
        check(remediation=other),
        [machine("a")],
        [node("a", "Unknown")],
        others=[*DEFINITIONS, template],
        followed=KINDS,
    )
    assert not [write for write in writes(decision) if isinstance(write, Create)]
    assert told(decision)["a"]["ExternallyRemediated"] == "False/RemediationTemplateNotFound"


def _record(**fields: str) -> dict[str, str]:
    return {APPROVED: json.dumps([fields])}


def test_a_request_has_the_approvals_of_its_template_alone() -> None:
    """Without a record, or with one that users wrote, references to recreated Secrets would count as approved."""
    approved = {"path": "spec.template.spec.secret", "resource": "secrets", "name": "s", "uid": "u"}
    template = made(
        REBOOT_TEMPLATE,
        "gently",
        meta={"annotations": _record(**approved)},
        spec={"template": {"metadata": {"annotations": _record(**approved | {"path": "spec.secret", "uid": ""})}}},
    )
    decision = decide(
        check(remediation=BY_REBOOT), [machine("a")], SICK[:1], others=[*DEFINITIONS, template], followed=KINDS
    )
    (create,) = [write for write in writes(decision) if isinstance(write, Create)]
    (kept,) = json.loads(create.obj["metadata"]["annotations"][APPROVED])
    assert kept == approved | {"path": "spec.secret"}


def test_the_version_of_a_template_is_that_of_its_contract() -> None:
    """Otherwise each version in a reference would be watched."""
    labels = {"labels": {"cluster.x-k8s.io/v1beta2": "v1"}}
    labelled = [made(DEFINITION, f"{name}.infra.example", "", meta=labels) for name in ("reboots", "reboottemplates")]
    other = {"templateRef": {**BY_REBOOT["templateRef"], "apiVersion": "infra.example/v7"}}
    decision = decide(check(remediation=other), [machine("a")], SICK[:1], others=[*labelled, TEMPLATE], followed=KINDS)
    (create,) = [write for write in writes(decision) if isinstance(write, Create)]
    assert create.kind == REBOOT


def test_a_recreated_template_is_not_used() -> None:
    approved = {"path": "spec.remediation.templateRef", "resource": "reboottemplates", "group": "infra.example"}
    marks = _record(**approved, namespace="ns", name="gently", uid="of-an-earlier-one")
    decision = decide(
        check(remediation=BY_REBOOT, annotations=marks),
        [machine("a")],
        SICK[:1],
        others=[*DEFINITIONS, TEMPLATE],
        followed=KINDS,
    )
    assert not [write for write in writes(decision) if isinstance(write, Create)]


# --- what wakes it ----------------------------------------------------------------------------------------------


def woken_by(kind: Kind, old: Object | None, new: Object) -> list[str]:
    checks = {"mhc": check(), "elsewhere": check()}
    checks["elsewhere"]["spec"]["selector"] = {"matchLabels": {"pool": "q"}}
    indexers = CONTROLLER.indexers(MACHINE_HEALTH_CHECK)

    def lookup(index: tuple[str, str]) -> list[Key]:
        return [Key("ns", name) for name, each in checks.items() if index[1] in indexers[index[0]](each)]

    (watch,) = [watch for watch in CONTROLLER.watches if watch.kind == kind]
    return [key.name for key in watch.affected(Change(Key("ns", "x"), old, new), lookup)]


@pytest.mark.parametrize(
    ("old", "new", "woken"),
    [
        pytest.param(None, machine("a"), ["mhc"], id="a new Machine wakes only who selects it"),
        pytest.param(machine("a", labels={"pool": "x"}), machine("a"), ["mhc"], id="labels"),
        pytest.param(machine("a"), machine("a", conditions=[known("Ready", "True")]), ["mhc"], id="conditions"),
        pytest.param(machine("a"), machine("a", resourceVersion="9"), [], id="nothing that matters"),
        pytest.param(None, machine("a", labels={"pool": "x"}), [], id="another pool"),
    ],
)
def test_machines_wake_their_checks(old: Object | None, new: Object, woken: list[str]) -> None:
    assert woken_by(MACHINE, old, new) == woken


def test_a_cluster_wakes_its_checks_only_for_what_matters() -> None:
    kind = Kind("cluster.x-k8s.io", "v1beta2", "Cluster", "clusters")
    assert woken_by(kind, cluster(), cluster(paused=True)) == ["mhc", "elsewhere"]
    assert woken_by(kind, cluster(initialized="False"), cluster()) == ["mhc", "elsewhere"]
    noisy = cluster()
    noisy["status"]["conditions"].append(known("RollingOut", "True"))
    assert woken_by(kind, cluster(), noisy) == []
