"""Deletion of a Cluster: workers first, then the control plane, then the infrastructure."""

from __future__ import annotations

import pytest

from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_DEPLOYMENT, MACHINE_POOL, MACHINE_SET
from herder.api.capi.names import ABANDON_INFRASTRUCTURE, CLUSTER_FINALIZER
from herder.api.references.approvals import Approval, with_record
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Decision, Delete, Parallel, Ref
from tests.support.builders import new_definition, writes_of
from tests.unit.controllers.capi.cluster.objects import (
    DEFINITIONS,
    DELETING,
    ENDPOINT,
    FULLY_INITIALIZED,
    INFRA,
    INITIALIZED,
    OWNER,
    PLANE,
    PROVISIONED,
    cluster,
    healthy_machine,
    infra,
    machine,
    machine_pool,
    machine_set,
    patches,
    plane,
    pool,
    reconcile_cluster,
    status_after,
    status_condition,
)

PROVIDER_OBJECTS = [*DEFINITIONS, infra(PROVISIONED), plane(INITIALIZED)]


def deleting_cluster(*, control_plane: bool = True, infrastructure: bool = True, **annotations: str) -> Object:
    return cluster(
        control_plane=control_plane,
        infrastructure=infrastructure,
        metadata=DELETING | {"annotations": annotations},
        status={"initialization": FULLY_INITIALIZED},
        controlPlaneEndpoint=ENDPOINT,
    )


def deletions(decision: Decision) -> list[tuple[Kind, str]]:
    return [(write.ref.kind, write.ref.name) for write in writes_of(decision) if isinstance(write, Delete)]


def removes_finalizer(decision: Decision) -> bool:
    return any(patch.patch == {"metadata": {"finalizers": []}} for patch in patches(decision, CLUSTER))


def test_workers_are_deleted_first_and_in_parallel() -> None:
    members = [
        pool("d"),
        machine_set("of-d", owned=False),
        machine_set("alone"),
        machine_pool("p"),
        machine("of-set"),
        machine("alone", owned=True),
        machine("cp", control_plane=True, owned=True),
    ]
    decision = reconcile_cluster(deleting_cluster(), *PROVIDER_OBJECTS, *members)
    assert deletions(decision) == [
        (MACHINE_POOL, "p"),
        (MACHINE_DEPLOYMENT, "d"),
        (MACHINE_SET, "alone"),
        (MACHINE, "alone"),
    ]
    assert isinstance(decision.writes[0], Parallel)
    assert all(write.uid for write in writes_of(decision) if isinstance(write, Delete))
    status = status_after(deleting_cluster(), *PROVIDER_OBJECTS, *members)
    assert status["phase"] == "Deleting"
    assert status_condition(status, "Deleting") == (
        "True",
        "WaitingForWorkersDeletion",
        "* MachineDeployments: d\n* MachineSets: alone, of-d\n* MachinePools: p\n* Worker Machines: alone, of-set",
    )


def test_deleting_members_are_not_deleted_again() -> None:
    members = [
        pool("d", metadata=DELETING),
        machine("w", owned=True, metadata={**DELETING, **machine("w", owned=True)["metadata"]}),
    ]
    assert deletions(reconcile_cluster(deleting_cluster(), *PROVIDER_OBJECTS, *members)) == []


def test_members_of_another_cluster_are_not_deleted() -> None:
    other_owner = OWNER | {"uid": "an earlier one"}
    members = [
        pool("d", metadata={"ownerReferences": [other_owner]}),
        machine("w", metadata={"ownerReferences": [other_owner]}),
    ]
    assert deletions(reconcile_cluster(deleting_cluster(), *PROVIDER_OBJECTS, *members)) == []


def test_labelled_machines_block_deletion_even_with_another_owner() -> None:
    decision = reconcile_cluster(deleting_cluster(), *PROVIDER_OBJECTS, machine("stray"))
    assert deletions(decision) == []
    assert decision.wait is not None
    assert decision.wait.reason == "* Worker Machines: stray"


def test_long_lists_of_names_are_truncated() -> None:
    machines = [machine(f"w-{number}") for number in range(8)]
    message = status_condition(status_after(deleting_cluster(), *PROVIDER_OBJECTS, *machines), "Deleting")[2]
    assert message == "* Worker Machines: w-0, w-1, w-2, w-3, w-4, ... (3 more)"


def test_control_plane_object_is_deleted_after_the_workers() -> None:
    cp = healthy_machine("cp", control_plane=True)
    decision = reconcile_cluster(deleting_cluster(), *PROVIDER_OBJECTS, cp)
    assert deletions(decision) == [(PLANE, "c-plane")]
    assert decision.wait is not None
    assert decision.wait.on == Ref(PLANE, "c-plane", "ns")
    assert status_condition(status_after(deleting_cluster(), *PROVIDER_OBJECTS, cp), "Deleting") == (
        "True",
        "WaitingForControlPlaneDeletion",
        "Waiting for FarmControlPlane to be deleted",
    )


def test_control_plane_machines_are_deleted_without_a_control_plane_object() -> None:
    objects = [*PROVIDER_OBJECTS, machine("cp-1", control_plane=True, owned=True), machine("cp-2", control_plane=True)]
    decision = reconcile_cluster(deleting_cluster(control_plane=False), *objects)
    assert deletions(decision) == [(MACHINE, "cp-1")]
    assert status_condition(status_after(deleting_cluster(control_plane=False), *objects), "Deleting") == (
        "True",
        "WaitingForControlPlaneDeletion",
        "* Control plane Machines: cp-1, cp-2",
    )


def test_infrastructure_is_deleted_last() -> None:
    left = [*DEFINITIONS, infra(PROVISIONED)]
    assert deletions(reconcile_cluster(deleting_cluster(), *left)) == [(INFRA, "c-infra")]
    assert status_condition(status_after(deleting_cluster(), *left), "Deleting") == (
        "True",
        "WaitingForInfrastructureDeletion",
        "Waiting for FarmCluster to be deleted",
    )


@pytest.mark.parametrize(
    ("cluster_object", "objects"),
    [
        pytest.param(deleting_cluster(), DEFINITIONS, id="everything is deleted"),
        pytest.param(deleting_cluster(), (), id="so are the CustomResourceDefinitions"),
        pytest.param(deleting_cluster(control_plane=False, infrastructure=False), (), id="nothing ever existed"),
    ],
)
def test_finalizer_is_removed_when_everything_is_deleted(cluster_object: Object, objects: tuple[Object, ...]) -> None:
    decision = reconcile_cluster(cluster_object, *objects)
    assert removes_finalizer(decision)
    assert len(writes_of(decision)) == 1, "the status of a finished deletion is not written"


def test_finalizers_of_other_controllers_are_kept() -> None:
    cluster_object = cluster(metadata=DELETING | {"finalizers": ["theirs", CLUSTER_FINALIZER]})
    (patch,) = patches(reconcile_cluster(cluster_object), CLUSTER)
    assert patch.patch == {"metadata": {"finalizers": ["theirs"]}}


@pytest.mark.parametrize("kind", [INFRA, PLANE])
def test_unreadable_objects_do_not_count_as_deleted(kind: Kind) -> None:
    decision = reconcile_cluster(deleting_cluster(), new_definition(kind, ""))
    assert not removes_finalizer(decision)
    reason = status_condition(status_after(deleting_cluster(), new_definition(kind, "")), "Deleting")[1]
    assert reason == "InternalError"


ABANDONED = {ABANDON_INFRASTRUCTURE: "true"}
STUCK = infra(PROVISIONED, metadata=DELETING)


@pytest.mark.parametrize(
    ("annotations", "objects", "expected"),
    [
        pytest.param({}, [*DEFINITIONS, STUCK], False, id="waits"),
        pytest.param(ABANDONED, [*DEFINITIONS, STUCK], True, id="abandoned by annotation"),
        pytest.param({ABANDON_INFRASTRUCTURE: "false"}, [*DEFINITIONS, STUCK], False, id="annotation must be true"),
        pytest.param(ABANDONED, [*DEFINITIONS, infra(PROVISIONED)], False, id="its deletion is requested first"),
        pytest.param(ABANDONED, [*DEFINITIONS, STUCK, machine("w")], False, id="only the infrastructure is abandoned"),
        pytest.param(ABANDONED, [*DEFINITIONS, STUCK, plane()], False, id="not the control plane"),
        pytest.param(ABANDONED, [new_definition(INFRA, "")], True, id="no contract label needed"),
    ],
)
def test_stuck_infrastructure_can_be_abandoned(
    annotations: dict[str, str], objects: list[Object], expected: bool
) -> None:
    assert removes_finalizer(reconcile_cluster(deleting_cluster(**annotations), *objects)) is expected


def test_nothing_is_adopted_during_deletion() -> None:
    decision = reconcile_cluster(
        deleting_cluster(), *DEFINITIONS, infra(metadata={"labels": {}, "ownerReferences": []}), machine("w")
    )
    assert patches(decision, INFRA) == []


def test_first_deleting_status_is_written_at_once_and_progress_is_debounced() -> None:
    cluster_object = deleting_cluster()
    members = [machine("w-1"), machine("w-2")]
    (first,) = patches(reconcile_cluster(cluster_object, *PROVIDER_OBJECTS, *members), CLUSTER, "status")
    cluster_object["status"] = status_after(cluster_object, *PROVIDER_OBJECTS, *members)
    (second,) = patches(reconcile_cluster(cluster_object, *PROVIDER_OBJECTS, members[0]), CLUSTER, "status")
    (third,) = patches(reconcile_cluster(cluster_object, *PROVIDER_OBJECTS), CLUSTER, "status")
    assert (first.debounce, second.debounce, third.debounce) == (0.0, 2.0, 2.0)


def test_an_object_with_the_name_of_the_referenced_one_is_not_deleted() -> None:
    """It may be another user's: the author of the reference deleted the approved object and waited for its name."""
    approvals = [
        Approval("spec.infrastructureRef", INFRA.plural, "c-infra", INFRA.group, "ns", "uid-of-the-approved"),
        Approval("spec.controlPlaneRef", PLANE.plural, "c-plane", PLANE.group, "ns", "uid-of-the-approved"),
    ]
    decision = reconcile_cluster(with_record(deleting_cluster(), approvals), *PROVIDER_OBJECTS)
    assert deletions(decision) == []
    assert removes_finalizer(decision)
