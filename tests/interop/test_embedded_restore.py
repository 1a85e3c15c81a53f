"""Snapshots in a real S3 server, and restores, of an embedded cluster on machines of this host.

kubectl observes the cluster through its tunnel. The S3 server has TLS with a private CA. The tests run in the order of
the file: each continues with the cluster of the previous one.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from herder.machine.host.client import HostClient
from tests.support.embedded import HERDER, Embedded
from tests.support.kube import Authority, free_port
from tests.support.machines import host_shutdown
from tests.support.node_agents import eventually
from tests.support.peers import peer
from tests.support.s3 import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server
from tests.unit.cli.test_cluster_commands import CLUSTERS, NAME, NAMESPACE, Site

FOLDER = "farm"
CREDENTIAL = "s3-credential"
CONFIG = "etc/rancher/herder/snapshots.json"
SNAPSHOTS = "/var/lib/rancher/herder/server/db/snapshots"
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
        patch = json.dumps({"spec": {"rkeConfig": {"etcd": {"s3": s3}}}})
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


def test_a_wrong_key_fails_a_snapshot(cluster: Cluster) -> None:
    with cluster.as_it_was():
        cluster.set_credential("wrong")
        assert "access denied" in cluster.fails("snapshot", "create", NAME)
    cluster.set_credential(SECRET_KEY)


def test_a_missing_bucket_fails_a_snapshot(cluster: Cluster) -> None:
    with cluster.as_it_was():
        cluster.set_s3(bucket="nosuch")
        assert "the bucket does not exist" in cluster.fails("snapshot", "create", NAME)


def test_another_ca_fails_a_snapshot(cluster: Cluster, tmp_path: Path) -> None:
    with cluster.as_it_was():
        cluster.set_s3(endpointCA=Authority(tmp_path / "pki").path.read_text())
        assert "signed by an unknown CA" in cluster.fails("snapshot", "create", NAME)
    cluster.set_s3()


def test_a_full_disk_fails_a_snapshot(cluster: Cluster) -> None:
    with cluster.as_it_was():
        cluster.site.herder("ssh", cluster.server, "--", f"mount -t tmpfs -o size=16k tmpfs {SNAPSHOTS}")
        try:
            assert "the disk is full" in cluster.fails("snapshot", "create", NAME)
        finally:
            cluster.site.herder("ssh", cluster.server, "--", f"umount {SNAPSHOTS}")
    assert len(cluster.snapshots()) == len(cluster.snapshots(cluster.server)) == 1


def test_a_truncated_object_fails_a_restore_before_anything_stops(cluster: Cluster) -> None:
    cluster.write("after")
    (snapshot,) = cluster.snapshots()
    file = cluster.s3.file(f"{FOLDER}/{snapshot['snapshotFile']['name']}")
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with cluster.as_it_was():
        assert "it is truncated" in cluster.fails("snapshot", "restore", NAME, snapshot["metadata"]["name"], "--yes")
    file.write_bytes(content)


def test_the_data_of_the_snapshot_is_back_after_a_restore_in_place(cluster: Cluster) -> None:
    (snapshot,) = cluster.snapshots()
    server = cluster.server
    cluster.site.herder("snapshot", "restore", NAME, snapshot["metadata"]["name"], "--yes")
    assert (cluster.server, cluster.names()) == (server, {"before"})
    cluster.write("later")
    until_nodes_match_machines(cluster)


def test_a_lost_server_is_replaced_and_restored_from_s3(cluster: Cluster) -> None:
    lost, (_saved_by_restore, snapshot) = cluster.server, cluster.snapshots()
    shutil.rmtree(cluster.root(lost) / "var/lib/rancher/herder")  # the disk is lost first
    command = ["delete", "machines.cluster.x-k8s.io", lost, "-n", NAMESPACE, "--wait=false"]
    subprocess.run([peer("kubectl"), "--kubeconfig", cluster.site.server.kubeconfig, *command], check=True, timeout=60)
    eventually(lambda: LOST in cluster.site.herder("describe", "cluster", NAME), "the loss is reported", 150)
    cluster.site.herder("snapshot", "restore", NAME, snapshot["metadata"]["name"], "--yes")
    assert cluster.server != lost
    assert cluster.names() == {"before"}
    cluster.write("later")
    until_nodes_match_machines(cluster)


def until_nodes_match_machines(cluster: Cluster) -> None:
    """Nodes of lost machines are deleted, and workers have found the server."""
    site = cluster.site
    site.herder("wait", "cluster", NAME, "--timeout", "400")
    eventually(lambda: set(site.nodes()) == set(site.machines()), "each Node has a machine", 150)
