"""Rootless `local` machines: in a user namespace, each reachable at its own loopback address."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.machine.local.host import Booted, Host, eventually, namespaces_of, processes_in

MANAGER_PORT = 18443
# Unpacking the image dominates the run time, so files that this test does not need are omitted.
OMITTED = (
    "usr/share/[!d]*",
    "usr/share/doc",
    "usr/lib/python3*",
    "usr/lib/x86_64-linux-gnu/perl*",
    "var/lib/dpkg",
)


@pytest.fixture(scope="module")
def host(debian: Path) -> Iterator[Host]:
    with tempfile.TemporaryDirectory(prefix="herder-ordinary-") as scratch:
        os.chmod(scratch, 0o755)
        archive = ["--file", f"{scratch}/image.tar", *(f"--exclude=./{path}" for path in OMITTED)]
        subprocess.run(["tar", "--create", "--xattrs", *archive, "--directory", debian, "."], check=True)
        with Host(Path(scratch), ordinary=True, environment={"HERDER_LOCAL_GATEWAY_PORTS": str(MANAGER_PORT)}) as host:
            yield host


@pytest.fixture(scope="module")
def machine(host: Host) -> Booted:
    script = b"#!/bin/sh\nhostname > /root/ran\n"
    return host.create("rootless", script=script, image=str(host.directory / "image.tar"), memory=256)


def test_a_machine_of_an_unprivileged_user_boots(machine: Booted) -> None:
    assert machine.place.address.startswith("127.")
    assert machine.ssh("systemctl is-system-running --wait") == "running"
    assert machine.ssh("cat /root/ran") == "rootless"
    assert os.stat(f"/proc/{machine.guest}").st_uid != 0, "its root is root of the host"


def test_a_machine_has_the_requested_size(machine: Booted) -> None:
    names = ("memory.limit_in_bytes", "memory.max")
    limits = [(group / name).read_text() for group in machine.groups() for name in names if (group / name).exists()]
    assert [int(limit) for limit in limits] == [256 * 1024 * 1024]


def test_a_machine_reaches_the_manager_at_its_gateway(host: Host, machine: Booted) -> None:
    gateway = machine.ssh("ip route show default").split()[2]
    with host.listening("127.0.0.1", MANAGER_PORT) as manager:
        answering = threading.Thread(target=_answer_once, args=(manager,))
        answering.start()
        assert machine.ssh(f"socat -t 5 - TCP:{gateway}:{MANAGER_PORT} < /dev/null") == "the manager"
        answering.join()


def _answer_once(manager: socket.socket) -> None:
    connection, _ = manager.accept()
    with connection:
        connection.sendall(b"the manager")


def test_a_killed_network_is_recreated_under_a_running_machine(host: Host, machine: Booted) -> None:
    before, network = machine.guest, host.holder()
    os.kill(network, signal.SIGKILL)
    eventually(lambda: host.holder() not in (0, network), "there is no network")
    eventually(lambda: machine.ssh("hostname", check=False) == "rootless", "it is not connected again")
    assert machine.guest == before


def test_removal_leaves_nothing_behind(host: Host, machine: Booted) -> None:
    guest_namespaces, groups, directory = namespaces_of(machine.guest), machine.groups(), machine.directory
    machine.hosted.remove()
    assert processes_in(guest_namespaces) == []
    assert [group for group in groups if group.exists()] == []
    assert not directory.exists()
    assert host.holder() == 0
