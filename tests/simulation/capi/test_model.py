"""The account itself: a herd that breaks a rule is caught, one that does not is let be."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET
from herder.api.inmemory.kinds import IN_MEMORY_MACHINE
from herder.engine.meta.kinds import Kind, Object
from tests.simulation.capi.model import Account, Limits, limits_of

AVAILABLE = {"conditions": [{"type": "Available", "status": "True"}]}


class Herd:
    """Events as a server would send them: a deployment of three with a surge of one, and its MachineSet."""

    def __init__(self) -> None:
        self.now = 0.0
        self.account = Account(lambda: self.now)
        self.report_status(CLUSTER, "c", {})
        self.deploy(1, replicas=3)
        self.size("s", 4)

    def report_status(
        self, kind: Kind, name: str, spec: Object, *, owner: str = "", event: str = "MODIFIED", **more: Any
    ) -> None:
        status = more.pop("status", {})
        owners = [{"uid": owner, "controller": True}] if owner else []
        meta = {"name": name, "uid": name, "ownerReferences": owners, **more}
        self.account(kind, event, {"kind": kind.kind, "metadata": meta, "spec": spec, "status": status})

    def deploy(self, generation: int, *, replicas: int, seen: int = 0, surge: int = 1, unavailable: int = 0) -> None:
        rolling = {"maxSurge": surge, "maxUnavailable": unavailable}
        spec = {"replicas": replicas, "rollout": {"strategy": {"type": "RollingUpdate", "rollingUpdate": rolling}}}
        self.report_status(MACHINE_DEPLOYMENT, "d", spec, generation=generation, status={"observedGeneration": seen})

    def size(self, name: str, replicas: int, template: str = "first") -> None:
        spec = {"replicas": replicas, "template": {"spec": {"infrastructureRef": {"name": template}}}}
        self.report_status(MACHINE_SET, name, spec, owner="d")

    def machines(self, *names: str, status: Object | None = None, **more: Any) -> None:
        for name in names:
            self.report_status(MACHINE, name, {}, owner="s", status=status if status is not None else AVAILABLE, **more)


@pytest.fixture
def herd() -> Herd:
    return Herd()


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


def test_a_machine_above_the_ceiling_is_noticed(herd: Herd) -> None:
    herd.size("s", 9)
    herd.machines("1", "2", "3", "4")
    with pytest.raises(AssertionError, match="number 5, and 4 may be"):
        herd.machines("5")


def test_a_machine_more_than_its_set_wants_is_noticed(herd: Herd) -> None:
    herd.machines("1", "2")
    herd.size("s", 2)
    herd.now = 1
    with pytest.raises(AssertionError, match="number 3 of a MachineSet of 2"):
        herd.machines("3")


def test_what_was_on_its_way_before_a_set_shrank_may_arrive(herd: Herd) -> None:
    herd.machines("1", "2")
    herd.size("s", 2)
    herd.now = 0.1
    herd.machines("3")


def test_until_an_edit_is_seen_what_it_replaced_holds_too(herd: Herd) -> None:
    herd.size("s", 9)
    herd.deploy(2, replicas=1)
    herd.now = 60
    herd.machines("1", "2", "3")
    herd.deploy(2, replicas=1, seen=2)
    herd.now = 61
    with pytest.raises(AssertionError, match="number 4, and 2 may be"):
        herd.machines("4")


def test_giving_up_an_available_machine_below_the_minimum_is_noticed(herd: Herd) -> None:
    herd.machines("1", "2", "3")
    with pytest.raises(AssertionError, match="2 are left, and 3 must be"):
        herd.machines("1", deletionTimestamp="now")


@pytest.mark.parametrize("why", ["another is there", "a user asks for it", "it is condemned", "it is not available"])
def test_a_machine_may_go_when(herd: Herd, why: str) -> None:
    herd.machines("1", "2", "3")
    match why:
        case "another is there":
            herd.machines("4")
        case "a user asks for it":
            herd.account.asked_for.add("1")
        case "it is condemned":
            condemned = {"type": "HealthCheckSucceeded", "status": "False"}
            herd.machines("1", status={"conditions": [*AVAILABLE["conditions"], condemned]})
        case "it is not available":
            herd.machines("1", status={})
    herd.machines("1", status={}, deletionTimestamp="now")


@pytest.mark.parametrize(("seconds", "noticed"), [(0.1, False), (10.0, True)])
def test_a_users_deletion_counts_from_when_it_must_be_known(herd: Herd, seconds: float, noticed: bool) -> None:
    herd.machines("1", "2", "3", "4")
    herd.account.asked_for.add("1")
    herd.machines("1", deletionTimestamp="now")
    herd.now = seconds
    if noticed:
        with pytest.raises(AssertionError, match="2 are left, and 3 must be"):
            herd.machines("2", deletionTimestamp="now")
    else:
        herd.machines("2", deletionTimestamp="now")


def test_two_sets_for_one_template_are_noticed(herd: Herd) -> None:
    herd.size("t", 1, template="second")
    with pytest.raises(AssertionError, match="two MachineSets for one template"):
        herd.size("u", 1, template="second")


def test_a_machine_in_a_cluster_that_goes_is_noticed(herd: Herd) -> None:
    herd.report_status(CLUSTER, "c", {}, deletionTimestamp="now")
    herd.now = 10
    with pytest.raises(AssertionError, match="made in a Cluster that goes"):
        herd.machines("1")


def test_a_change_while_the_cluster_is_paused_is_noticed_unless_it_only_tells(herd: Herd) -> None:
    herd.machines("1", status={})
    herd.report_status(CLUSTER, "c", {"paused": True})
    herd.now = 10
    herd.machines("1")
    with pytest.raises(AssertionError, match="MachineSet s changes while its Cluster is paused"):
        herd.size("s", 3)


def test_objects_of_no_machine_are_noticed(herd: Herd) -> None:
    herd.machines("1")
    herd.report_status(IN_MEMORY_MACHINE, "one", {}, owner="1")
    with pytest.raises(AssertionError, match="is nobody's"):
        herd.report_status(IN_MEMORY_MACHINE, "two", {}, owner="2")
