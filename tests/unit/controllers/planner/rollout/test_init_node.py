"""Election of the init node: one machine, and a successor only where that is safe."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.rke import names
from herder.controllers.planner.rollout.init_node import LOST, NO_CANDIDATE, elect
from herder.controllers.planner.rollout.machines import PlanEntry
from tests.support.builders import new_condition
from tests.unit.controllers.planner.objects import ALL, ETCD, PLANE, WORKER, entry

URL = "https://10.0.0.1:6443"
LOST_NODE = {"conditions": [new_condition("NodeReady", "Unknown", "NodeReadyUnknown")]}


def deleting_member(name: str, host: str, **changes: Any) -> PlanEntry:
    """A deleting machine whose etcd member has not been removed yet."""
    found = entry(name, ALL, join_url=f"https://10.0.0.{host}:6443", deleting=True, **changes)
    found.machine["metadata"]["annotations"] = {names.ETCD_HOOK: names.ETCD_HOOK_OWNER}
    return found


def election_outcome(
    *entries: PlanEntry, designated: str = "", established: bool = False
) -> list[tuple[str, str | None]] | str:
    """The labels that change, by machine; without a change, the name of the init node, or why there is none."""
    election = elect(entries, designated, established=established)
    if election.writes:
        return [
            (write.ref.name.removesuffix("-machine-plan"), write.patch["metadata"]["labels"][names.INIT_NODE])
            for write in election.writes
        ]
    return election.init.name if election.init else election.waiting


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([entry("b", ALL), entry("a", ALL)], [("a", "true")]),
        ([entry("a", ALL, ready=False), entry("b", ALL)], [("b", "true")]),
        ([entry("a", ALL, deleting=True), entry("b", ALL)], [("b", "true")]),
        ([entry("a", ALL, status={"phase": "Failed"}), entry("b", ALL)], [("b", "true")]),
        ([entry("a", (PLANE, WORKER)), entry("b", (ETCD,))], [("b", "true")]),
        ([entry("a", ALL, ready=False)], NO_CANDIDATE),
        ([entry("a", (WORKER,))], NO_CANDIDATE),
        ([entry("a", ALL), entry("b", ALL, init=True)], "b"),
        ([entry("a", ALL, init=True), entry("b", ALL, init=True)], [("b", None)]),
        ([entry("a", ALL, init=True, deleting=True), entry("b", ALL)], [("a", None)]),
    ],
    ids=[
        "the first by name",
        "its infrastructure is ready",
        "it is not being deleted",
        "it has not failed",
        "it has the etcd role",
        "no candidate yet",
        "no etcd machine",
        "an init node stays",
        "never two init nodes",
        "a deleting machine before bootstrap",
    ],
)
def test_election_before_the_cluster_is_established(entries: list[PlanEntry], expected: object) -> None:
    assert election_outcome(*entries) == expected


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([entry("a", ALL, init=True, join_url=URL), entry("b", ALL, join_url="https://10.0.0.2:6443")], "a"),
        ([entry("a", ALL, init=True), entry("b", ALL, join_url=URL)], [("a", None)]),
        ([entry("a", ALL), entry("b", ALL, join_url=URL)], [("b", "true")]),
        ([entry("a", ALL, init=True, join_url=URL, deleting=True), entry("b", ALL)], "a"),
        (
            [
                entry("a", ALL, init=True, join_url=URL, deleting=True),
                entry("b", ALL, join_url="https://10.0.0.2:6443"),
            ],
            [("a", None)],
        ),
        ([deleting_member("a", "1"), deleting_member("b", "2"), entry("c", ALL)], [("a", "true")]),
        (
            [deleting_member("a", "1", init=True, status=LOST_NODE), deleting_member("b", "2"), entry("c", ALL)],
            [("a", None)],
        ),
        ([deleting_member("a", "1", status=LOST_NODE), deleting_member("b", "2"), entry("c", ALL)], [("b", "true")]),
        ([entry("a", ALL, join_url=URL, deleting=True), entry("b", ALL)], LOST),
        ([entry("b", ALL)], LOST),
        ([entry("b", ALL, ready=False)], NO_CANDIDATE),
    ],
    ids=[
        "an init node stays",
        "a machine that can be joined is preferred",
        "it is elected",
        "a deleting init node stays until another machine has joined it",
        "and no longer",
        "a deleting machine is elected if no other remains",
        "a lost deleting machine yields to a deleting one",
        "a lost deleting machine is not elected before a deleting one",
        "a machine whose member has been removed is not elected",
        "no new cluster is started",
        "no candidate yet",
    ],
)
def test_election_in_an_established_cluster(entries: list[PlanEntry], expected: object) -> None:
    assert election_outcome(*entries, established=True) == expected


def test_the_owner_of_a_cluster_may_designate_the_init_node() -> None:
    designated_machine = entry("b", ALL, labels={names.MACHINE_ID: "id-b"})
    assert election_outcome(entry("a", ALL, init=True), designated_machine, designated="id-b") == [("a", None)]
    assert election_outcome(entry("a", ALL), designated_machine, designated="id-b") == [("b", "true")]
    outcome = election_outcome(entry("a", ALL), designated="id-b")
    assert outcome == "unable to find designated init node matching machine ID id-b"
    duplicate = entry("c", ALL, labels={names.MACHINE_ID: "id-b"})
    assert str(election_outcome(designated_machine, duplicate, designated="id-b")).startswith("multiple machines found")
