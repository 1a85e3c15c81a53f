"""Real daemons in their own directories, and a check of what they leave behind on the host."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from pathlib import Path
from types import TracebackType

from herder.machine.driver import State
from herder.machine.host import places
from herder.machine.host.autostart import ensure_running
from herder.machine.host.client import HostClient, HostedMachine
from herder.machine.host.kinds import Ask, Place
from herder.machine.ssh.keys import new_key_pair

TIMEOUT_SECONDS = 20
PRIVATE_KEY, PUBLIC_KEY = (key.decode().strip() for key in new_key_pair())


class Host:
    """A daemon on this host; the context manager ends it and its machines."""

    def __init__(self, directory: Path) -> None:
        self.state_dir = directory / "data" / "host"
        self.client = HostClient.of(self.state_dir, timeout=TIMEOUT_SECONDS)
        self.pid = 0
        self._tokens: dict[str, str] = {}

    def __enter__(self) -> Host:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        if (self.state_dir / places.KEY).exists():
            self.start()
            self.client.purge()
            self.client.shutdown()
        for pid in self.daemons():
            with contextlib.suppress(ProcessLookupError):
                wait_for_exit(pid)

    def start(self) -> None:
        ensure_running(self.state_dir)
        self.pid = self.client.version()["pid"]

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        wait_for_exit(self.pid)

    def machine(self, name: str) -> HostedMachine:
        token = self._tokens.setdefault(name, f"token-of-{name}")
        return self.client.machine("process", "fleet", name, token)

    def create(self, name: str, script: str = "", **options: object) -> Place:
        ask = Ask(name, PUBLIC_KEY, script.encode())
        return self.machine(name).create(options, ask, lambda _line: None)

    def directory(self, name: str) -> Path:
        found = (entry for entry in (self.state_dir / places.MACHINES).iterdir() if entry.name.endswith(f"-{name}"))
        return next(found)

    def runs(self, name: str) -> bool:
        return self.machine(name).state() == State.RUNNING

    def daemons(self) -> list[int]:
        wanted = [b"herder.machine.host", b"--state-dir", os.fsencode(self.state_dir)]
        return [pid for pid in processes() if wanted == _read(pid, "cmdline").split(b"\0")[2:5]]

    def machine_processes(self) -> list[int]:
        """Return all processes that have the files of one of its machines mounted."""
        place = os.fsencode(self.state_dir / places.MACHINES)
        return [pid for pid in processes() if place in _read(pid, "mountinfo")]

    def leftovers(self) -> list[str]:
        """Return the processes and files of machines that still exist on the host."""
        found = [f"process {pid}: {_read(pid, 'cmdline')!r}" for pid in self.machine_processes()]
        for name in (places.MACHINES, places.REMOVED, "addresses", "probe"):
            if (self.state_dir / name).exists():
                found += [str(entry) for entry in (self.state_dir / name).iterdir()]
        return found


def processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def wait_for_exit(pid: int) -> None:
    """Wait until a process has ended."""
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            assert select.select([pidfd], [], [], TIMEOUT_SECONDS)[0], f"process {pid} does not end"
        finally:
            os.close(pidfd)


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""  # the process has ended
