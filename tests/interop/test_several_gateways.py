"""Replicas of the gateway before one real cluster: an agent that one of them has is reached through all, and none of
them is missed when it dies."""

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
from tests.support.balancer import Balancer
from tests.support.canaries import canary, in_logs, nothing_told
from tests.support.embedded import HERDER, Embedded
from tests.support.engines import CONTROLLERS
from tests.support.kube import RealKube, free_port
from tests.support.peers import peer
from tests.support.processes import ended

PATIENCE = 90.0


def eventually(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


class Site:
    """A real cluster that the manager runs on, two replicas of it, and a cluster to be managed."""

    def __init__(self, directory: Path, kube: RealKube, downstream: Embedded) -> None:
        self.directory = directory
        self.kube = kube
        self.downstream = downstream
        self.ports = [free_port(), free_port()]
        self.url = self.checksum = ""  # as `herder import` tells them
        self.gateways: list[subprocess.Popen[bytes]] = []
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str | Path, log: str) -> subprocess.Popen[bytes]:
        with (self.directory / f"{log}.log").open("ab") as file:
            process = subprocess.Popen(words, stdout=file, stderr=file, start_new_session=True)
        self.started.append(process)
        return process

    def start_gateways(self, url: str) -> None:
        for number, port in enumerate(self.ports):
            bare = ("--no-machines", "--capi-core=external", "--no-webhooks", "--set", f"server-url={url}")
            listen = ("--gateway-listen", f"127.0.0.1:{port}", "--data-dir", self.directory / f"gateway-{number}")
            command = (HERDER, "run", "--kubeconfig", self.kube.kubeconfig, *bare, *listen)
            self.gateways.append(self.start(*command, log=f"gateway-{number}"))

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def __call__(
        self, *words: str | Path, kubeconfig: Path | None = None, stdin: str = "", check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """By default as the administrator of the manager's own cluster."""
        given = os.environ | {"KUBECONFIG": str(kubeconfig or self.kube.kubeconfig), "HOME": str(self.directory)}
        done = subprocess.run(words, input=stdin, env=given, capture_output=True, text=True, timeout=120, check=False)
        if check and done.returncode:
            logs = "\n".join(self.log(name)[-1500:] for name in ("gateway-0", "gateway-1"))
            raise AssertionError(f"{words}: {done.stdout}{done.stderr}\n{logs}")
        return done

    def kubectl(self, *words: str, stdin: str = "", check: bool = True) -> str:
        return self(peer("kubectl"), *words, stdin=stdin, check=check).stdout

    def below(self, *words: str, stdin: str = "") -> str:
        return self(peer("kubectl"), *words, kubeconfig=self.downstream.kubeconfig, stdin=stdin).stdout

    def through(
        self, gateway: int, cluster: str, *words: str, user: str = "dolly", check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """As somebody who has logged in."""
        server = f"https://127.0.0.1:{self.ports[gateway]}/k8s/clusters/{cluster}"
        login = self.directory / f"{user}.kubeconfig"
        return self(peer("kubectl"), "--server", server, *words, kubeconfig=login, check=check)

    def log_in(self, user: str) -> str:
        """Somebody new, whose id is told."""
        password = canary(f"password of {user}") + "\n"
        made = self(HERDER, "users", "create", user, "--password-stdin", stdin=password).stdout.strip()
        pinned = ("--ca-checksum", self.checksum, "--kubeconfig", self.directory / f"{user}.kubeconfig")
        self(HERDER, "login", self.url, "-u", user, "--password-stdin", *pinned, stdin=password)
        return made

    def told(self, cluster: str) -> tuple[str, str]:
        """Whether it is connected, and which gateway says so."""
        escaped = CONNECTED_TO.replace(".", "\\.")
        wanted = f"{{.status.conditions[?(@.type=='Connected')].status}} {{.metadata.annotations.{escaped}}}"
        found = self.kubectl("get", "clusters.management.cattle.io", cluster, "-o", f"jsonpath={wanted}", check=False)
        connected, _, answers = found.partition(" ")
        return connected, answers

    def gateways_known(self) -> list[str]:
        return self.kubectl("-n", "cattle-system", "get", "leases", "-o", "name", check=False).split()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    kube = RealKube(tmp_path_factory.mktemp("kube"), controller_manager=True, controllers=CONTROLLERS)
    with kube, Embedded(tmp_path_factory.mktemp("downstream")) as downstream:
        made = Site(directory, kube, downstream)
        try:
            with Balancer(made.ports) as balancer:
                made.start_gateways(balancer.url)
                eventually(lambda: len(made.gateways_known()) == 2, "both are there")
                yield made
        finally:
            for process in reversed(made.started):
                ended(process)
            nothing_told(in_logs(directory))


@pytest.fixture(scope="module")
def cluster(site: Site) -> str:
    """Its agent is connected to the first gateway; its id. Dolly owns it."""
    printed = site(HERDER, "import", "barn").stdout
    url = next(word for word in printed.split() if word.startswith("https://"))
    name = url.rpartition("_")[2].removesuffix(".yaml")
    site.below("apply", "-f", "-", stdin=site("curl", "-skf", "--retry", "5", url).stdout)
    token = site.directory / "token"
    token.write_text(url.rpartition("/")[2].partition("_")[0])
    site.url, site.checksum = url.partition("/v3/")[0], printed.split()[-1]
    agent = (sys.executable, "-m", "herder.clusteragent", "--server", site.url, "--ca-checksum", site.checksum)
    site.start(*agent, "--token-file", token, "--kubeconfig", site.downstream.kubeconfig, log="agent")
    eventually(lambda: site.told(name)[0] == "True", f"connected: {site.log('agent')}")
    site.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(_owner(name, site.log_in("dolly"))))
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


def test_a_cluster_is_reached_through_a_gateway_that_its_agent_is_not_connected_to(site: Site, cluster: str) -> None:
    _, answers = site.told(cluster)
    assert f"127.0.0.1:{site.ports[0]}" in site.kubectl("-n", "cattle-system", "get", "lease", answers, "-o", "yaml")
    site.through(1, cluster, "create", "configmap", "fleece", "--from-literal=colour=white")
    assert site.below("get", "configmap", "fleece", "-o", "jsonpath={.data.colour}") == "white"


def test_a_stranger_is_no_replica(site: Site, cluster: str) -> None:
    """Whoever knows a replica's name, which is no secret, does not know the token."""
    name = site.gateways_known()[0].rpartition("/")[2]
    upgrade = ("-H", "Connection: Upgrade", "-H", "Upgrade: websocket", "-H", "Sec-WebSocket-Version: 13")
    key = ("-H", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "-H", f"X-API-Tunnel-ID: {name}")
    url = f"https://127.0.0.1:{site.ports[1]}/v3/connect"
    for token in ("", "guessed"):
        asked = ("curl", "-sk", "--max-time", "5", "-o", "/dev/null", "-w", "%{http_code}", *upgrade, *key)
        assert site(*asked, "-H", f"X-API-Tunnel-Token: {token}", url).stdout == "401"


def _member(cluster: str, project: str, user: str) -> dict[str, object]:
    return {
        "apiVersion": "management.cattle.io/v3",
        "kind": "ProjectRoleTemplateBinding",
        "metadata": {"name": "molly", "namespace": f"{cluster}-{project}"},
        "projectName": f"{cluster}:{project}",
        "roleTemplateName": "project-member",
        "userName": user,
    }


def test_a_member_of_a_project_works_in_its_namespaces_and_nowhere_else(site: Site, cluster: str) -> None:
    named = "jsonpath={.items[*].metadata.name}"
    label = "authz.management.cattle.io/default-project=true"
    project = site.kubectl("-n", cluster, "get", "projects.management.cattle.io", "-l", label, "-o", named)
    user = site.log_in("molly")
    site.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(_member(cluster, project, user)))

    def molly(*words: str) -> subprocess.CompletedProcess[str]:
        return site.through(1, cluster, *words, user="molly", check=False)

    eventually(lambda: molly("create", "configmap", "shears").returncode == 0, "default is of the Default project")
    elsewhere = molly("-n", "kube-system", "get", "configmaps")
    assert f'User "{user}" cannot list resource "configmaps"' in elsewhere.stderr
    site.below("create", "namespace", "pasture")
    assert molly("-n", "pasture", "get", "configmaps").returncode == 1
    site.below("annotate", "namespace", "pasture", f"field.cattle.io/projectId={cluster}:{project}")
    eventually(lambda: molly("-n", "pasture", "get", "configmaps").returncode == 0, "it has joined the project")
    site.below("annotate", "namespace", "pasture", "field.cattle.io/projectId-")
    eventually(lambda: molly("-n", "pasture", "get", "configmaps").returncode == 1, "it has left it")
    acting = ("get", "clusterroles,clusterrolebindings", "-l", "authz.cluster.cattle.io/impersonator", "-o", "name")
    assert user in site.below(*acting)
    site.kubectl("-n", f"{cluster}-{project}", "delete", "projectroletemplatebindings", "molly")
    eventually(lambda: "may not use cluster" in molly("get", "configmaps").stderr, "her rights have ended")
    eventually(lambda: user not in site.below(*acting), "nobody can act as her there any more")


def test_the_managers_own_cluster_is_among_those_it_manages(site: Site, cluster: str) -> None:
    ready = "jsonpath={.status.ready} {.status.conditions[?(@.type=='Ready')].status}"
    local = ("-n", "fleet-local", "get", "clusters.provisioning.cattle.io", "local", "-o", ready)
    eventually(lambda: site.kubectl(*local, check=False) == "true True", "it is ready")
    shown = site(HERDER, "get", "clusters", "-A").stdout
    assert [line.split()[:2] for line in shown.splitlines()] == [
        ["NAMESPACE", "NAME"],
        ["fleet-default", "barn"],
        ["fleet-local", "local"],
    ]


def test_when_the_gateway_that_has_the_agent_is_killed_the_other_goes_on(site: Site, cluster: str) -> None:
    """Last: one of the two is gone for good."""
    _, answered = site.told(cluster)
    site.gateways[0].send_signal(signal.SIGKILL)
    site.gateways[0].wait(20)
    shown = []

    def again() -> bool:
        shown.append(site.told(cluster)[0])
        return site.through(1, cluster, "get", "configmap", "fleece", check=False).returncode == 0

    eventually(again, "the agent has come to the other gateway")
    eventually(lambda: site.told(cluster)[1] not in ("", answered), "who has it answers for it")
    assert site.told(cluster)[0] == "True"
    assert set(shown) == {"True"}, "it never showed as away"
    eventually(lambda: len(site.gateways_known()) == 1, "the dead leave nothing")
