"""The check that every status field has one writer finds a second one."""

from __future__ import annotations

from tests.support.checks.status_writers import SHARED, StatusWriters, fields


def test_a_second_writer_is_found() -> None:
    writers = StatusWriters()
    for manager in ("planner", "machine"):
        writers.check("Machine", "cluster.x-k8s.io", "phase", manager)
    assert writers.conflicts == ["status of Machine.cluster.x-k8s.io: phase is written by machine, planner"]


def test_fields_that_a_contract_shares_are_accepted() -> None:
    writers = StatusWriters()
    for (kind, condition), managers in SHARED.items():
        for manager in managers:
            writers.check(kind, "cluster.x-k8s.io", f"conditions {condition}", manager)
    assert writers.conflicts == []
    writers.check("Machine", "cluster.x-k8s.io", "conditions Reconciled", "machine")
    assert len(writers.conflicts) == 1


def test_conditions_are_fields_of_their_own() -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"phase": "Running", "initialization": {"provisioned": True}, "conditions": [ready]}
    assert dict(fields({"status": status})) == {
        "phase": "Running",
        "initialization.provisioned": True,
        "conditions Ready": {"type": "Ready", "status": "True"},
    }
