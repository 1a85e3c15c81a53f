"""Whatever is killed, and whenever: machines go on, the next daemon takes over, and removal leaves nothing."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from herder.machine.host.kinds import Place
from tests.unit.machine.host.hosts import Host, ended
from tests.unit.machine.process.visits import said


async def test_machines_outlive_the_daemon_and_ssh_comes_back_with_the_next(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        host.start()
        place = host.create("m1")
        inhabitants = host.inhabitants()
        host.kill()
        assert host.inhabitants() == inhabitants
        host.start()
        assert host.runs("m1")
        assert await said(place, "hostname") == "m1"
        assert host.create("m1") == place
        host.machine("m1").remove()
        assert host.leftovers() == []


async def test_a_machine_that_died_with_the_daemon_is_booted_again(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        host.start()
        place = host.create("m1")
        host.kill()
        end(host.inhabitants())
        host.start()
        assert host.runs("m1")
        assert await said(place, "hostname") == "m1"


@pytest.mark.parametrize("order", ["daemon first", "machine first", "machine while it is removed"])
def test_removal_leaves_nothing_after_everything_was_killed(tmp_path: Path, order: str) -> None:
    with Host(tmp_path) as host:
        host.start()
        host.create("m1")
        if order == "daemon first":
            host.kill()
            end(host.inhabitants())
            host.start()
        else:
            end(host.inhabitants())
            if order == "machine first":
                host.kill()
                host.start()
        host.machine("m1").remove()
        assert host.leftovers() == []


@pytest.mark.parametrize("seed", range(6))
def test_a_daemon_killed_at_any_moment_of_create_and_remove(tmp_path: Path, seed: int) -> None:
    """The asker asks again, as the driver does; the host is the judge."""
    moment = random.Random(seed)
    with Host(tmp_path) as host:
        host.start()
        made: list[Place] = []
        with killed_meanwhile(host, moment.uniform(0, 0.12)):
            made.append(host.create("m1", "#!/bin/sh\n"))
        assert host.create("m1") == made[0]
        assert host.runs("m1")
        assert len(first_processes(host)) == 1
        with killed_meanwhile(host, moment.uniform(0, 0.03)):
            host.machine("m1").remove()
        host.machine("m1").remove()
        assert host.leftovers() == []


@pytest.mark.parametrize("seed", range(3))
def test_what_was_half_made_when_the_daemon_was_killed_is_removed(tmp_path: Path, seed: int) -> None:
    moment = random.Random(100 + seed)
    with Host(tmp_path) as host:
        host.start()
        creation = threading.Thread(target=lambda: host.create("m1"))
        creation.start()
        time.sleep(moment.uniform(0, 0.12))
        host.kill()
        host.start()
        host.machine("m1").remove()
        creation.join()  # it may have asked again, before or after
        host.machine("m1").remove()
        assert host.leftovers() == []


class killed_meanwhile:
    """The daemon dies while something is asked of it, and another takes its place."""

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


def first_processes(host: Host) -> list[int]:
    return [
        pid
        for pid in host.inhabitants()
        if Path(f"/proc/{pid}/cmdline").read_bytes().endswith(b"init\0") and _number_inside(pid) == 1
    ]


def _number_inside(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("NSpid")).split()[-1])


def end(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        ended(pid)
