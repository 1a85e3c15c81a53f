"""`herder snapshot`: list, restore and delete snapshots."""

from __future__ import annotations

import json

import pytest

from herder.api.rke.etcd.snapshots import FINALIZER
from herder.api.rke.operations import DELETION, RESTORE
from herder.cli.operations.snapshot import _size
from tests.unit.cli.commands import Terminal, herder
from tests.unit.cli.operations.cluster import NAMESPACE, SNAPSHOTS, Cluster
from tests.unit.cli.operations.objects import ESCAPE, run


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (None, ""),
        (-1, ""),
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (5 << 20, "5.0 MiB"),
        (1 << 60, "1048576.0 TiB"),
    ],
)
def test_sizes_have_units(size: object, shown: str) -> None:
    assert _size(size) == shown


def test_snapshots_are_listed_newest_first(cluster: Cluster) -> None:
    name = cluster.name
    listing = herder("snapshot", "list", name, **cluster.environment)
    assert (listing.stdout, f"No snapshots of cluster {name} found" in listing.stderr) == ("", True)
    old, new = f"{name}-old", f"{name}-new"
    cluster.add_snapshot(old, createdAt="2026-01-01T00:00:00Z", size=2048, location="file:///var/lib/old")
    cluster.add_snapshot(
        new, createdAt="2026-01-02T00:00:00Z", nodeName="s3", status="failed", message=f"denied{ESCAPE}"
    )
    cluster.add_snapshot(f"{name}-other", cluster="other")
    header, *rows = [line.split() for line in cluster.herder("snapshot", "list", name).splitlines()]
    assert header == ["NAME", "NODE", "AGE", "SIZE", "STATUS"]
    assert [row[:2] for row in rows] == [[new, "s3"], [old, "node-a"]]
    assert rows[1][3:] == ["2.0", "KiB", "successful"]
    wide = cluster.herder("snapshot", "list", name, "-o", "wide")
    assert "file:///var/lib/old" in wide
    assert ESCAPE not in wide
    items = json.loads(cluster.herder("snapshot", "list", name, "-o", "json"))["items"]
    assert [(each["kind"], each["metadata"]["name"]) for each in items] == [
        ("ETCDSnapshot", new),
        ("ETCDSnapshot", old),
    ]


def test_a_restore_asks_and_says_what_is_lost(cluster: Cluster) -> None:
    snapshot = f"{cluster.name}-one"
    cluster.add_snapshot(snapshot, createdAt="2026-01-01T00:00:00Z")
    lost = "all changes since 2026-01-01T00:00:00Z ("
    refused = Terminal("snapshot", "restore", cluster.name, snapshot, **cluster.environment)
    refused.read_until("[y/N]")
    refused.type("n\n")
    assert refused.exit_status() == 1
    assert lost in refused.output
    assert cluster.requested(RESTORE) is None
    accepted = Terminal("snapshot", "restore", cluster.name, f"file-{snapshot}", **cluster.environment)
    accepted.read_until("[y/N]")
    accepted.type("y\n")
    accepted.read_until("etcd restore 1 is requested")
    cluster.report(run(RESTORE, "Shutdown", leader="server-0"), "etcd restore: phase Shutdown")
    accepted.read_until("phase Shutdown (leader: machine server-0)")
    cluster.report(run(RESTORE, "Finished", leader="server-0"))
    assert accepted.exit_status() == 0
    assert cluster.requested(RESTORE) == {"generation": 1, "name": snapshot, "restoreRKEConfig": "none"}
    assert lost in cluster.herder("snapshot", "restore", cluster.name, snapshot, "--yes", "--no-wait")


def test_a_snapshot_that_cannot_be_restored_is_refused_before_the_question(cluster: Cluster) -> None:
    failed, other = f"{cluster.name}-failed", f"{cluster.name}-other"
    cluster.add_snapshot(failed, status="failed", message="disk full")
    cluster.add_snapshot(other, cluster="other")
    command = ("snapshot", "restore", cluster.name)
    assert "has failed and cannot be restored: disk full" in cluster.expect_failure(*command, failed)
    for unknown in (other, "none"):
        message = cluster.expect_failure(*command, unknown, "--yes")
        assert f'cluster {cluster.name} has no snapshot "{unknown}"; list its snapshots with:' in message
    cluster.add_snapshot(f"{cluster.name}-a", name="same")
    cluster.add_snapshot(f"{cluster.name}-b", name="same")
    assert "several snapshots have a file same" in cluster.expect_failure(*command, "same", "--yes")
    assert cluster.requested(RESTORE) is None


def test_snapshots_are_deleted_with_their_files(cluster: Cluster) -> None:
    one, other = f"{cluster.name}-one", f"{cluster.name}-other"
    for snapshot in (one, other):
        cluster.add_snapshot(snapshot, finalizers=[FINALIZER])
    kept = Terminal("snapshot", "delete", cluster.name, one, **cluster.environment)
    kept.read_until("with the files? [y/N]")
    kept.type("n\n")
    assert kept.exit_status() == 1
    deleting = Terminal("snapshot", "delete", cluster.name, one, f"file-{other}", "--yes", **cluster.environment)
    deleting.read_until(f"deletion of snapshot {other} is requested")
    cluster.report(run(DELETION, "Failed", message=f"machine server-0: no such bucket{ESCAPE}"))
    assert deleting.exit_status() == 1
    assert "the files are not deleted: machine server-0: no such bucket" in deleting.output
    listed = herder("snapshot", "delete", cluster.name, one, "--no-wait", "-o", "json", **cluster.environment)
    assert [each["metadata"]["name"] for each in json.loads(listed.stdout)["items"]] == [one]
    assert f"deletion of snapshot {one} is requested" in listed.stderr
    again = Terminal("snapshot", "delete", cluster.name, one, other, "--yes", **cluster.environment)
    again.read_until(f"deletion of snapshot {other} is requested")
    for snapshot in (one, other):
        patch = '{"metadata": {"finalizers": null}}'
        cluster.server.kubectl("patch", "-n", NAMESPACE, SNAPSHOTS, snapshot, "--type=merge", "-p", patch)
    assert again.exit_status() == 0
    assert f"{one}, {other} deleted" in again.output
    assert "has no snapshot" in cluster.expect_failure("snapshot", "delete", cluster.name, one, "--yes")
