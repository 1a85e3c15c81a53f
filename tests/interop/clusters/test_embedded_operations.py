"""All operations of one embedded cluster on machines of this host, with a real S3 server.

kubectl observes the cluster through its tunnel. The S3 server has TLS with a private CA. The restores go back across
the rotations before them. The tests run in the order of the file: each continues with the cluster of the previous one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from herder.cli.cluster.create import DEFAULT_VERSION
from tests.support.cloud.s3 import BUCKET, SECRET_KEY
from tests.support.clusters.embedded_cluster import AGENT_PID, FOLDER, Cluster, embedded_cluster
from tests.support.kube import Authority
from tests.support.manager.node_agents import eventually
from tests.support.peers import peer
from tests.unit.cli.cluster.test_lifecycle import NAME, NAMESPACE

CONFIG = "etc/rancher/herder/snapshots.json"
SNAPSHOTS = "/var/lib/rancher/herder/server/db/snapshots"
KEYS, CERTIFICATES = "var/lib/rancher/herder/server/db/managed.keys", "var/lib/rancher/herder/server/tls"
BOOT = "/etc/herder/boot.d/60-herder-server"
AGENT = "/usr/local/bin/rancher-system-agent"
NEXT_VERSION = "v1.36.4+herder1"
LOST = "Restoration from etcd snapshot is required"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with embedded_cluster(tmp_path_factory.mktemp("site")) as running:
        yield running


# --- tests in order ---------------------------------------------------------------------------------------------------


def test_a_snapshot_is_saved_in_s3(cluster: Cluster) -> None:
    cluster.write("before")
    with cluster.as_it_was():
        cluster.site.herder("snapshot", "create", NAME)
    (local,), (remote,) = cluster.snapshots(cluster.server), cluster.snapshots()
    name = local["snapshotFile"]["name"]
    assert remote["snapshotFile"]["name"] == name
    assert remote["snapshotFile"]["location"] == f"s3://{BUCKET}/{FOLDER}/{name}"
    assert cluster.s3.keys() == [f"{FOLDER}/.metadata/{name}", f"{FOLDER}/{name}"]


def test_only_the_server_has_the_key_of_the_bucket(cluster: Cluster) -> None:
    for machine in cluster.site.machines():
        file = cluster.root(machine) / CONFIG
        assert file.exists() is (machine == cluster.server)
    file = cluster.root(cluster.server) / CONFIG
    assert file.stat().st_mode & 0o777 == 0o600
    assert json.loads(file.read_text())["s3"]["secretKey"] == SECRET_KEY


@contextmanager
def wrong_key(cluster: Cluster) -> Iterator[None]:
    cluster.set_credential("wrong")
    yield
    cluster.set_credential(SECRET_KEY)


@contextmanager
def missing_bucket(cluster: Cluster) -> Iterator[None]:
    cluster.set_s3(bucket="nosuch")
    yield
    cluster.set_s3()


@contextmanager
def another_ca(cluster: Cluster) -> Iterator[None]:
    cluster.set_s3(endpointCA=Authority(cluster.site.directory / "pki").path.read_text())
    yield
    cluster.set_s3()


@contextmanager
def full_disk(cluster: Cluster) -> Iterator[None]:
    cluster.site.herder("ssh", cluster.server, "--", f"mount -t tmpfs -o size=16k tmpfs {SNAPSHOTS}")
    yield
    cluster.site.herder("ssh", cluster.server, "--", f"umount {SNAPSHOTS}")


@contextmanager
def truncated_object(cluster: Cluster) -> Iterator[None]:
    (snapshot,) = cluster.snapshots()
    file = cluster.s3.file(f"{FOLDER}/{snapshot['snapshotFile']['name']}")
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    yield
    file.write_bytes(content)


Problem = Callable[[Cluster], AbstractContextManager[None]]
PROBLEMS: dict[Problem, str] = {
    wrong_key: "access denied",
    missing_bucket: "the bucket does not exist",
    another_ca: "signed by an unknown CA",
    full_disk: "the disk is full",
}
_EXTENDED = (missing_bucket, another_ca, full_disk)


RETRIED = [  # for almost a minute
    pytest.param(problem, cause, id=problem.__name__, marks=[pytest.mark.extended] if problem in _EXTENDED else [])
    for problem, cause in PROBLEMS.items()
]


@pytest.mark.parametrize(("problem", "cause"), RETRIED)
def test_a_snapshot_that_s3_or_the_disk_does_not_take_fails(cluster: Cluster, problem: Problem, cause: str) -> None:
    def saved() -> list[str]:
        return [each["metadata"]["name"] for each in (*cluster.snapshots(cluster.server), *cluster.snapshots())]

    before = saved()
    with cluster.as_it_was(), problem(cluster):
        assert cause in cluster.fails("snapshot", "create", NAME)
    assert saved() == before


RESTORE_PROBLEMS: dict[Problem, str] = {**PROBLEMS, truncated_object: "it is truncated"}


@pytest.mark.parametrize(
    ("problem", "cause"), RESTORE_PROBLEMS.items(), ids=[each.__name__ for each in RESTORE_PROBLEMS]
)
def test_a_snapshot_that_cannot_be_read_fails_a_restore_before_anything_stops(
    cluster: Cluster, problem: Problem, cause: str
) -> None:
    cluster.write("after")
    (snapshot,) = cluster.snapshots()
    with cluster.as_it_was(), problem(cluster):
        assert cause in cluster.fails("snapshot", "restore", NAME, snapshot["metadata"]["name"], "--yes")
    assert "after" in cluster.names()


def test_a_restore_is_aborted_before_anything_stops(cluster: Cluster) -> None:
    """The S3 server does not answer, so the restore waits in its first phase."""
    (snapshot,) = cluster.snapshots()
    with cluster.as_it_was():
        with cluster.s3.stopped():
            cluster.site.herder("snapshot", "restore", NAME, snapshot["metadata"]["name"], "--yes", "--no-wait")
            eventually(lambda: is_checking(cluster.operation()), "the restore checks its snapshot", 60)
            cluster.site.herder("operations", "abort", NAME, "--no-wait")
            eventually(lambda: "aborted on request" in str(cluster.operation()), "the abort is noticed", 60)
        eventually(lambda: cluster.operation()["phase"] == "Failed", "the restore has ended", 90)
        cluster.site.herder("wait", "cluster", NAME)
    assert cluster.operation()["message"] == "phase Started: aborted on request"
    assert "after" in cluster.names()


def is_checking(operation: dict[str, Any]) -> bool:
    return (operation["kind"], operation["phase"]) == ("etcdSnapshotRestore", "Started")


def test_a_schedule_saves_snapshots_which_are_deleted_on_demand(cluster: Cluster) -> None:
    def scheduled() -> list[dict[str, Any]]:
        found = [*cluster.snapshots(cluster.server), *cluster.snapshots()]
        return [each for each in found if each["snapshotFile"]["name"].startswith("etcd-snapshot-")]

    directory, before = cluster.root(cluster.server) / SNAPSHOTS[1:], cluster.s3.keys()
    with cluster.as_it_was():
        cluster.set_etcd(snapshotScheduleCron="* * * * *")
        eventually(lambda: len(scheduled()) >= 2, "a snapshot is saved on the disk and in S3", 150)
        cluster.set_etcd(snapshotScheduleCron=None)
        cluster.site.herder("operations", NAME, "--wait")
        names = {each["snapshotFile"]["name"] for each in scheduled()}
        assert names == {name for name in names if (directory / name).exists()}
        assert {f"{FOLDER}/{name}" for name in names} <= set(cluster.s3.keys())
        deleted = [each["metadata"]["name"] for each in scheduled()]
        cluster.site.herder("snapshot", "delete", NAME, *deleted, "--yes")
    assert scheduled() == []
    assert not [name for name in names if (directory / name).exists()]
    assert cluster.s3.keys() == before


def test_encryption_keys_are_rotated_while_a_client_reads(cluster: Cluster) -> None:
    file, names, process = cluster.root(cluster.server) / KEYS, cluster.names(), cluster.process()
    (key,) = file.read_text().split()
    with cluster.reads("before"):
        cluster.site.herder("rotate", "encryption-keys", NAME, "--yes", timeout=400)
    (new_key,) = file.read_text().split()
    assert new_key != key
    assert cluster.process() != process, "the server has loaded the key"
    assert cluster.names() == names


def test_certificates_are_rotated_while_a_client_reads(cluster: Cluster) -> None:
    def leaves() -> dict[str, bytes]:
        found = (cluster.root(cluster.server) / CERTIFICATES).glob("*.crt")
        return {path.name: path.read_bytes() for path in found if path.name != "ca.crt"}

    before = leaves()
    with cluster.reads("before"):
        cluster.site.herder("rotate", "certificates", NAME, timeout=400)
    after = leaves()
    assert after.keys() == before.keys() == {"admin.crt", "serving.crt"}
    assert not [name for name in after if after[name] == before[name]]


def test_agents_of_another_build_are_redeployed(cluster: Cluster) -> None:
    """The machines get an agent of the same version with another checksum."""

    def checksums() -> dict[str, str]:
        return {name: cluster.site.herder("ssh", name, "--", f"sha256sum {AGENT}") for name in machines}

    machines, process = [*cluster.site.machines()], cluster.process()
    served, new = checksums(), f"{AGENT}.new"
    code = (
        'import sys, zipfile; file = zipfile.ZipFile(sys.argv[1], "a"); file.comment = b"another build"; file.close()'
    )
    replace = f"cp -p {AGENT} {new} && python3 -c '{code}' {new} && mv {new} {AGENT} && pkill -P $(cat {AGENT_PID})"
    for name in machines:
        cluster.site.herder("ssh", name, "--", replace)
    assert not {*served.values()} & {*checksums().values()}
    eventually(lambda: all(name in outdated(cluster) for name in machines), "both agents are reported", 90)
    cluster.site.herder("redeploy", "agents", NAME, timeout=400)
    assert checksums() == served
    assert outdated(cluster) == ""
    assert cluster.process() == process, "Kubernetes keeps running"


def outdated(cluster: Cluster) -> str:
    """What `herder describe` reports about node agents."""
    lines = cluster.site.herder("describe", "cluster", NAME).splitlines()
    return "".join(line for line in lines if "node agents:" in line)


def test_the_data_of_the_snapshot_is_back_after_a_restore_in_place(cluster: Cluster) -> None:
    """The Secrets of the snapshot have the key of before the rotation."""
    (snapshot,) = cluster.snapshots()
    server = cluster.server
    cluster.site.herder("snapshot", "restore", NAME, snapshot["metadata"]["name"], "--yes", timeout=400)
    assert (cluster.server, cluster.names()) == (server, {"before"})
    cluster.write("later")
    cluster.until_nodes_match_machines()


def test_a_server_does_not_start_while_its_restore_can_be_undone(cluster: Cluster) -> None:
    place = f"{SNAPSHOTS}/.restore"
    command = f"mkdir {place} && touch {place}/journal.json && timeout 5 {BOOT}; code=$?; rm -r {place}; exit $code"
    with cluster.as_it_was():
        cluster.site.herder("ssh", cluster.server, "--", command)


def test_an_upgrade_is_rolled_back_with_its_data(cluster: Cluster) -> None:
    def versions() -> set[str]:
        return {node["status"]["nodeInfo"]["kubeletVersion"] for node in cluster.site.nodes().values()}

    machines = cluster.site.uids()
    cluster.site.herder("upgrade", "cluster", NAME, NEXT_VERSION, timeout=400)
    assert versions() == {NEXT_VERSION}
    cluster.write("upgraded")
    refusal = cluster.fails("rollback", "cluster", NAME)
    assert f"undoing the upgrade from {DEFAULT_VERSION} to {NEXT_VERSION} restores a snapshot" in refusal
    time = refusal.rpartition("--accept-data-loss-since ")[2]
    assert (versions(), "upgraded" in cluster.names()) == ({NEXT_VERSION}, True)
    cluster.site.herder("rollback", "cluster", NAME, "--accept-data-loss-since", time, timeout=400)
    cluster.until_nodes_match_machines()
    assert cluster.names() == {"before", "later"}
    assert versions() == {DEFAULT_VERSION}
    assert cluster.site.uids() == machines, "no machine is replaced"


def test_a_lost_server_is_replaced_and_restored_from_s3(cluster: Cluster) -> None:
    lost, (*_saved_by_restores, snapshot) = cluster.server, cluster.snapshots()
    shutil.rmtree(cluster.root(lost) / "var/lib/rancher/herder")  # the disk is lost first
    command = ["delete", "machines.cluster.x-k8s.io", lost, "-n", NAMESPACE, "--wait=false"]
    subprocess.run([peer("kubectl"), "--kubeconfig", cluster.site.server.kubeconfig, *command], check=True, timeout=60)
    eventually(lambda: LOST in cluster.site.herder("describe", "cluster", NAME), "the loss is reported", 150)
    cluster.site.herder("snapshot", "restore", NAME, snapshot["metadata"]["name"], "--yes", timeout=400)
    assert cluster.server != lost
    assert cluster.names() == {"before"}
    cluster.write("later")
    cluster.until_nodes_match_machines()
