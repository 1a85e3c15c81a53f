"""The operation in progress, in `herder operations` and `herder describe`, and its estimated end."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.rke.operations import CERTIFICATES, RESTORE, SNAPSHOT
from herder.cli.operations.estimate import UNKNOWN, Estimate, estimate
from herder.cli.operations.requests import operation_line, progress_message
from tests.unit.cli.commands import herder
from tests.unit.cli.operations.cluster import NAMESPACE, Cluster
from tests.unit.cli.operations.objects import STARTED, control_plane, run


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("etcd restore: starting", ""),
        ("etcd restore: phase Shutdown", ""),
        ("etcd restore, phase Shutdown: waiting for machine(s) a:\n  stopping", "waiting for machine(s) a: stopping"),
        ("etcd restore: machine a: exit code 1", "machine a: exit code 1"),
    ],
)
def test_progress_is_shown_without_what_the_phase_says(message: str, shown: str) -> None:
    assert progress_message(control_plane(run(RESTORE, "Shutdown"), message)) == shown
    assert progress_message(control_plane(run(RESTORE, "Finished"), message)) == ""


def test_an_operation_in_one_line() -> None:
    now = datetime.fromisoformat(STARTED) + timedelta(minutes=5)
    assert operation_line(control_plane(), now) == ""
    active = control_plane(run(RESTORE, "Shutdown", attempt=2), "etcd restore, phase Shutdown: waiting for a")
    assert operation_line(active, now) == (
        "operation: etcd restore 1, phase Shutdown, attempt 2, 28%, started 5m ago: waiting for a"
    )
    failed = control_plane(run(CERTIFICATES, "Failed", 2, message="no\nluck"))
    assert operation_line(failed, now) == "last operation: certificate rotation 2, Failed, started 5m ago: no luck"


def test_the_operation_and_pending_requests_are_shown(cluster: Cluster) -> None:
    name = cluster.name
    nothing = herder("operations", name, **cluster.environment)
    assert (nothing.stdout, nothing.stderr) == ("", f"No operation of cluster {name} found\n")
    cluster.herder("rotate", "certificates", name, "--no-wait")
    deadline = (datetime.now(UTC) + timedelta(minutes=9)).strftime("%Y-%m-%dT%H:%M:%SZ")
    operation = run(RESTORE, "Shutdown", 3, attempt=2, leader="server-0", deadline=deadline)
    cluster.report(operation, "etcd restore, phase Shutdown: waiting for machine(s) server-1")
    header, first, second = cluster.herder("operations", name).splitlines()
    columns = ["OPERATION", "GENERATION", "PHASE", "PROGRESS", "ATTEMPT", "LEADER", "SINCE", "DEADLINE", "MESSAGE"]
    assert header.split() == columns
    assert first.split()[:7] == ["etcd", "restore", "3", "Shutdown", "28%", "2", "server-0"]
    assert first.endswith(f"{deadline}   waiting for machine(s) server-1")
    assert second.split() == ["certificate", "rotation", "1", "Pending"]
    assert json.loads(cluster.herder("operations", name, "-o", "json")) == {
        "operation": operation,
        "progress": {"percent": 28, "basis": "this cluster has no earlier run"},
        "waitingFor": "waiting for machine(s) server-1",
        "pending": [{"kind": CERTIFICATES, "generation": 1}],
    }


def test_the_rest_of_an_operation_is_estimated_from_earlier_runs() -> None:
    now = datetime.fromisoformat(STARTED) + timedelta(seconds=30)
    history = [
        {"kind": SNAPSHOT, "phase": "Finished", "timings": {"Started": seconds, "RestartCluster": 20}}
        for seconds in (60, 80, 100)
    ]
    others = [
        {"kind": SNAPSHOT, "phase": "Failed", "timings": {"Started": 900}},
        {"kind": RESTORE, "phase": "Finished"},
    ]
    active = run(SNAPSHOT, "Started", phaseStartedAt=STARTED)
    assert estimate(control_plane(active, operationHistory=others), now) == Estimate(0, None, UNKNOWN)
    found = estimate(control_plane(active, operationHistory=[*history, *others]), now)
    assert found == Estimate(30, 70, "from 3 earlier runs")
    assert str(found) == "30%, about 70s left (from 3 earlier runs)"
    late = estimate(control_plane(active, operationHistory=history), now + timedelta(hours=1))
    assert late == Estimate(80, 20, "from 3 earlier runs")
    assert estimate(control_plane(run(SNAPSHOT, "Finished"), operationHistory=history), now) is None
    assert estimate(control_plane(run(SNAPSHOT, "RestartCluster", message="failed")), now) is None


def test_describe_shows_the_operation(cluster: Cluster) -> None:
    reference = {"apiGroup": CONTROL_PLANE.group, "kind": CONTROL_PLANE.kind, "name": cluster.name}
    core = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "spec": {"controlPlaneRef": reference}}
    cluster.create(core | {"metadata": {"name": cluster.name, "namespace": NAMESPACE}})
    assert "operation" not in cluster.herder("describe", "cluster", cluster.name)
    cluster.report(run(SNAPSHOT, "Started"), "etcd snapshot, phase Started: waiting for machine(s) server-1")
    _, line, blank, *_ = cluster.herder("describe", "cluster", cluster.name).splitlines()
    assert line.startswith("operation: etcd snapshot 1, phase Started, 0%, started "), line
    assert line.endswith(" ago: waiting for machine(s) server-1")
    assert blank == ""
    data = json.loads(cluster.herder("describe", "cluster", cluster.name, "-o", "json"))
    assert data["operation"] == run(SNAPSHOT, "Started", attempt=1)
