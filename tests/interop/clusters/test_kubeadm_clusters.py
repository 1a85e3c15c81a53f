"""Real Kubernetes: one Cluster object becomes Debian machines in their own network with kubelets, containerd, etcd and
a control plane by kubeadm. The cluster is changed in place, upgraded, scaled up and down, and deleted without
leftovers.

The programs are built from source; their installer image is built by Herder, and pulled from a registry. The tests run
in the order of the file: each continues with the cluster of the previous one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import pytest

from herder.api.management.names import DEFAULT_WORKSPACE
from herder.api.rke.names import INIT_NODE, KUBEADM_INSTALLER, PROBES_PASSED
from herder.api.rke.node.plan_secret import PlanSecret
from herder.cli.demo.site import ON_A_FULL_DISK
from herder.installers import tag
from herder.kubeadm.csr_approver import RECORD_PREFIX
from tests.support.clusters.kubeadm_clusters import (
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
    server_processes,
)
from tests.support.clusters.serving_pods import (
    assert_pods_reach_each_other,
    assert_service_reaches_pods,
    serve_on_each_node,
)
from tests.support.clusters.site import AGENT, MIRROR, REGISTRY, Cluster, Object, Site, site_in
from tests.support.embedded import HERDER
from tests.support.registry.images import BUSYBOX

NAME = "farm"
COMPONENTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
NOT_CONNECTED = "waiting for cluster agent to connect"
CONDITION_TAINTS = "node.kubernetes.io/"  # taints that follow conditions with a delay


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    with site_in(directory, {}, timeout=400, pods=True) as site:
        current_programs = programs(directory / "programs")
        for version, source in (
            (VERSION, current_programs),
            (REBUILT, current_programs),
            (NEXT, next_programs(directory / "next")),
        ):
            push_installer(site, version, source)
        yield site


@pytest.fixture(scope="module")
def without_agent_image(site: Site) -> WithoutAgentImage:
    """One server and one worker, from one Cluster object. At first, the registry lacks the image of its agent."""
    mirrors = {"mirrors": {REGISTRY: {"endpoint": [MIRROR]}}}
    with site.registry.hidden(AGENT):
        farm = site.create_cluster(NAME, *kubeadm_cluster(NAME, {"servers": 1, "workers": 1}, registries=mirrors))
        return WithoutAgentImage(farm)


@pytest.fixture(scope="module")
def farm(without_agent_image: WithoutAgentImage) -> Cluster:
    """The same cluster, now with the image."""
    without_agent_image.farm.until_ready("servers=1")
    return without_agent_image.farm


# --- tests in order ---------------------------------------------------------------------------------------------------


def test_installers_are_in_the_registry(site: Site) -> None:
    url = f"http://127.0.0.1:5000/v2/{KUBEADM_INSTALLER}/tags/list"
    assert set(json.loads(site("curl", "-sf", url))["tags"]) == {tag(VERSION), tag(REBUILT), tag(NEXT)}


def test_an_agent_whose_image_cannot_be_pulled_is_reported(without_agent_image: WithoutAgentImage) -> None:
    seen = without_agent_image
    for output in (seen.condition, seen.wait, seen.describe, seen.logs):
        assert NOT_CONNECTED in output
        assert re.search(r"cattle-cluster-agent-\S+: (ErrImagePull|ImagePullBackOff): ", output), output
        assert f"{REGISTRY}/{AGENT}" in output


def test_a_connected_agent_is_not_reported(farm: Cluster, without_agent_image: WithoutAgentImage) -> None:
    assert not [name for name, secret in farm.plans().items() if reports_agent(secret)]
    assert NOT_CONNECTED not in farm.condition_messages()
    server, processes = without_agent_image.server, without_agent_image.processes
    assert server_processes(farm, server) == processes, "nothing was restarted"


def test_nodes_match_their_machines(farm: Cluster) -> None:
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
        lasting = [taint["key"] for taint in taints if not taint["key"].startswith(CONDITION_TAINTS)]
        assert lasting == ([CONTROL_PLANE] if is_server else [FENCED])
        assert labels.get("farm.example/breed") == (None if is_server else "merino")
        assert ("node-role.kubernetes.io/worker" in labels) is not is_server


def test_snapshots_are_saved_on_demand(farm: Cluster, without_agent_image: WithoutAgentImage) -> None:
    farm.site(HERDER, "snapshot", "create", farm.name, "--timeout", str(farm.site.timeout))
    (server,) = servers(farm)
    (snapshot,) = farm.site.listed("etcdsnapshots.rke.cattle.io")
    file = snapshot["snapshotFile"]
    assert (file["nodeName"], file["status"]) == (server, "successful")
    path = file["location"].removeprefix("file://")
    size = farm.site(HERDER, "ssh", server, "-n", DEFAULT_WORKSPACE, "--", f"stat -c %s {path}")
    assert size.strip() == str(file["size"])
    assert snapshot["metadata"]["name"] in farm.site(HERDER, "snapshot", "list", farm.name)
    processes = without_agent_image.processes
    assert server_processes(farm, without_agent_image.server) == processes, "nothing was restarted"


def test_names_of_joined_nodes_are_bound_to_one_key(farm: Cluster) -> None:
    """kubeadm signs the certificate of the first server; the approver records its name when it sees its Node."""
    assert recorded_names(farm) == set(farm.nodes())
    commands = [pod["spec"]["containers"][0]["command"] for pod in static_pods(farm)]
    (flags,) = (command for command in commands if command[0] == "kube-controller-manager")
    assert flags[1] == "--controllers=-certificatesigningrequest-approving-controller"


def test_a_worker_cannot_get_the_identity_of_the_server(farm: Cluster) -> None:
    """With the token of its plan, directly at the API server."""
    (server,) = servers(farm)
    (address,) = (e["address"] for e in farm.nodes()[server]["status"]["addresses"] if e["type"] == "InternalIP")
    stolen = json.dumps(kubelet_request("stolen", server, new_key()))
    api_server = ("--kubeconfig", "/dev/null", "--server", f"https://{address}:6443", "--insecure-skip-tls-verify")
    farm.kubectl(*api_server, "--token", bootstrap_token(farm), "create", "-f", "-", stdin=stolen)
    condition = "jsonpath={.status.conditions[*].type}"
    query = ("get", "csr", "stolen", "-o", condition)
    farm.site.eventually(lambda: farm.kubectl(*query) == "Denied", "it is denied", lambda: farm.kubectl(*query))


def test_the_cluster_agent_is_a_pod(farm: Cluster) -> None:
    farm.assert_agent_is_a_pod()


def test_pods_on_each_node_reach_each_other_and_services(farm: Cluster) -> None:
    assert_pods_run_everywhere(farm)
    assert_service_reaches_pods(farm.kubectl)


def test_flags_and_another_build_are_applied_in_place(farm: Cluster) -> None:
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


def test_a_worker_is_added_and_drained_before_deletion(farm: Cluster) -> None:
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
    farm.site.eventually(
        lambda: "evict" in conditions_of_deleting_machines(farm),
        "the drain waits for pods that cannot be evicted",
        lambda: conditions_of_deleting_machines(farm),
    )
    farm.kubectl("delete", "pdb", "kept")
    farm.until_ready("workers=1")
    assert len(farm.nodes()) == 2


@pytest.fixture(scope="module")
def upgrade(farm: Cluster) -> Upgrade:
    """An upgrade that has started."""
    started = Upgrade(farm)
    farm.upgrade(NEXT)
    return started


def test_an_upgrade_starts_with_the_server(upgrade: Upgrade) -> None:
    upgrade.until_done(1)
    assert upgrade.order == [upgrade.first_server]


def test_workers_are_upgraded_last_and_nothing_is_recreated(farm: Cluster, upgrade: Upgrade) -> None:
    upgrade.until_done(len(farm.nodes()))
    farm.until_ready("workers=1")
    assert all(is_ready(node) for node in farm.nodes().values())
    assert builds(farm) == {(component, NEXT) for component in COMPONENTS}
    assert_flags_are_kept(farm)
    assert members(farm) == servers(farm)
    assert farm.uids() == upgrade.machines
    assert certificates(farm) == upgrade.certificates
    assert pods(farm) == upgrade.pods, "pods are not restarted"
    assert_pods_reach_each_other(farm.kubectl)


def test_a_second_server_joins(farm: Cluster) -> None:
    """On the way to three servers; separate tests keep each one short."""
    farm.scale("servers=3")
    farm.site.eventually(
        lambda: len(joined(farm, "-servers-")) >= 2, "another server has joined", farm.condition_messages
    )


def test_a_third_server_joins(farm: Cluster) -> None:
    farm.until_ready("servers=3")
    nodes = farm.nodes()
    assert len(nodes) == 4
    assert all(is_ready(node) for node in nodes.values())
    assert members(farm) == servers(farm)
    assert servers(farm) <= recorded_names(farm)
    assert_flags_are_kept(farm)
    assert_pods_run_everywhere(farm)


def test_etcd_members_are_removed_with_their_servers(farm: Cluster) -> None:
    """Three members become two, then one: the remaining members remove each."""
    farm.until_ready("servers=1")
    assert len(servers(farm)) == 1
    assert members(farm) == servers(farm)


def test_deletion_leaves_nothing(farm: Cluster) -> None:
    farm.assert_deletion_leaves_nothing()


# --- helpers ----------------------------------------------------------------------------------------------------------


class WithoutAgentImage:
    """What users see of a cluster whose agent cannot be pulled."""

    def __init__(self, farm: Cluster) -> None:
        self.farm = farm
        farm.site.eventually(self._waits, "the server waits for the agent", farm.condition_messages)
        (self.server,) = (name for name, plan in farm.plans().items() if is_init(plan))
        self.processes = server_processes(farm, self.server)
        self._antedate_wait()
        farm.site.eventually(self._is_reported, "the pod is reported", farm.condition_messages)
        self.condition = farm.condition_messages()
        self.wait, self.describe, self.logs = (
            farm.site(HERDER, *command, check=False)
            for command in (
                ("wait", "cluster", NAME, "--timeout", "3"),
                ("describe", "cluster", NAME),
                ("logs", "cluster", NAME),
            )
        )

    def _waits(self) -> bool:
        return NOT_CONNECTED in self.farm.condition_messages()

    def _is_reported(self) -> bool:
        return "ImagePull" in self.farm.condition_messages()

    def _antedate_wait(self) -> None:
        """Let the server have waited for hours, so that the test does not."""
        long_ago, kubectl = "2026-01-01T00:00:00Z", partial(self.farm.site.kubectl, "patch", "-n", DEFAULT_WORKSPACE)
        secret, machine = self.farm.plans()[self.server]["metadata"]["name"], self.farm.machines()[self.server]
        annotations = {"metadata": {"annotations": {PROBES_PASSED: long_ago}}}
        kubectl("secret", secret, "-p", json.dumps(annotations))
        conditions = machine["status"]["conditions"]
        (index,) = (number for number, each in enumerate(conditions) if each["type"] == "Reconciled")
        path = f"/status/conditions/{index}"
        patch = [
            {"op": "test", "path": f"{path}/type", "value": "Reconciled"},
            {"op": "replace", "path": f"{path}/lastTransitionTime", "value": long_ago},
        ]
        kubectl("machine", self.server, "--subresource=status", "--type=json", "-p", json.dumps(patch))


@dataclass
class Upgrade:
    """The state before the upgrade, and the nodes with the next version, in the observed order."""

    farm: Cluster
    order: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.machines, self.pods, self.certificates = self.farm.uids(), pods(self.farm), certificates(self.farm)
        plans, machines = self.farm.plans(), self.farm.machines()
        (first,) = (name for name, plan in plans.items() if is_init(plan))
        self.first_server = machines[first]["status"]["nodeRef"]["name"]

    def until_done(self, count: int) -> None:
        self.farm.site.eventually(
            lambda: self._record_upgraded() >= count,
            "the upgrade continues",
            lambda: f"{self.order} {self.farm.condition_messages()}",
        )

    def _record_upgraded(self) -> int:
        """Record nodes with the next version. An API server that is being replaced does not respond."""
        version = r'jsonpath={range .items[*]}{.metadata.name}={.status.nodeInfo.kubeletVersion}{"\n"}{end}'
        for line in self.farm.kubectl("get", "nodes", "-o", version, check=False).splitlines():
            name, _, kubelet_version = line.partition("=")
            if kubelet_version == kubernetes(NEXT) and name not in self.order:
                self.order.append(name)
        return len(self.order)


def is_init(secret: Object) -> bool:
    return bool(secret["metadata"]["labels"].get(INIT_NODE) == "true")


def reports_agent(secret: Object) -> bool:
    plan = PlanSecret(secret).plan
    assert plan is not None
    return plan.reports_agent


def assert_pods_run_everywhere(farm: Cluster) -> None:
    serve_on_each_node(farm.kubectl, farm.nodes(), f"{REGISTRY}/{BUSYBOX}", timeout=300)
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
    """The running build of each component except etcd, which is not replaced."""
    found = [pod["metadata"] for pod in static_pods(farm) if pod["metadata"]["labels"]["component"] != "etcd"]
    return {(each["labels"]["component"], each["annotations"]["kubeadm.herder.io/build"]) for each in found}


def recorded_names(farm: Cluster) -> set[str]:
    listed = farm.kubectl("get", "configmaps", "-n", "kube-system", "-o", "name").split()
    prefix = f"configmap/{RECORD_PREFIX}"
    return {each.removeprefix(prefix) for each in listed if each.startswith(prefix)}


def bootstrap_token(farm: Cluster) -> str:
    """The token that each machine has."""
    directory = farm.site.machine_directories()[0]
    kubeconfig = json.loads((directory / "upper/etc/rancher/kubeadm/nodes.kubeconfig").read_text())
    return str(kubeconfig["users"][0]["user"]["token"])


def joined(farm: Cluster, pool: str) -> list[str]:
    """Machines of the pool with a Node, as the manager knows them: the cluster itself may be busy."""
    return [name for name, each in farm.machines().items() if pool in name and each.get("status", {}).get("nodeRef")]


def servers(farm: Cluster) -> set[str]:
    return {name for name, node in farm.nodes().items() if CONTROL_PLANE in node["metadata"]["labels"]}


def members(farm: Cluster) -> set[str]:
    """The etcd members, as one of them reports them."""
    pod = f"etcd-{min(servers(farm))}"
    pki = "/etc/kubernetes/pki/etcd"
    keys = (f"--cacert={pki}/ca.crt", f"--cert={pki}/server.crt", f"--key={pki}/server.key")
    output = farm.kubectl("exec", "-n", "kube-system", pod, "--", "etcdctl", *keys, "member", "list", "-w", "json")
    return {member["name"] for member in json.loads(output)["members"]}


def conditions_of_deleting_machines(farm: Cluster) -> str:
    deleting = [each for each in farm.machines().values() if each["metadata"].get("deletionTimestamp")]
    return json.dumps([each["status"].get("conditions") for each in deleting])


def pods(farm: Cluster) -> dict[str, int]:
    """Pods of users by UID, with their restart counts."""
    found = json.loads(farm.kubectl("get", "pods", "-l", "app=serving", "-o", "json"))["items"]
    return {each["metadata"]["uid"]: each["status"]["containerStatuses"][0]["restartCount"] for each in found}


def certificates(farm: Cluster) -> dict[str, str]:
    """Hashes of the certificates that kubeadm created on the machines."""
    found = [
        path
        for directory in farm.site.machine_directories()
        for path in (directory / "upper/etc/kubernetes/pki").rglob("*.crt")
    ]
    assert found
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}
