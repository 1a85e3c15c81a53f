"""A site of its own for clusters of `local` machines: a network namespace with a manager and a registry in it.

Whatever is asked is asked from inside. The manager has an API of its own, or is on a real kube-apiserver.
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
from tests.support.capi import TRIED, HerderRun, webhook_flags
from tests.support.embedded import HERDER, Embedded
from tests.support.engines import CONTROLLERS, Engine
from tests.support.images import PYTHON, Registry
from tests.support.machines import host_ended
from tests.support.peers import peer
from tests.support.processes import ended

NETWORK, HOST = "10.96.0.0/24", "10.96.0.1"  # of the machines; the host is in it, as their gateway
PORT = 7443
MANAGER = f"https://{HOST}:{PORT}"
REGISTRY, MIRROR = "registry.test", f"http://{HOST}:5000"  # a name that leads nowhere but through a mirror
AGENT = "herder/agent:test"
EMBEDDED, REAL = "embedded", "real"  # engines
CLUSTERS = "clusters.provisioning.cattle.io"
LEFT_ON_PURPOSE = "namespaces: namespace/herder-archive"  # the log of what happened

Object = dict[str, Any]
Manager = Embedded | HerderRun


class Site:
    def __init__(self, directory: Path, settings: Mapping[str, str], patience: int, engine: str) -> None:
        self.directory, self.patience = directory, patience
        self.network = f"herder-{uuid.uuid4().hex[:8]}"
        self.around = ("nsenter", f"--net=/run/netns/{self.network}", "env", f"HERDER_LOCAL_NETWORK={NETWORK}")
        self.registry = Registry(directory / "registry", 5000, self.around)
        self.manager = MANAGERS[engine](directory, self.around, _flags(settings))

    def push_images(self) -> None:
        self.registry.fill()
        base, target = (f"127.0.0.1:{self.registry.port}/{name}" for name in (PYTHON, AGENT))
        self(HERDER, "agent", "image", "--base", base, "--push", target)

    def ask_for(self, name: str, *objects: Object) -> Cluster:
        """`objects`: what it is made of, and last the Cluster itself."""
        *others, asked = objects
        self.eventually(lambda: self.applies(*others), "our kinds are served")
        self.eventually(self._admits, "what is written is filled in")
        before = self.traces()
        self.apply(asked)
        return Cluster(self, name, before)

    # --- asking ---------------------------------------------------------------------------------------------------

    def __call__(self, *words: str | Path, kubeconfig: Path | None = None, stdin: str = "", check: bool = True) -> str:
        given = os.environ | {"KUBECONFIG": str(kubeconfig or self.manager.kubeconfig), "HOME": str(self.directory)}
        command: list[str | Path] = [*self.around, *words]
        done = subprocess.run(
            command, input=stdin, env=given, capture_output=True, text=True, check=False, timeout=self.patience + 30
        )
        if check and done.returncode:
            raise AssertionError(f"{words}: {done.stdout[-3000:]}{done.stderr}\n{self.manager.log()[-2000:]}")
        return done.stdout

    def kubectl(self, *words: str, **more: Any) -> str:
        """To the manager."""
        return self(peer("kubectl"), *words, **more)

    def listed(self, kind: str) -> list[Object]:
        found: list[Object] = json.loads(self.kubectl("get", kind, "-n", DEFAULT_WORKSPACE, "-o", "json"))["items"]
        return found

    def apply(self, *objects: Object, check: bool = True) -> str:
        return self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects), check=check)

    def applies(self, *objects: Object) -> bool:
        """Whether all of them could be applied: a manager that has just started brings its kinds one by one."""
        return len(self.apply(*objects, check=False).splitlines()) == len(objects)

    def _admits(self) -> bool:
        words = ("create", "--dry-run=server", "-n", "default", "-o", "jsonpath={.spec.replicas}", "-f", "-")
        return self.kubectl(*words, stdin=json.dumps(TRIED), check=False) == "1"

    def eventually(self, holds: Callable[[], object], what: str, why: Callable[[], str] = str) -> None:
        deadline = time.monotonic() + self.patience
        while not holds():
            assert time.monotonic() < deadline, f"{what}: {why()}\n{self.manager.log()[-2000:]}"
            time.sleep(0.3)

    # --- what could be left behind ----------------------------------------------------------------------------------

    def traces(self) -> frozenset[str]:
        """At the manager and on the host."""
        kinds = (
            "machines,localmachines,localmachinetemplates,rkebootstraps,rkecontrolplanes,secrets,serviceaccounts,jobs"
        )
        asked = ("get", kinds, "-n", DEFAULT_WORKSPACE, "-o", "name", "--ignore-not-found")
        links = subprocess.run(
            ["ip", "-n", self.network, "-o", "link"], capture_output=True, text=True, check=True
        ).stdout
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        found = {
            "objects": self.kubectl(*asked, check=False).split(),
            "namespaces": self.kubectl("get", "namespaces", "-o", "name", check=False).split(),
            "clusters": self.kubectl("get", "clusters.management.cattle.io", "-o", "name", check=False).split(),
            "links": [line.split()[1] for line in links.splitlines()],
            "mounts": [line for line in mounts if str(self.manager.directory) in line],
            "directories": [path.name for path in self.machine_directories()],
        }
        return frozenset(f"{what}: {each}" for what, seen in found.items() for each in seen) - {LEFT_ON_PURPOSE}

    def machine_directories(self) -> list[Path]:
        directory = self.manager.directory / "host" / "machines"
        return list(directory.iterdir()) if directory.exists() else []

    def groups(self) -> list[Path]:
        """The control groups of the machines that are there: no process is left outside of them."""
        directories = self.machine_directories()
        return [tree.base / short_hash(str(each), 12) for each in directories for tree in cgroups.trees()]


class Cluster:
    """One of the site's, from outside and from inside."""

    def __init__(self, site: Site, name: str, before: frozenset[str] = frozenset()) -> None:
        """`before`: what could be seen of the site when it was asked for."""
        self.site, self.name, self.before = site, name, before
        self.kubeconfig = site.directory / f"{name}.kubeconfig"

    def scale(self, *pools: str) -> None:
        self.site(HERDER, "scale", "cluster", self.name, *pools, "--no-wait")

    def upgrade(self, version: str) -> None:
        self.site(HERDER, "upgrade", "cluster", self.name, version, "--no-wait")

    def until_ready(self, *pools: str) -> str:
        """Sizes of pools as they are wanted then; those that they have anyway change nothing."""
        told = self.site(HERDER, "scale", "cluster", self.name, *pools, "--timeout", str(self.site.patience))
        if not self.kubeconfig.exists():
            self.kubeconfig.write_text(self.site(HERDER, "kubeconfig", self.name))
        return told

    def edit(self, *, version: str = "", **config: object) -> None:
        """Fields of rkeConfig, and the version of Kubernetes if it is to be another."""
        spec: Object = {"rkeConfig": config, **({"kubernetesVersion": version} if version else {})}
        patch = json.dumps({"spec": spec})
        self.site.kubectl("patch", CLUSTERS, self.name, "-n", DEFAULT_WORKSPACE, "--type=merge", "-p", patch)

    def kubectl(self, *words: str, **more: Any) -> str:
        """Through the manager and the tunnel of the cluster's agent."""
        return self.site(peer("kubectl"), *words, kubeconfig=self.kubeconfig, **more)

    def nodes(self) -> dict[str, Object]:
        found = json.loads(self.kubectl("get", "nodes", "-o", "json"))["items"]
        return {each["metadata"]["name"]: each for each in found}

    def machines(self) -> dict[str, Object]:
        own = [each for each in self.site.listed("machines") if each["spec"]["clusterName"] == self.name]
        return {each["metadata"]["name"]: each for each in own}

    def uids(self) -> dict[str, str]:
        return {name: each["metadata"]["uid"] for name, each in self.machines().items()}

    def plans(self) -> dict[str, Object]:
        """The plan Secrets, by the machines that they are of."""
        own = (each["metadata"] for each in self.site.listed("secrets") if each["type"] == "rke.cattle.io/machine-plan")
        names = {meta["labels"]["rke.cattle.io/machine-name"]: meta["name"] for meta in own}
        secrets = {each["metadata"]["name"]: each for each in self.site.listed("secrets")}
        return {machine: secrets[names[machine]] for machine in self.machines() if machine in names}

    def told(self) -> str:
        """All that its conditions say."""
        found = self.site.kubectl("get", CLUSTERS, self.name, "-n", DEFAULT_WORKSPACE, "-o", "json")
        conditions = json.loads(found).get("status", {}).get("conditions", ())
        return "\n".join(each.get("message") or "" for each in conditions)

    def assert_its_agent_is_a_pod(self) -> None:
        ready = "jsonpath={.status.readyReplicas}"
        asked = ("get", "deployment", "-n", "cattle-system", "cattle-cluster-agent", "-o", ready)
        self.site.eventually(lambda: self.kubectl(*asked) == "1", "the agent's own probe says that it is well")

    def delete(self) -> None:
        self.site(HERDER, "delete", "cluster", self.name, "--timeout", str(self.site.patience))

    def assert_it_goes_without_a_trace(self) -> None:
        groups = self.site.groups()
        assert all(group.exists() for group in groups)
        self.delete()
        self.site.eventually(lambda: not self._left(), "nothing is left", lambda: str(self._left()))
        assert not [group for group in groups if group.exists()]

    def _left(self) -> list[str]:
        return sorted(self.site.traces() - self.before)


# --- managers ---------------------------------------------------------------------------------------------------------


def _flags(settings: Mapping[str, str]) -> tuple[str, ...]:
    told = {
        "server-url": MANAGER,
        "agent-image": f"{REGISTRY}/{AGENT}",
        "system-default-registry": REGISTRY,
        **settings,
    }
    given = [word for name, value in told.items() for word in ("--set", f"{name}={value}")]
    return ("--machines", "--capi-core=own", *given)


def _embedded(directory: Path, around: tuple[str, ...], flags: tuple[str, ...]) -> Manager:
    found_at = ("--gateway", "--advertise", "127.0.0.1", "--advertise", HOST)
    return Embedded(directory / "manager", flags=(*found_at, *flags), listen=f"0.0.0.0:{PORT}", around=around)


def _real(directory: Path, around: tuple[str, ...], flags: tuple[str, ...]) -> Manager:
    found_at = ("--gateway-listen", f"0.0.0.0:{PORT}", "--gateway-name", "127.0.0.1", "--gateway-name", HOST)
    engine = Engine(REAL, directory / "kube" / "kubeconfig")
    return HerderRun(engine, directory / "manager", "--runner", *found_at, *flags, *webhook_flags(), around=around)


MANAGERS: Mapping[str, Callable[[Path, tuple[str, ...], tuple[str, ...]], Manager]] = {EMBEDDED: _embedded, REAL: _real}


@contextmanager
def _kube_inside(directory: Path, around: tuple[str, ...]) -> Iterator[None]:
    """By a process of its own, which can be in another network than this one."""
    command = [*around, sys.executable, "-m", "tests.support.kube", "--controllers", ",".join(CONTROLLERS)]
    told = directory.with_suffix(".log")
    with (
        told.open("wb") as log,
        subprocess.Popen(
            [*command, str(directory)], stdout=subprocess.PIPE, stderr=log, cwd=Path(__file__).parents[2]
        ) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdout.readline(), told.read_text()  # once it is ready
            yield
        finally:
            status = ended(process)
        assert status == 0, told.read_text()


# --- setting up -------------------------------------------------------------------------------------------------------


@contextmanager
def site_in(
    directory: Path, settings: Mapping[str, str], *, patience: int, pods: bool, engine: str = EMBEDDED
) -> Iterator[Site]:
    """Removed with all that is in it. `pods`: with the images of the cluster agent and of test pods in its registry."""
    ready_for_debians()
    with ExitStack() as stack:
        site = Site(directory, settings, patience, engine)
        stack.enter_context(network(site.network))
        stack.enter_context(site.registry)
        if engine == REAL:
            stack.enter_context(_kube_inside(directory / "kube", site.around))
        stack.enter_context(host_ended(site.manager.directory))
        with ThreadPoolExecutor() as pool:
            pushing = pool.submit(site.push_images) if pods else None
            stack.enter_context(site.manager)
            if pushing is not None:
                pushing.result()
        yield site


def ready_for_debians() -> None:
    """Or the test is skipped, and says what it needs."""
    if os.geteuid() != 0:
        pytest.skip("machines and network namespaces of the test's own: needs root")
    for tool in ("ip", "nsenter", "mmdebstrap", "docker-registry"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}: scripts/setup dev")
    image.make("", lambda _percent, _text: None, kubernetes=True)


@contextmanager
def network(name: str) -> Iterator[None]:
    """A namespace of that name, with nothing in it but loopback."""
    subprocess.run(["ip", "netns", "add", name], check=True, timeout=30)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True, timeout=30)
        yield
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True, timeout=30)
