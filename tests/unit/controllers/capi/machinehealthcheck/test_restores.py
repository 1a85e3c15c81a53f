"""No Machine is remediated while the data of its cluster is restored, and until its Nodes had time to register."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.kinds import MACHINE
from herder.api.capi.names import REMEDIATE_MACHINE
from herder.api.rke import operations
from herder.api.rke.kinds import CONTROL_PLANE
from herder.controllers.capi.machinehealthcheck import CONTROLLER
from herder.engine.control.cache import Change, Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision
from tests.support.builders import new_object, object_reference
from tests.unit.controllers.capi.machinehealthcheck.objects import (
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


def control_plane(operation: Object | None = None, *ended: Object) -> Object:
    status = {"operation": operation or {}, "operationHistory": [*ended]}
    return new_object(CONTROL_PLANE, "c", "ns", spec={"clusterName": "c"}, status=status)


def in_progress(phase: str = "Restore", kind: str = operations.RESTORE) -> Object:
    return {"id": "x", "kind": kind, "phase": phase, "startedAt": ago(60)}


def ended(seconds: float, kind: str = operations.RESTORE, **timings: int) -> Object:
    return {
        "id": "x",
        "kind": kind,
        "phase": "Finished",
        "endedAt": ago(seconds),
        "timings": timings or {"Shutdown": 9},
    }


def decide(plane: Object, **checks: Any) -> Decision:
    """Machine a is healthy, the Node of b is missing, and that of c has been lost for long."""
    referring = cluster(controlPlaneRef=object_reference(CONTROL_PLANE, "c"))
    check = health_check(checks={**health_check()["spec"]["checks"], **checks})
    return reconcile_health_check(
        check,
        [machine("a"), machine("b"), machine("c"), machine("d", annotations={REMEDIATE_MACHINE: ""})],
        [node("a"), node("c", "Unknown"), node("d")],
        in_cluster=referring,
        others=[plane],
    )


def allowed(decision: Decision) -> tuple[str, str, str]:
    (found,) = (each for each in health_check_status(decision)["conditions"] if each["type"] == "RemediationAllowed")
    return found["status"], found["reason"], found["message"]


@pytest.mark.parametrize("phase", ["Started", "Shutdown", "Restore", "InitialRestartCluster", "RestartCluster"])
def test_nothing_is_remediated_during_a_restore(phase: str) -> None:
    decision = decide(control_plane(in_progress(phase)))
    assert patches(decision, MACHINE) == {}
    status, reason, message = allowed(decision)
    assert (status, reason) == ("False", "EtcdRestoreInProgress")
    assert "etcd snapshot of the cluster is restored" in message
    assert health_check_status(decision)["remediationsAllowed"] == 0


@pytest.mark.parametrize(("checks", "seconds"), [({}, 600), ({"nodeStartupTimeoutSeconds": 60}, 60)])
def test_nodes_have_time_to_register_after_a_restore(checks: dict[str, int], seconds: int) -> None:
    decision = decide(control_plane({}, ended(seconds - 1)), **checks)
    assert patches(decision, MACHINE) == {}
    assert allowed(decision)[:2] == ("False", "WaitingForNodesAfterEtcdRestore")
    assert decision.wake_at is not None
    assert set(machine_conditions(decide(control_plane({}, ended(seconds)), **checks))) == {"a", "b", "c", "d"}


def test_a_later_operation_does_not_end_the_wait() -> None:
    plane = control_plane(in_progress("Started", operations.SNAPSHOT), ended(30), ended(10, operations.SNAPSHOT))
    assert allowed(decide(plane))[1] == "WaitingForNodesAfterEtcdRestore"


@pytest.mark.parametrize(
    "plane",
    [
        control_plane(in_progress("Started", operations.SNAPSHOT)),
        control_plane({}, ended(5, operations.SNAPSHOT)),
        control_plane({}, ended(5, Started=1)),  # it failed before it stopped anything
        new_object(CONTROL_PLANE, "c", "ns", spec={}),
    ],
    ids=["snapshot", "ended snapshot", "refused restore", "new"],
)
def test_otherwise_unhealthy_machines_are_remediated(plane: Object) -> None:
    reasons = {name: each["HealthCheckSucceeded"] for name, each in machine_conditions(decide(plane)).items()}
    assert reasons["b"] == "False/NodeDeleted"
    assert reasons["c"] == "False/UnhealthyNode"


def test_the_end_of_a_restore_triggers_the_checks_of_its_cluster() -> None:
    (watch,) = (each for each in CONTROLLER.watches if each.kind == CONTROL_PLANE)
    assert watch.optional
    before, after = control_plane(in_progress()), control_plane({}, ended(0))
    key = Key("ns", "c")
    assert watch.affected(Change(key, before, after), lambda found: [key] if found[1] == "ns/c" else []) == [key]
    assert not watch.predicate(Change(key, after, {**after, "spec": {"changed": True}}))
