"""A kubeadm cluster managed from a real kube-apiserver with etcd, without a registry: machines and pods get their
images from archives of the manager.

The tests run in the order of the file; `test_kubeadm_clusters.py` tests more features of such clusters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from herder.api.management.names import DEFAULT_WORKSPACE
from herder.clusteragent.image import whole
from herder.engine.meta.kinds import Object
from herder.oci import Image, write_archive
from tests.support.clusters.kubeadm_clusters import VERSION, kubeadm_cluster, programs
from tests.support.clusters.serving_pods import assert_pods_reach_each_other, serve_on_each_node
from tests.support.clusters.site import AGENT, HOST, PORT, REAL, Cluster, site_in
from tests.support.embedded import HERDER
from tests.support.registry.images import BUSYBOX, busybox

NAME = "croft"
FROM_MANAGER = f"{HOST}:{PORT}"  # the manager as a registry


@pytest.fixture(scope="module")
def croft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("site")
    archives = directory / "archives"
    archives.mkdir()
    settings = {
        "image-archives": str(archives),
        "system-default-registry": FROM_MANAGER,
        "agent-image": f"{FROM_MANAGER}/{AGENT}",
    }
    with site_in(directory, settings, timeout=400, pods=False, engine=REAL) as site:
        arguments = (
            "--version",
            VERSION,
            "--from",
            programs(directory / "programs"),
            "--output",
            archives / "kubeadm.tar",
        )
        site(HERDER, "installer", "kubeadm", *arguments)
        write(archives / "agent.tar", whole(), AGENT)
        write(archives / "busybox.tar", busybox(), BUSYBOX)
        yield site.create_cluster(NAME, *kubeadm_cluster(NAME, {"servers": 1, "workers": 1}))


def write(archive: Path, image: Image, name: str) -> None:
    with archive.open("wb") as file:
        write_archive(image, name, file)


def test_the_cluster_becomes_ready_and_its_agent_is_a_pod(croft: Cluster) -> None:
    croft.until_ready("servers=1")
    machines = croft.machines()
    assert {each["status"]["nodeRef"]["name"] for each in machines.values()} == set(croft.nodes())
    croft.assert_agent_is_a_pod()


def test_pods_on_each_node_reach_each_other(croft: Cluster) -> None:
    serve_on_each_node(croft.kubectl, croft.nodes(), f"{FROM_MANAGER}/{BUSYBOX}", timeout=300)
    assert_pods_reach_each_other(croft.kubectl)


def test_a_worker_cannot_redirect_traffic_of_its_server(croft: Cluster) -> None:
    """A node registers another Node and reports its address; machines route its pod network there."""
    nodes = croft.nodes()
    (server,) = (name for name, each in croft.machines().items() if is_server(nodes[each["status"]["nodeRef"]["name"]]))
    (worker,) = (each for each in nodes.values() if not is_server(each))
    kubectl = "kubectl --kubeconfig /etc/kubernetes/admin.conf"

    def on_server(command: str) -> str:
        return croft.site(HERDER, "ssh", server, "-n", DEFAULT_WORKSPACE, "--", f"{command} 2>&1 || true")

    def create_forged_node(networks: list[str]) -> str:
        spec = {"podCIDRs": networks, "podCIDR": networks[0]} if networks else {}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "forged"}, "spec": spec}
        status = {"status": {"addresses": worker["status"]["addresses"]}}
        created = on_server(
            f"echo '{json.dumps(node)}' | {kubectl} --as system:node:forged --as-group system:nodes create -f -"
        )
        # Kubelets may patch their status, but not read it, which kubectl does first.
        on_server(f"{kubectl} patch node forged --subresource=status -p '{json.dumps(status)}'")
        return created

    refused = create_forged_node(["203.0.113.0/24"])
    assert "203.0.113.0/24" not in on_server("sleep 3; ip route")
    assert "a node cannot choose its pod network" in refused
    assert create_forged_node([]) == "node/forged created\n"
    croft.site.eventually(lambda: croft.nodes()["forged"]["spec"].get("podCIDRs"), "its network is assigned")
    (assigned,) = croft.nodes()["forged"]["spec"]["podCIDRs"]
    croft.site.eventually(lambda: assigned in on_server("ip route"), "its network is routed")
    croft.kubectl("delete", "node", "forged")


def is_server(node: Object) -> bool:
    return "node-role.kubernetes.io/control-plane" in node["metadata"]["labels"]


def test_deletion_leaves_nothing(croft: Cluster) -> None:
    croft.assert_deletion_leaves_nothing()
