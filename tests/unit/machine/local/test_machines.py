"""`local` machines are Debian hosts with an address: they boot, run their script once, reboot, and leave no trace."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from herder.machine.driver import State
from tests.unit.machine.local.host import Booted, Host, eventually, namespaces_of, processes_in

COUNT_RUNS = b"#!/bin/sh\necho ran >> /root/runs\n"


@pytest.fixture(scope="module")
def machine(host: Host) -> Booted:
    return host.create("first", script=COUNT_RUNS, cpus=0.5, memory=256)


def test_it_is_a_debian_of_its_own_with_systemd(machine: Booted) -> None:
    assert machine.ssh("command -v containerd || echo none") == "none", "only machines that ask for it have that layer"
    assert machine.ssh("hostname") == "first"
    assert machine.ssh("cat /proc/1/comm") == "systemd"
    assert machine.ssh("systemctl is-system-running --wait") == "running"


def test_it_runs_its_script_and_tells_that_it_is_bootstrapped(machine: Booted) -> None:
    sentinel = "/run/cluster-api/bootstrap-success.complete"
    eventually(lambda: machine.ssh(f"cat {sentinel}", check=False) == "success", "the script did not end")
    assert machine.ssh("cat /root/runs") == "ran"
    assert machine.ssh("ls /var/lib/herder") == "first-boot", "the script may hold secrets, and is kept"


def test_it_has_the_size_that_was_asked_for_and_cannot_change_it(machine: Booted) -> None:
    sizes = {
        file.name: file.read_text().split()[0]
        for group in machine.groups()
        for name in ("memory.limit_in_bytes", "memory.max", "cpu.cfs_quota_us", "cpu.max")
        if (file := group / name).exists()
    }
    assert sorted(sizes.values()) == [str(256 * 1024 * 1024), "50000"]
    own = "/sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max"
    seen = machine.ssh(f"cat {own} 2>/dev/null", check=False)
    assert str(256 * 1024 * 1024) not in seen, "what it sees is the limit itself"


def test_its_processes_are_in_groups_of_its_own_alone(host: Host, machine: Booted) -> None:
    """systemd uses every tree of control groups that it finds."""
    name = machine.groups()[0].name
    paths = [line.split(":", 2)[2] for line in Path(f"/proc/{machine.guest}/cgroup").read_text().splitlines()]
    assert [path for path in paths if f"/{name}/" not in path] == []


def test_the_settings_of_the_host_are_not_its_own(machine: Booted) -> None:
    assert machine.ssh("echo 1 > /proc/sys/kernel/panic || echo refused", check=False) == "refused"
    assert machine.ssh("echo 1 > /proc/sys/net/ipv4/ip_forward && echo done") == "done"


def test_it_survives_a_reboot_from_inside_and_does_not_run_its_script_again(machine: Booted) -> None:
    first = machine.guest
    machine.ssh("systemctl reboot", check=False)
    eventually(lambda: machine.status["boots"] == 2 and machine.status.get("guest"), "it did not come back")
    eventually(lambda: machine.ssh("hostname", check=False) == "first", "its SSH did not come back")
    assert machine.guest != first
    assert machine.ssh("systemctl is-system-running --wait; cat /root/runs") == "running\nran"


def test_it_stops_and_starts_where_it_was(machine: Booted) -> None:
    machine.hosted.stop()
    assert machine.hosted.state() is State.STOPPED
    assert machine.supervisor == 0
    machine.hosted.start()
    assert machine.hosted.state() is State.RUNNING
    assert machine.hosted.place() == machine.place
    assert machine.ssh("cat /root/runs") == "ran"


def test_powered_off_from_inside_it_is_stopped(machine: Booted) -> None:
    machine.ssh("systemctl poweroff", check=False)
    eventually(lambda: machine.hosted.state() is State.STOPPED, "it still runs")
    machine.hosted.start()


def test_machines_reach_each_other_and_their_gateway(host: Host, machine: Booted) -> None:
    other = host.create("second")
    assert other.ssh(f"ping -c 1 -W 5 {machine.place.address} > /dev/null && echo answered") == "answered"
    gateway = other.ssh("ip route show default").split()[2]
    assert other.ssh(f"ping -c 1 -W 5 {gateway} > /dev/null && echo answered") == "answered"
    other.hosted.remove()


def test_cloud_init_runs_the_script_and_what_the_user_brought(host: Host) -> None:
    users = b"#cloud-config\nwrite_files:\n- path: /root/brought\n  content: |\n    by the user\n"
    machine = host.create("clouded", script=COUNT_RUNS, user_data=users)
    assert machine.ssh("cloud-init status --wait").endswith("status: done")
    assert machine.ssh("hostname; cat /root/brought; cat /root/runs") == "clouded\nby the user\nran"
    assert machine.ssh("cat /run/cluster-api/bootstrap-success.complete") == "success"
    machine.hosted.remove()


def test_with_kubernetes_it_has_what_a_kubelet_needs(host: Host) -> None:
    machine = host.create("kube", kubernetes=True)
    panic = Path("/proc/sys/kernel/panic").read_text()
    assert machine.ssh("echo 10 > /proc/sys/kernel/panic && cat /proc/sys/kernel/panic") == "10"
    assert Path("/proc/sys/kernel/panic").read_text() == panic
    assert machine.ssh("stat -f -c %T /var/lib/kubelet /var/lib/containerd") != "overlayfs\noverlayfs"
    assert machine.ssh("test -c /dev/kmsg && findmnt -n -o PROPAGATION /") == "shared"
    assert machine.ssh("systemctl is-system-running --wait; systemctl is-active containerd") == "running\nactive"
    assert machine.ssh("ctr plugins ls | grep overlayfs").split()[-1] == "ok"
    machine.hosted.remove()


def test_removal_leaves_nothing(host: Host, machine: Booted) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    doomed = host.create("doomed", script=COUNT_RUNS)
    own = namespaces_of(doomed.guest)
    groups, directory, link = doomed.groups(), doomed.directory, host.links()
    doomed.hosted.remove()
    assert processes_in(own) == []
    assert [group for group in groups if group.exists()] == []
    assert not directory.exists()
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert host.links() == link
    assert machine.ssh("hostname") == "first", "others are not disturbed"


def test_the_network_goes_with_the_last_machine(host: Host, machine: Booted) -> None:
    network = {os.readlink(f"/proc/{machine.status['fabric']}/ns/net")}
    groups = machine.groups()
    machine.hosted.remove()
    assert host.holder() == 0
    eventually(lambda: "hd-" not in host.links(), "the link to the network is still there")
    assert processes_in(network) == []
    assert not any(group.exists() for group in groups)  # the one above them all belongs to every daemon of this host


def test_a_machine_ends_with_its_supervisor(host: Host) -> None:
    machine = host.create("orphan")
    own = namespaces_of(machine.guest)
    os.kill(machine.supervisor, signal.SIGKILL)
    eventually(lambda: processes_in(own) == [], "the guest outlived its supervisor")
    assert machine.hosted.state() is State.STOPPED
    machine.hosted.remove()
