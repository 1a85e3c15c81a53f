"""Kubernetes for real: one Cluster object becomes Debian machines in a network of their own with kubelets, containerd,
etcd and a control plane by kubeadm on them; it is changed in place, upgraded, grows, shrinks, and leaves no trace.

The programs are built from their sources; their installer image is made by our own command, and pulled from a registry.
One story, in the order of the file: each chapter goes on from where the last one left the cluster.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from herder.api.rke.names import INIT_NODE, KUBEADM_INSTALLER
from herder.cli.demo.site import ON_A_FULL_DISK
from herder.installers import tag
from herder.kubeadm.csr_approver import RECORD_PREFIX
from tests.support.images import BUSYBOX
from tests.support.kubeadm_clusters import (
    CONTROL_PLANE,
    FENCED,
    NEXT,
    REBUILT,
    VERSION,
    kubeadm_cluster,
    kubelet_request,
    kubernetes,
    new_key,
    next_programs,
    programs,
    push_installer,
)
from tests.support.serving_pods import (
    assert_a_service_leads_to_them,
    assert_pods_reach_each_other,
    serve_on_each_node,
)
from tests.support.site import MIRROR, REGISTRY, Cluster, Object, Site, site_in

NAME = "farm"
COMPONENTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
PASSING = "node.kubernetes.io/"  # taints that come and go with conditions, a moment later


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    with site_in(directory, {}, patience=150, pods=True) as site:
        made = programs(directory / "programs")
        for version, place in ((VERSION, made), (REBUILT, made), (NEXT, next_programs(directory / "next"))):
            push_installer(site, version, place)
        yield site


@pytest.fixture(scope="module")
def farm(site: Site) -> Cluster:
    """One server and one worker, from one Cluster object."""
    mirrors = {"mirrors": {REGISTRY: {"endpoint": [MIRROR]}}}
    farm = site.ask_for(NAME, *kubeadm_cluster(NAME, {"servers": 1, "workers": 1}, registries=mirrors))
    farm.until_ready("servers=1")
    return farm


# --- the story --------------------------------------------------------------------------------------------------------


def test_installers_are_in_the_registry(site: Site) -> None:
    asked = f"http://127.0.0.1:5000/v2/{KUBEADM_INSTALLER}/tags/list"
    assert set(json.loads(site("curl", "-sf", asked))["tags"]) == {tag(VERSION), tag(REBUILT), tag(NEXT)}


def test_nodes_are_what_their_machines_are(farm: Cluster) -> None:
    nodes, machines = farm.nodes(), farm.machines()
    assert {each["status"]["nodeRef"]["name"] for each in machines.values()} == set(nodes)
    for name, machine in machines.items():
        node = nodes[machine["status"]["nodeRef"]["name"]]
        labels, taints = node["metadata"]["labels"], node["spec"].get("taints") or []
        assert node["spec"]["providerID"] == machine["spec"]["providerID"]
        assert labels["rke.cattle.io/machine"] == machine["metadata"]["uid"]
        assert is_ready(node)
        is_server = "-servers-" in name
        assert (CONTROL_PLANE in labels) is is_server
        lasting = [taint["key"] for taint in taints if not taint["key"].startswith(PASSING)]
        assert lasting == ([CONTROL_PLANE] if is_server else [FENCED])
        assert labels.get("farm.example/breed") == (None if is_server else "merino")
        assert ("node-role.kubernetes.io/worker" in labels) is not is_server


def test_names_of_nodes_that_joined_are_issued_to_one_key(farm: Cluster) -> None:
    """The first server has not joined: kubeadm signs its certificate, and its Node protects its name."""
    assert recorded_names(farm) == set(farm.nodes()) - servers(farm)
    commands = [pod["spec"]["containers"][0]["command"] for pod in static_pods(farm)]
    (flags,) = (command for command in commands if command[0] == "kube-controller-manager")
    assert flags[1] == "--controllers=-certificatesigningrequest-approving-controller"


def test_a_worker_does_not_get_the_identity_of_the_server(farm: Cluster) -> None:
    """With the token of its plan, at the API server itself."""
    (server,) = servers(farm)
    (address,) = (e["address"] for e in farm.nodes()[server]["status"]["addresses"] if e["type"] == "InternalIP")
    stolen = json.dumps(kubelet_request("stolen", server, new_key()))
    there = ("--kubeconfig", "/dev/null", "--server", f"https://{address}:6443", "--insecure-skip-tls-verify")
    farm.kubectl(*there, "--token", bootstrap_token(farm), "create", "-f", "-", stdin=stolen)
    condition = "jsonpath={.status.conditions[*].type}"
    found = ("get", "csr", "stolen", "-o", condition)
    farm.site.eventually(lambda: farm.kubectl(*found) == "Denied", "it is denied", lambda: farm.kubectl(*found))


def test_the_agent_is_a_pod_and_the_cluster_is_asked_through_it(farm: Cluster) -> None:
    farm.assert_its_agent_is_a_pod()


def test_pods_on_each_node_reach_each_other_and_services(farm: Cluster) -> None:
    assert_pods_run_everywhere(farm)
    assert_a_service_leads_to_them(farm.kubectl)


def test_flags_and_another_build_of_the_same_version_come_to_machines_that_stay(farm: Cluster) -> None:
    before = farm.uids()
    flags = {
        "kube-apiserver-arg": ["max-requests-inflight=321"],
        "kubelet-arg": [*ON_A_FULL_DISK, "max-pods=77"],
    }
    farm.edit(version=REBUILT, machineGlobalConfig=flags)
    farm.until_ready("servers=1")
    assert farm.uids() == before
    assert_flags_are_kept(farm)
    assert builds(farm) == {(component, REBUILT) for component in COMPONENTS}
    assert {node["status"]["capacity"]["pods"] for node in farm.nodes().values()} == {"77"}


def test_a_worker_is_added_and_drained_before_it_goes(farm: Cluster) -> None:
    farm.until_ready("workers=2")
    assert_pods_run_everywhere(farm)
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "kept"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "serving"}}},
    }
    farm.kubectl("apply", "-f", "-", stdin=json.dumps(budget))
    farm.scale("workers=1")
    farm.site.eventually(lambda: "evict" in leaving(farm), "it waits for pods that may not go", lambda: leaving(farm))
    farm.kubectl("delete", "pdb", "kept")
    farm.until_ready("workers=1")
    assert len(farm.nodes()) == 2


@pytest.fixture(scope="module")
def upgrade(farm: Cluster) -> Upgrade:
    """Has begun."""
    begun = Upgrade(farm)
    farm.upgrade(NEXT)
    return begun


def test_an_upgrade_begins_with_the_server(upgrade: Upgrade) -> None:
    upgrade.until_done(1)
    assert upgrade.order == [upgrade.first_server]


def test_workers_come_last_and_nothing_is_made_anew(farm: Cluster, upgrade: Upgrade) -> None:
    upgrade.until_done(len(farm.nodes()))
    farm.until_ready("workers=1")
    assert all(is_ready(node) for node in farm.nodes().values())
    assert builds(farm) == {(component, NEXT) for component in COMPONENTS}
    assert_flags_are_kept(farm)
    assert members(farm) == servers(farm)
    assert farm.uids() == upgrade.machines
    assert certificates(farm) == upgrade.certificates
    assert pods(farm) == upgrade.pods, "what runs on them is not stopped"
    assert_pods_reach_each_other(farm.kubectl)


def test_one_server_becomes_two(farm: Cluster) -> None:
    """On the way to three; chapters are short, for the sake of who waits for them."""
    farm.scale("servers=3")
    farm.site.eventually(lambda: len(joined(farm, "-servers-")) >= 2, "another server has joined", farm.told)


def test_and_then_three(farm: Cluster) -> None:
    farm.until_ready("servers=3")
    nodes = farm.nodes()
    assert len(nodes) == 4
    assert all(is_ready(node) for node in nodes.values())
    assert members(farm) == servers(farm)
    assert len(recorded_names(farm) & servers(farm)) == 2
    assert_flags_are_kept(farm)
    assert_pods_run_everywhere(farm)


def test_a_server_goes_with_its_member(farm: Cluster) -> None:
    """Three members become two, then one: each is taken out by those that stay."""
    farm.until_ready("servers=1")
    assert len(servers(farm)) == 1
    assert members(farm) == servers(farm)


def test_nothing_is_left(farm: Cluster) -> None:
    farm.assert_it_goes_without_a_trace()


# --- looking ----------------------------------------------------------------------------------------------------------


@dataclass
class Upgrade:
    """What was there before, and who has come to the next version, in the order in which it was seen."""

    farm: Cluster
    order: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.machines, self.pods, self.certificates = self.farm.uids(), pods(self.farm), certificates(self.farm)
        plans, machines = self.farm.plans(), self.farm.machines()
        (first,) = (name for name, plan in plans.items() if plan["metadata"]["labels"].get(INIT_NODE) == "true")
        self.first_server = machines[first]["status"]["nodeRef"]["name"]

    def until_done(self, count: int) -> None:
        self.farm.site.eventually(
            lambda: self._look() >= count, "it goes on", lambda: f"{self.order} {self.farm.told()}"
        )

    def _look(self) -> int:
        """An API server that is just being replaced does not answer."""
        version = r'jsonpath={range .items[*]}{.metadata.name}={.status.nodeInfo.kubeletVersion}{"\n"}{end}'
        for line in self.farm.kubectl("get", "nodes", "-o", version, check=False).splitlines():
            name, _, told = line.partition("=")
            if told == kubernetes(NEXT) and name not in self.order:
                self.order.append(name)
        return len(self.order)


def assert_pods_run_everywhere(farm: Cluster) -> None:
    serve_on_each_node(farm.kubectl, farm.nodes(), f"{REGISTRY}/{BUSYBOX}", patience=60)
    assert_pods_reach_each_other(farm.kubectl)


def is_ready(node: Object) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"]["conditions"])


def static_pods(farm: Cluster) -> list[Object]:
    found: list[Object] = json.loads(
        farm.kubectl("get", "pods", "-n", "kube-system", "-l", "tier=control-plane", "-o", "json")
    )["items"]
    return found


def assert_flags_are_kept(farm: Cluster) -> None:
    commands = [pod["spec"]["containers"][0]["command"] for pod in static_pods(farm)]
    api_servers = [command for command in commands if command[0] == "kube-apiserver"]
    assert len(api_servers) == len(servers(farm))
    assert all("--max-requests-inflight=321" in command for command in api_servers)


def builds(farm: Cluster) -> set[tuple[str, str]]:
    """Which one of each component runs; etcd stays."""
    found = [pod["metadata"] for pod in static_pods(farm) if pod["metadata"]["labels"]["component"] != "etcd"]
    return {(each["labels"]["component"], each["annotations"]["kubeadm.herder.io/build"]) for each in found}


def recorded_names(farm: Cluster) -> set[str]:
    listed = farm.kubectl("get", "configmaps", "-n", "kube-system", "-o", "name").split()
    prefix = f"configmap/{RECORD_PREFIX}"
    return {each.removeprefix(prefix) for each in listed if each.startswith(prefix)}


def bootstrap_token(farm: Cluster) -> str:
    """As each machine has it."""
    directory = farm.site.machine_directories()[0]
    kubeconfig = json.loads((directory / "upper/etc/rancher/kubeadm/nodes.kubeconfig").read_text())
    return str(kubeconfig["users"][0]["user"]["token"])


def joined(farm: Cluster, pool: str) -> list[str]:
    """As the manager knows it: the cluster itself may be busy."""
    return [name for name, each in farm.machines().items() if pool in name and each.get("status", {}).get("nodeRef")]


def servers(farm: Cluster) -> set[str]:
    return {name for name, node in farm.nodes().items() if CONTROL_PLANE in node["metadata"]["labels"]}


def members(farm: Cluster) -> set[str]:
    """Of etcd, as one of them says."""
    pod = f"etcd-{min(servers(farm))}"
    pki = "/etc/kubernetes/pki/etcd"
    keys = (f"--cacert={pki}/ca.crt", f"--cert={pki}/server.crt", f"--key={pki}/server.key")
    told = farm.kubectl("exec", "-n", "kube-system", pod, "--", "etcdctl", *keys, "member", "list", "-w", "json")
    return {member["name"] for member in json.loads(told)["members"]}


def leaving(farm: Cluster) -> str:
    going = [each for each in farm.machines().values() if each["metadata"].get("deletionTimestamp")]
    return json.dumps([each["status"].get("conditions") for each in going])


def pods(farm: Cluster) -> dict[str, int]:
    """The users' own, by their UIDs, and how often each has started again."""
    found = json.loads(farm.kubectl("get", "pods", "-l", "app=serving", "-o", "json"))["items"]
    return {each["metadata"]["uid"]: each["status"]["containerStatuses"][0]["restartCount"] for each in found}


def certificates(farm: Cluster) -> dict[str, str]:
    """Those that kubeadm has made on the machines."""
    found = [
        path
        for directory in farm.site.machine_directories()
        for path in (directory / "upper/etc/kubernetes/pki").rglob("*.crt")
    ]
    assert found
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}
