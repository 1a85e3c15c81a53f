"""K3s clusters on `local` machines, each from one Cluster object: Herder's installer image from a registry, systemd
units, plans with k3s's own paths and probes; changed in place, scaled up and down, and deleted without leftovers.

With a **stand-in** for k3s, which runs no pods (tests/support/k3s_stand_in), and with a real one if HERDER_K3S names
its binary. The tests of each run in the order of the file: each continues with the cluster of the previous one. Next to
the stand-in's cluster there is a second one, whose machines run the Go rancher-system-agent.
"""

from __future__ import annotations

import base64
import faulthandler
import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from herder.api.management.names import DEFAULT_WORKSPACE
from tests.support.clusters.k3s_clusters import (
    COMPONENTS,
    CONTROL_PLANE,
    DATA,
    FILES,
    GLOBAL_CONFIG,
    REAL,
    STAND_IN,
    WITH_GO_AGENT,
    K3s,
    go_agent_in,
    k3s_cluster,
    k3s_of,
    push_installer,
    runs_go_agent,
    stand_in,
    write_installer,
)
from tests.support.clusters.serving_pods import assert_pods_reach_each_other, serve_on_each_node
from tests.support.clusters.site import HOST, REGISTRY, Cluster, Object, Site, site_in
from tests.support.embedded import HERDER
from tests.support.registry.images import BUSYBOX

NAME, GO_AGENT_CLUSTER = "farm", "croft"
LATER = "v1.36.4+k3s1"  # of the second cluster, whose installer is missing at first
SERVER_PROBES = {"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet"}


@dataclass
class Farm:
    k3s: K3s
    site: Site
    cluster: Cluster


@pytest.fixture(scope="module", params=[STAND_IN, REAL])
def farm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """One server and one worker, from one Cluster object; requested, not ready yet."""
    directory = tmp_path_factory.mktemp("k3s")
    k3s = k3s_of(request.param, directory)
    if k3s.runs_pods:
        faulthandler.cancel_dump_traceback_later()
    archives = directory / "archives"
    archives.mkdir()
    settings = {"system-agent-assets": str(go_agent_in(directory)), "image-archives": str(archives)}
    with site_in(directory, settings, timeout=k3s.timeout, pods=k3s.runs_pods) as site:
        push_installer(site, k3s)
        yield Farm(k3s, site, site.create_cluster(NAME, *k3s_cluster(NAME, k3s.version, {"servers": 1, "workers": 1})))


@pytest.fixture(autouse=True)
def without_watchdog(farm: Farm) -> None:
    """A real k3s takes long. Each step of its tests has its own timeout."""
    if farm.k3s.runs_pods:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="module")
def go_agent_cluster(farm: Farm) -> Cluster:
    """A second cluster, created before its installer exists. Its machines install from the manager itself, and run the
    Go agent.
    """
    if farm.k3s.runs_pods:
        pytest.skip("the Go agent is tested with the stand-in, and runs the same plans with a real k3s")
    from_manager = {**GLOBAL_CONFIG, "system-default-registry": f"{HOST}:7443"}
    *configs, cluster = k3s_cluster(
        GO_AGENT_CLUSTER, LATER, {"servers": 1, "workers": 1}, machineGlobalConfig=from_manager
    )
    cluster["spec"]["agentEnvVars"] = [WITH_GO_AGENT]
    farm.site.apply(*configs, cluster)
    return Cluster(farm.site, GO_AGENT_CLUSTER)


# --- tests in order ---------------------------------------------------------------------------------------------------


def test_nodes_match_their_machines(farm: Farm) -> None:
    farm.cluster.until_ready("servers=1")
    assert_nodes_match_machines(farm.cluster, farm.k3s.version)


def test_every_probe_of_a_plan_passes(farm: Farm) -> None:
    for machine, statuses in probes(farm.cluster).items():
        assert set(statuses) == (SERVER_PROBES if "-servers-" in machine else {"kubelet"})
        assert all(each.get("healthy") for each in statuses.values()), statuses


def test_user_files_are_on_the_machines(farm: Farm) -> None:
    for directory in farm.site.machine_directories():
        path = directory / "data" / "var-lib-rancher" / f"k3s/{FILES['kubelet.conf'][0][0].removeprefix(DATA)}"
        assert path.read_text() == FILES["kubelet.conf"][1]
        assert (directory / "upper/usr/lib/cni/flannel").stat().st_mode & 0o777 == 0o755


def test_the_additional_manifest_is_applied(farm: Farm) -> None:
    binding = json.loads(farm.cluster.kubectl("get", "clusterrolebinding", "parts-of-k3s", "-o", "json"))
    assert [each["name"] for each in binding["subjects"]] == [*COMPONENTS]


def test_the_k3s_command_works_on_a_server(farm: Farm) -> None:
    server = next(name for name in farm.cluster.machines() if "-servers-" in name)
    command = (HERDER, "ssh", server, "-n", DEFAULT_WORKSPACE, "--", "k3s", "etcd-snapshot")
    farm.site(*command, "save", "--name=shearing")
    assert f"shearing-{server}-" in farm.site(*command, "ls")


def test_a_missing_installer_is_reported_in_conditions(go_agent_cluster: Cluster) -> None:
    """Its Go agents cannot pull an image that does not exist yet."""
    site = go_agent_cluster.site
    site.eventually(
        lambda: "failure while applying plan" in go_agent_cluster.condition_messages(),
        "the failure is reported",
        go_agent_cluster.condition_messages,
    )
    (machine, plan) = next((name, each) for name, each in go_agent_cluster.plans().items() if "-servers-" in name)
    assert base64.b64decode(plan["data"]["plan-state"]) == b"failed", machine


def test_a_published_installer_is_installed_by_a_retry(farm: Farm, go_agent_cluster: Cluster) -> None:
    """The installer is published now; the planner retries by itself, while other tests run."""
    write_installer(stand_in(farm.site.directory, LATER), farm.site.directory / "archives" / "k3s.tar")


def test_pods_on_each_node_reach_each_other(farm: Farm) -> None:
    if farm.k3s.runs_pods:
        farm.cluster.assert_agent_is_a_pod()
        serve_on_each_node(farm.cluster.kubectl, farm.cluster.nodes(), f"{REGISTRY}/{BUSYBOX}", timeout=180)
        assert_pods_reach_each_other(farm.cluster.kubectl)
    else:
        conditions = [each for node in farm.cluster.nodes().values() for each in node["status"]["conditions"]]
        assert {each["message"] for each in conditions if each["type"] == "Ready"} == {
            "the node is up; it runs no pods"
        }


def test_configuration_changes_are_applied_in_place(farm: Farm) -> None:
    before = farm.cluster.uids()
    farm.cluster.edit(machineGlobalConfig={"kubelet-arg": ["max-pods=77"]})
    farm.cluster.until_ready("servers=1")
    assert farm.cluster.uids() == before
    assert {node["status"]["capacity"]["pods"] for node in farm.cluster.nodes().values()} == {"77"}


def test_a_worker_is_added_and_drained_before_deletion(farm: Farm) -> None:
    before = farm.cluster.uids()
    farm.cluster.until_ready("workers=2")
    assert before.items() <= farm.cluster.uids().items()
    assert_nodes_match_machines(farm.cluster, farm.k3s.version)
    farm.cluster.until_ready("workers=1")
    assert len(farm.cluster.nodes()) == 2


def test_the_go_agent_runs_the_same_plans(go_agent_cluster: Cluster) -> None:
    go_agent_cluster.until_ready("servers=1")
    assert_nodes_match_machines(go_agent_cluster, LATER)
    own = [each for each in go_agent_cluster.site.machine_directories() if f"-{GO_AGENT_CLUSTER}-" in each.name]
    assert [runs_go_agent(directory) for directory in own] == [True, True]
    go_agent_cluster.edit(machineGlobalConfig={"kubelet-arg": ["max-pods=66"]})
    go_agent_cluster.until_ready("servers=1")
    assert {node["status"]["capacity"]["pods"] for node in go_agent_cluster.nodes().values()} == {"66"}
    go_agent_cluster.delete()


def test_one_server_is_scaled_to_three(farm: Farm) -> None:
    before = farm.cluster.uids()
    farm.cluster.until_ready("servers=3")
    assert before.items() <= farm.cluster.uids().items()
    assert_nodes_match_machines(farm.cluster, farm.k3s.version)
    if farm.k3s.runs_pods:
        serve_on_each_node(farm.cluster.kubectl, farm.cluster.nodes(), f"{REGISTRY}/{BUSYBOX}", timeout=180)
        assert_pods_reach_each_other(farm.cluster.kubectl)


def test_a_server_leaves_etcd_before_deletion(farm: Farm) -> None:
    """Not the first server, to which the others of a stand-in forward."""
    servers = sorted((each["metadata"]["creationTimestamp"], name) for name, each in farm.cluster.machines().items())
    latest = next(name for _, name in reversed(servers) if "-servers-" in name)
    farm.site.kubectl("annotate", "machines", latest, "-n", DEFAULT_WORKSPACE, "cluster.x-k8s.io/delete-machine=yes")
    farm.cluster.until_ready("servers=2")
    assert latest not in farm.cluster.nodes()
    assert_nodes_match_machines(farm.cluster, farm.k3s.version)


def test_deletion_leaves_nothing(farm: Farm) -> None:
    farm.cluster.assert_deletion_leaves_nothing()


# --- helpers ----------------------------------------------------------------------------------------------------------


def assert_nodes_match_machines(cluster: Cluster, version: str) -> None:
    cluster.site.eventually(lambda: are_settled(cluster.nodes()), "nodes are ready", lambda: str(cluster.nodes()))
    nodes, machines = cluster.nodes(), cluster.machines()
    assert set(nodes) == set(machines)
    for name, machine in machines.items():
        node, is_server = nodes[name], "-servers-" in name
        labels, taints = node["metadata"]["labels"], node["spec"].get("taints") or []
        assert node["spec"]["providerID"] == machine["spec"]["providerID"] == f"k3s://{name}"
        assert labels["rke.cattle.io/machine"] == machine["metadata"]["uid"]
        assert labels.get("farm.example/breed") == (None if is_server else "merino")
        assert (CONTROL_PLANE in labels) is is_server
        assert [each["key"] for each in taints] == ([CONTROL_PLANE] if is_server else [])
        assert node["status"]["nodeInfo"]["kubeletVersion"].startswith(version.partition("+")[0])


def are_settled(nodes: dict[str, Object]) -> bool:
    """Ready, and without the taints of new nodes."""
    conditions = [each for node in nodes.values() for each in node["status"]["conditions"] if each["type"] == "Ready"]
    taints = {each["key"] for node in nodes.values() for each in node["spec"].get("taints") or ()}
    return all(each["status"] == "True" for each in conditions) and taints <= {CONTROL_PLANE}


def probes(cluster: Cluster) -> dict[str, Object]:
    return {
        machine: json.loads(base64.b64decode(plan["data"]["probe-statuses"]))
        for machine, plan in cluster.plans().items()
    }
