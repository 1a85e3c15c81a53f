"""The invariants themselves: violations are detected, and valid behavior is accepted."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET
from herder.api.inmemory.kinds import IN_MEMORY_MACHINE
from herder.engine.meta.kinds import Kind, Object
from tests.simulation.capi.invariants import Limits, RolloutInvariants, limits_of

AVAILABLE = {"conditions": [{"type": "Available", "status": "True"}]}


class EventSequence:
    """Events as a server would send them: a deployment of three with a surge of one, and its MachineSet."""

    def __init__(self) -> None:
        self.now = 0.0
        self.invariants = RolloutInvariants(lambda: self.now)
        self.send(CLUSTER, "c", {})
        self.deploy(1, replicas=3)
        self.size("s", 4)

    def send(
        self, kind: Kind, name: str, spec: Object, *, owner: str = "", event: str = "MODIFIED", **more: Any
    ) -> None:
        status = more.pop("status", {})
        owners = [{"uid": owner, "controller": True}] if owner else []
        meta = {"name": name, "uid": name, "ownerReferences": owners, **more}
        self.invariants(kind, event, {"kind": kind.kind, "metadata": meta, "spec": spec, "status": status})

    def deploy(self, generation: int, *, replicas: int, seen: int = 0, surge: int = 1, unavailable: int = 0) -> None:
        rolling = {"maxSurge": surge, "maxUnavailable": unavailable}
        spec = {"replicas": replicas, "rollout": {"strategy": {"type": "RollingUpdate", "rollingUpdate": rolling}}}
        self.send(MACHINE_DEPLOYMENT, "d", spec, generation=generation, status={"observedGeneration": seen})

    def size(self, name: str, replicas: int, template: str = "first") -> None:
        spec = {"replicas": replicas, "template": {"spec": {"infrastructureRef": {"name": template}}}}
        self.send(MACHINE_SET, name, spec, owner="d")

    def machines(self, *names: str, status: Object | None = None, **more: Any) -> None:
        for name in names:
            self.send(MACHINE, name, {}, owner="s", status=status if status is not None else AVAILABLE, **more)


@pytest.fixture
def events() -> EventSequence:
    return EventSequence()


@pytest.mark.parametrize(
    ("surge", "unavailable", "limits"),
    [
        (1, 0, Limits(6, 5)),
        ("30%", 0, Limits(7, 5)),
        (0, "30%", Limits(5, 4)),
        ("1%", "1%", Limits(6, 5)),
        (0, "1%", Limits(5, 4)),
        (0, 9, Limits(5, 0)),
    ],
)
def test_surge_rounds_up_and_unavailability_down(surge: int | str, unavailable: int | str, limits: Limits) -> None:
    rolling = {"maxSurge": surge, "maxUnavailable": unavailable}
    spec = {"replicas": 5, "rollout": {"strategy": {"type": "RollingUpdate", "rollingUpdate": rolling}}}
    assert limits_of(spec) == limits


def test_a_machine_above_the_ceiling_is_detected(events: EventSequence) -> None:
    events.size("s", 9)
    events.machines("1", "2", "3", "4")
    with pytest.raises(AssertionError, match="number 5, the limit is 4"):
        events.machines("5")


def test_more_machines_than_replicas_of_the_set_are_detected(events: EventSequence) -> None:
    events.machines("1", "2")
    events.size("s", 2)
    events.now = 1
    with pytest.raises(AssertionError, match="number 3 of a MachineSet of 2"):
        events.machines("3")


def test_machines_in_flight_may_arrive_after_a_set_shrank(events: EventSequence) -> None:
    events.machines("1", "2")
    events.size("s", 2)
    events.now = 0.1
    events.machines("3")


def test_previous_limits_hold_until_an_edit_is_observed(events: EventSequence) -> None:
    events.size("s", 9)
    events.deploy(2, replicas=1)
    events.now = 60
    events.machines("1", "2", "3")
    events.deploy(2, replicas=1, seen=2)
    events.now = 61
    with pytest.raises(AssertionError, match="number 4, the limit is 2"):
        events.machines("4")


def test_deleting_an_available_machine_below_the_minimum_is_detected(events: EventSequence) -> None:
    events.machines("1", "2", "3")
    with pytest.raises(AssertionError, match="2 are left, the minimum is 3"):
        events.machines("1", deletionTimestamp="now")


@pytest.mark.parametrize(
    "why", ["enough others exist", "the user deletes it", "it is unhealthy", "it is not available"]
)
def test_a_machine_may_be_deleted_if(events: EventSequence, why: str) -> None:
    events.machines("1", "2", "3")
    match why:
        case "enough others exist":
            events.machines("4")
        case "the user deletes it":
            events.invariants.deleted_by_user.add("1")
        case "it is unhealthy":
            unhealthy = {"type": "HealthCheckSucceeded", "status": "False"}
            events.machines("1", status={"conditions": [*AVAILABLE["conditions"], unhealthy]})
        case "it is not available":
            events.machines("1", status={})
    events.machines("1", status={}, deletionTimestamp="now")


@pytest.mark.parametrize(("seconds", "detected"), [(0.1, False), (10.0, True)])
def test_deletions_by_users_count_once_the_manager_knows_them(
    events: EventSequence, seconds: float, detected: bool
) -> None:
    events.machines("1", "2", "3", "4")
    events.invariants.deleted_by_user.add("1")
    events.machines("1", deletionTimestamp="now")
    events.now = seconds
    if detected:
        with pytest.raises(AssertionError, match="2 are left, the minimum is 3"):
            events.machines("2", deletionTimestamp="now")
    else:
        events.machines("2", deletionTimestamp="now")


def test_two_sets_for_one_template_are_detected(events: EventSequence) -> None:
    events.size("t", 1, template="second")
    with pytest.raises(AssertionError, match="two MachineSets for one template"):
        events.size("u", 1, template="second")


def test_a_machine_created_in_a_deleting_cluster_is_detected(events: EventSequence) -> None:
    events.send(CLUSTER, "c", {}, deletionTimestamp="now")
    events.now = 10
    with pytest.raises(AssertionError, match="created in a Cluster that is being deleted"):
        events.machines("1")


def test_changes_of_a_paused_cluster_are_detected_except_in_status(events: EventSequence) -> None:
    events.machines("1", status={})
    events.send(CLUSTER, "c", {"paused": True})
    events.now = 10
    events.machines("1")
    with pytest.raises(AssertionError, match="MachineSet s changes while its Cluster is paused"):
        events.size("s", 3)


def test_objects_without_a_machine_are_detected(events: EventSequence) -> None:
    events.machines("1")
    events.send(IN_MEMORY_MACHINE, "one", {}, owner="1")
    with pytest.raises(AssertionError, match="has no owner"):
        events.send(IN_MEMORY_MACHINE, "two", {}, owner="2")
