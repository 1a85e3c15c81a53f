"""How a MachineSet replaces Machines that a health check found broken."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET
from herder.controllers.capi.machineset.controller import CONTROLLER
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Delete
from tests.unit.controllers.capi.machineset.sets import SET, machine, ready_set, world
from tests.unit.controllers.capi.world import CONTROL, World, condition_of, made

REVISION = "machinedeployment.clusters.x-k8s.io/revision"
BROKEN: dict[str, Any] = {"HealthCheckSucceeded": "False", "OwnerRemediated": "False/WaitingForRemediation"}


def _world(
    machines: list[Object],
    *,
    max_in_flight: int | str | None = None,
    revision: str = "1",
    strategy: str = "RollingUpdate",
) -> World:
    spec: dict[str, Any] = {"replicas": 10, "rollout": {"strategy": {"type": strategy}}}
    if max_in_flight is not None:
        spec["remediation"] = {"maxInFlight": max_in_flight}
    deployment = made(MACHINE_DEPLOYMENT, "deployment", spec=spec, annotations={REVISION: revision}, uid="md-uid")
    machine_set = ready_set(len(machines), annotations={REVISION: "1"})
    machine_set["metadata"]["labels"]["cluster.x-k8s.io/deployment-name"] = "deployment"
    machine_set["metadata"]["ownerReferences"] = [
        {
            "apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "MachineDeployment",
            "name": "deployment",
            "uid": "md-uid",
            "controller": True,
        }
    ]
    return world(machine_set, deployment, *machines)


def _deleted(w: World) -> list[str]:
    return [write.ref.name for write in w.writes if isinstance(write, Delete)]


def _told(w: World, name: str) -> tuple[str, str]:
    told = condition_of(w.get(MACHINE, name), "OwnerRemediated")
    return told["reason"], told["message"]


def test_a_broken_machine_is_told_and_deleted() -> None:
    w = _world([machine("good", Ready="True"), machine("bad", **BROKEN)])
    w.settle(CONTROLLER, SET)
    assert _deleted(w) == ["bad"]
    assert _told(w, "bad") == ("MachineDeleting", "Machine is deleting")
    legacies = w.get(MACHINE, "bad")["status"]["deprecated"]["v1beta1"]["conditions"]
    assert [(each["type"], each["status"]) for each in legacies] == [("OwnerRemediated", "True")]
    told = condition_of(w.get(MACHINE_SET, SET), "Remediating")
    assert (told["status"], told["reason"], told["message"]) == (
        "True",
        "Remediating",
        "* Machine bad: Machine is deleting",
    )


@pytest.mark.parametrize(
    ("max_in_flight", "replicas", "deleted"),
    [(None, 10, 4), (1, 10, 1), (3, 10, 3), ("15%", 10, 2), ("100%", 10, 4), (0, 10, 0)],
)
def test_so_many_at_a_time(max_in_flight: int | str | None, replicas: int, deleted: int) -> None:
    broken = [machine(f"bad{number}", days=number, **BROKEN) for number in range(4)]
    w = _world(broken, max_in_flight=max_in_flight)
    w.settle(CONTROLLER, SET)
    assert _deleted(w) == [f"bad{number}" for number in range(deleted)]
    for number in range(deleted, 4):
        assert _told(w, f"bad{number}") == (
            "RemediationDeferred",
            "Waiting because there are already too many remediations in progress"
            f" (spec.strategy.remediation.maxInFlight is {max_in_flight})",
        )


def test_those_in_flight_count_until_they_are_gone() -> None:
    w = _world([machine(f"bad{number}", days=number, **BROKEN) for number in range(3)], max_in_flight=1)
    w.settle(CONTROLLER, SET)
    w.settle(CONTROLLER, SET)
    assert _deleted(w) == ["bad0"]
    w.remove(w.get(MACHINE, "bad0"))
    w.settle(CONTROLLER, SET)
    assert _deleted(w) == ["bad0", "bad1"]


def test_what_users_ask_for_goes_first_then_the_newest() -> None:
    machines = [
        machine("old", days=9, **BROKEN),
        machine("new", days=1, **BROKEN),
        machine("asked", days=20, annotations={"cluster.x-k8s.io/remediate-machine": ""}, **BROKEN),
    ]
    w = _world(machines, max_in_flight=2)
    w.settle(CONTROLLER, SET)
    assert _deleted(w) == ["asked", "new"]


def test_old_revisions_are_left_to_the_rollout() -> None:
    w = _world([machine("bad", **BROKEN)], revision="2")
    w.settle(CONTROLLER, SET)
    assert not _deleted(w)
    assert _told(w, "bad") == (
        "CannotBeRemediated",
        "Machine won't be remediated because it is pending removal due to rollout",
    )


def _add_current_set(w: World) -> None:
    old = w.get(MACHINE_SET, SET)
    meta = old["metadata"] | {"name": "current", "uid": "current-uid", "annotations": {REVISION: "2"}}
    w.put({**old, "metadata": meta, "spec": {**old["spec"], "replicas": 0}})


def test_where_only_users_delete_old_machines_the_current_set_has_broken_ones_replaced() -> None:
    w = _world([machine("bad", **BROKEN)], revision="2", strategy="OnDelete")
    w.settle(CONTROLLER, SET)
    assert not _deleted(w)
    _add_current_set(w)
    w.settle(CONTROLLER, "current")
    assert _deleted(w) == ["bad"]


def test_the_sets_of_a_deployment_share_one_limit() -> None:
    mine = machine("mine", days=1, owner="current-uid", **BROKEN)
    w = _world([machine("old", days=9, **BROKEN), mine], revision="2", strategy="OnDelete", max_in_flight=1)
    _add_current_set(w)
    w.settle(CONTROLLER, SET)
    w.settle(CONTROLLER, "current")
    assert _deleted(w) == ["mine"]
    assert _told(w, "old")[0] == "RemediationDeferred"


def test_a_failed_preflight_check_defers() -> None:
    w = _world([machine("bad", **BROKEN)])
    w.put(made(CONTROL, "control", spec={"version": "v1.31.0"}))
    reference = {"apiGroup": CONTROL.group, "kind": CONTROL.kind, "name": "control"}
    w.change(w.get(CLUSTER, "herd"), {"spec": {"controlPlaneRef": reference}})
    w.settle(CONTROLLER, SET)
    assert not _deleted(w)
    reason, message = _told(w, "bad")
    assert reason == "RemediationDeferred"
    assert message.startswith("* TestControlPlane default/control is provisioning")


def test_a_machine_that_recovered_is_left_in_peace() -> None:
    w = _world([machine("better", HealthCheckSucceeded="True", OwnerRemediated="False/RemediationDeferred")])
    w.settle(CONTROLLER, SET)
    types = [each["type"] for each in w.get(MACHINE, "better")["status"]["conditions"]]
    assert types == ["HealthCheckSucceeded"]
    assert not _deleted(w)


def test_what_nobody_is_to_remediate_is_named() -> None:
    w = _world([machine("sick", HealthCheckSucceeded="False")])
    w.settle(CONTROLLER, SET)
    told = condition_of(w.get(MACHINE_SET, SET), "Remediating")
    assert (told["status"], told["message"]) == (
        "False",
        "Machine sick is not healthy (not to be remediated by MachineSet)",
    )
