"""Real Debian machines from objects: they boot, run their bootstrap script, accept SSH, survive a reboot, and are
deleted without leftovers. All in a separate network namespace.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from herder.api.capi import kinds as capi
from herder.api.inmemory.manifest import in_memory_cluster
from herder.machine.host.local import image
from tests.support.embedded import HERDER, Embedded
from tests.support.manager.machines import FLAGS, NAME, pool
from tests.support.peers import peer

MACHINES = 2
TIMEOUT = 120.0


class Site:
    """A network namespace with a manager in it; commands run inside of it."""

    def __init__(self, directory: Path) -> None:
        self.network = f"herder-{uuid.uuid4().hex[:8]}"
        self.server = Embedded(directory, flags=FLAGS, command_prefix=("nsenter", f"--net=/run/netns/{self.network}"))

    def __enter__(self) -> Site:
        _run("ip", "netns", "add", self.network)
        _run("ip", "-n", self.network, "link", "set", "lo", "up")
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()
        _run("ip", "netns", "delete", self.network)

    def __call__(self, *command: str | Path, stdin: str = "", check: bool = True) -> str:
        inside = ["nsenter", f"--net=/run/netns/{self.network}"]
        variables = os.environ | {"KUBECONFIG": str(self.server.kubeconfig)}
        done = subprocess.run(
            [*inside, *command], input=stdin, env=variables, capture_output=True, text=True, timeout=120
        )
        if check and done.returncode:
            raise AssertionError(f"{command}: {done.stdout}{done.stderr}\n{self.server.log()[-2000:]}")
        return done.stdout

    def kubectl(self, *arguments: str, stdin: str = "", check: bool = True) -> str:
        return self(peer("kubectl"), *arguments, stdin=stdin, check=check)

    def ssh(self, machine: str, command: str, *, check: bool = True) -> str:
        return self(HERDER, "ssh", machine, "--", command, check=check).strip()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=30)


def eventually(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if os.geteuid() != 0:
        pytest.skip("machines in a network namespace of the test's own: needs root")
    for tool in ("ip", "nsenter", "mmdebstrap"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}: scripts/setup dev")
    image.make("", lambda _percent, _text: None)
    with Site(tmp_path_factory.mktemp("site")) as site:
        yield site


def test_machines_boot_survive_a_reboot_and_are_deleted(site: Site) -> None:
    before = _leftovers(site)
    objects = [obj for _, obj in (*in_memory_cluster(NAME, workers=0), *pool("local", {"memory": "512"}, MACHINES))]
    manifest = yaml.safe_dump_all(objects)
    eventually(lambda: _applied(site, manifest), "Herder's kinds are served")
    machines = _created(site)
    for name in machines:
        assert site.ssh(name, "hostname") == name
        assert site.ssh(name, "cat /run/cluster-api/bootstrap-success.complete") == "success"
        assert site.ssh(name, "cat /proc/1/comm") == "systemd"

    name = machines[0]
    boot = site.ssh(name, "touch /root/kept; stat -c %Y /proc/1")
    site.ssh(name, "systemctl reboot", check=False)
    eventually(
        lambda: site.ssh(name, "stat -c %Y /proc/1; true", check=False) not in ("", boot), "the machine is up again"
    )
    assert site.ssh(name, "ls /root/kept") == "/root/kept"

    site.kubectl("delete", capi.MACHINE_DEPLOYMENT.plural, "local-pool", "--wait=false")
    eventually(lambda: not _names(site), "all machines are deleted")
    eventually(lambda: _leftovers(site) == before, "nothing is left of them")
    assert "Successfully removed" in site(HERDER, "logs", "machine", name)


def _applied(site: Site, manifest: str) -> bool:
    try:
        site.kubectl("apply", "-f", "-", stdin=manifest)
    except AssertionError:
        return False
    return True


def _names(site: Site) -> list[str]:
    return site.kubectl("get", "localmachines", "-o", "jsonpath={.items[*].metadata.name}").split()


def _created(site: Site) -> list[str]:
    states = "jsonpath={.items[*].status.conditions[?(@.type=='CreateJob')].status}"
    wanted = ["True"] * MACHINES
    eventually(lambda: site.kubectl("get", "localmachines", "-o", states).split() == wanted, "they are created")
    return _names(site)


def _leftovers(site: Site) -> dict[str, list[str]]:
    """Everything that machines could leave behind on this host."""
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    state = str(site.server.directory)
    groups = [str(path) for path in Path("/sys/fs/cgroup").glob("*/herder*/*")]
    links = subprocess.run(["ip", "-n", site.network, "-o", "link"], capture_output=True, text=True, check=True).stdout
    return {
        "mounts": [line for line in mounts if state in line],
        "networks": sorted(os.listdir("/run/netns")),
        "links": sorted(line.split()[1] for line in links.splitlines()),
        "control groups": [group for group in groups if site.network in group],
        "processes": _processes(state),
        "directories": sorted(os.listdir(site.server.directory / "host" / "machines")) if _has_host(site) else [],
    }


def _has_host(site: Site) -> bool:
    return (site.server.directory / "host" / "machines").exists()


def _processes(state: str) -> list[str]:
    """Supervisors and other processes that name the state directory, except the manager, its daemon and their Jobs."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                command_line = (process / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if state in command_line and "host.local" in command_line:
                found.append(command_line.replace("\0", " "))
    return sorted(found)
