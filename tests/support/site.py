"""A site of its own for clusters of `local` machines: a network namespace with a manager and a registry in it.

Whatever is asked is asked from inside.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
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
from tests.support.embedded import HERDER, Embedded
from tests.support.images import PYTHON, Registry
from tests.support.machines import host_ended
from tests.support.peers import peer

NETWORK, HOST = "10.96.0.0/24", "10.96.0.1"  # of the machines; the host is in it, as their gateway
REGISTRY, MIRROR = "registry.test", f"http://{HOST}:5000"  # a name that leads nowhere but through a mirror
AGENT = "herder/agent:test"
CLUSTERS = "clusters.provisioning.cattle.io"

Object = dict[str, Any]


class Site:
    def __init__(self, directory: Path, settings: Mapping[str, str], patience: int) -> None:
        self.directory, self.patience = directory, patience
        self.network = f"herder-{uuid.uuid4().hex[:8]}"
        self.around = ("nsenter", f"--net=/run/netns/{self.network}", "env", f"HERDER_LOCAL_NETWORK={NETWORK}")
        told = {
            "server-url": f"https://{HOST}:7443",
            "agent-image": f"{REGISTRY}/{AGENT}",
            "system-default-registry": REGISTRY,
            **settings,
        }
        flags = ["--gateway", "--machines", "--capi-core=own", "--advertise", "127.0.0.1", "--advertise", HOST]
        flags += [word for name, value in told.items() for word in ("--set", f"{name}={value}")]
        self.manager = Embedded(directory / "manager", flags=tuple(flags), listen="0.0.0.0:7443", around=self.around)
        self.registry = Registry(directory / "registry", 5000, self.around)

    def push_images(self) -> None:
        self.registry.fill()
        base, target = (f"127.0.0.1:{self.registry.port}/{name}" for name in (PYTHON, AGENT))
        self(HERDER, "agent", "image", "--base", base, "--push", target)

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

    def eventually(self, holds: Callable[[], object], what: str, why: Callable[[], str] = str) -> None:
        deadline = time.monotonic() + self.patience
        while not holds():
            assert time.monotonic() < deadline, f"{what}: {why()}\n{self.manager.log()[-2000:]}"
            time.sleep(0.3)

    # --- what could be left behind ----------------------------------------------------------------------------------

    def traces(self) -> Object:
        kinds = (
            "machines,localmachines,localmachinetemplates,rkebootstraps,rkecontrolplanes,secrets,serviceaccounts,jobs"
        )
        asked = ("get", kinds, "-n", DEFAULT_WORKSPACE, "-o", "name", "--ignore-not-found")
        links = subprocess.run(
            ["ip", "-n", self.network, "-o", "link"], capture_output=True, text=True, check=True
        ).stdout
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        return {
            "objects": sorted(self.kubectl(*asked, check=False).split()),
            "clusters": self.kubectl("get", "clusters.management.cattle.io", "-o", "name", check=False).split(),
            "links": sorted(line.split()[1] for line in links.splitlines()),
            "mounts": [line for line in mounts if str(self.manager.directory) in line],
            "directories": sorted(path.name for path in self.machine_directories()),
        }

    def machine_directories(self) -> list[Path]:
        directory = self.manager.directory / "host" / "machines"
        return list(directory.iterdir()) if directory.exists() else []

    def groups(self) -> list[Path]:
        """The control groups of the machines that are there: no process is left outside of them."""
        directories = self.machine_directories()
        return [tree.base / short_hash(str(each), 12) for each in directories for tree in cgroups.trees()]


class Cluster:
    """One of the site's, from outside and from inside."""

    def __init__(self, site: Site, name: str) -> None:
        self.site, self.name = site, name
        self.kubeconfig = site.directory / f"{name}.kubeconfig"

    def until_ready(self, *pools: str) -> str:
        """Sizes of pools as they are wanted then; those that they have anyway change nothing."""
        told = self.site(HERDER, "scale", "cluster", self.name, *pools, "--timeout", str(self.site.patience))
        if not self.kubeconfig.exists():
            self.kubeconfig.write_text(self.site(HERDER, "kubeconfig", self.name))
        return told

    def edit(self, **config: object) -> None:
        """Fields of rkeConfig."""
        patch = json.dumps({"spec": {"rkeConfig": config}})
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

    def delete(self) -> None:
        self.site(HERDER, "delete", "cluster", self.name, "--timeout", str(self.site.patience))


@contextmanager
def site_in(directory: Path, settings: Mapping[str, str], *, patience: int, pods: bool) -> Iterator[Site]:
    """Removed with all that is in it. `pods`: with the images of the cluster agent and of test pods in its registry."""
    if os.geteuid() != 0:
        pytest.skip("machines and network namespaces of the test's own: needs root")
    for tool in ("ip", "nsenter", "mmdebstrap", "docker-registry"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}: scripts/setup dev")
    image.make("", lambda _percent, _text: None, kubernetes=True)
    with ExitStack() as stack:
        site = Site(directory, settings, patience)
        subprocess.run(["ip", "netns", "add", site.network], check=True, timeout=30)
        stack.callback(subprocess.run, ["ip", "netns", "delete", site.network], check=True, timeout=30)
        subprocess.run(["ip", "-n", site.network, "link", "set", "lo", "up"], check=True, timeout=30)
        stack.enter_context(site.registry)
        stack.enter_context(host_ended(site.manager.directory))
        stack.callback(site.manager.stop)
        with ThreadPoolExecutor() as pool:
            pushing = pool.submit(site.push_images) if pods else None
            site.manager.start()
            if pushing is not None:
                pushing.result()
        yield site
