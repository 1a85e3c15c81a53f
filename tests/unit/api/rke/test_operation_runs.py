"""Runs of operations: requests in specs, skipped workers, and restores that have ended."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from herder.api.rke import operations
from herder.api.rke.node.plan import Instruction, Plan, file
from herder.api.rke.operations import Run
from herder.engine.meta.kinds import Object
from tests.support.views import NOW

RUN = Run("restore-1", operations.RESTORE, "Shutdown", 1, NOW)


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "kind", "expected"),
    [
        ({}, operations.SNAPSHOT, {}),
        ({operations.SNAPSHOT: None}, operations.SNAPSHOT, {}),
        ({operations.SNAPSHOT: {"generation": 2}}, operations.SNAPSHOT, {"generation": 2}),
        ({operations.SNAPSHOT: {"generation": 2}}, operations.RESTORE, {}),
        ({operations.AGENTS: 3}, operations.AGENTS, {"generation": 3}),
        ({operations.AGENTS: 0}, operations.AGENTS, {}),
    ],
)
def test_requests_of_a_control_plane(fields: Object, kind: str, expected: Object) -> None:
    assert operations.request_in(fields, kind) == expected


def test_requests_of_a_cluster_are_where_they_are_set() -> None:
    for kind in operations.KINDS:
        cluster: Object = {"spec": {"rkeConfig": {}}}
        assert operations.request_of_cluster(cluster, kind) == {}
        operations.set_request(cluster, kind, {"generation": 5})
        marked = {"caCertificates": True} if kind == operations.AUTHORITIES else {}
        assert operations.request_of_cluster(cluster, kind) == {"generation": 5, **marked}
        stored = {operations.field_of(kind): {"generation": 5, **marked}}
        expected = {"rkeConfig": {}, kind: 5} if kind == operations.AGENTS else {"rkeConfig": stored}
        assert cluster["spec"] == expected
        for missing in (None, {}, {"spec": None}, {"spec": {"rkeConfig": None}}):
            assert operations.request_of_cluster(missing, kind) == {}


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("skipped", "names"),
    [
        (["a"], "a"),
        (["a", "b", "c"], "a, b, c"),
        (["a", "b", "c", "d"], "a, b, c and 1 more"),
        (["a", "b", "c", "d", "e"], "a, b, c and 2 more"),
    ],
)
def test_skipped_workers_are_named(skipped: list[str], names: str) -> None:
    advice = "no response, or failed; request it again once they respond"
    assert replace(RUN, skipped=skipped).skipped_message == f"skipped worker(s) {names}: {advice}"
    assert RUN.skipped_message == ""


@pytest.mark.parametrize(
    ("mark", "own"),
    [
        ("restore-1/Shutdown/1", True),
        ("restore-1/Shutdown/7", True),
        ("restore-1/Restore/1", False),
        ("restore-2/Shutdown/1", False),
        ("restore-1/Shutdown", False),
        ("", False),
    ],
)
def test_marks_of_a_phase(mark: str, own: bool) -> None:
    assert RUN.is_own_phase(mark) is own


def test_background_runs() -> None:
    background = {kind for kind in operations.TITLES if replace(RUN, kind=kind).is_in_background}
    assert background == {operations.SCHEDULED_SNAPSHOT, operations.DELETION}


def test_the_next_phase_begins_now() -> None:
    retried = replace(
        RUN,
        attempt=3,
        retry_at=NOW,
        retry_reason="x",
        timings={"Started": 5},
        phase_started_at=NOW - timedelta(seconds=9),
    )
    deadline = NOW + timedelta(minutes=1)
    following = retried.at("Restore", NOW, deadline, message="why")
    assert (following.phase, following.deadline, following.phase_started_at) == ("Restore", deadline, NOW)
    assert (following.attempt, following.retry_at, following.retry_reason, following.message) == (1, None, "", "why")
    assert following.timings == {"Started": 5, "Shutdown": 9}
    assert RUN.at("Restore", NOW, None).timings == {"Shutdown": 0}
    earlier = replace(RUN, phase_started_at=NOW + timedelta(seconds=9))
    assert earlier.at("Restore", NOW, None).timings == {"Shutdown": 0}, "clocks differ"


# --- restores ---------------------------------------------------------------------------------------------------------


def plane(*runs: Object, operation: Object | None = None) -> Object:
    return {"status": {"operationHistory": [*runs], "operation": operation}}


def ended(**fields: Any) -> Object:
    timings = {"Started": 1, "Shutdown": 2, operations.REJOIN_PHASE: 3}
    found = {"kind": operations.RESTORE, "phase": operations.FAILED, "endedAt": "2026-01-01T00:00:00Z"}
    return {**found, "timings": timings, **fields}


@pytest.mark.parametrize(
    ("runs", "end"),
    [
        ([], None),
        ([ended()], "2026-01-01T00:00:00"),
        ([ended(), ended(endedAt="2026-01-02T00:00:00Z")], "2026-01-02T00:00:00"),
        ([ended(), ended(endedAt="2026-01-02T00:00:00Z", timings={"Started": 1})], "2026-01-01T00:00:00"),
        ([ended(timings=None)], None),
        ([ended(kind=operations.SNAPSHOT)], None),
        ([ended(endedAt=None)], None),
    ],
)
def test_the_last_restore_that_stopped_servers(runs: list[Object], end: str | None) -> None:
    found = operations.last_restore_end(plane(*runs))
    assert (found.replace(tzinfo=None).isoformat() if found else None) == end
    for missing in (None, {}, {"status": None}, {"status": {"operationHistory": None}}):
        assert operations.last_restore_end(missing) is None


@pytest.mark.parametrize(
    ("runs", "index"),
    [
        ([], None),
        ([ended()], 0),
        ([ended(), ended(kind=operations.SNAPSHOT)], 0),
        ([ended(), ended(phase=operations.FINISHED)], None),
        ([ended(phase=operations.FINISHED), ended()], 1),
        ([ended(timings={"Shutdown": 1})], None),
        ([ended(timings=None)], None),
        ([ended(), ended(timings={"Started": 1})], 0),
    ],
)
def test_restores_that_may_have_left_servers_stopped(runs: list[Object], index: int | None) -> None:
    found = operations.unfinished_restore({"operationHistory": runs})
    assert found == (None if index is None else runs[index])
    assert operations.unfinished_restore({}) is None


def test_whether_a_restore_runs() -> None:
    assert operations.is_restoring(plane(operation=RUN.to_status()))
    for run in (replace(RUN, phase=operations.FAILED), replace(RUN, kind=operations.SNAPSHOT)):
        assert not operations.is_restoring(plane(operation=run.to_status()))
    assert not operations.is_restoring(None)


# --- plans ------------------------------------------------------------------------------------------------------------


def test_plans_without_their_tasks() -> None:
    own = file("/etc/config", "x")
    task_files = tuple(file(f"/var{end}", "x") for end in (operations.SNAPSHOT_METADATA, operations.RESERVED_NAMES))
    install = Instruction(name="install", command="sh")
    for name in operations.TASK_INSTRUCTIONS:
        plan = Plan(files=(own, *task_files), instructions=(install, Instruction(name=name, command="sh")))
        assert operations.without_tasks(plan) == Plan(files=(own,), instructions=(install,))
        assert operations.task_instructions(plan) == {name}
    assert operations.task_instructions(None) == set()
    assert operations.task_instructions(Plan(instructions=(install,))) == set()


# --- storage ----------------------------------------------------------------------------------------------------------

FULL = Run(
    id="restore-1",
    kind=operations.RESTORE,
    phase="Shutdown",
    generation=2,
    started_at=NOW,
    deadline=NOW + timedelta(minutes=1),
    attempt=3,
    leader="a",
    message="why it failed",
    retry_at=NOW + timedelta(minutes=2),
    retry_reason="why again",
    phase_started_at=NOW + timedelta(minutes=3),
    timings={"Started": 4},
    inverse={"message": "how to undo it"},
    skipped=("b", "c"),
)
STORED: Object = {
    "id": "restore-1",
    "kind": "etcdSnapshotRestore",
    "phase": "Shutdown",
    "generation": 2,
    "attempt": 3,
    "leader": "a",
    "startedAt": "2026-01-01T12:00:00Z",
    "deadline": "2026-01-01T12:01:00Z",
    "message": "why it failed",
    "retryAt": "2026-01-01T12:02:00Z",
    "retryReason": "why again",
    "phaseStartedAt": "2026-01-01T12:03:00Z",
    "timings": {"Started": 4},
    "inverse": {"message": "how to undo it"},
    "skipped": ["b", "c"],
}


def test_all_fields_of_a_run_are_stored() -> None:
    assert FULL.to_status() == STORED
    assert Run.of(plane(operation=STORED)) == FULL


def test_fields_without_a_value_are_not_stored() -> None:
    required = {name: STORED[name] for name in ("id", "kind", "phase", "startedAt")}
    assert RUN.to_status() == {**required, "generation": 1, "attempt": 1}
    assert Run.of(plane(operation={**required, "generation": 1})) == replace(RUN, timings={}, skipped=())
    for optional in sorted(set(STORED) - set(required)):
        expected = {name: value for name, value in STORED.items() if name != optional}
        found = Run.of(plane(operation=expected))
        assert found is not None
        kept = {"generation": 0, "attempt": 1}.items() if optional in ("generation", "attempt") else {}.items()
        assert found.to_status() == {**expected, **{name: value for name, value in kept if name == optional}}
    bare = Run.of(plane(operation={"startedAt": STORED["startedAt"]}))
    assert bare is not None
    assert (bare.id, bare.kind, bare.phase, bare.leader, bare.message, bare.retry_reason) == ("",) * 6


@pytest.mark.parametrize("stored", [None, {}, {"id": "x"}, {"startedAt": "no time"}, {"startedAt": ""}])
def test_without_a_start_there_is_no_run(stored: Object | None) -> None:
    assert Run.of(plane(operation=stored)) is None


@pytest.mark.parametrize("value", [-1, "3", None, 2**63, 1.5])
def test_numbers_of_a_run_that_make_no_sense(value: Any) -> None:
    found = Run.of(plane(operation={**STORED, "generation": value, "attempt": value, "timings": {"Started": value}}))
    assert found is not None
    assert (found.generation, found.attempt, found.timings) == (0, 1, {"Started": 0})
