"""`herder rollback`, which undoes the last change, and `herder operations abort`."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from herder.api.rke import names
from herder.api.rke.cluster_spec import encode_spec
from herder.api.rke.etcd import restore
from herder.api.rke.operations import ABORTED, CERTIFICATES, ENCRYPTION_KEYS, RESTORE, SCHEDULED_SNAPSHOT, SNAPSHOT
from herder.cli.operations.rollback import rollback_of
from tests.unit.cli.commands import Terminal
from tests.unit.cli.operations.cluster import CLUSTERS, NAMESPACE, Cluster
from tests.unit.cli.operations.objects import INVERSE, STARTED, UPGRADE, control_plane, run

LATER = "2026-01-01T13:00:00Z"


def later(kind: str, phase: str, generation: int = 1, **fields: Any) -> dict[str, Any]:
    return {**run(kind, phase, generation, **fields), "startedAt": LATER}


@pytest.mark.parametrize(
    ("plane", "undo"),
    [
        (None, "no operation and no change of the version is recorded"),
        (control_plane(run(SNAPSHOT, "Started", 3)), "the etcd snapshot 3 is in progress; wait for its end, or abort"),
        (control_plane(run(SNAPSHOT, "Finished")), "no operation and no change of the version is recorded"),
        (control_plane(run(RESTORE, "Finished", inverse=INVERSE)), "old none the etcd restore 1"),
        (control_plane(run(RESTORE, "Finished", inverse={"message": "it cannot be undone: x"})), "cannot be undone: x"),
        (control_plane(run(RESTORE, "Failed", message="no such file")), "etcd restore 1: no such file"),
        (control_plane(run(ENCRYPTION_KEYS, "Done", inverse={"message": "it cannot be undone"})), "cannot be undone"),
        (
            control_plane(run(SNAPSHOT, "Finished"), rollback=UPGRADE),
            "old kubernetesVersion the upgrade from v1.33.5+k3s1 to v1.34.1+k3s1",
        ),
        (
            control_plane(
                run(RESTORE, "Finished", inverse=INVERSE), rollback={**UPGRADE, "time": "2026-01-01T13:00:00Z"}
            ),
            "old kubernetesVersion the upgrade",
        ),
        # later operations that cannot be undone do not hide it
        (
            control_plane(later(CERTIFICATES, "Finished"), rollback={**UPGRADE, "time": STARTED}),
            "old kubernetesVersion the upgrade from v1.33.5+k3s1 to v1.34.1+k3s1",
        ),
        (
            control_plane(
                later(ENCRYPTION_KEYS, "Done", inverse={"message": "it cannot be undone"}),
                rollback={**UPGRADE, "time": STARTED},
            ),
            "old kubernetesVersion the upgrade",
        ),
        (
            control_plane(later(RESTORE, "Failed", message="no such file"), rollback={**UPGRADE, "time": STARTED}),
            "old kubernetesVersion the upgrade",
        ),
        (
            control_plane(
                later(SCHEDULED_SNAPSHOT, "Finished", 0),
                operationHistory=[run(RESTORE, "Finished", 4, inverse=INVERSE), later(CERTIFICATES, "Finished")],
            ),
            "old none the etcd restore 4",
        ),
        (
            control_plane(
                later(CERTIFICATES, "Finished"),
                rollback={**UPGRADE, "time": STARTED},
                operationHistory=[later(RESTORE, "Finished", 4, inverse={"message": "it cannot be undone: disk full"})],
            ),
            "etcd restore 4: it cannot be undone: disk full",
        ),
        (
            control_plane(
                operationHistory=[run(RESTORE, "Finished", 4, inverse=INVERSE)],
                rollback={**UPGRADE, "snapshot": "new", "time": LATER},
            ),
            "new kubernetesVersion the upgrade",
        ),
        (
            control_plane(rollback={"from": "v1", "to": "v2", "message": "no snapshot was taken"}),
            "the upgrade from v1 to v2 cannot be undone: no snapshot was taken",
        ),
    ],
)
def test_a_rollback_undoes_the_last_change(plane: Any, undo: str) -> None:
    found = rollback_of(plane)
    assert undo in (found if isinstance(found, str) else f"{found.snapshot} {found.mode} {found.change}")


def test_a_rollback_names_the_data_that_is_lost_and_requires_its_acceptance(cluster: Cluster) -> None:
    rollback = ("rollback", "cluster", cluster.name)
    assert "cannot be rolled back: no operation" in cluster.expect_failure(*rollback)
    encoded = encode_spec({"kubernetesVersion": UPGRADE["from"]})
    known = {"rollback": {**UPGRADE, "snapshot": f"{cluster.name}-old"}, "specHistory": [restore.digest(encoded)]}
    cluster.report(run(SNAPSHOT, "Finished"), **known)
    assert f'has no snapshot "{cluster.name}-old"' in cluster.expect_failure(*rollback)
    metadata = base64.b64encode(json.dumps({restore.SPEC_KEY: encoded}).encode()).decode()
    cluster.add_snapshot(f"{cluster.name}-old", createdAt=STARTED, metadata=metadata)
    refusal = cluster.expect_failure(*rollback)
    assert "undoing the upgrade from v1.33.5+k3s1 to v1.34.1+k3s1 restores a snapshot" in refusal
    assert f"all changes in the cluster since {STARTED} (" in refusal
    accept = refusal.partition("to accept, pass ")[2].split()
    assert accept[:2] == ["--accept-data-loss-since", STARTED]
    for wrong in ("2026-01-01T12:00:01Z", "yesterday"):
        cluster.expect_failure(*rollback, accept[0], wrong)
    assert cluster.requested(RESTORE) is None
    terminal = Terminal(*rollback, *accept[:2], **cluster.environment)
    terminal.read_until("etcd restore 1 is requested")
    cluster.report(run(RESTORE, "Finished"))
    assert terminal.exit_status() == 0
    request = {"generation": 1, "name": f"{cluster.name}-old", "restoreRKEConfig": "kubernetesVersion"}
    assert cluster.requested(RESTORE) == request
    assert cluster.spec()["kubernetesVersion"] == UPGRADE["from"]


def test_an_operation_is_aborted_before_its_point_of_no_return(cluster: Cluster) -> None:
    abort = ("operations", "abort", cluster.name)
    assert "has no operation in progress" in cluster.expect_failure(*abort)
    cluster.report(run(RESTORE, "Restore"))
    why = "cannot be aborted in phase Restore: the data of the cluster is being replaced"
    assert why in cluster.expect_failure(*abort)
    request = {"generation": 1, "name": "old", "restoreRKEConfig": "kubernetesVersion"}
    applied = {"kubernetesVersion": "v1.34.1+k3s1"}
    cluster.report(run(RESTORE, "Shutdown"), etcdSnapshotRestore=request, appliedSpec=applied)
    terminal = Terminal(*abort, **cluster.environment)
    terminal.read_until("abort of the etcd restore 1 is requested")
    found = json.loads(cluster.server.kubectl("get", "-n", NAMESPACE, CLUSTERS, cluster.name, "-o", "json").stdout)
    assert found["metadata"]["annotations"][names.ABORT_OPERATION] == "x"
    assert found["spec"]["kubernetesVersion"] == "v1.34.1+k3s1"
    cluster.report(run(RESTORE, "Abort", message=f"phase Shutdown: {ABORTED}"))
    terminal.read_until("phase Abort")
    cluster.report(run(RESTORE, "Failed", message=f"phase Shutdown: {ABORTED}"))
    assert terminal.exit_status() == 0
    assert "etcd restore 1 was aborted" in terminal.output
