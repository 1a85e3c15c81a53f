"""All of day two on one real cluster by kubeadm, with a real S3 server with TLS and a private CA.

Its only server saves a snapshot, and rotates its encryption keys and certificates. Two servers join, and all three are
restored in place: one from its snapshot, and the others join its etcd again. Then all of them are lost with their
disks, and a new server gets the data of the first snapshot, from before both rotations. The tests run in the order of
the file: each continues with the cluster of the previous one.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from herder.api.management.names import DEFAULT_WORKSPACE
from herder.api.rke.names import INIT_NODE
from herder.machine.host.local import cgroups
from herder.machine.host.local.network import short_hash
from tests.support.cloud.s3 import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server
from tests.support.clusters.kubeadm_clusters import (
    CONTROL_PLANE,
    VERSION,
    kubeadm_cluster,
    programs,
    push_installer,
    server_processes,
)
from tests.support.clusters.kubeadm_rotations import (
    VALUE,
    create_secret,
    read_secret,
    rotate_certificates,
    rotate_keys,
    stored_prefixes,
)
from tests.support.clusters.serving_pods import assert_pods_reach_each_other, serve_on_each_node
from tests.support.clusters.site import HOST, MIRROR, REGISTRY, Cluster, Object, Site, site_in
from tests.support.embedded import HERDER
from tests.support.registry.images import BUSYBOX

NAME, CREDENTIAL, FOLDER = "farm", "s3-credential", "farm"
LOST = "Restoration from etcd snapshot is required"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    with site_in(directory, {}, timeout=400, pods=True) as site:
        push_installer(site, VERSION, programs(directory / "programs"))
        yield site


@pytest.fixture(scope="module")
def s3(site: Site) -> Iterator[S3Server]:
    (site.directory / "s3").mkdir()
    with S3Server(site.directory / "s3", HOST, site.command_prefix) as server:
        yield server


@pytest.fixture(scope="module")
def farm(site: Site, s3: S3Server) -> Cluster:
    """One server and one worker."""
    storage = {
        "cloudCredentialName": CREDENTIAL,
        "endpoint": s3.endpoint,
        "endpointCA": s3.authority.path.read_text(),
    }
    config = {"registries": {"mirrors": {REGISTRY: {"endpoint": [MIRROR]}}}, "etcd": {"s3": storage}}
    pools = {"servers": 1, "workers": 1}
    farm = site.create_cluster(NAME, credential(SECRET_KEY), *kubeadm_cluster(NAME, pools, **config))
    farm.until_ready("servers=1")
    return farm


# --- tests in order ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def first_key(farm: Cluster) -> str:
    """How Secrets of the first snapshot begin in etcd: with the name of the key that encrypts them."""
    (prefix,) = stored_prefixes(farm)
    return prefix


def test_a_snapshot_is_saved_in_s3(farm: Cluster, s3: S3Server, first_key: str) -> None:
    write(farm, "first")
    create_secret(farm)
    serve_on_each_node(farm.kubectl, farm.nodes(), f"{REGISTRY}/{BUSYBOX}", timeout=300)
    save_snapshots(farm)
    assert first_key in stored_prefixes(farm)
    assert len(s3.keys()) == 2, "the snapshot and its metadata"


def test_a_wrong_key_fails_a_restore_before_anything_stops(farm: Cluster) -> None:
    (server,) = servers(farm)
    processes, snapshot = server_processes(farm, server), snapshot_of(farm, "s3")
    write(farm, "later")
    farm.site.apply(credential("wrong"))
    first_line = error_of(farm, "snapshot", "restore", NAME, snapshot, "--yes")
    farm.site.apply(credential(SECRET_KEY))
    assert "access denied" in first_line, first_line
    assert server_processes(farm, server) == processes
    assert config_maps(farm) == {"first", "later"}


def test_encryption_keys_are_rotated(farm: Cluster, first_key: str) -> None:
    rotate_keys(farm)
    assert first_key not in stored_prefixes(farm)


def test_certificates_are_rotated(farm: Cluster) -> None:
    rotate_certificates(farm)


def test_two_servers_join(farm: Cluster) -> None:
    farm.until_ready("servers=3")
    assert len(members(farm)) == 3
    serve_on_each_node(farm.kubectl, farm.nodes(), f"{REGISTRY}/{BUSYBOX}", timeout=300)


def test_every_server_saves_a_snapshot(farm: Cluster) -> None:
    write(farm, "second")
    save_snapshots(farm)
    assert {each["snapshotFile"]["nodeName"] for each in snapshots(farm)} == servers(farm) | {"s3"}
    write(farm, "third")


def test_three_servers_are_restored_in_place(farm: Cluster) -> None:
    before, pods = farm.uids(), serving_pods(farm)
    restore(farm, on=min(servers(farm) - {init_server(farm)}))
    assert config_maps(farm) == {"first", "later", "second"}
    assert read_secret(farm) == VALUE
    assert farm.uids() == before, "no machine is replaced"
    assert members(farm) == servers(farm)
    assert len(servers(farm)) == 3
    assert serving_pods(farm) == pods, "pods keep running"
    assert_pods_reach_each_other(farm.kubectl)
    write(farm, "third")


def test_the_loss_of_all_servers_is_reported(farm: Cluster) -> None:
    lost = [name for name in farm.machines() if "-servers-" in name]
    for name in lost:
        power_off(farm, name)
    farm.scale("servers=1")
    farm.site.kubectl("delete", "machines", *lost, "-n", DEFAULT_WORKSPACE, "--wait=false")
    farm.site.eventually(lambda: LOST in farm.condition_messages(), "the loss is reported", farm.condition_messages)
    assert not set(lost) & set(farm.machines())


def test_a_new_server_gets_the_data_and_the_pods(farm: Cluster, first_key: str) -> None:
    pods = worker_pods(farm)
    restore(farm, on="s3")
    farm.until_ready("servers=1")
    assert config_maps(farm) == {"first"}
    assert read_secret(farm) == VALUE
    assert first_key in stored_prefixes(farm), "the Secret has the key of before the rotation"
    assert members(farm) == servers(farm)
    assert len(servers(farm)) == 1
    assert set(farm.nodes()) == {each["status"]["nodeRef"]["name"] for each in farm.machines().values()}
    assert worker_pods(farm) == pods, "pods of workers have survived"
    farm.site.eventually(lambda: pods_nodes(farm) <= set(farm.nodes()), "pods of lost Nodes are deleted")
    serve_on_each_node(farm.kubectl, farm.nodes(), f"{REGISTRY}/{BUSYBOX}", timeout=300)
    assert_pods_reach_each_other(farm.kubectl)


def test_deletion_leaves_nothing(farm: Cluster) -> None:
    farm.assert_deletion_leaves_nothing()


# --- helpers ----------------------------------------------------------------------------------------------------------


def credential(secret_key: str) -> Object:
    keys = {"accessKey": ACCESS_KEY, "secretKey": secret_key, "defaultBucket": BUCKET, "defaultFolder": FOLDER}
    data = {f"s3credentialConfig-{name}": value for name, value in keys.items()}
    meta = {"name": CREDENTIAL, "namespace": DEFAULT_WORKSPACE}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": data}


def write(farm: Cluster, name: str) -> None:
    farm.kubectl("create", "configmap", name)


def config_maps(farm: Cluster) -> set[str]:
    """Names of those that the tests have created."""
    found = farm.kubectl("get", "configmaps", "-o", "name").split()
    return {name.removeprefix("configmap/") for name in found} - {"kube-root-ca.crt"}


def save_snapshots(farm: Cluster) -> None:
    farm.site(HERDER, "snapshot", "create", NAME, "--timeout", str(farm.site.timeout))


def error_of(farm: Cluster, *command: str) -> str:
    """The first line on standard error of a command that fails."""
    arguments = shlex.join([str(HERDER), *command, "--timeout", str(farm.site.timeout)])
    output = farm.site("sh", "-c", f"{arguments} 2>&1 > /dev/null && echo it has succeeded", check=False)
    return output.splitlines()[0]


def snapshots(farm: Cluster) -> list[Object]:
    return farm.site.listed("etcdsnapshots.rke.cattle.io")


def snapshot_of(farm: Cluster, on: str) -> str:
    """The first snapshot of a server, or in S3."""
    found = [each for each in snapshots(farm) if each["snapshotFile"]["nodeName"] == on]
    return str(min(found, key=lambda each: str(each["snapshotFile"]["createdAt"]))["metadata"]["name"])


def restore(farm: Cluster, on: str) -> None:
    timeout = str(2 * farm.site.timeout)
    farm.site(HERDER, "snapshot", "restore", NAME, snapshot_of(farm, on), "--yes", "--timeout", str(farm.site.timeout))
    farm.site(HERDER, "wait", "cluster", NAME, "--timeout", timeout)


def servers(farm: Cluster) -> set[str]:
    return {name for name, node in farm.nodes().items() if CONTROL_PLANE in node["metadata"]["labels"]}


def init_server(farm: Cluster) -> str:
    (name,) = (name for name, plan in farm.plans().items() if plan["metadata"]["labels"].get(INIT_NODE) == "true")
    return str(farm.machines()[name]["status"]["nodeRef"]["name"])


def members(farm: Cluster) -> set[str]:
    pki = "/etc/kubernetes/pki/etcd"
    keys = f"--cacert={pki}/ca.crt --cert={pki}/server.crt --key={pki}/server.key"
    server = next(name for name in farm.machines() if "-servers-" in name)
    command = f"etcdctl {keys} member list -w json"
    output = farm.site(HERDER, "ssh", server, "-n", DEFAULT_WORKSPACE, "--", command)
    return {member["name"] for member in json.loads(output)["members"] if not member.get("isLearner")}


def serving_pods(farm: Cluster) -> dict[str, int]:
    """Pods of users by UID, with their restart counts."""
    found = json.loads(farm.kubectl("get", "pods", "-l", "app=serving", "-o", "json"))["items"]
    return {each["metadata"]["uid"]: each["status"]["containerStatuses"][0]["restartCount"] for each in found}


def pods_nodes(farm: Cluster) -> set[str]:
    path = "jsonpath={.items[*].spec.nodeName}"
    return set(farm.kubectl("get", "pods", "-l", "app=serving", "-o", path).split())


def worker_pods(farm: Cluster) -> set[str]:
    """IDs of the processes of users' pods on the worker, seen from the machine: no API is needed."""
    worker = next(name for name in farm.machines() if "-workers-" in name)
    found = set(farm.site(HERDER, "ssh", worker, "-n", DEFAULT_WORKSPACE, "--", "pgrep -x httpd").split())
    assert found
    return found


def power_off(farm: Cluster, machine: str) -> None:
    """Kill all processes of a machine."""
    (directory,) = (each for each in farm.site.machine_directories() if machine in each.name)
    for tree in cgroups.trees():
        group = tree.base / short_hash(str(directory), 12)
        farm.site.eventually(partial(is_off, group), "the machine is off")


def is_off(group: Path) -> bool:
    """Whether a control group has no processes; if it has, they are killed. Groups below it disappear meanwhile."""
    found: list[int] = []
    for directory, _, files in os.walk(group):
        with suppress(OSError):
            if "cgroup.procs" in files:
                found += map(int, Path(directory, "cgroup.procs").read_text().split())
    for process in found:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return not found
