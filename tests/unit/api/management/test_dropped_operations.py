"""Operations that were requested, or in progress, at the backup of the manager."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from herder.api.management.dropped_operations import DROPPED, dropped_status, pending_requests, replaced_requests
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke.operations import AGENTS, CERTIFICATES, KINDS, RESTORE, SNAPSHOT, Run, field_of, set_request
from herder.engine.patch.patches.merge_patch import apply_merge_patch
from tests.support.builders import new_object
from tests.support.views import NOW
from tests.unit.controllers.planner import objects

OLD, NEW = {"name": "old", "generation": 1, "restoreRKEConfig": "all"}, {"name": "new", "generation": 2}


def cluster(**requests: Any) -> Any:
    found = new_object(PROVISIONING_CLUSTER, "demo", "fleet-default", spec={"rkeConfig": {}})
    for kind, request in requests.items():
        set_request(found, kind, request)
    return found


def titles(given: Any, plane: Any) -> list[str]:
    return [each.title for each in pending_requests(given, plane)]


@pytest.mark.parametrize(
    ("requested", "copied", "status", "expected"),
    [
        ({}, {}, {}, []),
        ({RESTORE: NEW}, {RESTORE: NEW}, {RESTORE: NEW}, []),
        ({RESTORE: NEW}, {RESTORE: NEW}, {RESTORE: OLD}, ["etcd restore 2"]),
        ({RESTORE: NEW}, {}, {}, ["etcd restore 2"]),
        ({}, {RESTORE: NEW}, {}, ["etcd restore 2"]),
        ({RESTORE: NEW}, {RESTORE: OLD}, {RESTORE: OLD}, ["etcd restore 2"]),
        ({CERTIFICATES: {"generation": 3}}, {}, {"certificateRotationGeneration": 3}, []),
        ({AGENTS: {"generation": 3}}, {AGENTS: 3}, {AGENTS: 2}, ["redeployment of node agents 3"]),
        ({AGENTS: {"generation": 3}}, {AGENTS: 3}, {AGENTS: 3}, []),
    ],
    ids=[
        "none", "carried out", "pending", "not copied", "only copied", "older one carried out", "certificates",
        "agents", "agents are redeployed",
    ],
)  # fmt: skip
def test_pending_requests(requested: Any, copied: Any, status: Any, expected: list[str]) -> None:
    assert titles(cluster(**requested), objects.control_plane(status, **copied)) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_that_is_dropped_is_not_pending(kind: str) -> None:
    given, plane = cluster(**{kind: {"generation": 2}}), objects.control_plane({kind: 1 if kind == AGENTS else OLD})
    assert len(titles(given, plane)) == 1
    plane = apply_merge_patch(plane, {"status": dropped_status(given, plane, NOW)})
    assert titles(given, plane) == []
    assert plane["status"][field_of(kind)]["generation"] == 2 if kind != AGENTS else plane["status"][kind] == 2


def test_an_older_request_of_the_control_plane_is_replaced() -> None:
    """Without that, the planner would see it as new until the Cluster's is copied."""
    given, plane = cluster(**{RESTORE: NEW}), objects.control_plane({}, **{RESTORE: OLD})
    changes = {"spec": replaced_requests(given, plane), "status": dropped_status(given, plane, NOW)}
    plane = apply_merge_patch(plane, changes)
    assert plane["spec"][RESTORE] == plane["status"][RESTORE] == NEW
    assert plane["status"]["etcdSnapshotRestorePhase"] == "Failed"
    assert replaced_requests(given, plane) == {}


def test_the_operation_in_progress_ends_as_failed() -> None:
    run = Run("restore-1", RESTORE, "Restore", 1, NOW, deadline=NOW, leader="a", phase_started_at=NOW, retry_at=NOW)
    later = NOW + timedelta(hours=1)
    plane = objects.control_plane({"operation": run.suspended(NOW + timedelta(minutes=1)).to_status(), RESTORE: OLD})
    given = cluster(**{RESTORE: OLD, SNAPSHOT: {"generation": 4}})
    plane = apply_merge_patch(plane, {"status": dropped_status(given, plane, later)})
    ended = Run.of(plane)
    assert ended is not None
    assert (ended.phase, ended.message, ended.deadline, ended.retry_at) == ("Failed", DROPPED, None, None)
    assert ended.timings == {"Restore": 60}
    assert [each["id"] for each in plane["status"]["operationHistory"]] == ["restore-1"]
    assert plane["status"]["etcdSnapshotRestorePhase"] == plane["status"]["etcdSnapshotCreatePhase"] == "Failed"
    assert titles(given, plane) == []


def test_nothing_is_dropped_without_requests() -> None:
    assert dropped_status(cluster(), objects.control_plane({}), NOW) == {}
    assert titles(cluster(**{RESTORE: NEW}), None) == []
