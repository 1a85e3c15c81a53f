"""An isolated site for clusters of `local` machines: a network namespace with a manager and a registry in it.

All commands run inside the namespace. The manager has its own API, or runs on a real kube-apiserver.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from herder.api.management.names import DEFAULT_WORKSPACE
from herder.machine.host.local import cgroups, image
from herder.machine.host.local.network import short_hash
from tests.support.capi import ADMISSION_PROBE, HerderRun, webhook_flags
from tests.support.embedded import HERDER, Embedded
from tests.support.engines import CONTROLLERS, Engine
from tests.support.manager.machines import host_shutdown
from tests.support.peers import peer
from tests.support.processes import terminate
from tests.support.registry.images import PYTHON, Registry

NETWORK, HOST = "10.96.0.0/24", "10.96.0.1"  # of the machines; the host is their gateway
PORT = 7443
MANAGER = f"https://{HOST}:{PORT}"
REGISTRY, MIRROR = "registry.test", f"http://{HOST}:5000"  # a name that only the mirror resolves
AGENT = "herder/agent:test"
EMBEDDED, REAL = "embedded", "real"  # engines
CLUSTERS = "clusters.provisioning.cattle.io"
KEPT_ON_PURPOSE = "namespaces: namespace/herder-archive"  # the provisioning log

Object = dict[str, Any]
Manager = Embedded | HerderRun


class Site:
    def __init__(self, directory: Path, settings: Mapping[str, str], timeout: int, engine: str) -> None:
        self.directory, self.timeout = directory, timeout
        self.network = f"herder-{uuid.uuid4().hex[:8]}"
        self.command_prefix = ("nsenter", f"--net=/run/netns/{self.network}", "env", f"HERDER_LOCAL_NETWORK={NETWORK}")
        self.registry = Registry(directory / "registry", 5000, self.command_prefix)
        self.manager = MANAGERS[engine](directory, self.command_prefix, _flags(settings))

    def push_images(self) -> None:
        self.registry.push_images()
        base, target = (f"127.0.0.1:{self.registry.port}/{name}" for name in (PYTHON, AGENT))
        self(HERDER, "agent", "image", "--base", base, "--push", target)

    def create_cluster(self, name: str, *objects: Object) -> Cluster:
        """Create a cluster; the last of `objects` is the Cluster itself."""
        *others, cluster = objects
        self.eventually(lambda: self.applies(*others), "Herder's kinds are served")
        self.eventually(self._admission_works, "new objects are defaulted")
        before = self.leftovers()
        self.apply(cluster)
        return Cluster(self, name, before)

    # --- commands -----------------------------------------------------------------------------------------------------

    def __call__(
        self, *command: str | Path, kubeconfig: Path | None = None, stdin: str = "", check: bool = True
    ) -> str:
        environment = os.environ | {
            "KUBECONFIG": str(kubeconfig or self.manager.kubeconfig),
            "HOME": str(self.directory),
        }
        command_line: list[str | Path] = [*self.command_prefix, *command]
        done = subprocess.run(
            command_line,
            input=stdin,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=self.timeout + 30,
        )
        if check and done.returncode:
            raise AssertionError(f"{command}: {done.stdout[-3000:]}{done.stderr}\n{self.manager.log()[-2000:]}")
        return done.stdout

    def kubectl(self, *arguments: str, **more: Any) -> str:
        """Run kubectl on the manager's API."""
        return self(peer("kubectl"), *arguments, **more)

    def listed(self, kind: str) -> list[Object]:
        found: list[Object] = json.loads(self.kubectl("get", kind, "-n", DEFAULT_WORKSPACE, "-o", "json"))["items"]
        return found

    def apply(self, *objects: Object, check: bool = True) -> str:
        return self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects), check=check)

    def applies(self, *objects: Object) -> bool:
        """Whether all objects could be applied: a manager that has just started installs its kinds one by one."""
        return len(self.apply(*objects, check=False).splitlines()) == len(objects)

    def _admission_works(self) -> bool:
        arguments = ("create", "--dry-run=server", "-n", "default", "-o", "jsonpath={.spec.replicas}", "-f", "-")
        return self.kubectl(*arguments, stdin=json.dumps(ADMISSION_PROBE), check=False) == "1"

    def eventually(self, holds: Callable[[], object], what: str, why: Callable[[], str] = str) -> None:
        deadline = time.monotonic() + self.timeout
        while not holds():
            assert time.monotonic() < deadline, f"{what}: {why()}\n{self.manager.log()[-2000:]}"
            time.sleep(0.3)

    # --- leftovers ----------------------------------------------------------------------------------------------------

    def leftovers(self) -> frozenset[str]:
        """Everything that clusters leave at the manager and on the host."""
        kinds = (
            "machines,localmachines,localmachinetemplates,rkebootstraps,rkecontrolplanes,secrets,serviceaccounts,jobs"
        )
        arguments = ("get", kinds, "-n", DEFAULT_WORKSPACE, "-o", "name", "--ignore-not-found")
        links = subprocess.run(
            ["ip", "-n", self.network, "-o", "link"], capture_output=True, text=True, check=True
        ).stdout
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        found = {
            "objects": self.kubectl(*arguments, check=False).split(),
            "namespaces": self.kubectl("get", "namespaces", "-o", "name", check=False).split(),
            "clusters": self.kubectl("get", "clusters.management.cattle.io", "-o", "name", check=False).split(),
            "links": [line.split()[1] for line in links.splitlines()],
            "mounts": [line for line in mounts if str(self.manager.directory) in line],
            "directories": [path.name for path in self.machine_directories()],
        }
        return frozenset(f"{place}: {each}" for place, seen in found.items() for each in seen) - {KEPT_ON_PURPOSE}

    def machine_directories(self) -> list[Path]:
        directory = self.manager.directory / "host" / "machines"
        return list(directory.iterdir()) if directory.exists() else []

    def groups(self) -> list[Path]:
        """The control groups of all machines: none of their processes runs outside of them."""
        directories = self.machine_directories()
        return [tree.base / short_hash(str(each), 12) for each in directories for tree in cgroups.trees()]


class Cluster:
    """One cluster of the site, seen from the manager and from inside."""

    def __init__(self, site: Site, name: str, before: frozenset[str] = frozenset()) -> None:
        """`before`: the site's leftovers when the cluster was created."""
        self.site, self.name, self.before = site, name, before
        self.kubeconfig = site.directory / f"{name}.kubeconfig"

    def scale(self, *pools: str) -> None:
        self.site(HERDER, "scale", "cluster", self.name, *pools, "--no-wait")

    def upgrade(self, version: str) -> None:
        self.site(HERDER, "upgrade", "cluster", self.name, version, "--no-wait")

    def until_ready(self, *pools: str) -> str:
        """Wait until the cluster is ready, with these pool sizes; sizes that pools already have change nothing."""
        output = self.site(HERDER, "scale", "cluster", self.name, *pools, "--timeout", str(self.site.timeout))
        if not self.kubeconfig.exists():
            self.kubeconfig.write_text(self.site(HERDER, "kubeconfig", self.name))
        return output

    def edit(self, *, version: str = "", **config: object) -> None:
        """Change fields of rkeConfig, and the Kubernetes version if one is given."""
        spec: Object = {"rkeConfig": config, **({"kubernetesVersion": version} if version else {})}
        patch = json.dumps({"spec": spec})
        self.site.kubectl("patch", CLUSTERS, self.name, "-n", DEFAULT_WORKSPACE, "--type=merge", "-p", patch)

    def kubectl(self, *arguments: str, **more: Any) -> str:
        """Run kubectl on the cluster, through the manager and the tunnel of the cluster's agent."""
        return self.site(peer("kubectl"), *arguments, kubeconfig=self.kubeconfig, **more)

    def nodes(self) -> dict[str, Object]:
        found = json.loads(self.kubectl("get", "nodes", "-o", "json"))["items"]
        return {each["metadata"]["name"]: each for each in found}

    def machines(self) -> dict[str, Object]:
        own = [each for each in self.site.listed("machines") if each["spec"]["clusterName"] == self.name]
        return {each["metadata"]["name"]: each for each in own}

    def uids(self) -> dict[str, str]:
        return {name: each["metadata"]["uid"] for name, each in self.machines().items()}

    def plans(self) -> dict[str, Object]:
        """The plan Secrets, by machine."""
        own = (each["metadata"] for each in self.site.listed("secrets") if each["type"] == "rke.cattle.io/machine-plan")
        names = {meta["labels"]["rke.cattle.io/machine-name"]: meta["name"] for meta in own}
        secrets = {each["metadata"]["name"]: each for each in self.site.listed("secrets")}
        return {machine: secrets[names[machine]] for machine in self.machines() if machine in names}

    def condition_messages(self) -> str:
        """The messages of all conditions of the Cluster."""
        found = self.site.kubectl("get", CLUSTERS, self.name, "-n", DEFAULT_WORKSPACE, "-o", "json")
        conditions = json.loads(found).get("status", {}).get("conditions", ())
        return "\n".join(each.get("message") or "" for each in conditions)

    def ssh(self, machine: str, command: str) -> str:
        return self.site(HERDER, "ssh", machine, "-n", DEFAULT_WORKSPACE, "--", command)

    def assert_agent_is_a_pod(self) -> None:
        ready = "jsonpath={.status.readyReplicas}"
        arguments = ("get", "deployment", "-n", "cattle-system", "cattle-cluster-agent", "-o", ready)
        self.site.eventually(lambda: self.kubectl(*arguments) == "1", "the agent's own probe succeeds")

    def delete(self) -> None:
        self.site(HERDER, "delete", "cluster", self.name, "--timeout", str(self.site.timeout))

    def assert_deletion_leaves_nothing(self) -> None:
        groups = self.site.groups()
        assert all(group.exists() for group in groups)
        self.delete()
        self.site.eventually(lambda: not self._remaining(), "nothing is left", lambda: str(self._remaining()))
        assert not [group for group in groups if group.exists()]

    def _remaining(self) -> list[str]:
        return sorted(self.site.leftovers() - self.before)


# --- managers ---------------------------------------------------------------------------------------------------------


def _flags(settings: Mapping[str, str]) -> tuple[str, ...]:
    values = {
        "server-url": MANAGER,
        "agent-image": f"{REGISTRY}/{AGENT}",
        "system-default-registry": REGISTRY,
        **settings,
    }
    arguments = [flag for name, value in values.items() for flag in ("--set", f"{name}={value}")]
    return ("--machines", "--capi-core=own", *arguments)


def _embedded(directory: Path, command_prefix: tuple[str, ...], flags: tuple[str, ...]) -> Manager:
    addresses = ("--gateway", "--advertise", "127.0.0.1", "--advertise", HOST)
    return Embedded(
        directory / "manager", flags=(*addresses, *flags), listen=f"0.0.0.0:{PORT}", command_prefix=command_prefix
    )


def _real(directory: Path, command_prefix: tuple[str, ...], flags: tuple[str, ...]) -> Manager:
    addresses = ("--gateway-listen", f"0.0.0.0:{PORT}", "--gateway-name", "127.0.0.1", "--gateway-name", HOST)
    engine = Engine(REAL, directory / "kube" / "kubeconfig")
    return HerderRun(
        engine, directory / "manager", "--runner", *addresses, *flags, *webhook_flags(), command_prefix=command_prefix
    )


MANAGERS: Mapping[str, Callable[[Path, tuple[str, ...], tuple[str, ...]], Manager]] = {EMBEDDED: _embedded, REAL: _real}


@contextmanager
def _kube_inside(directory: Path, command_prefix: tuple[str, ...]) -> Iterator[None]:
    """Start kube-apiserver in its own process, which can be in another network namespace."""
    command = [*command_prefix, sys.executable, "-m", "tests.support.kube", "--controllers", ",".join(CONTROLLERS)]
    log_file = directory.with_suffix(".log")
    with (
        log_file.open("wb") as log,
        subprocess.Popen(
            [*command, str(directory)], stdout=subprocess.PIPE, stderr=log, cwd=Path(__file__).parents[3]
        ) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdout.readline(), log_file.read_text()  # once it is ready
            yield
        finally:
            status = terminate(process)
        assert status == 0, log_file.read_text()


# --- setup ------------------------------------------------------------------------------------------------------------


@contextmanager
def site_in(
    directory: Path,
    settings: Mapping[str, str],
    *,
    timeout: int,
    pods: bool,
    engine: str = EMBEDDED,
    program: Path = HERDER,
) -> Iterator[Site]:
    """A site that is removed after the block.

    `pods`: with images of the cluster agent and of test pods. `program`: the `herder` command of another release.
    """
    require_local_machines()
    with ExitStack() as stack:
        site = Site(directory, settings, timeout, engine)
        if isinstance(site.manager, Embedded):
            site.manager.program = program
        stack.enter_context(network_namespace(site.network))
        stack.enter_context(site.registry)
        if engine == REAL:
            stack.enter_context(_kube_inside(directory / "kube", site.command_prefix))
        stack.enter_context(host_shutdown(site.manager.directory))
        with ThreadPoolExecutor() as pool:
            pushing = pool.submit(site.push_images) if pods else None
            stack.enter_context(site.manager)
            if pushing is not None:
                pushing.result()
        yield site


def require_local_machines() -> None:
    """Skip the test unless `local` machines can run here."""
    if os.geteuid() != 0:
        pytest.skip("machines and network namespaces of the test's own: needs root")
    for tool in ("ip", "nsenter", "mmdebstrap", "docker-registry"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}: scripts/setup dev")
    image.make("", lambda _percent, _text: None, kubernetes=True)


@contextmanager
def network_namespace(name: str) -> Iterator[None]:
    """A network namespace with only loopback."""
    subprocess.run(["ip", "netns", "add", name], check=True, timeout=30)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True, timeout=30)
        yield
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True, timeout=30)
