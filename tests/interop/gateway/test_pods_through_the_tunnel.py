"""Pods of a cluster without inbound connections: kubectl runs programs in them, reads their logs, copies files and
forwards ports through the tunnel that the cluster's agent, a pod itself, opened from inside.

A real kubelet and containerd run in their own machine; the manager is in a network without a route to it.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
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

from herder.machine.host.local import image
from tests.support.canaries import assert_no_secrets, canary, in_logs, in_store
from tests.support.clusters.machine_cluster import KUBECONFIG, MachineCluster, kubelet_clients
from tests.support.clusters.site import require_local_machines
from tests.support.embedded import HERDER, Embedded
from tests.support.manager.registration import printed_registration
from tests.support.peers import peer
from tests.support.registry.images import BUSYBOX, PYTHON, Registry
from tests.unit.machine.local.host import Host

TIMEOUT = 90.0
MANAGER, SITE = "10.98.0.1", "10.98.0.2"  # the ends of the virtual cable
NETWORK, REGISTRY, AGENT = "10.97.0.0/24", "10.97.0.1:5000", "herder/agent:test"
URL = f"https://{MANAGER}:7443"
USERS = {name: canary(f"password of {name}") for name in ("dolly", "polly", "molly")}
# Outgoing connections use the cable with the site's own address; only their responses are routed back.
MASQUERADE = 'table ip site { chain out { type nat hook postrouting priority 100; oifname "cable" masquerade; }; }'

LISTENING = """\
echo from the pod > /tmp/page
httpd -p 8080 -h /tmp
mkfifo /tmp/lines
exec 3<>/tmp/lines
echo ready
while read line <&3; do echo "heard $line"; done
"""
TRANSPORTS = {"websocket": "true", "spdy": "false"}  # kubectl's two transports; it falls back to the older one


class Site:
    def __init__(self, directory: Path, host: Host) -> None:
        self.directory = directory
        self.host = host
        self.network = f"herder-m-{uuid.uuid4().hex[:6]}"
        self.command_prefix = ("nsenter", f"--net=/run/netns/{self.network}")
        flags = ("--gateway", "--no-runner", "--no-machines", "--capi-core=external", "--advertise", MANAGER)
        flags += ("--set", f"agent-image={REGISTRY}/{AGENT}")
        self.manager = Embedded(
            directory / "manager", flags=flags, listen=f"{MANAGER}:7443", command_prefix=self.command_prefix
        )
        self.cluster: MachineCluster

    def lay_cable(self) -> None:
        for arguments in (
            f"netns add {self.network}",
            f"-n {self.network} link set lo up",
            f"-n {self.network} link add cable type veth peer name cable netns {self.host.name}",
            f"-n {self.network} address add {MANAGER}/24 dev cable",
            f"-n {self.host.name} address add {SITE}/24 dev cable",
            f"-n {self.network} link set cable up",
            f"-n {self.host.name} link set cable up",
        ):
            subprocess.run(["ip", *arguments.split()], check=True, timeout=30)
        inside = ["nsenter", f"--net=/run/netns/{self.host.name}"]
        forward = [*inside, "tee", "/proc/sys/net/ipv4/ip_forward"]
        subprocess.run(forward, input=b"1", stdout=subprocess.DEVNULL, check=True, timeout=30)
        subprocess.run([*inside, "chroot", image.location(), "nft", MASQUERADE], check=True, timeout=30)

    def remove_cable(self) -> None:
        subprocess.run(["ip", "netns", "delete", self.network], check=False, timeout=30)

    def start_cluster(self) -> None:
        machine = self.host.create("barn-1", kubernetes=True)
        self.cluster = MachineCluster(machine, REGISTRY)
        self.cluster.start()
        eventually(self.cluster.node_is_ready, "the node is ready", lambda: self.cluster.log("kubelet"))
        self.cluster.apply(kubelet_clients())

    def push_images(self, registry: Registry) -> None:
        registry.push_images()
        base, target = (f"127.0.0.1:{registry.port}/{name}" for name in (PYTHON, AGENT))
        command = [*registry.command_prefix, HERDER, "agent", "image", "--base", base, "--push", target]
        subprocess.run(command, check=True, timeout=120, capture_output=True)

    def run(self, *command: str | Path, kubeconfig: Path, stdin: str = "", check: bool = True, **more: str) -> Done:
        variables = os.environ | {"KUBECONFIG": str(kubeconfig), "HOME": str(self.directory), **more}
        done = subprocess.run(
            [*self.command_prefix, *command],
            input=stdin,
            env=variables,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"{command}: {done.stdout}{done.stderr}\n{self.manager.log()[-1500:]}")
        return done

    def administrator(self, *command: str | Path, stdin: str = "", check: bool = True) -> str:
        return self.run(*command, kubeconfig=self.manager.kubeconfig, stdin=stdin, check=check).stdout

    def kubeconfig(self, user: str) -> Path:
        return self.directory / f"{user}.kubeconfig"

    def kubectl(self, user: str, *arguments: str, stdin: str = "", check: bool = True, **more: str) -> Done:
        """Run kubectl through the manager, as that user."""
        return self.run(peer("kubectl"), *arguments, kubeconfig=self.kubeconfig(user), stdin=stdin, check=check, **more)

    def start_kubectl(self, user: str, *arguments: str, **more: str) -> subprocess.Popen[str]:
        """Start a kubectl command that keeps running."""
        variables = os.environ | {"KUBECONFIG": str(self.kubeconfig(user)), **more}
        command = [*self.command_prefix, peer("kubectl"), *arguments]
        return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)


Done = subprocess.CompletedProcess[str]


def eventually(holds: Callable[[], object], what: str, why: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not holds():
        assert time.monotonic() < deadline, f"{what}: {why()}"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    require_local_machines()
    directory = tmp_path_factory.mktemp("site")
    with ExitStack() as stack:
        host = stack.enter_context(Host(directory, environment={"HERDER_LOCAL_NETWORK": NETWORK}))
        site = Site(directory, host)
        stack.callback(site.remove_cable)
        site.lay_cable()
        command_prefix = ("nsenter", f"--net=/run/netns/{host.name}")
        registry = stack.enter_context(Registry(directory / "registry", 5000, command_prefix))
        stack.callback(site.manager.stop)
        with ThreadPoolExecutor() as pool:
            starting = [pool.submit(site.push_images, registry), pool.submit(site.start_cluster)]
            site.manager.start()
            for each in starting:
                each.result()
        yield site
    assert_no_secrets(in_store(directory / "manager" / "store"), in_logs(directory))


@pytest.fixture(scope="module")
def cluster(site: Site) -> str:
    """Import the cluster as documented, by one command in it, and wait for its agent; returns its ID."""
    eventually(lambda: site.administrator(HERDER, "import", "barn", check=False), "it is imported")
    printed = printed_registration(site.administrator(HERDER, "import", "barn"))
    reach = f"curl -skf {printed.url} > /dev/null && echo y"
    eventually(lambda: site.cluster.machine.ssh(reach, check=False), "the manager can be reached")
    site.cluster.machine.ssh(f"export KUBECONFIG={KUBECONFIG}; {printed.command}")
    name = printed.cluster
    connected = "jsonpath={.status.conditions[?(@.type=='Connected')].status}"
    query = (peer("kubectl"), "get", "clusters.management.cattle.io", name, "-o", connected)
    eventually(lambda: site.administrator(*query) == "True", "its agent is connected", lambda: _agent(site))
    return name


def _agent(site: Site) -> str:
    pods = site.cluster.kubectl("describe", "pods", "-n", "cattle-system", check=False)
    logs = site.cluster.kubectl("logs", "-n", "cattle-system", "deploy/cattle-cluster-agent", check=False)
    return f"{pods}\n{logs}"


@pytest.fixture(scope="module")
def users(site: Site, cluster: str) -> dict[str, str]:
    """Dolly owns the cluster, Polly may read its pods, and Molly has no access. Returns their IDs."""
    ids = {}
    checksum = printed_registration(site.administrator(HERDER, "import", "barn")).checksum
    for name, password in USERS.items():
        command = (HERDER, "users", "create", name, "--password-stdin")
        ids[name] = site.administrator(*command, stdin=password + "\n").strip()
        login = (HERDER, "login", URL, "-u", name, "--password-stdin", "--ca-checksum", checksum)
        site.administrator(*login, "--kubeconfig", site.kubeconfig(name), stdin=password + "\n")
        entry = yaml.safe_load(site.kubeconfig(name).read_text())
        entry["clusters"][0]["cluster"]["server"] += f"/k8s/clusters/{cluster}"
        site.kubeconfig(name).write_text(yaml.safe_dump(entry))
    objects = [
        _pod_reader_role(),
        _role(cluster, ids["dolly"], "cluster-owner"),
        _role(cluster, ids["polly"], "looking"),
    ]
    site.administrator(peer("kubectl"), "apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
    for name in ("dolly", "polly"):
        eventually(lambda n=name: not site.kubectl(n, "get", "pods", check=False).returncode, f"{name} has her rights")
    return ids


def _pod_reader_role() -> dict[str, Any]:
    rule = {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]}
    kind = {"apiVersion": "management.cattle.io/v3", "kind": "RoleTemplate", "metadata": {"name": "looking"}}
    return kind | {"context": "cluster", "rules": [rule]}


def _role(cluster: str, user: str, template: str) -> dict[str, Any]:
    kind = {"apiVersion": "management.cattle.io/v3", "kind": "ClusterRoleTemplateBinding"}
    name = {"metadata": {"name": template, "namespace": cluster}}
    return kind | name | {"clusterName": cluster, "roleTemplateName": template, "userName": user}


@pytest.fixture(scope="module")
def pods(site: Site, users: dict[str, str]) -> None:
    """Pods of Dolly: one that listens, and for each transport one that echoes its input."""
    objects = [_pod("listening", "sh", "-c", LISTENING)]
    objects += [_pod(f"repeating-{way}", "cat", stdin=True) for way in TRANSPORTS]
    site.kubectl("dolly", "apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
    site.kubectl("dolly", "wait", "--for=condition=Ready", "--timeout=45s", "pods", "--all")


def _pod(name: str, *command: str, stdin: bool = False) -> dict[str, Any]:
    container = {"name": "main", "image": f"{REGISTRY}/{BUSYBOX}", "command": list(command)}
    interactive = {"stdin": True, "stdinOnce": True} if stdin else {}
    spec = {"terminationGracePeriodSeconds": 0, "restartPolicy": "Never", "containers": [container | interactive]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> dict[str, str]:
    wanted = TRANSPORTS[request.param]
    return {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": wanted, "KUBECTL_PORT_FORWARD_WEBSOCKETS": wanted}


def test_the_cluster_accepts_no_connections(site: Site, cluster: str) -> None:
    for port in (6443, 10250):
        request = ("curl", "-sk", "--max-time", "3", f"https://{site.cluster.address}:{port}/")
        assert site.run(*request, kubeconfig=site.manager.kubeconfig, check=False).returncode in (7, 28), port


def test_the_cluster_agent_is_a_pod(site: Site, cluster: str, users: dict[str, str]) -> None:
    ready = "jsonpath={.status.readyReplicas}"
    query = ("get", "deployment", "-n", "cattle-system", "cattle-cluster-agent", "-o", ready)
    eventually(lambda: site.kubectl("dolly", *query).stdout == "1", "its own probe succeeds")


@pytest.mark.usefixtures("pods")
def test_exec_passes_stdin_and_returns_the_exit_code(site: Site, transport: dict[str, str]) -> None:
    arguments = ("exec", "-i", "listening", "--", "sh", "-c", "cat; echo oh >&2; exit 7")
    done = site.kubectl("dolly", *arguments, stdin="baa\n" * 3, check=False, **transport)
    assert done.stdout == "baa\n" * 3
    assert done.stderr == "oh\ncommand terminated with exit code 7\n"
    assert done.returncode == 7


@pytest.mark.usefixtures("pods")
@pytest.mark.parametrize("protocol", TRANSPORTS)
def test_attach_to_a_running_program(site: Site, protocol: str) -> None:
    done = site.kubectl(
        "dolly",
        "attach",
        "-i",
        f"repeating-{protocol}",
        stdin="baa\n",
        KUBECTL_REMOTE_COMMAND_WEBSOCKETS=TRANSPORTS[protocol],
    )
    assert done.stdout == "baa\n"


@pytest.mark.usefixtures("pods")
def test_files_are_copied_in_both_directions(site: Site, transport: dict[str, str], tmp_path: Path) -> None:
    sent, returned = tmp_path / "sent", tmp_path / "returned"
    sent.write_bytes(random.Random(1).randbytes(3 << 20))
    site.kubectl("dolly", "cp", str(sent), "listening:/tmp/fleece", **transport)
    seen = site.kubectl("dolly", "exec", "listening", "--", "sha256sum", "/tmp/fleece", **transport).stdout
    assert seen.split()[0] == hashlib.sha256(sent.read_bytes()).hexdigest()
    site.kubectl("dolly", "cp", "listening:/tmp/fleece", str(returned), **transport)
    assert returned.read_bytes() == sent.read_bytes()


@pytest.mark.usefixtures("pods")
def test_logs_are_followed(site: Site) -> None:
    with site.start_kubectl("dolly", "logs", "-f", "listening") as logs:
        try:
            assert logs.stdout is not None
            assert logs.stdout.readline() == "ready\n"
            for word in ("one", "two"):
                site.kubectl("dolly", "exec", "listening", "--", "sh", "-c", f"echo {word} > /tmp/lines")
                assert logs.stdout.readline() == f"heard {word}\n"
        finally:
            logs.terminate()


@pytest.mark.usefixtures("pods")
def test_a_port_of_a_pod_is_forwarded(site: Site, transport: dict[str, str]) -> None:
    with site.start_kubectl("dolly", "port-forward", "listening", ":8080", **transport) as forwarding:
        try:
            assert forwarding.stdout is not None
            here = forwarding.stdout.readline().split()[2]
            for _ in range(3):
                fetched = ("curl", "-sf", "--max-time", "20", f"http://{here}/page")
                assert site.run(*fetched, kubeconfig=site.kubeconfig("dolly")).stdout == "from the pod\n"
        finally:
            forwarding.terminate()


REFUSED = {
    "exec": ("exec", "listening", "--", "echo"),
    "attach": ("attach", "listening"),
    "port-forward": ("port-forward", "listening", ":8080"),
}


@pytest.mark.usefixtures("pods")
@pytest.mark.parametrize("verb", REFUSED)
def test_readers_cannot_open_streams(site: Site, users: dict[str, str], transport: dict[str, str], verb: str) -> None:
    assert "ready" in site.kubectl("polly", "logs", "listening").stdout
    refused = site.kubectl("polly", *REFUSED[verb], check=False, **transport)
    assert refused.returncode != 0
    assert f'User "{users["polly"]}" cannot create resource "pods/{verb.replace("-", "")}"' in refused.stderr


@pytest.mark.usefixtures("pods")
@pytest.mark.parametrize("verb", [*REFUSED, "logs"])
def test_users_without_access_are_rejected(site: Site, transport: dict[str, str], verb: str) -> None:
    refused = site.kubectl("molly", *REFUSED.get(verb, ("logs", "listening")), check=False, **transport)
    assert refused.returncode != 0
    assert "may not use cluster" in refused.stderr


def test_a_lost_agent_is_replaced_and_connects(site: Site, users: dict[str, str]) -> None:
    lost = _ready_agents(site)
    site.cluster.kubectl("delete", "pods", "-n", "cattle-system", *lost, "--force", "--grace-period=0")
    eventually(lambda: _ready_agents(site) - lost, "another agent is ready", lambda: _agent(site))
    assert "barn-1" in site.kubectl("dolly", "get", "nodes").stdout


def _ready_agents(site: Site) -> set[str]:
    listed = site.cluster.kubectl("get", "pods", "-n", "cattle-system", "-o", "json")
    return {
        pod["metadata"]["name"]
        for pod in json.loads(listed)["items"]
        if {"Ready": "True"}.items() <= {each["type"]: each["status"] for each in pod["status"]["conditions"]}.items()
    }


def test_the_machine_is_deleted_with_all_its_containers(site: Site, users: dict[str, str]) -> None:
    machine = site.cluster.machine
    groups, directory = machine.groups(), machine.directory
    machine.hosted.remove()
    assert [group for group in groups if group.exists()] == []
    assert not directory.exists()
