"""Stored runs of operations, their phases, and what each phase may do that an ordinary plan may not."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from herder.api.rke import names, operations
from herder.api.rke.node.plan import Instruction, Plan, file
from herder.api.rke.node.plan_secret import PlanSecret
from herder.api.rke.operations import NO_PERMISSION, PERMISSIONS, Permission, Run, suspension

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
RUN = Run("restore-1", "etcdSnapshotRestore", "Restore", 3, NOW)
STORED = {
    "id": "restore-1",
    "kind": "etcdSnapshotRestore",
    "phase": "Restore",
    "generation": 3,
    "attempt": 2,
    "leader": "a",
    "startedAt": "2026-01-01T12:00:00Z",
    "deadline": "2026-01-01T12:30:00Z",
    "message": "disk full",
    "phaseStartedAt": "2026-01-01T12:01:00Z",
    "timings": {"Started": 60},
    "inverse": {"kind": "etcdSnapshotRestore", "name": "old"},
}
FULL = Run(
    "restore-1",
    "etcdSnapshotRestore",
    "Restore",
    3,
    NOW,
    deadline=NOW + timedelta(minutes=30),
    attempt=2,
    leader="a",
    message="disk full",
    phase_started_at=NOW + timedelta(minutes=1),
    timings={"Started": 60},
    inverse={"kind": "etcdSnapshotRestore", "name": "old"},
)

# --- tables -----------------------------------------------------------------------------------------------------------

Row = tuple[str, str, set[str], str]
"""Kind, phase, instructions, and exceptions: q(uorum does not count), b(egins a cluster), l(owers the version)."""
SAVE, RESTART = {"etcd-snapshot-save"}, {"restart-services"}
ROWS: list[Row] = [
    ("etcdSnapshotCreate", "Started", SAVE, ""),
    ("etcdSnapshotCreate", "RestartCluster", set(), ""),
    ("etcdSnapshotSchedule", "Started", SAVE, ""),
    ("etcdSnapshotSchedule", "RestartCluster", set(), ""),
    ("etcdSnapshotDelete", "Delete", {"etcd-snapshot-delete"}, ""),
    ("etcdSnapshotDelete", "RestartCluster", set(), ""),
    ("snapshotBeforeUpgrade", "Started", SAVE, ""),
    ("snapshotBeforeUpgrade", "RestartCluster", set(), ""),
    ("etcdSnapshotRestore", "Started", {"etcd-snapshot-check"}, ""),
    ("etcdSnapshotRestore", "Snapshot", SAVE, ""),
    ("etcdSnapshotRestore", "Shutdown", {"stop-services"}, "q"),
    ("etcdSnapshotRestore", "Restore", {"etcd-snapshot-restore"}, "qbl"),
    (
        "etcdSnapshotRestore",
        "InitialRestartCluster",
        {"etcd-snapshot-restore-commit", "drop-etcd-data", "delete-stale-nodes"},
        "qbl",
    ),
    ("etcdSnapshotRestore", "PostRestoreNodeCleanup", {"delete-stale-nodes"}, ""),
    ("etcdSnapshotRestore", "Abort", {"etcd-snapshot-restore-undo", "start-services", "drop-etcd-data"}, "q"),
    ("etcdSnapshotRestore", "RestartCluster", set(), ""),
    ("rotateCertificates", "Rotate", {"rotate-certificates", *RESTART}, ""),
    ("rotateCertificates", "RestartCluster", set(), ""),
    ("rotateCertificateAuthorities", "Prepare", {"prepare-certificate-authorities"}, ""),
    ("rotateCertificateAuthorities", "Snapshot", SAVE, ""),
    ("rotateCertificateAuthorities", "Replace", {"rotate-certificate-authorities"}, ""),
    (
        "rotateCertificateAuthorities",
        "Rotate",
        {"rotate-certificates", "report-certificate-authorities", *RESTART},
        "",
    ),
    ("rotateCertificateAuthorities", "Abort", {"discard-certificate-authorities"}, ""),
    ("rotateCertificateAuthorities", "RestartCluster", set(), ""),
    ("rotateEncryptionKeys", "Prepare", {"secrets-encrypt", *RESTART}, ""),
    ("rotateEncryptionKeys", "PostPrepareRestart", RESTART, ""),
    ("rotateEncryptionKeys", "Rotate", {"secrets-encrypt"}, ""),
    ("rotateEncryptionKeys", "PostRotateRestart", RESTART, ""),
    ("rotateEncryptionKeys", "Reencrypt", {"secrets-encrypt"}, ""),
    ("rotateEncryptionKeys", "PostReencryptRestart", RESTART, ""),
    ("rotateEncryptionKeys", "RestartCluster", set(), ""),
    ("redeploySystemAgentGeneration", "Servers", {"redeploy-node-agent"}, ""),
    ("redeploySystemAgentGeneration", "Workers", {"redeploy-node-agent"}, ""),
    ("redeploySystemAgentGeneration", "RestartCluster", set(), ""),
]


def test_each_phase_may_do_only_what_this_table_says() -> None:
    expected = {
        (kind, phase): Permission(frozenset(instructions), "q" in exceptions, "b" in exceptions, "l" in exceptions)
        for kind, phase, instructions, exceptions in ROWS
    }
    assert expected == PERMISSIONS
    assert list(expected) == list(PERMISSIONS), "in the order of the phases"
    nothing = Permission(frozenset(), stops_all_servers=False, begins_cluster=False, lowers_version=False)
    assert nothing == NO_PERMISSION == Permission(frozenset())
    assert frozenset().union(*(row[2] for row in ROWS)) == operations.TASK_INSTRUCTIONS


def test_phases_of_a_run_that_succeeds_are_in_order() -> None:
    restore = "Started Snapshot Shutdown Restore InitialRestartCluster PostRestoreNodeCleanup RestartCluster"
    assert operations.phases_of("etcdSnapshotRestore") == restore.split()
    assert operations.phases_of("etcdSnapshotCreate") == ["Started", "RestartCluster"]
    assert operations.phases_of("") == []


def test_one_field_requests_both_rotations_of_certificates() -> None:
    both = (operations.CERTIFICATES, operations.AUTHORITIES)
    for request, kind in (({"generation": 2}, both[0]), ({"generation": 2, "caCertificates": True}, both[1])):
        cluster: dict[str, Any] = {"spec": {"rkeConfig": {}}}
        operations.set_request(cluster, kind, {"generation": 2})
        assert cluster["spec"]["rkeConfig"] == {"rotateCertificates": request}
        found = {each: operations.request_of_cluster(cluster, each) for each in both}
        assert found == {each: request if each == kind else {} for each in both}
        assert operations.stored_request(cluster["spec"]["rkeConfig"], kind) == {"rotateCertificates": request}
    off = {"rotateCertificates": {"generation": 1, "caCertificates": False}}
    assert operations.request_in(off, both[0]) == off["rotateCertificates"]
    assert operations.stored_request({}, both[1]) == operations.request_in({"rotateCertificates": None}, both[0]) == {}


def test_kinds_and_titles() -> None:
    requested = ("etcdSnapshotCreate", "etcdSnapshotRestore", "rotateCertificates", "rotateCertificateAuthorities")
    assert (*requested, "rotateEncryptionKeys", "redeploySystemAgentGeneration") == operations.KINDS
    assert operations.TITLES == {
        "etcdSnapshotCreate": "etcd snapshot",
        "snapshotBeforeUpgrade": "snapshot before the upgrade",
        "etcdSnapshotRestore": "etcd restore",
        "rotateCertificates": "certificate rotation",
        "rotateCertificateAuthorities": "CA rotation",
        "rotateEncryptionKeys": "encryption key rotation",
        "redeploySystemAgentGeneration": "redeployment of node agents",
        "etcdSnapshotSchedule": "scheduled etcd snapshot",
        "etcdSnapshotDelete": "deletion of etcd snapshots",
    }
    assert operations.ABORTED == "aborted on request"


SAVED = "the snapshots are saved, and machines get their plans back"
ABORTS: list[tuple[str, set[str], str]] = [
    ("etcdSnapshotCreate", {"Started"}, SAVED),
    ("snapshotBeforeUpgrade", {"Started"}, SAVED),
    (
        "etcdSnapshotRestore",
        {"Started", "Snapshot", "Shutdown"},
        "the data of the cluster is being replaced, or servers start again after a failure",
    ),
    ("rotateCertificates", {"Rotate"}, "all certificates are new, and machines get their plans back"),
    (
        "rotateCertificateAuthorities",
        {"Prepare", "Snapshot"},
        "the cluster has new certificate authorities; machines that lack them would be left behind",
    ),
    ("rotateEncryptionKeys", set(), "servers that do not all have the same keys could not read their Secrets"),
    (
        "redeploySystemAgentGeneration",
        {"Servers", "Workers"},
        "all agents are redeployed, and machines get their plans back",
    ),
    ("etcdSnapshotSchedule", {"Started"}, SAVED),
    ("etcdSnapshotDelete", {"Delete"}, "the files are deleted, and machines get their plans back"),
]


def test_only_phases_before_the_point_of_no_return_can_be_aborted() -> None:
    assert {kind: frozenset(phases) for kind, phases, _ in ABORTS} == operations.ABORTABLE
    assert {kind: reason for kind, _, reason in ABORTS} == operations.NO_RETURN
    phases = {phase for _, phase, *_ in ROWS}
    for kind, allowed, _ in ABORTS:
        assert {phase for phase in phases if operations.is_abortable(replace(RUN, kind=kind, phase=phase))} == allowed
        failed = [replace(RUN, kind=kind, phase=phase, message="it has failed") for phase in phases]
        assert not any(operations.is_abortable(run) for run in failed)
    assert not operations.is_abortable(replace(RUN, kind="unknown", phase="Started"))


# --- runs -------------------------------------------------------------------------------------------------------------


def control_plane(**changes: Any) -> dict[str, Any]:
    """A control plane with the stored run; a field that is None is removed."""
    stored = {name: value for name, value in {**STORED, **changes}.items() if value is not None}
    return {"status": {"operation": stored}}


def test_a_run_is_stored_and_read_without_a_loss() -> None:
    assert FULL.to_status() == STORED
    assert Run.of(control_plane()) == FULL


def test_a_run_of_few_fields_is_stored_and_read() -> None:
    status = {name: STORED[name] for name in ("id", "kind", "phase", "generation", "startedAt")}
    assert RUN.to_status() == {**status, "attempt": 1}
    assert Run.of({"status": {"operation": RUN.to_status()}}) == RUN
    first = Run.of({"status": {"operation": {"startedAt": "2026-01-01T12:00:00Z"}}})
    assert first == Run("", "", "", 0, NOW)
    assert replace(RUN, generation=0).to_status()["generation"] == 0


@pytest.mark.parametrize(
    "stored",
    [
        None,
        {},
        {"status": None},
        {"status": {}},
        {"status": {"operation": None}},
        {"status": {"operation": {"id": "a", "phase": "Started"}}},
        {"status": {"operation": {"id": "a", "startedAt": "yesterday"}}},
    ],
)
def test_without_a_start_there_is_no_run(stored: Any) -> None:
    assert Run.of(stored) is None
    assert operations.active_run(stored) is None


@pytest.mark.parametrize(
    ("value", "read"),
    [(0, 0), (7, 7), (-1, 0), ("7", 0), (2**63 - 1, 2**63 - 1), (2**63, 0), (1.5, 0)],
)
def test_numbers_of_a_status_are_checked(value: Any, read: int) -> None:
    found = Run.of(control_plane(generation=value, attempt=value, timings={"Started": value}))
    assert found is not None
    assert (found.generation, found.attempt, found.timings) == (read, read or 1, {"Started": read})


@pytest.mark.parametrize(
    ("phase", "active"),
    [("Started", True), ("Abort", True), ("Finished", False), ("Done", False), ("Failed", False), ("", True)],
)
def test_a_run_is_active_until_its_last_phase(phase: str, active: bool) -> None:
    assert operations.is_ended(phase) is not active
    assert replace(RUN, phase=phase).is_active is active
    found = operations.active_run(control_plane(phase=phase))
    assert found == (replace(FULL, phase=phase) if active else None)


def test_only_operations_of_the_manager_run_in_the_background() -> None:
    background = {kind for kind in operations.TITLES if replace(RUN, kind=kind).is_in_background}
    assert background == {"etcdSnapshotSchedule", "etcdSnapshotDelete"}


def test_a_mark_identifies_the_attempt_at_a_phase() -> None:
    assert RUN.mark == "restore-1/Restore/1"
    assert FULL.mark == "restore-1/Restore/2"
    assert RUN.is_own_phase(FULL.mark)
    assert not RUN.is_own_phase("restore-1/Shutdown/1")
    assert not RUN.is_own_phase("restore-2/Restore/1")
    assert not RUN.is_own_phase("restore-1/Restore")
    assert not RUN.is_own_phase("")


def test_the_next_phase_begins_now_and_records_the_last_one() -> None:
    later = NOW + timedelta(minutes=2, seconds=30)
    following = FULL.at("InitialRestartCluster", later, later + timedelta(minutes=1))
    assert following == replace(
        FULL,
        phase="InitialRestartCluster",
        deadline=later + timedelta(minutes=1),
        attempt=1,
        phase_started_at=later,
        timings={"Started": 60, "Restore": 90},
    )
    assert FULL.at("Failed", later, None, message="lost", attempt=2).message == "lost"
    assert FULL.at("Failed", later, None, attempt=2).attempt == 2
    assert RUN.at("Failed", later, None).timings == {"Restore": 0}, "its start is unknown"
    assert FULL.at("Failed", NOW, None).timings["Restore"] == 0, "the clock was set back"


# --- plans ------------------------------------------------------------------------------------------------------------


def instruction(name: str) -> Instruction:
    return Instruction(name=name, command="sh")


def test_plans_without_tasks() -> None:
    install, task = instruction("install"), instruction("etcd-snapshot-save")
    kept, metadata = file("/etc/config", "c"), file("/var/x/.snapshot-metadata.json", "m")
    plan = Plan(files=(kept, metadata), instructions=(install, task))
    assert operations.without_tasks(plan) == Plan(files=(kept,), instructions=(install,))
    assert operations.without_harmless_tasks(plan) == Plan(files=(kept, metadata), instructions=(install,))
    ordinary = Plan(files=(kept,), instructions=(install,))
    assert operations.without_tasks(ordinary) == operations.without_harmless_tasks(ordinary) == ordinary


@pytest.mark.parametrize("name", sorted(operations.TASK_INSTRUCTIONS))
def test_only_tasks_that_restart_nothing_are_harmless(name: str) -> None:
    plan = Plan(instructions=(instruction(name),))
    saves = {"etcd-snapshot-save", "etcd-snapshot-delete", "etcd-snapshot-check", "delete-stale-nodes"}
    harmless = {*saves, "secrets-encrypt", "redeploy-node-agent"}
    harmless |= {f"{verb}-certificate-authorities" for verb in ("prepare", "report", "discard")}
    assert operations.without_tasks(plan) == Plan()
    assert operations.without_harmless_tasks(plan) == (Plan() if name in harmless else plan)
    assert operations.task_instructions(plan) == {name}


def test_task_instructions_of_ordinary_plans() -> None:
    assert operations.task_instructions(None) == set()
    assert operations.task_instructions(Plan(instructions=(instruction("install"),))) == set()


@pytest.mark.parametrize(("kind", "phase", "instructions", "exceptions"), ROWS)
def test_only_the_plan_of_the_current_task_gets_the_permission(
    kind: str, phase: str, instructions: set[str], exceptions: str
) -> None:
    run = replace(RUN, kind=kind, phase=phase)
    plane = {"status": {"operation": run.to_status()}}
    expected = Permission(frozenset(instructions), "q" in exceptions, "b" in exceptions, "l" in exceptions)

    def permission(mark: str | None, stored: Any = plane) -> Permission:
        marks = {names.PLAN_TASK: mark} if mark is not None else {}
        return operations.permission_for(stored, PlanSecret({"metadata": {"name": "a", "annotations": marks}}))

    assert permission(run.mark) == expected
    others = ("", "another", replace(run, attempt=2).mark, replace(run, id="older").mark, None)
    assert all(permission(mark) == NO_PERMISSION for mark in others)
    assert permission(run.mark, None) == NO_PERMISSION
    ended = replace(run, phase="Failed")
    assert permission(ended.mark, {"status": {"operation": ended.to_status()}}) == NO_PERMISSION
    unknown = replace(run, phase="Unknown")
    assert permission(unknown.mark, {"status": {"operation": unknown.to_status()}}) == NO_PERMISSION


def test_names_of_tasks_and_phases_do_not_change() -> None:
    """Plans and runs with these names are stored."""
    assert (operations.SNAPSHOT, operations.RESTORE) == ("etcdSnapshotCreate", "etcdSnapshotRestore")
    assert (operations.CERTIFICATES, operations.ENCRYPTION_KEYS) == ("rotateCertificates", "rotateEncryptionKeys")
    assert (operations.SCHEDULED_SNAPSHOT, operations.DELETION) == ("etcdSnapshotSchedule", "etcdSnapshotDelete")
    assert operations.UPGRADE_SNAPSHOT == "snapshotBeforeUpgrade"
    assert (operations.ABORT_PHASE, operations.FINISHED, operations.DONE) == ("Abort", "Finished", "Done")
    assert (operations.FAILED, operations.SNAPSHOT_METADATA) == ("Failed", "/.snapshot-metadata.json")
    assert (operations.SAVE_SNAPSHOT, operations.DELETE_SNAPSHOTS) == ("etcd-snapshot-save", "etcd-snapshot-delete")
    assert (operations.ROTATE_CERTIFICATES, operations.RESTART_SERVICES) == ("rotate-certificates", "restart-services")
    assert (operations.ENCRYPT_SECRETS, operations.CHECK_SNAPSHOT) == ("secrets-encrypt", "etcd-snapshot-check")
    assert (operations.RESTORE_SNAPSHOT, operations.STOP_SERVICES) == ("etcd-snapshot-restore", "stop-services")
    assert (operations.START_SERVICES, operations.DROP_DATA) == ("start-services", "drop-etcd-data")
    assert (operations.DELETE_NODES, operations.UNDO_RESTORE) == ("delete-stale-nodes", "etcd-snapshot-restore-undo")
    assert operations.COMMIT_RESTORE == "etcd-snapshot-restore-commit"
    assert (operations.AGENTS, operations.REDEPLOY_AGENT) == ("redeploySystemAgentGeneration", "redeploy-node-agent")


def test_a_suspension_is_not_the_time_of_the_phase() -> None:
    begun, suspended, resumed = (NOW + timedelta(minutes=minutes) for minutes in (1, 3, 60))
    run = Run("id", operations.RESTORE, "Restore", 1, NOW, deadline=NOW, phase_started_at=begun)
    stopped = run.suspended(suspended)
    assert stopped.suspended(resumed) == stopped
    assert Run.of({"status": {"operation": stopped.to_status()}}) == stopped
    again = stopped.resumed(resumed)
    assert (again.suspended_at, again.resumed_at) == (None, resumed)
    assert Run.of({"status": {"operation": again.to_status()}}) == again
    assert again.at("Next", resumed + timedelta(minutes=1), None).timings == {"Restore": 3 * 60}
    assert run.resumed(resumed) == run


def test_only_an_operation_in_progress_is_suspended_and_only_once() -> None:
    run = Run("id", operations.RESTORE, "Restore", 1, NOW)
    stored = {"status": {"operation": run.to_status()}}
    assert suspension(stored, NOW) == {"operation": run.suspended(NOW).to_status()}
    for other in (run.suspended(NOW), run.at(operations.FAILED, NOW, None)):
        assert suspension({"status": {"operation": other.to_status()}}, NOW + timedelta(minutes=1)) == {}
    assert suspension({}, NOW) == {}


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        ([], "run-1"),
        ([{"phase": "Failed"}], "run-1"),  # refused before it began
        ([{"phase": "Failed", "timings": {"Started": 3, "RestartCluster": 1}}], "run-1"),
        ([{"phase": "Failed", "timings": {"Started": 3, "Shutdown": 5, "Abort": 4}}], None),  # others have joined
        ([{"phase": "Finished", "timings": {"Shutdown": 5, "InitialRestartCluster": 9}}], None),
        ([{"phase": "Failed", "timings": {"Shutdown": 5, "InitialRestartCluster": 9}}], "later-0"),
    ],
)
def test_a_restore_is_unfinished_until_another_one_has_stopped_servers(
    later: list[dict[str, Any]], expected: str | None
) -> None:
    timings = {"Shutdown": 5, "Restore": 7, "InitialRestartCluster": 9}
    first = {"id": "run-1", "kind": operations.RESTORE, "phase": "Failed", "timings": timings}
    others = [{"id": f"later-{number}", "kind": operations.RESTORE, **each} for number, each in enumerate(later)]
    found = operations.unfinished_restore({"operationHistory": [first, *others, {"kind": operations.SNAPSHOT}]})
    assert (found["id"] if found else None) == expected
