"""Restores of operations on a real etcd: they are undone, or committed, and serve nothing before."""

from __future__ import annotations

import pytest

from tests.support.clusters.static_pods import StaticPodServer
from tests.support.snapshots import SnapshotProgram
from tests.unit.snapshots.stores.test_etcd import assert_runs

RUN_STEPS = ("stopped", "replacing", "replaced", "restored")


@pytest.mark.parametrize("step", ["", *RUN_STEPS])
def test_a_restore_of_an_operation_is_undone_by_the_start(
    program: SnapshotProgram, server: StaticPodServer, step: str
) -> None:
    """Also one that has completed: the operation may have failed before it was reported."""
    server.put("kept", "before")
    (saved,) = program.save()
    server.put("kept", "after")
    cluster = server.status()["cluster_id"]
    program("stop")
    starts = server.starts["kube-apiserver"]
    done = program.start("restore", saved["name"], "--run=run-1", kill=step)
    assert done.returncode == (-9 if step else 0), done.stderr
    assert server.starts["kube-apiserver"] == starts, "nothing serves the restored data yet"
    program("start")
    assert_runs(server)
    assert (server.values()["kept"], server.status()["cluster_id"]) == ("after", cluster)
    assert not (program.snapshots / ".restore").exists()


def test_a_restore_of_an_operation_stays_stopped_until_it_is_committed(
    program: SnapshotProgram, server: StaticPodServer
) -> None:
    server.put("kept", "before")
    (saved,) = program.save()
    server.put("kept", "after")
    program("stop")
    for _ in range(2):
        program("restore", saved["name"], "--run=run-1")
        assert server.running() == set()
        assert {each.stem for each in server.aside.iterdir()} == {"etcd", "kube-apiserver"}
    program("check", saved["name"])
    assert "no restore of this operation has completed here" in program.fail("commit", "--run=run-2")
    assert program.start("commit", "--run=run-1", kill="committing").returncode == -9
    for _ in range(2):
        program("commit", "--run=run-1")
        assert_runs(server)
        assert server.values()["kept"] == "before"
    program("start")
    assert server.values()["kept"] == "before"


@pytest.mark.parametrize(("accepted", "kept"), [("", "third"), ("run-1", "first")])
def test_the_next_operation_knows_which_data_the_cluster_has(
    program: SnapshotProgram, server: StaticPodServer, accepted: str, kept: str
) -> None:
    names = []
    for value in ("first", "second"):
        server.put("kept", value)
        names.append(program.save()[0]["name"])
    server.put("kept", "third")
    program("stop")
    program("restore", names[0], "--run=run-1")
    program("restore", names[1], "--run=run-2", f"--accepted={accepted}")
    program("start", "--accepted=run-1")
    assert_runs(server)
    assert server.values()["kept"] == kept
