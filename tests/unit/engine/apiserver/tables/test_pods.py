"""The status column of pods."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from herder.engine.apiserver.tables import printer_for
from herder.engine.meta.kinds import GroupKind

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
RUNNING = {"ready": True, "state": {"running": {}}}
DONE = {"state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}


def row(status: dict[str, Any], **pod: Any) -> list[Any]:
    printer = printer_for(GroupKind("", "Pod"))
    assert printer is not None
    spec = pod.get("spec") or {"containers": [{"name": "a"}]}
    return printer.row({"metadata": {"name": "p", **pod.get("metadata", {})}, "spec": spec, "status": status}, NOW)


def status_cell(status: dict[str, Any], **pod: Any) -> str:
    return str(row(status, **pod)[2])


def init(*containers: dict[str, Any], **status: Any) -> dict[str, Any]:
    return {"phase": "Pending", "initContainerStatuses": list(containers), **status}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"phase": "Pending"}, "Pending"),
        ({"phase": "Failed", "reason": "Evicted"}, "Evicted"),
        (
            {"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}]},
            "SchedulingGated",
        ),
        ({"phase": "Running", "containerStatuses": [RUNNING]}, "Running"),
        (
            {"phase": "Running", "containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]},
            "CrashLoopBackOff",
        ),
        ({"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 3}}}]}, "ExitCode:3"),
        ({"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"signal": 9}}}]}, "Signal:9"),
        ({"phase": "Running", "containerStatuses": [DONE, RUNNING]}, "NotReady"),
        (
            {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [DONE, RUNNING],
            },
            "Running",
        ),
        (
            {
                "phase": "Running",
                "containerStatuses": [DONE, {"state": {"terminated": {"exitCode": 1, "reason": "Error"}}}],
            },
            "Error",
        ),
        (init({"name": "i", "state": {"running": {}}}), "Init:0/0"),
        (init({"name": "i", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}), "Init:Error"),
        (init({"name": "i", "state": {"waiting": {"reason": "ImagePullBackOff"}}}), "Init:ImagePullBackOff"),
        (init({"name": "i", "state": {"waiting": {"reason": "PodInitializing"}}}), "Init:0/0"),
    ],
)
def test_the_status_shows_why_a_pod_is_not_running(status: dict[str, Any], expected: str) -> None:
    assert status_cell(status) == expected


def test_a_deleted_pod_is_terminating() -> None:
    deleting = {"deletionTimestamp": "2026-01-01T11:00:00Z"}
    assert status_cell({"phase": "Running"}, metadata=deleting) == "Terminating"
    assert status_cell({"phase": "Succeeded"}, metadata=deleting) == "Succeeded"
    assert status_cell({"phase": "Running", "reason": "NodeLost"}, metadata=deleting) == "Unknown"


def test_restarts_include_the_age_of_the_last_one() -> None:
    container = {**RUNNING, "restartCount": 2, "lastState": {"terminated": {"finishedAt": "2026-01-01T11:00:00Z"}}}
    assert row({"phase": "Running", "containerStatuses": [container]})[3] == "2 (60m ago)"


def test_restarts_of_finished_init_containers_are_not_counted() -> None:
    before = {"name": "i", "restartCount": 5, "state": {"terminated": {"exitCode": 0}}}
    status = {"phase": "Running", "initContainerStatuses": [before], "containerStatuses": [RUNNING]}
    assert row(status)[3] == "0"


def test_sidecars_count_as_containers() -> None:
    spec = {"containers": [{"name": "a"}], "initContainers": [{"name": "s", "restartPolicy": "Always"}]}
    status = {
        "phase": "Running",
        "initContainerStatuses": [{"name": "s", "started": True, "ready": True, "restartCount": 1, "state": {}}],
        "containerStatuses": [RUNNING],
    }
    assert row(status, spec=spec)[1:4] == ["2/2", "Running", "1"]
