"""Who begins a cluster: one machine, and another only where that is safe."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.rke import names
from herder.controllers.planner.rollout.init_node import LOST, NO_CANDIDATE, elect
from herder.controllers.planner.rollout.machines import PlanEntry
from tests.unit.controllers.planner.objects import ALL, ETCD, PLANE, WORKER, entry

URL = "https://10.0.0.1:6443"
SILENT = {"conditions": [{"type": "NodeReady", "status": "Unknown", "reason": "NodeReadyUnknown"}]}


def held(name: str, host: str, **changes: Any) -> PlanEntry:
    """It goes when its member has left."""
    found = entry(name, ALL, join_url=f"https://10.0.0.{host}:6443", deleting=True, **changes)
    found.machine["metadata"]["annotations"] = {names.ETCD_HOOK: names.ETCD_HOOK_OWNER}
    return found


def marks(*entries: PlanEntry, designated: str = "", established: bool = False) -> list[tuple[str, str | None]] | str:
    """The marks that change, by machine; who is in office, or why nobody is, where none does."""
    election = elect(entries, designated, established=established)
    if election.writes:
        return [
            (write.ref.name.removesuffix("-machine-plan"), write.patch["metadata"]["labels"][names.INIT_NODE])
            for write in election.writes
        ]
    return election.init.name if election.init else election.waiting


@pytest.mark.parametrize(
    ("entries", "decided"),
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
        "whose infrastructure is there",
        "who stays",
        "who has not failed",
        "who has etcd",
        "nobody yet",
        "nobody at all",
        "who is in office stays",
        "never two",
        "who goes before anything has begun",
    ],
)
def test_before_a_cluster_has_begun(entries: list[PlanEntry], decided: object) -> None:
    assert marks(*entries) == decided


@pytest.mark.parametrize(
    ("entries", "decided"),
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
        ([held("a", "1"), held("b", "2"), entry("c", ALL)], [("a", "true")]),
        ([held("a", "1", init=True, status=SILENT), held("b", "2"), entry("c", ALL)], [("a", None)]),
        ([held("a", "1", status=SILENT), held("b", "2"), entry("c", ALL)], [("b", "true")]),
        ([entry("a", ALL, join_url=URL, deleting=True), entry("b", ALL)], LOST),
        ([entry("b", ALL)], LOST),
        ([entry("b", ALL, ready=False)], NO_CANDIDATE),
    ],
    ids=[
        "who is in office stays",
        "who can be joined is better",
        "and is elected",
        "who goes stays until another has joined it",
        "and no longer",
        "who goes is elected where none stays",
        "who goes and is lost makes room for who goes",
        "who goes and is lost is not elected before who goes",
        "whose member has left is not elected",
        "nobody begins another cluster in its place",
        "nobody yet",
    ],
)
def test_once_a_cluster_has_begun(entries: list[PlanEntry], decided: object) -> None:
    assert marks(*entries, established=True) == decided


def test_the_cluster_s_owner_may_say_who() -> None:
    wanted = entry("b", ALL, labels={names.MACHINE_ID: "id-b"})
    assert marks(entry("a", ALL, init=True), wanted, designated="id-b") == [("a", None)]
    assert marks(entry("a", ALL), wanted, designated="id-b") == [("b", "true")]
    told = marks(entry("a", ALL), designated="id-b")
    assert told == "unable to find designated init node matching machine ID id-b"
    twin = entry("c", ALL, labels={names.MACHINE_ID: "id-b"})
    assert str(marks(wanted, twin, designated="id-b")).startswith("multiple machines found")
