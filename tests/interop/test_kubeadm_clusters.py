"""Kubernetes for real: one Cluster object becomes Debian machines in a network of their own with kubelets, containerd,
etcd and a control plane by kubeadm on them; it is changed in place, grows, shrinks, and goes without a trace.

The programs are built from their sources; their installer image is made by our own command, and pulled from a registry.
One story, in the order of the file: each chapter goes on from where the last one left the cluster.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from herder.api.management.names import DEFAULT_WORKSPACE
from herder.api.rke.names import KUBEADM_INSTALLER
from herder.api.rke.sample import Pool, cluster_objects
from herder.installers import tag
from herder.kubeadm.installer import PROGRAMS
from herder.machine.host.client import HostClient
from herder.machine.host.local import cgroups, image
from herder.machine.host.local.network import short_hash
from herder.machine.host.starting import answers
from tests.support.embedded import HERDER, Embedded
from tests.support.images import BUSYBOX, PYTHON, Registry
from tests.support.peers import peer
from tests.support.serving_pods import assert_pods_reach_each_other, serve_on_each_node

NAME, VERSION = "farm", "v1.36.3+kubeadm1"
NETWORK, HOST = "10.96.0.0/24", "10.96.0.1"  # of the machines; the host is in it, as their gateway
REGISTRY, AGENT = "registry.test", "herder/agent:test"  # by a name that only a mirror leads anywhere from
PATIENCE = 120.0
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
PASSING = "node.kubernetes.io/"  # taints that come and go with conditions, a moment later

Object = dict[str, Any]


class Site:
    """A network namespace with a manager and a registry in it; whatever is asked is asked from inside."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.network = f"herder-{uuid.uuid4().hex[:8]}"
        self.around = ("nsenter", f"--net=/run/netns/{self.network}", "env", f"HERDER_LOCAL_NETWORK={NETWORK}")
        settings = {
            "server-url": f"https://{HOST}:7443",
            "agent-image": f"{REGISTRY}/{AGENT}",
            "system-default-registry": REGISTRY,
        }
        flags = ["--gateway", "--capi-core=own", "--advertise", "127.0.0.1", "--advertise", HOST]
        flags += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        self.manager = Embedded(directory / "manager", flags=tuple(flags), listen="0.0.0.0:7443", around=self.around)
        self.kubeconfig = directory / "cluster.kubeconfig"
        self.before: set[tuple[str, str]] = set()

    def make_network(self) -> None:
        subprocess.run(["ip", "netns", "add", self.network], check=True, timeout=30)
        subprocess.run(["ip", "-n", self.network, "link", "set", "lo", "up"], check=True, timeout=30)

    def remove_network(self) -> None:
        subprocess.run(["ip", "netns", "delete", self.network], check=True, timeout=30)

    def end_machines(self) -> None:
        """Those that are left when something went wrong: they outlive their manager."""
        state = self.manager.directory / "host"
        if answers(state):
            HostClient.of(state).purge()
            HostClient.of(state).shutdown()

    def push_installer(self, registry: Registry) -> None:
        programs = [word for name in PROGRAMS for word in (f"--{name}", peer(name))]
        target = f"127.0.0.1:{registry.port}/{KUBEADM_INSTALLER}"
        self(HERDER, "installer", "kubeadm", "--version", VERSION, *programs, "--push", target)

    def push_images(self, registry: Registry) -> None:
        registry.fill()
        base, target = (f"127.0.0.1:{registry.port}/{name}" for name in (PYTHON, AGENT))
        self(HERDER, "agent", "image", "--base", base, "--push", target)

    # --- asking ---------------------------------------------------------------------------------------------------

    def __call__(
        self,
        *words: str | Path,
        kubeconfig: Path | None = None,
        stdin: str = "",
        check: bool = True,
    ) -> str:
        given = os.environ | {"KUBECONFIG": str(kubeconfig or self.manager.kubeconfig), "HOME": str(self.directory)}
        command = [*self.around, *words]
        done = subprocess.run(command, input=stdin, env=given, capture_output=True, text=True, check=False, timeout=300)
        if check and done.returncode:
            raise AssertionError(f"{words}: {done.stdout[-2000:]}{done.stderr}\n{self.manager.log()[-2000:]}")
        return done.stdout

    def kubectl(self, *words: str, **more: Any) -> str:
        """To the manager."""
        return self(peer("kubectl"), *words, **more)

    def inside(self, *words: str, **more: Any) -> str:
        """To the cluster, through the manager and the tunnel of the cluster's agent."""
        return self(peer("kubectl"), *words, kubeconfig=self.kubeconfig, **more)

    def listed(self, kind: str) -> list[Object]:
        """Of the manager, in the cluster's namespace."""
        found: list[Object] = json.loads(self.kubectl("get", kind, "-n", DEFAULT_WORKSPACE, "-o", "json"))["items"]
        return found

    def nodes(self) -> dict[str, Object]:
        found = json.loads(self.inside("get", "nodes", "-o", "json"))["items"]
        return {each["metadata"]["name"]: each for each in found}

    def machines(self) -> dict[str, str]:
        """Their UIDs."""
        return {each["metadata"]["name"]: each["metadata"]["uid"] for each in self.listed("machines")}

    # --- changing -------------------------------------------------------------------------------------------------

    def scale(self, *pools: str, wait: bool = True) -> str:
        return self(HERDER, "scale", "cluster", NAME, *pools, *(() if wait else ("--no-wait",)), "--timeout", "150")

    def apply(self, *objects: Object, check: bool = True) -> str:
        return self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects), check=check)

    def edit(self, patch: Object) -> None:
        kind = "clusters.provisioning.cattle.io"
        self.kubectl("patch", kind, NAME, "-n", DEFAULT_WORKSPACE, "--type=merge", "-p", json.dumps(patch))


def eventually(holds: Callable[[], object], what: str, why: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"{what}: {why()}"
        time.sleep(0.5)


def cluster(*pools: Pool) -> list[Object]:
    made = [obj for _, obj in cluster_objects(NAME, DEFAULT_WORKSPACE, driver="local", version=VERSION, pools=pools)]
    config = made[-1]["spec"]["rkeConfig"]
    config["registries"] = {"mirrors": {REGISTRY: {"endpoint": [f"http://{HOST}:5000"]}}}
    for pool in config["machinePools"]:
        pool["drainBeforeDelete"] = True
        if pool["name"] == "workers":
            pool["labels"] = {"farm.example/breed": "merino", "node-role.kubernetes.io/worker": ""}
    return made


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if os.geteuid() != 0:
        pytest.skip("machines and network namespaces of the test's own: needs root")
    for tool in ("ip", "nsenter", "mmdebstrap", "docker-registry"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}: scripts/setup dev")
    image.make("", lambda _percent, _text: None, kubernetes=True)
    directory = tmp_path_factory.mktemp("site")
    with ExitStack() as stack:
        made = Site(directory)
        made.make_network()
        stack.callback(made.remove_network)
        registry = stack.enter_context(Registry(directory / "registry", 5000, made.around))
        stack.callback(made.end_machines)
        stack.callback(made.manager.stop)
        with ThreadPoolExecutor() as pool:
            pushing = pool.submit(made.push_images, registry)
            made.manager.start()
            pushing.result()
            made.push_installer(registry)
        yield made


@pytest.fixture(scope="module")
def farm(site: Site) -> Site:
    """One server and one worker, from one Cluster object."""
    fields = {"kubernetes": True}
    objects = cluster(Pool("servers", 1, ("etcd", "controlplane"), fields), Pool("workers", 1, ("worker",), fields))
    *configs, asked = objects
    eventually(lambda: site.apply(*configs, check=False), "our kinds are served")
    site.before = traces(site)
    site.apply(asked)
    site.scale("servers=1")
    site.kubeconfig.write_text(site(HERDER, "kubeconfig", NAME))
    return site


# --- the story --------------------------------------------------------------------------------------------------------


def test_the_installer_is_in_the_registry(site: Site) -> None:
    asked = f"http://127.0.0.1:5000/v2/{KUBEADM_INSTALLER}/tags/list"
    assert json.loads(site("curl", "-sf", asked))["tags"] == [tag(VERSION)]


def test_nodes_are_what_their_machines_are(farm: Site) -> None:
    nodes, machines = farm.nodes(), farm.listed("machines")
    assert {each["status"]["nodeRef"]["name"] for each in machines} == set(nodes)
    for machine in machines:
        node = nodes[machine["status"]["nodeRef"]["name"]]
        labels, taints = node["metadata"]["labels"], node["spec"].get("taints") or []
        assert node["spec"]["providerID"] == machine["spec"]["providerID"]
        assert labels["rke.cattle.io/machine"] == machine["metadata"]["uid"]
        assert condition(node, "Ready") == "True"
        is_server = "-servers-" in machine["metadata"]["name"]
        assert (CONTROL_PLANE in labels) is is_server
        lasting = [taint["key"] for taint in taints if not taint["key"].startswith(PASSING)]
        assert lasting == ([CONTROL_PLANE] if is_server else [])
        assert labels.get("farm.example/breed") == (None if is_server else "merino")
        assert ("node-role.kubernetes.io/worker" in labels) is not is_server


def test_the_agent_is_a_pod_and_the_cluster_is_asked_through_it(farm: Site) -> None:
    ready = "jsonpath={.status.readyReplicas}"
    asked = ("get", "deployment", "-n", "cattle-system", "cattle-cluster-agent", "-o", ready)
    eventually(lambda: farm.inside(*asked) == "1", "the agent's own probe says that it is well")


def test_pods_on_each_node_reach_each_other(farm: Site) -> None:
    serve_on_each_node(farm.inside, farm.nodes(), f"{REGISTRY}/{BUSYBOX}", patience=60)
    assert_pods_reach_each_other(farm.inside)


def test_a_flag_is_changed_in_place(farm: Site) -> None:
    before, boots = farm.machines(), boot_ids(farm)
    flags = {"kube-apiserver-arg": ["max-requests-inflight=321"], "kubelet-arg": ["max-pods=77"]}
    farm.edit({"spec": {"rkeConfig": {"machineGlobalConfig": flags}}})
    farm.scale("servers=1")
    assert farm.machines() == before
    assert {name: boots[name] for name in before} == boot_ids(farm)
    (command,) = commands(farm)
    assert "--max-requests-inflight=321" in command
    assert {node["status"]["capacity"]["pods"] for node in farm.nodes().values()} == {"77"}


def test_a_worker_is_added_and_drained_before_it_goes(farm: Site) -> None:
    farm.scale("workers=2")
    serve_on_each_node(farm.inside, farm.nodes(), f"{REGISTRY}/{BUSYBOX}", patience=60)
    assert_pods_reach_each_other(farm.inside)
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "kept"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "serving"}}},
    }
    farm.inside("apply", "-f", "-", stdin=json.dumps(budget))
    farm.scale("workers=1", wait=False)
    eventually(lambda: "evict" in leaving(farm), "it waits for pods that may not go", lambda: leaving(farm))
    farm.inside("delete", "pdb", "kept")
    farm.scale("workers=1")
    assert len(farm.nodes()) == 2


def test_one_server_becomes_two(farm: Site) -> None:
    """On the way to three; chapters are short, for the sake of who waits for them."""
    farm.scale("servers=3", wait=False)
    eventually(lambda: len(servers(farm)) >= 2, "another server has joined")


def test_and_then_three(farm: Site) -> None:
    farm.scale("servers=3")
    nodes = farm.nodes()
    assert len(nodes) == 4
    assert all(condition(node, "Ready") == "True" for node in nodes.values())
    assert members(farm) == servers(farm)
    assert all("--max-requests-inflight=321" in each for each in commands(farm))
    serve_on_each_node(farm.inside, farm.nodes(), f"{REGISTRY}/{BUSYBOX}", patience=60)
    assert_pods_reach_each_other(farm.inside)


def test_a_server_goes_with_its_member(farm: Site) -> None:
    """Three members become two, then one: each is taken out by those that stay."""
    farm.scale("servers=1")
    assert len(servers(farm)) == 1
    assert members(farm) == servers(farm)


def test_nothing_is_left(farm: Site) -> None:
    groups = groups_of(farm)
    assert all(group.exists() for group in groups)
    farm(HERDER, "delete", "cluster", NAME, "--timeout", "150")
    eventually(lambda: not left(farm), "nothing is left", lambda: str(left(farm)))
    assert not [group for group in groups if group.exists()]


# --- looking ----------------------------------------------------------------------------------------------------------


def condition(obj: Object, name: str) -> str:
    return next((each["status"] for each in obj["status"]["conditions"] if each["type"] == name), "")


def commands(farm: Site) -> list[list[str]]:
    """How each API server runs."""
    pods = json.loads(farm.inside("get", "pods", "-n", "kube-system", "-l", "component=kube-apiserver", "-o", "json"))
    return [pod["spec"]["containers"][0]["command"] for pod in pods["items"]]


def servers(farm: Site) -> set[str]:
    return {name for name, node in farm.nodes().items() if CONTROL_PLANE in node["metadata"]["labels"]}


def boot_ids(farm: Site) -> dict[str, str]:
    return {name: node["status"]["nodeInfo"]["bootID"] for name, node in farm.nodes().items()}


def members(farm: Site) -> set[str]:
    """Of etcd, as one of them says."""
    pod = f"etcd-{min(servers(farm))}"
    pki = "/etc/kubernetes/pki/etcd"
    keys = (f"--cacert={pki}/ca.crt", f"--cert={pki}/server.crt", f"--key={pki}/server.key")
    told = farm.inside("exec", "-n", "kube-system", pod, "--", "etcdctl", *keys, "member", "list", "-w", "json")
    return {member["name"] for member in json.loads(told)["members"]}


def leaving(farm: Site) -> str:
    going = [each for each in farm.listed("machines") if each["metadata"].get("deletionTimestamp")]
    return json.dumps([each["status"].get("conditions") for each in going])


def left(site: Site) -> list[str]:
    """What was not there before. The log of what happened stays, by design."""
    before, now = site.before, traces(site)
    found = [f"{what}: {each}" for what, each in now if (what, each) not in before]
    return [each for each in found if each != "namespaces: namespace/herder-archive"]


def traces(site: Site) -> set[tuple[str, str]]:
    """What a cluster could leave behind, at the manager and on the host."""
    kinds = "machines,localmachines,localmachinetemplates,rkebootstraps,rkecontrolplanes,secrets,serviceaccounts,jobs"
    asked = ("get", kinds, "-n", DEFAULT_WORKSPACE, "-o", "name", "--ignore-not-found")
    links = subprocess.run(["ip", "-n", site.network, "-o", "link"], capture_output=True, text=True, check=True).stdout
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    state = str(site.manager.directory)
    machines = site.manager.directory / "host" / "machines"
    found = {
        "objects": site.kubectl(*asked, check=False).split(),
        "namespaces": site.kubectl("get", "namespaces", "-o", "name", check=False).split(),
        "clusters": site.kubectl("get", "clusters.management.cattle.io", "-o", "name", check=False).split(),
        "links": [line.split()[1] for line in links.splitlines()],
        "mounts": [line for line in mounts if state in line],
        "directories": os.listdir(machines) if machines.exists() else [],
    }
    return {(what, each) for what, seen in found.items() for each in seen}


def groups_of(site: Site) -> list[Path]:
    """The control groups of the machines that are there: no process is left outside of them."""
    directories = (site.manager.directory / "host" / "machines").iterdir()
    return [tree.base / short_hash(str(each), 12) for each in directories for tree in cgroups.trees()]
