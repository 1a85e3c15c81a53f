"""Custom machines are ready from the start, and deleted without their Node only if the cluster configures it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from herder.api.capi.conditions import timestamp
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.rke.operations import RESTORE
from herder.controllers.machines.custom import machines
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision, Delete, Patch
from herder.engine.runtime.view import Observed, Unreachable
from tests.support.builders import NOW, new_condition, new_object, reconcile
from tests.unit.controllers.machines.custom.objects import (
    CLUSTER_ID,
    WORKSPACE,
    custom_machine,
    machine,
    management,
    provisioning,
    rke_cluster,
)

GONE_SINCE = NOW - timedelta(minutes=10)
NODE = {"metadata": {"name": "sheep-1"}}


def without_node(reason: str = "NodeDeleted", status: str = "False", *, deleting: bool = False) -> Object:
    condition = new_condition("NodeHealthy", status, reason, since=GONE_SINCE)
    return machine(conditions=[condition], nodeRef={"name": "sheep-1"}, deleting=deleting)


def decide(*objects: Object, nodes: Observed | Unreachable | None = None) -> Decision:
    return reconcile(machines.CONTROLLER, f"{WORKSPACE}/custom-1", *objects, observed=lambda _request: nodes)


def test_a_custom_machine_is_ready_at_once() -> None:
    bare = custom_machine()
    (write,) = decide({**bare, "status": {}}).writes
    assert isinstance(write, Patch)
    (condition,) = write.patch["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("Ready", "True")
    assert "initialization" not in write.patch["status"]


def test_a_custom_machine_is_provisioned_once_it_has_a_provider_id() -> None:
    (write,) = decide(custom_machine(provider_id="k3s://sheep-1")).writes
    assert isinstance(write, Patch)
    assert write.patch["status"]["initialization"] == {"provisioned": True}
    assert write.patch["status"]["ready"] is True


def test_the_finalizer_of_another_manager_is_removed() -> None:
    (write,) = decide(
        custom_machine(deleting=True, finalizers=["wrangler.cattle.io/unmanaged-machine", "other"])
    ).writes
    assert isinstance(write, Patch)
    assert write.patch == {"metadata": {"finalizers": ["other"]}}


# --- machines whose Node is deleted -----------------------------------------------------------------------------------


def _provisioned_machine() -> Object:
    machine_object = custom_machine(provider_id="k3s://sheep-1")
    return {
        **machine_object,
        "status": {**machine_object["status"], "ready": True, "initialization": {"provisioned": True}},
    }


def objects_without_node(
    after: str = "5m", machine_object: Object | None = None, connected: bool = True
) -> list[Object]:
    return [
        _provisioned_machine(),
        machine_object or without_node(),
        rke_cluster(after),
        provisioning(),
        management(connected=connected),
    ]


def test_a_machine_whose_node_is_deleted_is_deleted_after_the_timeout() -> None:
    decision = decide(*objects_without_node(), nodes=Observed((), NOW))
    (write,) = decision.writes
    assert isinstance(write, Delete)
    assert (write.ref.kind.kind, write.ref.name, write.uid) == ("Machine", "custom-1", "Machine-custom-1")
    (request,) = decision.observe
    assert request.cluster == CLUSTER_ID


@pytest.mark.parametrize(
    ("objects", "nodes", "reason"),
    [
        (objects_without_node(), Observed((NODE,), NOW), "Node sheep-1 exists again"),
        (objects_without_node(), Unreachable("no route", NOW), "waiting for the cluster to confirm it"),
        (objects_without_node(), None, "waiting for the cluster to confirm it"),
        (objects_without_node(connected=False), Observed((), NOW), "waiting for the cluster agent to connect"),
        (objects_without_node("15m"), Observed((), NOW), "the Machine is deleted if it does not return"),
        (objects_without_node("soon"), Observed((), NOW), '"soon" must be a duration such as 15m'),
    ],
)
def test_otherwise_the_machine_stays(objects: list[Object], nodes: Observed | Unreachable | None, reason: str) -> None:
    decision = decide(*objects, nodes=nodes)
    assert decision.writes == ()
    assert decision.wait is not None
    assert reason in decision.wait.reason


def restored(operation: Object, ended_at: str = "") -> Object:
    history = [{"kind": RESTORE, "endedAt": ended_at, "timings": {"Shutdown": 9}}] if ended_at else []
    status = {"operation": operation, "operationHistory": history}
    return new_object(CONTROL_PLANE, "meadow", WORKSPACE, spec={}, status=status)


def test_no_machine_is_deleted_during_a_restore() -> None:
    """The restored data does not know Nodes that joined after the snapshot, until they register again."""
    run = {"id": "x", "kind": RESTORE, "phase": "Shutdown", "startedAt": timestamp(GONE_SINCE)}
    decision = decide(*objects_without_node(), restored(run), nodes=Observed((), NOW))
    assert decision.writes == ()
    assert decision.wait is not None
    assert "waiting for the end of the etcd restore" in decision.wait.reason


def test_the_timeout_begins_after_the_last_restore() -> None:
    ended = NOW - timedelta(minutes=1)
    decision = decide(*objects_without_node(), restored({}, timestamp(ended)), nodes=Observed((), NOW))
    assert (decision.writes, decision.wake_at) == ((), ended + timedelta(minutes=5))


def test_the_controller_wakes_when_the_timeout_ends() -> None:
    assert decide(*objects_without_node("15m")).wake_at == GONE_SINCE + timedelta(minutes=15)


@pytest.mark.parametrize(
    "objects",
    [
        objects_without_node(""),
        objects_without_node(machine_object=without_node(status="True")),
        objects_without_node(machine_object=without_node(reason="NodeNotReady")),
        objects_without_node(machine_object=without_node(deleting=True)),
    ],
    ids=["no timeout is configured", "healthy", "not ready", "being deleted already"],
)
def test_machines_are_not_deleted(objects: list[Object]) -> None:
    decision = decide(*objects, nodes=Observed((), NOW))
    assert (decision.writes, decision.observe) == ((), ())
