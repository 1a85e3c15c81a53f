"""How a Cluster goes: workers, control plane, infrastructure, each when what stands on it is gone."""

from __future__ import annotations

import pytest

from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_DEPLOYMENT, MACHINE_POOL, MACHINE_SET
from herder.api.capi.names import ABANDON_INFRASTRUCTURE, CLUSTER_FINALIZER
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Decision, Delete, Parallel, Ref
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
    good,
    infra,
    machine,
    machine_pool,
    machine_set,
    patches,
    plane,
    pool,
    status_after,
    told,
    writes,
)

BELONGINGS = [*DEFINITIONS, infra(PROVISIONED), plane(INITIALIZED)]


def going(*, control_plane: bool = True, infrastructure: bool = True, **annotations: str) -> Object:
    return cluster(
        control_plane=control_plane,
        infrastructure=infrastructure,
        meta=GOING | {"annotations": annotations},
        status={"initialization": UP},
        controlPlaneEndpoint=ENDPOINT,
    )


def deleted(decision: Decision) -> list[tuple[Kind, str]]:
    return [(write.ref.kind, write.ref.name) for write in writes(decision) if isinstance(write, Delete)]


def finished(decision: Decision) -> bool:
    return any(patch.patch == {"metadata": {"finalizers": []}} for patch in patches(decision, CLUSTER))


def test_workers_go_first_and_together() -> None:
    members = [
        pool("d"),
        machine_set("of-d", owned=False),
        machine_set("alone"),
        machine_pool("p"),
        machine("of-set"),
        machine("alone", owned=True),
        machine("cp", control_plane=True, owned=True),
    ]
    decision = decide(going(), *BELONGINGS, *members)
    assert deleted(decision) == [
        (MACHINE_POOL, "p"),
        (MACHINE_DEPLOYMENT, "d"),
        (MACHINE_SET, "alone"),
        (MACHINE, "alone"),
    ]
    assert isinstance(decision.writes[0], Parallel)
    assert all(write.uid for write in writes(decision) if isinstance(write, Delete))
    status = status_after(going(), *BELONGINGS, *members)
    assert status["phase"] == "Deleting"
    assert told(status, "Deleting") == (
        "True",
        "WaitingForWorkersDeletion",
        "* MachineDeployments: d\n* MachineSets: alone, of-d\n* MachinePools: p\n* Worker Machines: alone, of-set",
    )


def test_what_is_being_deleted_is_not_deleted_again() -> None:
    members = [pool("d", meta=GOING), machine("w", owned=True, meta={**GOING, **machine("w", owned=True)["metadata"]})]
    assert deleted(decide(going(), *BELONGINGS, *members)) == []


def test_another_clusters_members_are_left_alone() -> None:
    stranger = {"apiVersion": CLUSTER.api_version, "kind": "Cluster", "name": "c", "uid": "an earlier one"}
    members = [pool("d", meta={"ownerReferences": [stranger]}), machine("w", meta={"ownerReferences": [stranger]})]
    assert deleted(decide(going(), *BELONGINGS, *members)) == []


def test_whatever_has_the_label_is_waited_for_even_if_somebody_else_owns_it() -> None:
    decision = decide(going(), *BELONGINGS, machine("stray"))
    assert deleted(decision) == []
    assert decision.wait is not None
    assert decision.wait.reason == "* Worker Machines: stray"


def test_many_names_are_cut_short() -> None:
    machines = [machine(f"w-{number}") for number in range(8)]
    message = told(status_after(going(), *BELONGINGS, *machines), "Deleting")[2]
    assert message == "* Worker Machines: w-0, w-1, w-2, w-3, w-4, ... (3 more)"


def test_then_the_control_plane_object() -> None:
    cp = good("cp", control_plane=True)
    decision = decide(going(), *BELONGINGS, cp)
    assert deleted(decision) == [(PLANE, "c-plane")]
    assert decision.wait is not None
    assert decision.wait.on == Ref(PLANE, "c-plane", "ns")
    assert told(status_after(going(), *BELONGINGS, cp), "Deleting") == (
        "True",
        "WaitingForControlPlaneDeletion",
        "Waiting for FarmControlPlane to be deleted",
    )


def test_or_the_control_plane_machines_where_there_is_no_such_object() -> None:
    objects = [*BELONGINGS, machine("cp-1", control_plane=True, owned=True), machine("cp-2", control_plane=True)]
    decision = decide(going(control_plane=False), *objects)
    assert deleted(decision) == [(MACHINE, "cp-1")]
    assert told(status_after(going(control_plane=False), *objects), "Deleting") == (
        "True",
        "WaitingForControlPlaneDeletion",
        "* Control plane Machines: cp-1, cp-2",
    )


def test_then_the_infrastructure() -> None:
    left = [*DEFINITIONS, infra(PROVISIONED)]
    assert deleted(decide(going(), *left)) == [(INFRA, "c-infra")]
    assert told(status_after(going(), *left), "Deleting") == (
        "True",
        "WaitingForInfrastructureDeletion",
        "Waiting for FarmCluster to be deleted",
    )


@pytest.mark.parametrize(
    ("made", "objects"),
    [
        pytest.param(going(), DEFINITIONS, id="all is gone"),
        pytest.param(going(), (), id="even the kinds are"),
        pytest.param(going(control_plane=False, infrastructure=False), (), id="there never was anything"),
    ],
)
def test_at_the_end_the_finalizer_goes(made: Object, objects: tuple[Object, ...]) -> None:
    decision = decide(made, *objects)
    assert finished(decision)
    assert len(writes(decision)) == 1, "a status that nobody can read any more is not written"


def test_finalizers_of_others_stay() -> None:
    made = cluster(meta=GOING | {"finalizers": ["theirs", CLUSTER_FINALIZER]})
    (patch,) = patches(decide(made), CLUSTER)
    assert patch.patch == {"metadata": {"finalizers": ["theirs"]}}


@pytest.mark.parametrize("kind", [INFRA, PLANE])
def test_what_cannot_be_read_is_not_taken_for_gone(kind: Kind) -> None:
    decision = decide(going(), definition(kind, ""))
    assert not finished(decision)
    reason = told(status_after(going(), definition(kind, "")), "Deleting")[1]
    assert reason == "InternalError"


ABANDONED = {ABANDON_INFRASTRUCTURE: "true"}
STUCK = infra(PROVISIONED, meta=GOING)


@pytest.mark.parametrize(
    ("annotations", "objects", "over"),
    [
        pytest.param({}, [*DEFINITIONS, STUCK], False, id="waits"),
        pytest.param(ABANDONED, [*DEFINITIONS, STUCK], True, id="unless told not to"),
        pytest.param({ABANDON_INFRASTRUCTURE: "false"}, [*DEFINITIONS, STUCK], False, id="which must be said plainly"),
        pytest.param(ABANDONED, [*DEFINITIONS, infra(PROVISIONED)], False, id="its deletion is asked for all the same"),
        pytest.param(ABANDONED, [*DEFINITIONS, STUCK, machine("w")], False, id="only the infrastructure is abandoned"),
        pytest.param(ABANDONED, [*DEFINITIONS, STUCK, plane()], False, id="not the control plane"),
        pytest.param(ABANDONED, [definition(INFRA, "")], True, id="nor is a contract needed for it"),
    ],
)
def test_infrastructure_that_cannot_be_deleted_can_be_abandoned(
    annotations: dict[str, str], objects: list[Object], over: bool
) -> None:
    assert finished(decide(going(**annotations), *objects)) is over


def test_nothing_is_adopted_any_more() -> None:
    decision = decide(going(), *DEFINITIONS, infra(meta={"labels": {}, "ownerReferences": []}), machine("w"))
    assert patches(decision, INFRA) == []


def test_that_it_goes_is_told_at_once_and_the_steps_with_patience() -> None:
    made = going()
    members = [machine("w-1"), machine("w-2")]
    (first,) = patches(decide(made, *BELONGINGS, *members), CLUSTER, "status")
    made["status"] = status_after(made, *BELONGINGS, *members)
    (second,) = patches(decide(made, *BELONGINGS, members[0]), CLUSTER, "status")
    (third,) = patches(decide(made, *BELONGINGS), CLUSTER, "status")
    assert (first.debounce, second.debounce, third.debounce) == (0.0, 2.0, 2.0)
