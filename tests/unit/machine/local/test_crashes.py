"""Whoever is killed, in whatever order: machines that should run come back, and removal leaves nothing behind."""

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


class Victims:
    """Whom we may kill: held on to while they live, so that nobody else's process gets their number."""

    def __init__(self, host: Host, machine: Booted) -> None:
        self.host = host
        processes = {"supervisor": machine.supervisor, "guest": machine.guest, "network": host.holder()}
        self._held = {who: os.pidfd_open(pid) for who, pid in processes.items()}

    def kill(self, *order: str) -> None:
        for who in order:
            if who == "daemon":
                self.host.end_daemon(signal.SIGKILL)
            else:
                with contextlib.suppress(ProcessLookupError):  # it went with the one before
                    signal.pidfd_send_signal(self._held[who], signal.SIGKILL)
        for descriptor in self._held.values():
            os.close(descriptor)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_machine_outlives_the_daemon(host: Host, how: signal.Signals) -> None:
    machine = host.create("lasting")
    before = machine.guest
    host.end_daemon(how)
    assert machine.ssh("hostname") == "lasting"
    host.start_daemon()
    assert machine.hosted.state() is State.RUNNING
    assert machine.guest == before


@pytest.mark.parametrize("order", ORDERS[:3], ids="-".join)
def test_one_that_should_run_is_started_again(host: Host, order: tuple[str, ...]) -> None:
    machine = host.create("wanted", script=b"#!/bin/sh\necho ran >> /root/runs\n")
    eventually(lambda: machine.ssh("cat /root/runs", check=False) == "ran", "the script did not run")
    Victims(host, machine).kill(*order)
    host.start_daemon()
    eventually(lambda: machine.ssh("hostname", check=False) == "wanted", "it did not come back")
    assert machine.ssh("cat /root/runs") == "ran"


@pytest.mark.parametrize("order", ORDERS[3:], ids="-".join)
def test_one_that_should_go_leaves_nothing(host: Host, order: tuple[str, ...]) -> None:
    machine = host.create("unwanted")
    own, groups, directory = namespaces_of(machine.guest), machine.groups(), machine.directory
    Victims(host, machine).kill(*order, "network")
    host.start_daemon()
    machine.hosted.remove()
    assert processes_in(own) == []
    assert [group for group in groups if group.exists()] == []
    assert not directory.exists()
    assert host.holder() == 0
    eventually(lambda: "hd-" not in host.links(), "the link to the network is still there")


def test_a_network_that_was_killed_is_made_again_under_running_machines(host: Host) -> None:
    machine = host.create("connected")
    before, network = machine.guest, host.holder()
    Victims(host, machine).kill("network")
    eventually(lambda: host.holder() not in (0, network), "there is no network")
    eventually(lambda: machine.ssh("hostname", check=False) == "connected", "it is not connected again")
    assert machine.guest == before


def test_a_creation_that_was_broken_off_is_finished_by_asking_again(host: Host) -> None:
    with ThreadPoolExecutor() as threads:
        asking = threads.submit(host.create, "halfway")  # it asks again itself, as the machine CLI does
        eventually(lambda: list(host.state_dir.glob("machines/*/boot.json")), "it did not get that far")
        host.end_daemon(signal.SIGKILL)
        host.start_daemon()
        machine = asking.result()
    assert machine.ssh("hostname") == "halfway"
    assert machine.status["boots"] == 1, "it was started twice"
