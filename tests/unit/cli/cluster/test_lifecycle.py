"""The commands that create, change and delete a cluster, from one Cluster object to a running cluster and back.

Everything is real except the size: machines of this host with their own root file system, agents on them, and the
embedded distribution. kubectl observes the cluster through its tunnel, and the host's own records are checked.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from herder.cli.cluster.create import DEFAULT_VERSION
from tests.support.embedded import HERDER, Embedded
from tests.support.kube import free_port
from tests.support.manager.machines import host_shutdown
from tests.support.manager.node_agents import eventually
from tests.support.peers import peer
from tests.unit.cli.commands import expect_failure, herder

NAME, NAMESPACE = "meadow", "fleet-default"
CLUSTERS = "clusters.provisioning.cattle.io"
ONE_MACHINE = ("--servers", "1", "--workers", "0")
NAMESPACE_OBJECTS = (
    "default",
    "cattle-globalrole-",
)  # they exist without clusters too: default accounts, and roles of users who may create clusters


@dataclass
class Site:
    server: Embedded
    directory: Path

    def herder(self, *arguments: str | Path, timeout: float = 150) -> str:
        """Run a command as a user, and return its output."""
        environment = {"KUBECONFIG": str(self.server.kubeconfig), "PATH": "/usr/bin:/bin"}
        result = subprocess.run([HERDER, *arguments], capture_output=True, text=True, timeout=timeout, env=environment)
        assert result.returncode == 0, f"herder {arguments}: {result.stdout}{result.stderr}"
        return result.stdout

    def kubectl(self, *arguments: str, of_cluster: bool = False) -> Any:
        """kubectl as the administrator of the manager, or as that of the cluster through its tunnel."""
        kubeconfig = self.directory / "cluster.yaml" if of_cluster else self.server.kubeconfig
        command = [peer("kubectl"), "--kubeconfig", kubeconfig, *arguments, "-o", "json"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, f"kubectl {arguments}: {result.stderr}"
        return json.loads(result.stdout)

    def machines(self) -> dict[str, Any]:
        listed = self.kubectl("get", "machines.cluster.x-k8s.io", "-n", NAMESPACE)["items"]
        return {each["metadata"]["name"]: each for each in listed}

    def uids(self) -> set[str]:
        return {each["metadata"]["uid"] for each in self.machines().values()}

    def nodes(self) -> dict[str, Any]:
        listed = self.kubectl("get", "nodes", of_cluster=True)["items"]
        return {each["metadata"]["name"]: each for each in listed}

    def directories(self) -> set[tuple[str, int]]:
        """Directories of the machines on the host with their inodes, since a recreated directory has another inode."""
        parent = self.directory / "data" / "host" / "machines"
        return {(each.name, each.stat().st_ino) for each in parent.iterdir()} if parent.exists() else set()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    flags = ("--capi-core=own", "--machines", "--gateway")
    data = directory / "data"
    with host_shutdown(data), Embedded(data, flags=flags, listen=f"127.0.0.1:{free_port()}") as server:
        yield Site(server, directory)


def is_ready(node: Any) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"]["conditions"])


@contextmanager
def watched_states(site: Site) -> Iterator[Callable[[], list[str]]]:
    """Return each STATUS of the cluster that `kubectl get --watch` shows meanwhile."""
    found = ("get", "customresourcedefinitions", CLUSTERS)
    kubeconfig = str(site.server.kubeconfig)
    eventually(lambda: not herder(*found, check=False, KUBECONFIG=kubeconfig).returncode, "Clusters are served")
    path = site.directory / "states"
    columns = ["-o", "custom-columns=STATUS:.status.display.state", "--no-headers"]
    command = [peer("kubectl"), "--kubeconfig", site.server.kubeconfig, "get", CLUSTERS, "-n", NAMESPACE, "--watch"]
    with path.open("w") as output, subprocess.Popen([*command, *columns], stdout=output) as process:
        try:
            yield lambda: [state for state in path.read_text().split() if state != "<none>"]
        finally:
            process.terminate()


def test_create_waits_for_the_cluster_and_prints_progress(site: Site) -> None:
    with watched_states(site) as states:
        output = site.herder("create", "cluster", NAME, "--servers", "1", "--workers", "2")
        eventually(lambda: "Ready" in states(), "the cluster is shown as ready")
    assert set(states()[: states().index("Ready")]) == {"Provisioning"}
    assert "waiting for" in output
    assert output.count(": Running") == 3
    assert f"cluster {NAME} is ready" in output
    (site.directory / "cluster.yaml").write_text(site.herder("kubeconfig", NAME))
    nodes = site.nodes()
    assert set(nodes) == set(site.machines())
    assert all(is_ready(node) for node in nodes.values())
    for name, machine in site.machines().items():
        assert nodes[name]["metadata"]["labels"]["rke.cattle.io/machine"] == machine["metadata"]["uid"]
        assert nodes[name]["spec"]["providerID"] == machine["spec"]["providerID"]
        assert machine["status"]["nodeRef"]["name"] == name


def test_get_shows_status_version_machines_and_reason(site: Site) -> None:
    def clusters() -> list[list[str]]:
        return [line.split() for line in site.herder("get", "clusters", "-n", NAMESPACE).splitlines()]

    eventually(lambda: clusters()[1][:4] == [NAME, "Ready", DEFAULT_VERSION, "3/3"], "the cluster is shown as ready")
    assert clusters()[0] == ["NAME", "STATUS", "VERSION", "MACHINES", "REASON", "AGE"]
    machines = site.herder("get", "machines", "-n", NAMESPACE).splitlines()
    assert "REASON" in machines[0].split()
    assert len(machines) == 4


def test_a_lost_node_is_shown_with_its_machine_and_since_when(site: Site) -> None:
    def line() -> str:
        return site.herder("get", "clusters", "-n", NAMESPACE).splitlines()[1]

    def signal(name: str) -> None:
        site.herder("ssh", worker, "--", f"kill -{name} $(cat /run/herder-node.child)")

    worker = next(name for name in site.machines() if "-workers-" in name)
    signal("STOP")
    eventually(lambda: f"machine {worker} is not ready since 20" in line(), "the lost machine is shown", 90)
    assert line().split()[:4] == [NAME, "Degraded", DEFAULT_VERSION, "2/3"]
    assert worker in site.herder("logs", "cluster", NAME).splitlines()[-1]
    signal("CONT")
    eventually(lambda: line().split()[1:4] == ["Ready", DEFAULT_VERSION, "3/3"], "it is ready again", 90)


def test_a_second_cluster_of_the_same_name_is_rejected(site: Site) -> None:
    output = expect_failure("create", "cluster", NAME, KUBECONFIG=str(site.server.kubeconfig))
    assert "already exists" in output


def test_a_rejected_cluster_leaves_no_objects_behind(site: Site) -> None:
    def error(*arguments: str) -> str:
        return expect_failure("create", "cluster", "heath", *arguments, KUBECONFIG=str(site.server.kubeconfig))

    assert "spec.kubernetesVersion" in error("--kubernetes", "v1.36.3")
    assert "ProcessConfig has no field sheep; its fields are:" in error("--machine-config", "sheep=3")
    assert "activate the NodeDriver sheep" in error("--driver", "sheep")
    configs = site.kubectl("get", "processconfigs.rke-machine-config.cattle.io", "-n", NAMESPACE)["items"]
    assert [each["metadata"]["name"] for each in configs] == [f"nc-{NAME}-servers", f"nc-{NAME}-workers"]


def test_a_machine_config_left_by_an_earlier_attempt_is_replaced(site: Site) -> None:
    leftover = {
        "apiVersion": "rke-machine-config.cattle.io/v1",
        "kind": "ProcessConfig",
        "metadata": {"name": "nc-moor-servers"},
        "memory": "64",
    }
    (site.directory / "left.json").write_text(json.dumps(leftover))
    site.kubectl("create", "-n", NAMESPACE, "-f", str(site.directory / "left.json"))
    site.herder("create", "cluster", "moor", "--workers", "0", "--machine-config", "memory=512", "--no-wait")
    config = site.kubectl("get", "processconfigs.rke-machine-config.cattle.io", "nc-moor-servers", "-n", NAMESPACE)
    assert config["memory"] == "512"
    site.herder("delete", "cluster", "moor")


def test_a_machine_config_of_another_user_is_recreated(site: Site) -> None:
    """The creator of a config may use it, and clusters that reference it use it by its UID."""
    leftover = {
        "apiVersion": "rke-machine-config.cattle.io/v1",
        "kind": "Amazonec2Config",
        "metadata": {"name": "nc-fen-servers"},
    }
    (site.directory / "left.json").write_text(json.dumps(leftover))
    kind = "amazonec2configs.rke-machine-config.cattle.io"
    for state in ("create", "condition=Established"):
        site.kubectl("wait", f"--for={state}", f"crd/{kind}", "--timeout=30s")
    before = site.kubectl("create", "-n", NAMESPACE, "-f", str(site.directory / "left.json"))
    arguments = ("--driver", "amazonec2", "--workers", "0", "--machine-config", "userdata=#cloud-config", "--no-wait")
    site.herder("create", "cluster", "fen", *arguments)
    config = site.kubectl("get", kind, "nc-fen-servers", "-n", NAMESPACE)
    assert config["userdata"] == "#cloud-config"
    assert config["metadata"]["uid"] != before["metadata"]["uid"]
    site.herder("delete", "cluster", "fen")
    assert site.kubectl("get", kind, "-n", NAMESPACE)["items"] == []


def test_a_config_of_a_cluster_that_was_never_generated_is_deleted_with_it(site: Site) -> None:
    """With a loopback server URL, Herder generates nothing for this driver, so the cluster never owns the config."""
    arguments = ("--driver", "amazonec2", "--workers", "0", "--dry-run")
    (site.directory / "dale.yaml").write_text(site.herder("create", "cluster", "dale", *arguments))
    command = [peer("kubectl"), "--kubeconfig", site.server.kubeconfig, "create", "-f", site.directory / "dale.yaml"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    waiting = ("--for=condition=Stalled", "clusters.provisioning.cattle.io/dale", "-n", NAMESPACE)
    site.kubectl("wait", *waiting, "--timeout=30s")
    site.herder("delete", "cluster", "dale")
    assert site.kubectl("get", "amazonec2configs.rke-machine-config.cattle.io", "-n", NAMESPACE)["items"] == []


def test_configs_are_deleted_if_the_cluster_is_refused_last(site: Site) -> None:
    """The policy accepts the dry run, so the configs are created before the Cluster is refused."""
    rule = {"apiGroups": ["provisioning.cattle.io"], "apiVersions": ["v1"], "resources": ["clusters"]}
    matched = {"resourceRules": [{**rule, "operations": ["CREATE"]}]}
    check = {"expression": "request.dryRun || object.metadata.name != 'glen'", "message": "glen is reserved"}
    policy = {"matchConstraints": matched, "validations": [check]}
    binding = {"policyName": "reserved", "validationActions": ["Deny"]}
    for kind, spec in (("ValidatingAdmissionPolicy", policy), ("ValidatingAdmissionPolicyBinding", binding)):
        obj = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "reserved"}}
        (site.directory / "reserved.json").write_text(json.dumps({**obj, "spec": spec}))
        site.kubectl("create", "-f", str(site.directory / "reserved.json"))
    output = expect_failure("create", "cluster", "glen", "--no-wait", KUBECONFIG=str(site.server.kubeconfig))
    assert "glen is reserved" in output
    configs = site.kubectl("get", "processconfigs.rke-machine-config.cattle.io", "-n", NAMESPACE)["items"]
    assert [each for each in configs if "glen" in each["metadata"]["name"]] == []


def test_an_edited_config_is_applied_without_replacing_machines(site: Site) -> None:
    before, directories = site.uids(), site.directories()
    patch = {"spec": {"rkeConfig": {"machineGlobalConfig": {"node-label": ["team=blue"]}}}}
    kind = "clusters.provisioning.cattle.io"
    site.kubectl("patch", kind, NAME, "-n", NAMESPACE, "--type=merge", "-p", json.dumps(patch))
    site.herder("scale", "cluster", NAME, "workers=2")  # changes nothing, but waits until all machines are up to date
    assert all(node["metadata"]["labels"].get("team") == "blue" for node in site.nodes().values())
    assert site.uids() == before
    assert site.directories() == directories


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        pytest.param(
            {"rkeConfig": {"machineGlobalConfig": {"node-labels": ["team=red"]}}},
            "machineGlobalConfig.node-labels: Forbidden: unknown option of the embedded distribution",
            id="unknown option",
        ),
        pytest.param(
            {"kubernetesVersion": "v1.36.0+herder1"},
            "is lower than v1.36.3+herder1, which the cluster has",
            id="downgrade",
        ),
    ],
)
def test_an_edit_that_cannot_be_applied_is_refused(site: Site, edit: Any, reason: str) -> None:
    kind, before = "clusters.provisioning.cattle.io", site.nodes()
    spec = site.kubectl("get", kind, NAME, "-n", NAMESPACE)["spec"]
    patch = ["patch", kind, NAME, "-n", NAMESPACE, "--type=merge", "-p", json.dumps({"spec": edit})]
    command = [peer("kubectl"), "--kubeconfig", site.server.kubeconfig, *patch]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert reason in result.stderr
    assert site.kubectl("get", kind, NAME, "-n", NAMESPACE)["spec"] == spec
    assert set(site.nodes()) == set(before)


def test_a_second_server_is_refused_and_the_pool_keeps_its_size(site: Site) -> None:
    command = [HERDER, "scale", "cluster", NAME, "servers=3"]
    environment = {"KUBECONFIG": str(site.server.kubeconfig), "PATH": "/usr/bin:/bin"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert result.returncode == 1
    assert "the embedded distribution supports 1 server" in result.stderr
    pools = site.kubectl("get", "clusters.provisioning.cattle.io", NAME, "-n", NAMESPACE)["spec"]["rkeConfig"]
    assert [pool["quantity"] for pool in pools["machinePools"] if pool.get("etcdRole")] == [1]


def test_an_upgrade_updates_existing_machines_and_servers_first(site: Site) -> None:
    before, directories = site.uids(), site.directories()
    output = site.herder("upgrade", "cluster", NAME, "v1.36.4+herder1")
    server = next(name for name in site.machines() if "-servers-" in name)
    worker = next(name for name in site.machines() if "-workers-" in name)
    lines = [line for line in output.splitlines() if "configuring" in line]
    first_worker = next((number for number, line in enumerate(lines) if worker in line), len(lines))
    assert all(server not in line for line in lines[first_worker:]), output
    assert {node["status"]["nodeInfo"]["kubeletVersion"] for node in site.nodes().values()} == {"v1.36.4+herder1"}
    assert site.uids() == before
    assert site.directories() == directories
    (snapshot,) = json.loads(site.herder("snapshot", "list", NAME, "-o", "json"))["items"]
    marks = snapshot["metadata"]["annotations"]
    assert marks["etcdsnapshot.rke.io/restore-mode-options"] == "none,kubernetesVersion,all"
    refusal = expect_failure("rollback", "cluster", NAME, KUBECONFIG=str(site.server.kubeconfig))
    assert "undoing the upgrade from v1.36.3+herder1 to v1.36.4+herder1 restores a snapshot" in refusal
    assert f"pass --accept-data-loss-since {snapshot['snapshotFile']['createdAt']}" in refusal


def test_a_pool_is_scaled_up_and_down(site: Site) -> None:
    before = site.uids()
    site.herder("scale", "cluster", NAME, "workers=3")
    assert site.uids() > before
    assert len(site.nodes()) == 4
    site.herder("scale", "cluster", NAME, "workers=1")
    assert len(site.uids()) == 2
    assert set(site.nodes()) == set(site.machines())


def test_an_unknown_pool_is_reported_with_the_existing_ones(site: Site) -> None:
    output = expect_failure("scale", "cluster", NAME, "sheep=3", KUBECONFIG=str(site.server.kubeconfig))
    assert "has no machine pool sheep; its pools are: servers, workers" in output


def test_the_last_etcd_machine_is_not_deleted_without_confirmation(site: Site) -> None:
    before = site.uids()
    output = expect_failure("scale", "cluster", NAME, "servers=0", KUBECONFIG=str(site.server.kubeconfig))
    assert "this would delete the last etcd machine and all data in the cluster" in output
    assert "--give-up-etcd" in output
    assert site.uids() == before


def test_deletion_leaves_no_process_directory_object_or_secret_behind(site: Site) -> None:
    output = site.herder("delete", "cluster", NAME)
    assert f"cluster {NAME} is deleted" in output
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
        names = [each["metadata"]["name"] for each in site.kubectl("get", kind, "-n", NAMESPACE)["items"]]
        assert [name for name in names if not name.startswith(NAMESPACE_OBJECTS)] == [], kind
    managed = [each["metadata"]["name"] for each in site.kubectl("get", "clusters.management.cattle.io")["items"]]
    assert managed == ["local"]


def test_logs_of_a_deleted_cluster_can_be_read(site: Site) -> None:
    output = site.herder("logs", "cluster", NAME).splitlines()
    assert "waiting for" in output[0]
    assert any(line.endswith("] provisioning done") for line in output)
    assert "to delete" in output[-1]
    assert 'no logs found for cluster "heath"' in expect_failure(
        "logs", "cluster", "heath", KUBECONFIG=str(site.server.kubeconfig)
    )


def test_a_new_cluster_is_waited_for_before_it_is_used(site: Site) -> None:
    wait, use = site.herder("create", "cluster", "later", *ONE_MACHINE, "--no-wait").splitlines()
    assert wait == "To wait until it is ready, run: herder wait cluster later"
    assert use.startswith("To use it then, run: herder kubeconfig later > later.yaml && "), use
    error = expect_failure("kubeconfig", "later", KUBECONFIG=str(site.server.kubeconfig))
    assert error.rstrip().endswith("has no kubeconfig; wait for it with: herder wait cluster later"), error
    assert "cluster later is ready" in site.herder("wait", "cluster", "later")
    assert "server:" in site.herder("kubeconfig", "later")
    site.herder("delete", "cluster", "later", "--yes")


def test_a_secret_of_an_earlier_cluster_ends_the_wait(site: Site) -> None:
    """The message names the Secret and a command; after it, the same cluster becomes ready."""
    create = ("create", "cluster", "again", *ONE_MACHINE)
    secret = ("secret", "cloud", "-n", NAMESPACE)
    site.kubectl("create", "secret", "generic", *secret[1:], "--from-literal=key=value")
    site.herder(*create, "--no-wait")
    marks = {"sync-bootstrap": "true", "sync-target-namespace": "kube-system"}
    annotations = [f"provisioning.cattle.io/{mark}={value}" for mark, value in marks.items()]
    site.kubectl("annotate", *secret, *annotations, "rke.cattle.io/object-authorized-for-clusters=again")
    site.herder("delete", "cluster", "again", "--yes")
    *_, error = expect_failure(*create, KUBECONFIG=str(site.server.kubeconfig)).splitlines()
    assert error.startswith(f"Error: cluster again is stalled: Secret {NAMESPACE}/cloud: "), error
    assert "was recreated since the reference to it was approved" in error, error
    assert site.kubectl("get", CLUSTERS, "again", "-n", NAMESPACE)["status"]["display"]["state"] == "Stalled"
    start = f"kubectl -n {NAMESPACE} annotate secret cloud "
    arguments = error.partition(start)[2]
    command = f"{peer('kubectl')} --kubeconfig {site.server.kubeconfig} annotate {' '.join(secret)} {arguments}"
    subprocess.run(["bash", "-c", command], check=True, timeout=60)
    assert "cluster again is ready" in site.herder("wait", "cluster", "again")
    site.herder("delete", "cluster", "again", "--yes")


def test_help_describes_the_format_of_pools() -> None:
    assert "NAME=COUNT:ROLES" in herder("create", "cluster", "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "output"),
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
def test_invalid_options_are_rejected_before_any_request(arguments: tuple[str, ...], output: str) -> None:
    assert output in expect_failure("create", "cluster", "heath", "--dry-run", *arguments)


def test_machine_config_fields_are_strings_booleans_and_lists() -> None:
    assignments = ("kubernetes=true", "memory=512", "tags=[a, b]", "userdata=/etc/a=b", "empty=[]")
    arguments = [argument for each in assignments for argument in ("--machine-config", each)]
    config, *_ = yaml.safe_load_all(herder("create", "cluster", "heath", "--dry-run", *arguments).stdout)
    fields = {name: config[name] for name in config.keys() - {"apiVersion", "kind", "metadata"}}
    assert fields == {
        "kubernetes": True,
        "memory": "512",
        "tags": ["a", "b"],
        "userdata": "/etc/a=b",
        "empty": [],
    }


@pytest.mark.parametrize(("content", "output"), [("a: [b", ": invalid YAML"), ("- a", " must be a YAML mapping")])
def test_an_invalid_configuration_is_reported_with_its_file(tmp_path: Path, content: str, output: str) -> None:
    (tmp_path / "c.yaml").write_text(content)
    assert f"c.yaml{output}" in expect_failure(
        "create", "cluster", "heath", "--dry-run", "--config", tmp_path / "c.yaml"
    )


def test_an_unknown_resource_is_reported_with_the_usage() -> None:
    assert 'unknown resource "meadow"; use: herder delete cluster …' in expect_failure("delete", "meadow")


@pytest.mark.parametrize(("arguments", "timeout"), [((), "0s"), (("--unhealthy-node-timeout", "10m"), "10m")])
def test_new_worker_pools_say_whether_lost_machines_are_replaced(arguments: tuple[str, ...], timeout: str) -> None:
    *_, cluster = yaml.safe_load_all(herder("create", "cluster", "heath", "--dry-run", *arguments).stdout)
    servers, workers = cluster["spec"]["rkeConfig"]["machinePools"]
    assert workers["unhealthyNodeTimeout"] == timeout
    assert "unhealthyNodeTimeout" not in servers, "servers hold data"
