"""A test host for `local` machines: a daemon in its own network namespace, and access to its machines."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from herder.engine.runner.shim import kernel
from herder.machine.host.autostart import answers
from herder.machine.host.client import HostClient, HostedMachine
from herder.machine.host.kinds import Ask, Place
from herder.machine.host.local import cgroups, locks
from herder.machine.host.local.network import short_hash
from herder.machine.host.records import machine_id
from tests.unit.machine.local import ordinary_user

SOURCES = Path(__file__).parents[4] / "src"
REPOSITORY = SOURCES.parent
TOKEN = "the-only-one"
TIMEOUT_SECONDS = 60.0
NAMESPACES = ("pid", "ipc", "uts")  # keeping one of these open keeps no network, mount or process
_count = 0


@dataclass
class Booted:
    host: Host
    hosted: HostedMachine
    name: str
    place: Place

    @property
    def directory(self) -> Path:
        return self.host.state_dir / "machines" / machine_id("tests", self.name)

    @property
    def supervisor(self) -> int:
        return locks.holder_of(self.directory / "lock")

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads((self.directory / "status.json").read_text())
        return status

    @property
    def guest(self) -> int:
        return int(self.status["guest"])

    def ssh(self, command: str, *, check: bool = True) -> str:
        return self.host.ssh(self.place, command, check=check)

    def groups(self) -> list[Path]:
        name = short_hash(str(self.directory), 12)
        return [base / name for base in self.host.group_bases()]


class Host:
    """Runs the daemon in its own network namespace; with `ordinary`, as an unprivileged user."""

    def __init__(self, directory: Path, *, ordinary: bool = False, environment: dict[str, str] | None = None) -> None:
        global _count
        _count += 1
        self.name = f"hl-{os.getpid()}-{_count}"
        self.directory = directory
        self.ordinary = ordinary
        self.state_dir = directory / ("home" if ordinary else "") / "host"
        self.client = HostClient.of(self.state_dir)
        self.environment = environment or {}
        self.key = directory / "id"
        self.daemon: subprocess.Popen[bytes] | None = None
        self._groups: list[Path] = []

    def __enter__(self) -> Host:
        subprocess.run(["ip", "netns", "add", self.name], check=True)
        subprocess.run(["ip", "-n", self.name, "link", "set", "lo", "up"], check=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key], check=True)
        if self.ordinary:
            self._groups = _delegated_groups(self.name)
        self.start_daemon()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for machine in self.client.machines():
                self.client.machine("local", machine["scope"], machine["name"], TOKEN).remove()
        finally:
            self.end_daemon(signal.SIGTERM)
        for group in self._groups:
            for directory, _, _ in os.walk(group, topdown=False):
                os.rmdir(directory)
        subprocess.run(["ip", "netns", "delete", self.name], check=True)

    def start_daemon(self) -> None:
        command = [sys.executable, "-m", "herder.machine.host", "--state-dir", str(self.state_dir)]
        environment = {**os.environ, "PYTHONPATH": f"{SOURCES}:{REPOSITORY}", **self.environment}
        if self.ordinary:
            environment["TEST_CONTROL_GROUPS"] = ":".join(map(str, self._groups))
            command = [sys.executable, ordinary_user.__file__, str(self.directory), *command]
        self.daemon = subprocess.Popen([*self._inside(), *command], env=environment)
        eventually(lambda: answers(self.state_dir), "the daemon does not answer")

    def end_daemon(self, how: signal.Signals) -> None:
        assert self.daemon is not None
        self.daemon.send_signal(how)
        self.daemon.wait()

    def create(self, name: str, *, script: bytes = b"", user_data: bytes = b"", **options: Any) -> Booted:
        hosted = self.client.machine("local", "tests", name, TOKEN)
        ask = Ask(name, self.key.with_suffix(".pub").read_text(), script, user_data)
        progress: list[str] = []
        return Booted(self, hosted, name, hosted.create(options, ask, progress.append))

    def ssh(self, place: Place, command: str, *, check: bool = True) -> str:
        """Run a command by SSH; only the host key that the daemon reported is accepted."""
        known = self.directory / f"known-{place.address}"
        known.write_text(f"[{place.address}]:{place.ssh_port} {place.host_key}\n{place.address} {place.host_key}\n")
        options = [f"UserKnownHostsFile={known}", "StrictHostKeyChecking=yes", "BatchMode=yes", "LogLevel=ERROR"]
        options += ["ConnectTimeout=5", "ServerAliveInterval=1", "ServerAliveCountMax=3"]  # the machine may shut down
        arguments = [argument for option in options for argument in ("-o", option)]
        reach = ["-i", str(self.key), "-p", str(place.ssh_port), f"{place.ssh_user}@{place.address}", command]
        done = subprocess.run(
            [*self._inside(), "ssh", *arguments, *reach], capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout.strip()

    def listening(self, address: str, port: int) -> socket.socket:
        """Return a listening socket in this host's network namespace."""
        sockets: list[socket.socket] = []
        assert self.daemon is not None
        daemon = self.daemon.pid

        def make() -> None:
            kernel.join_namespace(daemon, "net")
            sockets.append(socket.create_server((address, port)))

        thread = threading.Thread(target=make)  # network namespaces are per thread
        thread.start()
        thread.join()
        return sockets[0]

    def links(self) -> str:
        return subprocess.run(
            ["ip", "-n", self.name, "-brief", "link"], capture_output=True, text=True, check=True
        ).stdout

    def group_bases(self) -> list[Path]:
        if self.ordinary:
            return [group / "herder" for group in self._groups]
        return [tree.base for tree in cgroups.trees()]

    def holder(self) -> int:
        return locks.holder_of(self.state_dir / "local/fabric.lock")

    def _inside(self) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{self.name}"]


def namespaces_of(pid: int) -> set[str]:
    """The namespaces of a guest. They stay open until the tests end: the kernel would give their numbers to the
    machines of another worker."""
    paths = [Path(f"/proc/{pid}/ns/{name}") for name in NAMESPACES]
    for path in paths:
        os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return {os.readlink(path) for path in paths}


def processes_in(namespaces: set[str]) -> list[str]:
    """Return the command lines of processes that are still in one of these namespaces."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if namespaces & {os.readlink(process / "ns" / name) for name in ("net", *NAMESPACES)}:
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found


def eventually(condition: Any, what: str) -> Any:
    """Wait for a condition that a guest or the kernel fulfills asynchronously."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not (seen := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return seen


def _delegated_groups(name: str) -> list[Path]:
    """Create the delegated control groups that a service manager gives a user session."""
    groups = []
    for tree in cgroups.trees():
        group = tree.base.parent / name
        group.mkdir()
        for file in ("cpuset.cpus", "cpuset.mems"):
            if (group / file).exists():
                (group / file).write_text((group.parent / file).read_text())
        for path in (group, group / "cgroup.procs", group / "tasks", group / "cgroup.subtree_control"):
            if path.exists():
                os.chown(path, ordinary_user.UID, ordinary_user.UID)
        groups.append(group)
    return groups
