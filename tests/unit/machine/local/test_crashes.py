"""Kills in any order: machines that should run are restarted, and removal leaves nothing behind."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from herder.machine.driver import State
from tests.unit.machine.local.host import Booted, Host, eventually, namespaces_of, processes_in

ORDERS = list(itertools.permutations(("daemon", "supervisor", "guest")))


@pytest.fixture
def host(debian: Path, tmp_path: Path) -> Iterator[Host]:
    with Host(tmp_path) as host:
        yield host


class KillTargets:
    """The processes to kill, held by pidfd so that a reused PID is never signaled."""

    def __init__(self, host: Host, machine: Booted) -> None:
        self.host = host
        processes = {"supervisor": machine.supervisor, "guest": machine.guest, "network": host.holder()}
        self._descriptors = {target: os.pidfd_open(pid) for target, pid in processes.items()}

    def kill(self, *targets: str) -> None:
        for target in targets:
            if target == "daemon":
                self.host.end_daemon(signal.SIGKILL)
            else:
                with contextlib.suppress(ProcessLookupError):  # it ended together with the previous one
                    signal.pidfd_send_signal(self._descriptors[target], signal.SIGKILL)
        for descriptor in self._descriptors.values():
            os.close(descriptor)


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_a_machine_survives_the_end_of_its_daemon(host: Host, signal_number: signal.Signals) -> None:
    machine = host.create("lasting")
    before = machine.guest
    host.end_daemon(signal_number)
    assert machine.ssh("hostname") == "lasting"
    host.start_daemon()
    assert machine.hosted.state() is State.RUNNING
    assert machine.guest == before


@pytest.mark.parametrize("targets", ORDERS[:3], ids="-".join)
def test_a_killed_machine_is_started_again(host: Host, targets: tuple[str, ...]) -> None:
    machine = host.create("wanted", script=b"#!/bin/sh\necho ran >> /root/runs\n")
    eventually(lambda: machine.ssh("cat /root/runs", check=False) == "ran", "the script did not run")
    KillTargets(host, machine).kill(*targets)
    host.start_daemon()
    eventually(lambda: machine.ssh("hostname", check=False) == "wanted", "it did not come back")
    assert machine.ssh("cat /root/runs") == "ran"


@pytest.mark.parametrize("targets", ORDERS[3:], ids="-".join)
def test_removal_after_kills_leaves_nothing_behind(host: Host, targets: tuple[str, ...]) -> None:
    machine = host.create("unwanted")
    own, groups, directory = namespaces_of(machine.guest), machine.groups(), machine.directory
    KillTargets(host, machine).kill(*targets, "network")
    host.start_daemon()
    machine.hosted.remove()
    assert processes_in(own) == []
    assert [group for group in groups if group.exists()] == []
    assert not directory.exists()
    assert host.holder() == 0
    eventually(lambda: "hd-" not in host.links(), "the link to the network is still there")


def test_a_killed_network_is_recreated_under_running_machines(host: Host) -> None:
    machine = host.create("connected")
    before, network = machine.guest, host.holder()
    KillTargets(host, machine).kill("network")
    eventually(lambda: host.holder() not in (0, network), "there is no network")
    eventually(lambda: machine.ssh("hostname", check=False) == "connected", "it is not connected again")
    assert machine.guest == before


def test_an_interrupted_creation_is_finished_by_a_retry(host: Host) -> None:
    with ThreadPoolExecutor() as threads:
        creation = threads.submit(host.create, "halfway")  # retries by itself, as the machine CLI does
        eventually(lambda: list(host.state_dir.glob("machines/*/boot.json")), "it did not get that far")
        host.end_daemon(signal.SIGKILL)
        host.start_daemon()
        machine = creation.result()
    assert machine.ssh("hostname") == "halfway"
    assert machine.status["boots"] == 1, "it was started twice"
