"""Kills at any moment: machines keep running, the next daemon takes over, and removal leaves nothing behind."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from herder.machine.host.kinds import Place
from tests.unit.machine.host.hosts import Host, wait_for_exit
from tests.unit.machine.process.machine_ssh import output_of


async def test_machines_survive_the_daemon_and_ssh_returns_with_the_next_one(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        host.start()
        place = host.create("m1")
        machine_processes = host.machine_processes()
        host.kill()
        assert host.machine_processes() == machine_processes
        host.start()
        assert host.runs("m1")
        assert await output_of(place, "hostname") == "m1"
        assert host.create("m1") == place
        host.machine("m1").remove()
        assert host.leftovers() == []


async def test_a_machine_killed_with_the_daemon_is_booted_again(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        host.start()
        place = host.create("m1")
        host.kill()
        kill_all(host.machine_processes())
        host.start()
        assert host.runs("m1")
        assert await output_of(place, "hostname") == "m1"


@pytest.mark.parametrize("order", ["daemon first", "machine first", "machine while it is removed"])
def test_removal_leaves_nothing_behind_after_all_processes_were_killed(tmp_path: Path, order: str) -> None:
    with Host(tmp_path) as host:
        host.start()
        host.create("m1")
        if order == "daemon first":
            host.kill()
            kill_all(host.machine_processes())
            host.start()
        else:
            kill_all(host.machine_processes())
            if order == "machine first":
                host.kill()
                host.start()
        host.machine("m1").remove()
        assert host.leftovers() == []


@pytest.mark.parametrize("seed", range(6))
def test_the_daemon_can_be_killed_at_any_moment_of_create_and_remove(tmp_path: Path, seed: int) -> None:
    """The client retries, as the driver does; the host is checked for leftovers."""
    rng = random.Random(seed)
    with Host(tmp_path) as host:
        host.start()
        created: list[Place] = []
        with DaemonRestart(host, rng.uniform(0, 0.12)):
            created.append(host.create("m1", "#!/bin/sh\n"))
        assert host.create("m1") == created[0]
        assert host.runs("m1")
        assert len(init_processes(host)) == 1
        with DaemonRestart(host, rng.uniform(0, 0.03)):
            host.machine("m1").remove()
        host.machine("m1").remove()
        assert host.leftovers() == []


@pytest.mark.parametrize("seed", range(3))
def test_a_partial_machine_of_a_killed_daemon_is_removed(tmp_path: Path, seed: int) -> None:
    rng = random.Random(100 + seed)
    with Host(tmp_path) as host:
        host.start()
        creation = threading.Thread(target=lambda: host.create("m1"))
        creation.start()
        time.sleep(rng.uniform(0, 0.12))
        host.kill()
        host.start()
        host.machine("m1").remove()
        creation.join()  # the client may have retried before or after the removal
        host.machine("m1").remove()
        assert host.leftovers() == []


class DaemonRestart:
    """Kills and restarts the daemon while the body runs."""

    def __init__(self, host: Host, delay: float) -> None:
        self._thread = threading.Thread(target=self._kill)
        self._host, self._delay = host, delay

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _kill(self) -> None:
        time.sleep(self._delay)
        self._host.kill()
        self._host.start()


def init_processes(host: Host) -> list[int]:
    return [
        pid
        for pid in host.machine_processes()
        if Path(f"/proc/{pid}/cmdline").read_bytes().endswith(b"init\0") and _pid_inside(pid) == 1
    ]


def _pid_inside(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("NSpid")).split()[-1])


def kill_all(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        wait_for_exit(pid)
