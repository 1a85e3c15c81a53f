"""A k3s cluster whose machines have one role each, on the Go rancher-system-agent: three etcd members, a control plane,
a worker. Like upstream's FiveNodesUniqueRolesWithDelete and MultipleEtcdNodesScaledDownThenDelete, which
tests/provisioning runs with simulated nodes: only a real k3s, named by HERDER_K3S, has such servers.
"""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator

import pytest

from tests.support.clusters.k3s_clusters import (
    CONTROL_PLANE,
    ETCD,
    REAL,
    WITH_GO_AGENT,
    go_agent_in,
    k3s_cluster,
    k3s_of,
    push_installer,
    runs_go_agent,
)
from tests.support.clusters.serving_pods import assert_pods_reach_each_other, serve_on_each_node
from tests.support.clusters.site import REGISTRY, Cluster, Object, site_in
from tests.support.registry.images import BUSYBOX

NAME = "croft"
# Role labels of the machines of each pool, which are also their taints.
ROLE_LABELS = {"members": {ETCD}, "planes": {CONTROL_PLANE}, "workers": set[str]()}


@pytest.fixture(scope="module")
def croft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("k3s")
    k3s = k3s_of(REAL, directory)
    faulthandler.cancel_dump_traceback_later()
    settings = {"system-agent-assets": str(go_agent_in(directory))}
    with site_in(directory, settings, timeout=k3s.timeout, pods=True) as site:
        push_installer(site, k3s)
        *configs, cluster = k3s_cluster(NAME, k3s.version, {"members": 3, "planes": 1, "workers": 1})
        cluster["spec"]["agentEnvVars"] = [WITH_GO_AGENT]
        site.eventually(lambda: site.applies(*configs), "Herder's kinds are served")
        site.apply(cluster)
        yield Cluster(site, NAME)


@pytest.fixture(autouse=True)
def without_watchdog(croft: Cluster) -> None:
    """K3s takes long. Each step has its own timeout."""
    faulthandler.cancel_dump_traceback_later()


def test_five_machines_with_one_role_each_form_a_cluster(croft: Cluster) -> None:
    croft.until_ready("members=3")
    assert [runs_go_agent(directory) for directory in croft.site.machine_directories()] == [True] * 5
    assert_nodes_have_the_roles_of_their_pools(croft)


def test_pods_on_each_node_reach_each_other(croft: Cluster) -> None:
    serve_on_each_node(croft.kubectl, croft.nodes(), f"{REGISTRY}/{BUSYBOX}", timeout=180)
    assert_pods_reach_each_other(croft.kubectl)


def test_etcd_is_scaled_down_to_one_member(croft: Cluster) -> None:
    croft.until_ready("members=1")
    assert len(croft.machines()) == 3
    assert_nodes_have_the_roles_of_their_pools(croft)


def test_deletion_leaves_no_machine(croft: Cluster) -> None:
    croft.delete()
    croft.site.eventually(lambda: not croft.site.machine_directories(), "no machine is left")


def assert_nodes_have_the_roles_of_their_pools(cluster: Cluster) -> None:
    cluster.site.eventually(lambda: set(cluster.nodes()) == set(cluster.machines()), "each machine has its node")
    cluster.site.eventually(
        lambda: all(has_role_of_pool(name, node) for name, node in cluster.nodes().items()),
        "they are ready, with the labels and taints of their roles",
        lambda: str(cluster.nodes()),
    )


def has_role_of_pool(name: str, node: Object) -> bool:
    wanted = next(labels for pool, labels in ROLE_LABELS.items() if f"-{pool}-" in name)
    labels = {each for each in (CONTROL_PLANE, ETCD) if each in node["metadata"]["labels"]}
    taints = {each["key"] for each in node["spec"].get("taints") or ()}
    ready = [each["status"] for each in node["status"]["conditions"] if each["type"] == "Ready"]
    return ready == ["True"] and labels == taints == wanted
