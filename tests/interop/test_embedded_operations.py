"""All operations of one embedded cluster on machines of this host, with a real S3 server.

kubectl observes the cluster through its tunnel. The S3 server has TLS with a private CA. The restores go back across
the rotations before them. The tests run in the order of the file: each continues with the cluster of the previous one.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from herder.cli.cluster.create import DEFAULT_VERSION
from herder.machine.host.client import HostClient
from tests.support.embedded import HERDER, Embedded
from tests.support.kube import Authority, free_port
from tests.support.machines import host_shutdown
from tests.support.node_agents import eventually
from tests.support.peers import peer
from tests.support.s3 import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server
from tests.support.secret_readers import reading
from tests.unit.cli.cluster.test_lifecycle import CLUSTERS, NAME, NAMESPACE, Site

FOLDER = "farm"
CREDENTIAL = "s3-credential"
CONFIG = "etc/rancher/herder/snapshots.json"
SNAPSHOTS = "/var/lib/rancher/herder/server/db/snapshots"
KEYS, CERTIFICATES = "var/lib/rancher/herder/server/db/managed.keys", "var/lib/rancher/herder/server/tls"
BOOT = "/etc/herder/boot.d/60-herder-server"
AGENT, AGENT_PID = "/usr/local/bin/rancher-system-agent", "/run/rancher-system-agent.pid"
NEXT_VERSION = "v1.36.4+herder1"
LOST = "Restoration from etcd snapshot is required"


class Cluster:
    def __init__(self, site: Site, s3: S3Server) -> None:
        self.site, self.s3 = site, s3

    def apply(self, obj: dict[str, Any], of_cluster: bool = False) -> None:
        kubeconfig = self.site.directory / "cluster.yaml" if of_cluster else self.site.server.kubeconfig
        command = [peer("kubectl"), "--kubeconfig", kubeconfig, "apply", "-f", "-"]
        subprocess.run(command, input=json.dumps(obj), text=True, check=True, capture_output=True, timeout=60)

    def write(self, name: str) -> None:
        """A ConfigMap, and a Secret, which the server encrypts."""
        for kind in ("ConfigMap", "Secret"):
            obj = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "default"}}
            self.apply({**obj, "data": {"key": base64.b64encode(name.encode()).decode()}}, of_cluster=True)

    def names(self) -> set[str]:
        """Names of ConfigMaps that are also names of readable Secrets."""
        found = [
            {
                each["metadata"]["name"]
                for each in self.site.kubectl("get", kind, "-n", "default", of_cluster=True)["items"]
                if (each.get("data") or {}).get("key")
            }
            for kind in ("configmaps", "secrets")
        ]
        assert found[0] == found[1]
        return found[0]

    def set_credential(self, secret_key: str) -> None:
        keys = {"accessKey": ACCESS_KEY, "secretKey": secret_key, "defaultRegion": "us-east-1"}
        data = {f"s3credentialConfig-{name}": value for name, value in keys.items()}
        meta = {"name": CREDENTIAL, "namespace": NAMESPACE}
        self.apply({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": data})

    def set_s3(self, **changes: Any) -> None:
        s3 = {
            "cloudCredentialName": CREDENTIAL,
            "endpoint": self.s3.endpoint,
            "endpointCA": base64.b64encode(self.s3.authority.path.read_bytes()).decode(),
            "bucket": BUCKET,
            "folder": FOLDER,
            **changes,
        }
        self.set_etcd(s3=s3)

    def set_etcd(self, **fields: Any) -> None:
        """Change fields of `rkeConfig.etcd`."""
        patch = json.dumps({"spec": {"rkeConfig": {"etcd": fields}}})
        self.site.kubectl("patch", CLUSTERS, NAME, "-n", NAMESPACE, "--type=merge", "-p", patch)

    def snapshots(self, node: str = "s3") -> list[dict[str, Any]]:
        """The snapshots of a node, or in S3; the newest first."""
        found = json.loads(self.site.herder("snapshot", "list", NAME, "-o", "json"))["items"]
        return [each for each in found if each["snapshotFile"]["nodeName"] == node]

    def fails(self, *arguments: str) -> str:
        """The first line of a command that fails."""
        environment = {"KUBECONFIG": str(self.site.server.kubeconfig), "PATH": "/usr/bin:/bin"}
        command = [HERDER, *arguments, "--timeout", "400"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=430, env=environment)
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stderr.splitlines()[0]

    def operation(self) -> dict[str, Any]:
        """The operation in progress, or the last one."""
        found: dict[str, Any] = json.loads(self.site.herder("operations", NAME, "-o", "json"))["operation"]
        return found

    def reads(self, name: str) -> AbstractContextManager[None]:
        """A client reads a Secret of `write` meanwhile."""
        kubeconfig, template = self.site.directory / "cluster.yaml", "go-template={{.data.key | base64decode}}"
        arguments = ("get", "secret", name, "-n", "default", "-o", template)
        command: list[str | Path] = [peer("kubectl"), "--kubeconfig", kubeconfig, *arguments]
        return reading(command, name)

    @property
    def server(self) -> str:
        (name,) = (name for name in self.site.machines() if "-servers-" in name)
        return name

    def root(self, machine: str) -> Path:
        listed = HostClient.of(self.site.directory / "data" / "host").machines()
        (path,) = (each["directory"] for each in listed if each["name"] == machine)
        return Path(path) / "root"

    def process(self) -> str:
        return self.site.herder("ssh", self.server, "--", "cat /run/herder-server.child")

    @contextmanager
    def as_it_was(self) -> Iterator[None]:
        """The same server runs, with the same data."""
        process, names = self.process(), self.names()
        yield
        assert (self.process(), self.names()) == (process, names)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("site")
    (directory / "s3").mkdir()
    flags, data = ("--capi-core=own", "--machines", "--gateway"), directory / "data"
    with (
        S3Server(directory / "s3") as s3,
        host_shutdown(data),
        Embedded(data, flags=flags, listen=f"127.0.0.1:{free_port()}") as server,
    ):
        site = Site(server, directory)
        site.herder("create", "cluster", NAME, "--servers", "1", "--workers", "1")
        (directory / "cluster.yaml").write_text(site.herder("kubeconfig", NAME))
        found = Cluster(site, s3)
        found.set_credential(SECRET_KEY)
        found.set_s3()
        yield found


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


@pytest.mark.parametrize(("problem", "cause"), PROBLEMS.items(), ids=[each.__name__ for each in PROBLEMS])
def test_a_snapshot_that_s3_or_the_disk_does_not_take_fails(cluster: Cluster, problem: Problem, cause: str) -> None:
    with cluster.as_it_was(), problem(cluster):
        assert cause in cluster.fails("snapshot", "create", NAME)
    assert len(cluster.snapshots()) == len(cluster.snapshots(cluster.server)) == 1


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
    until_nodes_match_machines(cluster)


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
    until_nodes_match_machines(cluster)
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
    until_nodes_match_machines(cluster)


def until_nodes_match_machines(cluster: Cluster) -> None:
    """Nodes of lost machines are deleted, and workers have found the server."""
    site = cluster.site
    site.herder("wait", "cluster", NAME, "--timeout", "400")
    eventually(lambda: set(site.nodes()) == set(site.machines()), "each Node has a machine", 150)
