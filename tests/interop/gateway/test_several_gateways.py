"""Replicas of the gateway on one real cluster: an agent connected to one of them is reachable through all, and the
others continue when one is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from herder.api.management.names import CONNECTED_TO
from tests.support.canaries import assert_no_secrets, canary, in_logs
from tests.support.clusters.balancer import Balancer
from tests.support.embedded import HERDER, Embedded
from tests.support.engines import CONTROLLERS
from tests.support.kube import RealKube, free_port
from tests.support.manager import account as manager_account
from tests.support.manager.registration import printed_registration
from tests.support.peers import peer
from tests.support.processes import terminate

TIMEOUT = 90.0


def eventually(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


class Site:
    """A real cluster that the manager runs on, two replicas of the manager, and a managed cluster."""

    def __init__(self, directory: Path, kube: RealKube, downstream: Embedded) -> None:
        self.directory = directory
        self.kube = kube
        self.downstream = downstream
        self.ports = [free_port(), free_port()]
        self.url = self.checksum = ""  # as `herder import` prints them
        self.gateways: list[subprocess.Popen[bytes]] = []
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str | Path, log: str) -> subprocess.Popen[bytes]:
        with (self.directory / f"{log}.log").open("ab") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
        self.started.append(process)
        return process

    def start_gateways(self, url: str) -> None:
        account = manager_account.account_on(self.kube.kubeconfig, ("base", "gateway"))
        for number, port in enumerate(self.ports):
            bare = ("--no-machines", "--capi-core=external", "--no-webhooks", "--set", f"server-url={url}")
            listen = ("--gateway-listen", f"127.0.0.1:{port}", "--data-dir", self.directory / f"gateway-{number}")
            command = (HERDER, "run", "--kubeconfig", account, *bare, *listen)
            self.gateways.append(self.start(*command, log=f"gateway-{number}"))

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def __call__(
        self, *command: str | Path, kubeconfig: Path | None = None, stdin: str = "", check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command, by default as the administrator of the manager's own cluster."""
        variables = os.environ | {"KUBECONFIG": str(kubeconfig or self.kube.kubeconfig), "HOME": str(self.directory)}
        done = subprocess.run(
            command, input=stdin, env=variables, capture_output=True, text=True, timeout=120, check=False
        )
        if check and done.returncode:
            logs = "\n".join(self.log(name)[-1500:] for name in ("gateway-0", "gateway-1"))
            raise AssertionError(f"{command}: {done.stdout}{done.stderr}\n{logs}")
        return done

    def kubectl(self, *arguments: str, stdin: str = "", check: bool = True) -> str:
        return self(peer("kubectl"), *arguments, stdin=stdin, check=check).stdout

    def downstream_kubectl(self, *arguments: str, stdin: str = "") -> str:
        return self(peer("kubectl"), *arguments, kubeconfig=self.downstream.kubeconfig, stdin=stdin).stdout

    def through(
        self, gateway: int, cluster: str, *arguments: str, user: str = "dolly", check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl through a gateway, as a user who has logged in."""
        server = f"https://127.0.0.1:{self.ports[gateway]}/k8s/clusters/{cluster}"
        login = self.directory / f"{user}.kubeconfig"
        return self(peer("kubectl"), "--server", server, *arguments, kubeconfig=login, check=check)

    def create_user(self, user: str) -> str:
        """Create a user and log in; returns the user's ID."""
        password = canary(f"password of {user}") + "\n"
        user_id = self(HERDER, "users", "create", user, "--password-stdin", stdin=password).stdout.strip()
        pinned = ("--ca-checksum", self.checksum, "--kubeconfig", self.directory / f"{user}.kubeconfig")
        self(HERDER, "login", self.url, "-u", user, "--password-stdin", *pinned, stdin=password)
        return user_id

    def connection(self, cluster: str) -> tuple[str, str]:
        """The status of the condition Connected, and the gateway that reports it."""
        escaped = CONNECTED_TO.replace(".", "\\.")
        template = f"{{.status.conditions[?(@.type=='Connected')].status}} {{.metadata.annotations.{escaped}}}"
        found = self.kubectl("get", "clusters.management.cattle.io", cluster, "-o", f"jsonpath={template}", check=False)
        connected, _, gateway = found.partition(" ")
        return connected, gateway

    def gateways_known(self) -> list[str]:
        return self.kubectl("-n", "cattle-system", "get", "leases", "-o", "name", check=False).split()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    kube = RealKube(tmp_path_factory.mktemp("kube"), controller_manager=True, controllers=CONTROLLERS, audited=True)
    with kube, Embedded(tmp_path_factory.mktemp("downstream")) as downstream:
        site = Site(directory, kube, downstream)
        try:
            with Balancer(site.ports) as balancer:
                site.start_gateways(balancer.url)
                eventually(lambda: len(site.gateways_known()) == 2, "both replicas exist")
                yield site
        finally:
            for process in reversed(site.started):
                terminate(process)
            assert_no_secrets(in_logs(directory))
            manager_account.assert_nothing_denied(kube.kubeconfig)


@pytest.fixture(scope="module")
def cluster(site: Site) -> str:
    """A cluster whose agent is connected to the first gateway, owned by Dolly; returns its ID."""
    printed = printed_registration(site(HERDER, "import", "barn").stdout)
    name = printed.cluster
    site.downstream_kubectl("apply", "-f", "-", stdin=site("curl", "-skf", "--retry", "5", printed.url).stdout)
    token = site.directory / "token"
    token.write_text(printed.token)
    site.url, site.checksum = printed.server, printed.checksum
    agent = (sys.executable, "-m", "herder.clusteragent", "--server", site.url, "--ca-checksum", site.checksum)
    site.start(*agent, "--token-file", token, "--kubeconfig", site.downstream.kubeconfig, log="agent")
    eventually(lambda: site.connection(name)[0] == "True", f"connected: {site.log('agent')}")
    site.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(_owner(name, site.create_user("dolly"))))
    eventually(lambda: site.through(0, name, "get", "namespaces", check=False).returncode == 0, "dolly owns it")
    return name


def _owner(cluster: str, user: str) -> dict[str, object]:
    return {
        "apiVersion": "management.cattle.io/v3",
        "kind": "ClusterRoleTemplateBinding",
        "metadata": {"name": "dolly", "namespace": cluster},
        "clusterName": cluster,
        "roleTemplateName": "cluster-owner",
        "userName": user,
    }


def test_a_cluster_is_reachable_through_any_gateway(site: Site, cluster: str) -> None:
    _, gateway = site.connection(cluster)
    assert f"127.0.0.1:{site.ports[0]}" in site.kubectl("-n", "cattle-system", "get", "lease", gateway, "-o", "yaml")
    site.through(1, cluster, "create", "configmap", "fleece", "--from-literal=colour=white")
    assert site.downstream_kubectl("get", "configmap", "fleece", "-o", "jsonpath={.data.colour}") == "white"


def test_replicas_authenticate_each_other(site: Site, cluster: str) -> None:
    """A replica's name is no secret, but its token is."""
    name = site.gateways_known()[0].rpartition("/")[2]
    upgrade = ("-H", "Connection: Upgrade", "-H", "Upgrade: websocket", "-H", "Sec-WebSocket-Version: 13")
    key = ("-H", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "-H", f"X-API-Tunnel-ID: {name}")
    url = f"https://127.0.0.1:{site.ports[1]}/v3/connect"
    for token in ("", "guessed"):
        command = ("curl", "-sk", "--max-time", "5", "-o", "/dev/null", "-w", "%{http_code}", *upgrade, *key)
        assert site(*command, "-H", f"X-API-Tunnel-Token: {token}", url).stdout == "401"


def _member(cluster: str, project: str, user: str) -> dict[str, object]:
    return {
        "apiVersion": "management.cattle.io/v3",
        "kind": "ProjectRoleTemplateBinding",
        "metadata": {"name": "molly", "namespace": f"{cluster}-{project}"},
        "projectName": f"{cluster}:{project}",
        "roleTemplateName": "project-member",
        "userName": user,
    }


def test_project_members_can_only_use_its_namespaces(site: Site, cluster: str) -> None:
    named = "jsonpath={.items[*].metadata.name}"
    label = "authz.management.cattle.io/default-project=true"
    project = site.kubectl("-n", cluster, "get", "projects.management.cattle.io", "-l", label, "-o", named)
    user = site.create_user("molly")
    site.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(_member(cluster, project, user)))

    def molly(*arguments: str) -> subprocess.CompletedProcess[str]:
        return site.through(1, cluster, *arguments, user="molly", check=False)

    eventually(lambda: molly("create", "configmap", "shears").returncode == 0, "default belongs to the Default project")
    rejected = molly("-n", "kube-system", "get", "configmaps")
    assert f'User "{user}" cannot list resource "configmaps"' in rejected.stderr
    site.downstream_kubectl("create", "namespace", "pasture")
    assert molly("-n", "pasture", "get", "configmaps").returncode == 1
    site.downstream_kubectl("annotate", "namespace", "pasture", f"field.cattle.io/projectId={cluster}:{project}")
    eventually(lambda: molly("-n", "pasture", "get", "configmaps").returncode == 0, "it has joined the project")
    site.downstream_kubectl("annotate", "namespace", "pasture", "field.cattle.io/projectId-")
    eventually(lambda: molly("-n", "pasture", "get", "configmaps").returncode == 1, "it has left the project")
    query = ("get", "clusterroles,clusterrolebindings", "-l", "authz.cluster.cattle.io/impersonator", "-o", "name")
    assert user in site.downstream_kubectl(*query)
    site.kubectl("-n", f"{cluster}-{project}", "delete", "projectroletemplatebindings", "molly")
    eventually(lambda: "may not use cluster" in molly("get", "configmaps").stderr, "her rights are revoked")
    eventually(lambda: user not in site.downstream_kubectl(*query), "her impersonation rights are removed")


def test_the_managers_own_cluster_is_managed(site: Site, cluster: str) -> None:
    ready = "jsonpath={.status.ready} {.status.conditions[?(@.type=='Ready')].status}"
    local = ("-n", "fleet-local", "get", "clusters.provisioning.cattle.io", "local", "-o", ready)
    eventually(lambda: site.kubectl(*local, check=False) == "true True", "it is ready")
    output = site(HERDER, "get", "clusters", "-A").stdout
    assert [line.split()[:2] for line in output.splitlines()] == [
        ["NAMESPACE", "NAME"],
        ["fleet-default", "barn"],
        ["fleet-local", "local"],
    ]


def test_the_other_gateway_takes_over_a_killed_gateways_agent(site: Site, cluster: str) -> None:
    """Runs last: one of the two gateways is not restarted."""
    _, first_gateway = site.connection(cluster)
    site.gateways[0].send_signal(signal.SIGKILL)
    site.gateways[0].wait(20)
    statuses = []

    def is_reachable() -> bool:
        statuses.append(site.connection(cluster)[0])
        return site.through(1, cluster, "get", "configmap", "fleece", check=False).returncode == 0

    eventually(is_reachable, "the agent has connected to the other gateway")
    eventually(
        lambda: site.connection(cluster)[1] not in ("", first_gateway), "the other gateway reports the connection"
    )
    assert site.connection(cluster)[0] == "True"
    assert set(statuses) == {"True"}, "it was never reported as disconnected"
    eventually(lambda: len(site.gateways_known()) == 1, "the killed gateway leaves nothing behind")
