"""Remediation of unhealthy Machines by their MachineSet."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET
from herder.controllers.capi.machineset.controller import CONTROLLER
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Delete
from tests.support.builders import condition_of, new_object, object_reference, owner_reference
from tests.unit.controllers.capi.fake_server import FakeServer
from tests.unit.controllers.capi.machineset.objects import SET, machine, ready_set, server_with
from tests.unit.controllers.capi.objects import CONTROL_PLANE, NAMESPACE, provider_object

REVISION = "machinedeployment.clusters.x-k8s.io/revision"
UNHEALTHY: dict[str, Any] = {"HealthCheckSucceeded": "False", "OwnerRemediated": "False/WaitingForRemediation"}


def _server_with_deployment(
    machines: list[Object],
    *,
    max_in_flight: int | str | None = None,
    revision: str = "1",
    strategy: str = "RollingUpdate",
) -> FakeServer:
    spec: dict[str, Any] = {"clusterName": "herd", "replicas": 10, "rollout": {"strategy": {"type": strategy}}}
    if max_in_flight is not None:
        spec["remediation"] = {"maxInFlight": max_in_flight}
    deployment = new_object(MACHINE_DEPLOYMENT, "deployment", NAMESPACE, annotations={REVISION: revision}, spec=spec)
    machine_set = ready_set(len(machines), annotations={REVISION: "1"})
    machine_set["metadata"]["labels"]["cluster.x-k8s.io/deployment-name"] = "deployment"
    machine_set["metadata"]["ownerReferences"] = [owner_reference(MACHINE_DEPLOYMENT, "deployment")]
    return server_with(machine_set, deployment, *machines)


def _deletions(server: FakeServer) -> list[str]:
    return [write.ref.name for write in server.writes if isinstance(write, Delete)]


def _owner_remediated(server: FakeServer, name: str) -> tuple[str, str]:
    condition = condition_of(server.get(MACHINE, name), "OwnerRemediated")
    return condition["reason"], condition["message"]


def test_unhealthy_machine_is_reported_and_deleted() -> None:
    server = _server_with_deployment([machine("good", Ready="True"), machine("bad", **UNHEALTHY)])
    server.settle(CONTROLLER, SET)
    assert _deletions(server) == ["bad"]
    assert _owner_remediated(server, "bad") == ("MachineDeleting", "Machine is deleting")
    legacy_conditions = server.get(MACHINE, "bad")["status"]["deprecated"]["v1beta1"]["conditions"]
    assert [(each["type"], each["status"]) for each in legacy_conditions] == [("OwnerRemediated", "True")]
    condition = condition_of(server.get(MACHINE_SET, SET), "Remediating")
    assert (condition["status"], condition["reason"], condition["message"]) == (
        "True",
        "Remediating",
        "* Machine bad: Machine is deleting",
    )


@pytest.mark.parametrize(
    ("max_in_flight", "replicas", "deleted"),
    [(None, 10, 4), (1, 10, 1), (3, 10, 3), ("15%", 10, 2), ("100%", 10, 4), (0, 10, 0)],
)
def test_max_in_flight_limits_remediations(max_in_flight: int | str | None, replicas: int, deleted: int) -> None:
    unhealthy = [machine(f"bad{number}", days=number, **UNHEALTHY) for number in range(4)]
    server = _server_with_deployment(unhealthy, max_in_flight=max_in_flight)
    server.settle(CONTROLLER, SET)
    assert _deletions(server) == [f"bad{number}" for number in range(deleted)]
    for number in range(deleted, 4):
        assert _owner_remediated(server, f"bad{number}") == (
            "RemediationDeferred",
            "Waiting because there are already too many remediations in progress"
            f" (spec.strategy.remediation.maxInFlight is {max_in_flight})",
        )


def test_remediations_in_flight_count_until_machines_are_gone() -> None:
    server = _server_with_deployment(
        [machine(f"bad{number}", days=number, **UNHEALTHY) for number in range(3)], max_in_flight=1
    )
    server.settle(CONTROLLER, SET)
    server.settle(CONTROLLER, SET)
    assert _deletions(server) == ["bad0"]
    server.remove(server.get(MACHINE, "bad0"))
    server.settle(CONTROLLER, SET)
    assert _deletions(server) == ["bad0", "bad1"]


def test_annotated_machines_are_remediated_first_then_the_newest() -> None:
    machines = [
        machine("old", days=9, **UNHEALTHY),
        machine("new", days=1, **UNHEALTHY),
        machine("asked", days=20, annotations={"cluster.x-k8s.io/remediate-machine": ""}, **UNHEALTHY),
    ]
    server = _server_with_deployment(machines, max_in_flight=2)
    server.settle(CONTROLLER, SET)
    assert _deletions(server) == ["asked", "new"]


def test_machines_of_old_revisions_are_left_to_the_rollout() -> None:
    server = _server_with_deployment([machine("bad", **UNHEALTHY)], revision="2")
    server.settle(CONTROLLER, SET)
    assert not _deletions(server)
    assert _owner_remediated(server, "bad") == (
        "CannotBeRemediated",
        "Machine won't be remediated because it is pending removal due to rollout",
    )


def _add_current_set(server: FakeServer) -> None:
    old = server.get(MACHINE_SET, SET)
    meta = old["metadata"] | {"name": "current", "uid": "current-uid", "annotations": {REVISION: "2"}}
    server.put({**old, "metadata": meta, "spec": {**old["spec"], "replicas": 0}})


def test_current_set_remediates_old_machines_with_on_delete() -> None:
    server = _server_with_deployment([machine("bad", **UNHEALTHY)], revision="2", strategy="OnDelete")
    server.settle(CONTROLLER, SET)
    assert not _deletions(server)
    _add_current_set(server)
    server.settle(CONTROLLER, "current")
    assert _deletions(server) == ["bad"]


def test_machine_sets_of_a_deployment_share_max_in_flight() -> None:
    current = machine("mine", days=1, owner="current-uid", **UNHEALTHY)
    server = _server_with_deployment(
        [machine("old", days=9, **UNHEALTHY), current], revision="2", strategy="OnDelete", max_in_flight=1
    )
    _add_current_set(server)
    server.settle(CONTROLLER, SET)
    server.settle(CONTROLLER, "current")
    assert _deletions(server) == ["mine"]
    assert _owner_remediated(server, "old")[0] == "RemediationDeferred"


def test_failed_preflight_check_defers_remediation() -> None:
    server = _server_with_deployment([machine("bad", **UNHEALTHY)])
    server.put(provider_object(CONTROL_PLANE, "control", spec={"version": "v1.31.0"}))
    reference = object_reference(CONTROL_PLANE, "control")
    server.change(server.get(CLUSTER, "herd"), {"spec": {"controlPlaneRef": reference}})
    server.settle(CONTROLLER, SET)
    assert not _deletions(server)
    reason, message = _owner_remediated(server, "bad")
    assert reason == "RemediationDeferred"
    assert message.startswith("* TestControlPlane default/control is provisioning")


def test_recovered_machine_is_not_remediated() -> None:
    server = _server_with_deployment(
        [machine("better", HealthCheckSucceeded="True", OwnerRemediated="False/RemediationDeferred")]
    )
    server.settle(CONTROLLER, SET)
    types = [each["type"] for each in server.get(MACHINE, "better")["status"]["conditions"]]
    assert types == ["HealthCheckSucceeded"]
    assert not _deletions(server)


def test_unhealthy_machine_without_remediation_request_is_reported() -> None:
    server = _server_with_deployment([machine("sick", HealthCheckSucceeded="False")])
    server.settle(CONTROLLER, SET)
    condition = condition_of(server.get(MACHINE_SET, SET), "Remediating")
    assert (condition["status"], condition["message"]) == (
        "False",
        "Machine sick is not healthy (not to be remediated by MachineSet)",
    )
