"""One Cluster object becomes a running cluster and stays the same cluster, by the words that people type.

Everything is real but the size: machines of this host with their own root, agents on them, and the embedded
distribution, watched from outside by kubectl through the cluster's tunnel and by the host's own records.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.embedded import HERDER, Embedded
from tests.support.kube import free_port
from tests.support.machines import host_ended
from tests.support.peers import peer
from tests.unit.cli.commands import herder, refused

NAME, NAMESPACE = "meadow", "fleet-default"
OF_THE_NAMESPACE = ("default", "cattle-globalrole-")  # whoever may make clusters may do so here, with or without one


@dataclass
class Site:
    server: Embedded
    directory: Path

    def say(self, *words: str | Path, timeout: float = 150) -> str:
        """A word of ours, from a person's keyboard; what it tells."""
        environment = {"KUBECONFIG": str(self.server.kubeconfig), "PATH": "/usr/bin:/bin"}
        done = subprocess.run([HERDER, *words], capture_output=True, text=True, timeout=timeout, env=environment)
        assert done.returncode == 0, f"herder {words}: {done.stdout}{done.stderr}"
        return done.stdout

    def kubectl(self, *words: str, of_cluster: bool = False) -> Any:
        """As the manager's administrator, or as whoever may administer the cluster, through its tunnel."""
        kubeconfig = self.directory / "cluster.yaml" if of_cluster else self.server.kubeconfig
        command = [peer("kubectl"), "--kubeconfig", kubeconfig, *words, "-o", "json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"kubectl {words}: {done.stderr}"
        return json.loads(done.stdout)

    def machines(self) -> dict[str, Any]:
        listed = self.kubectl("get", "machines.cluster.x-k8s.io", "-n", NAMESPACE)["items"]
        return {each["metadata"]["name"]: each for each in listed}

    def uids(self) -> set[str]:
        return {each["metadata"]["uid"] for each in self.machines().values()}

    def nodes(self) -> dict[str, Any]:
        listed = self.kubectl("get", "nodes", of_cluster=True)["items"]
        return {each["metadata"]["name"]: each for each in listed}

    def directories(self) -> set[tuple[str, int]]:
        """Of the machines on the host, each with its inode: a directory that was made anew is another."""
        where = self.directory / "data" / "host" / "machines"
        return {(each.name, each.stat().st_ino) for each in where.iterdir()} if where.exists() else set()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    flags = ("--capi-core=own", "--machines", "--gateway")
    data = directory / "data"
    with host_ended(data), Embedded(data, flags=flags, listen=f"127.0.0.1:{free_port()}") as server:
        yield Site(server, directory)


def is_ready(node: Any) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"]["conditions"])


def test_a_cluster_comes_up_and_what_it_waits_for_is_told(site: Site) -> None:
    told = site.say("create", "cluster", NAME, "--servers", "1", "--workers", "2")
    assert "waiting for" in told
    assert told.count(": Running") == 3
    assert f"cluster {NAME} is ready" in told
    (site.directory / "cluster.yaml").write_text(site.say("kubeconfig", NAME))
    nodes = site.nodes()
    assert set(nodes) == set(site.machines())
    assert all(is_ready(node) for node in nodes.values())
    for name, machine in site.machines().items():
        assert nodes[name]["metadata"]["labels"]["rke.cattle.io/machine"] == machine["metadata"]["uid"]
        assert nodes[name]["spec"]["providerID"] == machine["spec"]["providerID"]
        assert machine["status"]["nodeRef"]["name"] == name


def test_a_second_of_the_same_name_is_refused(site: Site) -> None:
    told = refused("create", "cluster", NAME, KUBECONFIG=str(site.server.kubeconfig))
    assert "already exists" in told


def test_what_is_refused_leaves_nothing_behind(site: Site) -> None:
    def told(*words: str) -> str:
        return refused("create", "cluster", "heath", *words, KUBECONFIG=str(site.server.kubeconfig))

    assert "spec.kubernetesVersion" in told("--kubernetes", "v1.36.3")
    assert "ProcessConfig has no field sheep; its fields are:" in told("--machine-config", "sheep=3")
    assert "activate the NodeDriver sheep" in told("--driver", "sheep")
    configs = site.kubectl("get", "processconfigs.rke-machine-config.cattle.io", "-n", NAMESPACE)["items"]
    assert [each["metadata"]["name"] for each in configs] == [f"nc-{NAME}-servers", f"nc-{NAME}-workers"]


def test_what_an_attempt_left_is_not_taken_for_what_is_asked_for_now(site: Site) -> None:
    left = {
        "apiVersion": "rke-machine-config.cattle.io/v1",
        "kind": "ProcessConfig",
        "metadata": {"name": "nc-moor-servers"},
        "memory": "64",
    }
    (site.directory / "left.json").write_text(json.dumps(left))
    site.kubectl("create", "-n", NAMESPACE, "-f", str(site.directory / "left.json"))
    site.say("create", "cluster", "moor", "--workers", "0", "--machine-config", "memory=512", "--no-wait")
    config = site.kubectl("get", "processconfigs.rke-machine-config.cattle.io", "nc-moor-servers", "-n", NAMESPACE)
    assert config["memory"] == "512"
    site.say("delete", "cluster", "moor")


def test_a_config_that_another_user_left_gets_nothing_of_what_is_asked_for_now(site: Site) -> None:
    """Whoever created a config may use it, and clusters that name it already use it by its UID."""
    left = {
        "apiVersion": "rke-machine-config.cattle.io/v1",
        "kind": "Amazonec2Config",
        "metadata": {"name": "nc-fen-servers"},
    }
    (site.directory / "left.json").write_text(json.dumps(left))
    kind = "amazonec2configs.rke-machine-config.cattle.io"
    for state in ("create", "condition=Established"):
        site.kubectl("wait", f"--for={state}", f"crd/{kind}", "--timeout=30s")
    before = site.kubectl("create", "-n", NAMESPACE, "-f", str(site.directory / "left.json"))
    words = ("--driver", "amazonec2", "--workers", "0", "--machine-config", "userdata=#cloud-config", "--no-wait")
    site.say("create", "cluster", "fen", *words)
    config = site.kubectl("get", kind, "nc-fen-servers", "-n", NAMESPACE)
    assert config["userdata"] == "#cloud-config"
    assert config["metadata"]["uid"] != before["metadata"]["uid"]
    site.say("delete", "cluster", "fen")


def test_an_edited_config_reaches_all_machines_without_replacing_one(site: Site) -> None:
    before, places = site.uids(), site.directories()
    patch = {"spec": {"rkeConfig": {"machineGlobalConfig": {"node-label": ["team=blue"]}}}}
    kind = "clusters.provisioning.cattle.io"
    site.kubectl("patch", kind, NAME, "-n", NAMESPACE, "--type=merge", "-p", json.dumps(patch))
    site.say("scale", "cluster", NAME, "workers=2")  # nothing changes by it; it waits until all is as it is wanted
    assert all(node["metadata"]["labels"].get("team") == "blue" for node in site.nodes().values())
    assert site.uids() == before
    assert site.directories() == places


def test_a_config_that_nothing_can_be_made_of_is_told_and_changes_nothing(site: Site) -> None:
    before = site.nodes()
    patch = {"spec": {"rkeConfig": {"machineGlobalConfig": {"node-labels": ["team=red"]}}}}
    kind = "clusters.provisioning.cattle.io"
    site.kubectl("patch", kind, NAME, "-n", NAMESPACE, "--type=merge", "-p", json.dumps(patch))
    told = ""
    for _ in range(100):
        conditions = site.kubectl("get", kind, NAME, "-n", NAMESPACE)["status"]["conditions"]
        told = " ".join(each.get("message") or "" for each in conditions)
        if "node-labels" in told:
            break
    assert "machineGlobalConfig.node-labels: unknown option of the embedded distribution" in told
    undo = {"spec": {"rkeConfig": {"machineGlobalConfig": {"node-labels": None}}}}
    site.kubectl("patch", kind, NAME, "-n", NAMESPACE, "--type=merge", "-p", json.dumps(undo))
    assert set(site.nodes()) == set(before)


def test_another_version_is_brought_to_the_machines_that_are_there_servers_first(site: Site) -> None:
    before, places = site.uids(), site.directories()
    told = site.say("upgrade", "cluster", NAME, "v1.36.4+herder1")
    server = next(name for name in site.machines() if "-servers-" in name)
    worker = next(name for name in site.machines() if "-workers-" in name)
    lines = [line for line in told.splitlines() if "configuring" in line]
    first_worker = next((number for number, line in enumerate(lines) if worker in line), len(lines))
    assert all(server not in line for line in lines[first_worker:]), told
    assert {node["status"]["nodeInfo"]["kubeletVersion"] for node in site.nodes().values()} == {"v1.36.4+herder1"}
    assert site.uids() == before
    assert site.directories() == places


def test_a_pool_grows_and_shrinks(site: Site) -> None:
    before = site.uids()
    site.say("scale", "cluster", NAME, "workers=3")
    assert site.uids() > before
    assert len(site.nodes()) == 4
    site.say("scale", "cluster", NAME, "workers=1")
    assert len(site.uids()) == 2
    assert set(site.nodes()) == set(site.machines())


def test_a_pool_that_is_not_there_is_named_with_those_that_are(site: Site) -> None:
    told = refused("scale", "cluster", NAME, "sheep=3", KUBECONFIG=str(site.server.kubeconfig))
    assert "has no machine pool sheep; its pools are: servers, workers" in told


def test_the_last_machine_with_etcd_does_not_go_by_mistake(site: Site) -> None:
    before = site.uids()
    told = refused("scale", "cluster", NAME, "servers=0", KUBECONFIG=str(site.server.kubeconfig))
    assert "this would delete the last etcd machine and all data in the cluster" in told
    assert "--give-up-etcd" in told
    assert site.uids() == before


def test_deletion_leaves_no_process_directory_object_or_secret_behind(site: Site) -> None:
    told = site.say("delete", "cluster", NAME)
    assert f"cluster {NAME} is deleted" in told
    assert site.directories() == set()
    for kind in (
        "clusters.provisioning.cattle.io",
        "clusters.cluster.x-k8s.io",
        "rkecontrolplanes.rke.cattle.io",
        "rkeclusters.rke.cattle.io",
        "rkebootstraps.rke.cattle.io",
        "machines.cluster.x-k8s.io",
        "machinesets.cluster.x-k8s.io",
        "machinedeployments.cluster.x-k8s.io",
        "processmachines.rke-machine.cattle.io",
        "beacons.plan.cattle.io",
        "secrets",
        "serviceaccounts",
        "roles.rbac.authorization.k8s.io",
        "jobs.batch",
    ):
        left = [each["metadata"]["name"] for each in site.kubectl("get", kind, "-n", NAMESPACE)["items"]]
        assert [name for name in left if not name.startswith(OF_THE_NAMESPACE)] == [], kind
    managed = [each["metadata"]["name"] for each in site.kubectl("get", "clusters.management.cattle.io")["items"]]
    assert managed == ["local"]


def test_what_became_of_it_can_still_be_read(site: Site) -> None:
    told = site.say("logs", "cluster", NAME).splitlines()
    assert "waiting for" in told[0]
    assert any(line.endswith("] provisioning done") for line in told)
    assert "to delete" in told[-1]
    assert 'no logs found for cluster "heath"' in refused(
        "logs", "cluster", "heath", KUBECONFIG=str(site.server.kubeconfig)
    )


def test_the_help_tells_what_pools_are() -> None:
    assert "NAME=COUNT:ROLES" in herder("create", "cluster", "--help").stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--servers", "0"), "no machine has the role etcd or controlplane"),
        (("--servers", "-1"), "Invalid value for '--servers'"),
        (("--pool", "main=1:worker"), "no machine has the role etcd or controlplane"),
        (
            ("--pool", "main=0:etcd+controlplane+worker"),
            "no machine has the role etcd or controlplane or worker",
        ),
        (
            ("--pool", "main=1:etcd+controlplane+worker", "--workers", "3"),
            "--pool and --workers are mutually exclusive",
        ),
        (("--pool", "main=1:shepherd"), "unknown role 'shepherd'; use etcd, controlplane, worker"),
        (("--machine-config", "memory"), "'memory' is not FIELD=VALUE"),
    ],
)
def test_what_no_cluster_can_be_made_of_is_told_before_anything_is_asked(words: tuple[str, ...], told: str) -> None:
    assert told in refused("create", "cluster", "heath", "--dry-run", *words)


def test_fields_of_machine_configs_are_texts_truths_and_lists() -> None:
    given = ("kubernetes=true", "memory=512", "tags=[a, b]", "userdata=/etc/a=b", "empty=[]")
    words = [word for each in given for word in ("--machine-config", each)]
    config, *_ = yaml.safe_load_all(herder("create", "cluster", "heath", "--dry-run", *words).stdout)
    fields = {name: config[name] for name in config.keys() - {"apiVersion", "kind", "metadata"}}
    assert fields == {
        "kubernetes": True,
        "memory": "512",
        "tags": ["a", "b"],
        "userdata": "/etc/a=b",
        "empty": [],
    }


@pytest.mark.parametrize(("content", "told"), [("a: [b", ": invalid YAML"), ("- a", " must be a YAML mapping")])
def test_a_configuration_that_is_none_is_told_with_its_file(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "c.yaml").write_text(content)
    assert f"c.yaml{told}" in refused("create", "cluster", "heath", "--dry-run", "--config", tmp_path / "c.yaml")


def test_a_word_about_nothing_in_particular_tells_what_it_is_about() -> None:
    assert 'unknown resource "meadow"; use: herder delete cluster …' in refused("delete", "meadow")
