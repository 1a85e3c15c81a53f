"""A cluster without inbound connections is used through the tunnel that its agent opens, by authorized users.

Manager and cluster are in separate network namespaces. The cluster's API listens only on its own loopback.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from herder.api.capi.crds import CRDS as CAPI_CRDS
from tests.support.canaries import assert_no_secrets, canary, in_logs, in_store
from tests.support.embedded import HERDER
from tests.support.manager.registration import printed_registration
from tests.support.peers import peer
from tests.support.processes import terminate

TIMEOUT = 90.0
MANAGER_ADDRESS, CLUSTER_ADDRESS, PORT = "10.98.0.1", "10.98.0.2", 7443
PASSWORDS = {name: canary(f"password of {name}") for name in ("dolly", "molly")}
ROOT = Path(__file__).parents[3]


class Networks:
    """Two network namespaces connected by a virtual cable: the manager's, and the cluster's."""

    def __init__(self) -> None:
        tail = uuid.uuid4().hex[:6]
        self.manager, self.cluster = f"herder-m-{tail}", f"herder-c-{tail}"

    def __enter__(self) -> Networks:
        for name in (self.manager, self.cluster):
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        cable = ("link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", self.cluster)
        _run("ip", "-n", self.manager, *cable)
        for name, address in ((self.manager, MANAGER_ADDRESS), (self.cluster, CLUSTER_ADDRESS)):
            _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "cable")
            _run("ip", "-n", name, "link", "set", "cable", "up")
        for name, other in ((self.cluster, MANAGER_ADDRESS), (self.manager, CLUSTER_ADDRESS)):
            _run("ip", "-n", name, "route", "add", "default", "via", other)  # kube-apiserver requires one
        return self

    def __exit__(self, *_: object) -> None:
        for name in (self.manager, self.cluster):
            _run("ip", "netns", "delete", name)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=30)


def inside(network: str) -> tuple[str, ...]:
    return ("nsenter", f"--net=/run/netns/{network}")


class Site:
    """`engine`: the API server that stores the manager's objects."""

    def __init__(self, networks: Networks, directory: Path, engine: str) -> None:
        self.networks = networks
        self.directory = directory
        self.engine = engine
        self.administrator = directory / "manager" / "kubeconfig"
        self.downstream = directory / "cluster" / "kubeconfig"
        self.started: list[subprocess.Popen[bytes]] = []

    def start_all(self) -> None:
        self._start_kube(self.networks.cluster, "cluster")
        if self.engine == "embedded":
            flags: tuple[str, ...] = (
                "--gateway",
                "--no-runner",
                "--listen",
                f"{MANAGER_ADDRESS}:{PORT}",
                "--advertise",
                MANAGER_ADDRESS,
            )
            self._start_manager("up", *flags)
        else:
            self._start_kube(self.networks.manager, "manager")
            eventually(lambda: "ok" in self.ready(self.networks.manager, self.administrator), "its own API is ready")
            flags = ("--kubeconfig", str(self.administrator), "--no-webhooks", "--gateway-name", MANAGER_ADDRESS)
            self._start_manager("run", *flags, "--gateway-listen", f"{MANAGER_ADDRESS}:{PORT}")
        eventually(self.administrator.exists, "the manager has a kubeconfig")
        eventually(lambda: "ok" in self.ready(self.networks.cluster, self.downstream), "the cluster's API is ready")

    def _start_manager(self, subcommand: str, *flags: str) -> None:
        bare = ("--no-machines", "--capi-core=external", "--data-dir", str(self.directory / "manager"))
        self.start(self.networks.manager, HERDER, subcommand, *flags, *bare, log="manager.log")

    def _start_kube(self, network: str, name: str) -> None:
        (self.directory / name).mkdir()
        kube = (sys.executable, "-m", "tests.support.kube", "--controllers=*", self.directory / name)
        self.start(network, *kube, log=f"{name}-kube.log")

    def ready(self, network: str, kubeconfig: Path) -> str:
        return self(network, peer("kubectl"), "get", "--raw", "/readyz", kubeconfig=kubeconfig, check=False).stdout

    def start(self, network: str, *arguments: str | Path, log: str) -> subprocess.Popen[bytes]:
        with (self.directory / log).open("ab") as file:
            command = [*inside(network), *arguments]
            process = subprocess.Popen(command, stdout=file, stderr=file, cwd=ROOT, start_new_session=True)
        self.started.append(process)
        return process

    def __call__(
        self, network: str, *arguments: str | Path, kubeconfig: Path, stdin: str = "", check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        variables = os.environ | {"KUBECONFIG": str(kubeconfig), "HOME": str(self.directory)}
        done = subprocess.run(
            [*inside(network), *arguments],
            input=stdin,
            env=variables,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if check and done.returncode:
            log = (self.directory / "manager.log").read_text(errors="replace")
            raise AssertionError(f"{arguments}: {done.stdout}{done.stderr}\n{log[-1500:]}")
        return done

    def manager(self, *arguments: str | Path, stdin: str = "", check: bool = True) -> str:
        """Run a command as the manager's administrator."""
        return self(self.networks.manager, *arguments, kubeconfig=self.administrator, stdin=stdin, check=check).stdout

    def kubectl(self, *arguments: str, stdin: str = "", check: bool = True) -> str:
        return self.manager(peer("kubectl"), *arguments, stdin=stdin, check=check)

    def downstream_kubectl(self, *arguments: str, stdin: str = "") -> str:
        """Run kubectl in the cluster, as its administrator."""
        done = self(self.networks.cluster, peer("kubectl"), *arguments, kubeconfig=self.downstream, stdin=stdin)
        return done.stdout

    def as_user(self, user: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        config = self.directory / f"{user}.kubeconfig"
        return self(self.networks.manager, peer("kubectl"), *arguments, kubeconfig=config, check=check)


def eventually(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


@pytest.fixture(scope="module", params=["embedded", "real"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces of the test's own: needs root")
    if shutil.which("ip") is None:
        pytest.skip("needs ip: scripts/setup dev")
    with Networks() as networks:
        site = Site(networks, tmp_path_factory.mktemp("site"), request.param)
        try:
            site.start_all()
            yield site
        finally:
            for process in reversed(site.started):
                terminate(process)
            assert_no_secrets(in_store(site.directory / "manager" / "store"), in_logs(site.directory))


@pytest.fixture(scope="module")
def cluster(site: Site) -> str:
    """Import the cluster and connect its agent; returns its ID."""
    eventually(lambda: site.manager(HERDER, "import", "barn", check=False), "it is imported")
    printed = printed_registration(site.manager(HERDER, "import", "barn"))
    name, fetch = printed.cluster, ("curl", "-skf", printed.url)
    eventually(
        lambda: site(site.networks.cluster, *fetch, kubeconfig=site.downstream, check=False).stdout,
        "the registration URL is served",
    )
    manifest = site(site.networks.cluster, *fetch, kubeconfig=site.downstream).stdout
    site.downstream_kubectl("apply", "-f", "-", stdin=manifest)
    token = site.directory / "token"
    token.write_text(printed.token)
    agent = (sys.executable, "-m", "herder.clusteragent", "--server", f"https://{MANAGER_ADDRESS}:{PORT}")
    flags = ("--token-file", token, "--ca-checksum", printed.checksum, "--kubeconfig", site.downstream)
    site.start(site.networks.cluster, *agent, *flags, log="agent.log")
    eventually(lambda: _connected(site, name) == "True", f"connected: {(site.directory / 'agent.log').read_text()}")
    return name


def _connected(site: Site, cluster: str) -> str:
    path = "jsonpath={.status.conditions[?(@.type=='Connected')].status}"
    return site.kubectl("get", "clusters.management.cattle.io", cluster, "-o", path, check=False)


@pytest.fixture(scope="module")
def users(site: Site, cluster: str) -> dict[str, str]:
    """Create two users, of which one may use the cluster; returns their IDs."""
    ids = {}
    authority = _authority(site)
    for name, password in PASSWORDS.items():
        ids[name] = site.manager(HERDER, "users", "create", name, "--password-stdin", stdin=password + "\n").strip()
        config = site.directory / f"{name}.kubeconfig"
        login = ("login", f"https://{MANAGER_ADDRESS}:{PORT}", "-u", name, "--password-stdin")
        pinned = ("--ca-checksum", authority, "--kubeconfig", str(config))
        site.manager(HERDER, *login, *pinned, stdin=password + "\n")
        entry = yaml.safe_load(config.read_text())
        entry["clusters"][0]["cluster"]["server"] += f"/k8s/clusters/{cluster}"
        config.write_text(yaml.safe_dump(entry))
    site.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(_cluster_access(cluster, ids["dolly"])))
    site.downstream_kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(_view_access(ids["dolly"])))
    return ids


def _authority(site: Site) -> str:
    return printed_registration(site.manager(HERDER, "import", "barn")).checksum


def _cluster_access(cluster: str, user: str) -> list[dict[str, object]]:
    rule: dict[str, object] = {
        "apiGroups": ["management.cattle.io"],
        "resources": ["clusters"],
        "verbs": ["get"],
        "resourceNames": [cluster],
    }
    return _role_and_binding("member-of-barn", [rule], user)


def _view_access(user: str) -> list[dict[str, object]]:
    rule: dict[str, object] = {
        "apiGroups": [""],
        "resources": ["namespaces", "configmaps"],
        "verbs": ["get", "list", "watch", "create"],
    }
    return _role_and_binding("viewers", [rule], user)


def _role_and_binding(name: str, rules: list[dict[str, object]], user: str) -> list[dict[str, object]]:
    group = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        },
    ]


def test_the_cluster_accepts_no_connections(site: Site, cluster: str) -> None:
    server = yaml.safe_load(site.downstream.read_text())["clusters"][0]["cluster"]["server"]
    port = server.rpartition(":")[2]
    request = ("curl", "-sk", "--max-time", "3", f"https://{CLUSTER_ADDRESS}:{port}/readyz")
    assert site(site.networks.manager, *request, kubeconfig=site.administrator, check=False).returncode != 0


def test_authorized_users_access_the_cluster_as_themselves(site: Site, users: dict[str, str]) -> None:
    assert "kube-system" in site.as_user("dolly", "get", "namespaces").stdout
    site.as_user("dolly", "create", "configmap", "fleece", "--from-literal=colour=white")
    assert site.downstream_kubectl("get", "configmap", "fleece", "-o", "jsonpath={.data.colour}") == "white"
    refused = site.as_user("dolly", "get", "secrets", check=False)
    assert f'User "{users["dolly"]}" cannot list resource "secrets"' in refused.stderr


def test_the_kubeconfig_is_valid_for_one_cluster(site: Site, cluster: str, users: dict[str, str]) -> None:
    """Its token is valid for that cluster only."""
    login = yaml.safe_load((site.directory / "dolly.kubeconfig").read_text())
    login["clusters"][0]["cluster"]["server"] = f"https://{MANAGER_ADDRESS}:{PORT}"
    login_config, cluster_config = site.directory / "dolly-login.kubeconfig", site.directory / "barn.kubeconfig"
    login_config.write_text(yaml.safe_dump(login))
    cluster_config.write_text(site(site.networks.manager, HERDER, "kubeconfig", "barn", kubeconfig=login_config).stdout)
    seen = site(
        site.networks.manager, peer("kubectl"), "get", "namespaces", "-o", "name", kubeconfig=cluster_config
    ).stdout
    assert "namespace/kube-system" in seen
    entry = yaml.safe_load(cluster_config.read_text())
    entry["clusters"][0]["cluster"]["server"] = f"https://{MANAGER_ADDRESS}:{PORT}"
    cluster_config.write_text(yaml.safe_dump(entry))
    command = (peer("kubectl"), "auth", "whoami")
    assert site(site.networks.manager, *command, kubeconfig=cluster_config, check=False).returncode != 0


def test_unauthorized_users_are_rejected(site: Site, users: dict[str, str]) -> None:
    refused = site.as_user("molly", "get", "namespaces", check=False)
    assert refused.returncode != 0
    assert "may not use cluster" in refused.stderr
    wrong_token = site.as_user("molly", "--token=token-abcde:guessed", "get", "namespaces", check=False)
    assert wrong_token.returncode != 0


def test_an_administrator_sets_a_password(site: Site, users: dict[str, str]) -> None:
    site.manager(HERDER, "users", "password", "molly", "--password-stdin", stdin=canary("molly's new password") + "\n")
    login = ("login", f"https://{MANAGER_ADDRESS}:{PORT}", "-u", "molly", "--password-stdin")
    pinned = ("--ca-checksum", _authority(site), "--kubeconfig", str(site.directory / "molly-again.kubeconfig"))
    assert not site.manager(HERDER, *login, *pinned, stdin=PASSWORDS["molly"] + "\n", check=False)
    assert "Logged in as molly" in site.manager(HERDER, *login, *pinned, stdin=canary("molly's new password") + "\n")


def test_watches_work_through_the_tunnel(site: Site, users: dict[str, str]) -> None:
    config = site.directory / "dolly.kubeconfig"
    watch = subprocess.Popen(
        [*inside(site.networks.manager), peer("kubectl"), "get", "configmaps", "--watch-only", "-o", "name"],
        env=os.environ | {"KUBECONFIG": str(config)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        time.sleep(2)
        site.downstream_kubectl("create", "configmap", "shorn")
        assert watch.stdout is not None
        assert watch.stdout.readline().strip() == "configmap/shorn"
    finally:
        watch.terminate()
        watch.communicate(timeout=20)


def test_the_cluster_api_kubeconfig_works_until_its_token_is_revoked(
    site: Site, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Secret has the name that the Cluster API contract requires; clusterctl prints its content."""
    monkeypatch.setenv("CLUSTERCTL_DISABLE_VERSIONCHECK", "true")
    definition = next(each for each in CAPI_CRDS if each["metadata"]["name"] == "clusters.cluster.x-k8s.io")
    site.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump(definition))  # clusterctl requires it
    stored = site.kubectl("get", "secret", "-n", "fleet-default", "barn-kubeconfig", "-o", "jsonpath={.data.value}")
    printed = site.manager(peer("clusterctl"), "get", "kubeconfig", "barn", "-n", "fleet-default")
    assert base64.b64decode(stored).decode().strip() == printed.strip()
    config = site.directory / "clusterctl.kubeconfig"
    config.touch(mode=0o600)
    config.write_text(printed)
    get = (peer("kubectl"), "get", "namespaces", "-o", "name")
    assert "namespace/kube-system" in site(site.networks.manager, *get, kubeconfig=config).stdout
    with open_watch(site, config) as watch:
        token = yaml.safe_load(printed)["users"][0]["user"]["token"].partition(":")[0]
        site.kubectl("delete", "tokens.management.cattle.io", token)
        assert watch.wait(60) is not None, "the watch with this token ends"
    refused = site(site.networks.manager, *get, kubeconfig=config, check=False)
    assert "must be logged in" in refused.stderr


@contextmanager
def open_watch(site: Site, config: Path) -> Iterator[subprocess.Popen[str]]:
    """An established watch; it ends with its connection."""
    command: list[str | Path] = [
        *inside(site.networks.manager),
        peer("kubectl"),
        "get",
        "--raw",
        "/api/v1/namespaces?watch=true",
    ]
    process = subprocess.Popen(
        command, env=os.environ | {"KUBECONFIG": str(config)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert "ADDED" in process.stdout.readline()
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=20)


def test_a_cluster_without_its_agent_is_disconnected(site: Site, cluster: str, users: dict[str, str]) -> None:
    agent = site.started.pop()
    terminate(agent)
    eventually(lambda: _connected(site, cluster) == "False", "the condition Connected is False")
    failed = site.as_user("dolly", "get", "namespaces", check=False)
    assert failed.returncode != 0
    assert "agent" in failed.stderr
