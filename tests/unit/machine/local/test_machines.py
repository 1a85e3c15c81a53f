"""The lifecycle of `local` machines: they boot Debian, run their script once, reboot, and leave nothing behind."""

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


def test_a_machine_runs_debian_with_systemd(machine: Booted) -> None:
    assert machine.ssh("command -v containerd || echo none") == "none", "the Kubernetes layer is opt-in"
    assert machine.ssh("hostname") == "first"
    assert machine.ssh("cat /proc/1/comm") == "systemd"
    assert machine.ssh("systemctl is-system-running --wait") == "running"


def test_a_machine_runs_its_script_and_reports_that_it_is_bootstrapped(machine: Booted) -> None:
    sentinel = "/run/cluster-api/bootstrap-success.complete"
    eventually(lambda: machine.ssh(f"cat {sentinel}", check=False) == "success", "the script did not end")
    assert machine.ssh("cat /root/runs") == "ran"
    assert machine.ssh("ls /var/lib/herder") == "first-boot", "the script may hold secrets, and is kept"


def test_a_machine_has_the_requested_size_and_cannot_change_it(machine: Booted) -> None:
    sizes = {
        file.name: file.read_text().split()[0]
        for group in machine.groups()
        for name in ("memory.limit_in_bytes", "memory.max", "cpu.cfs_quota_us", "cpu.max")
        if (file := group / name).exists()
    }
    assert sorted(sizes.values()) == [str(256 * 1024 * 1024), "50000"]
    guest_namespaces = "/sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max"
    seen = machine.ssh(f"cat {guest_namespaces} 2>/dev/null", check=False)
    assert str(256 * 1024 * 1024) not in seen, "what it sees is the limit itself"


def test_processes_are_only_in_control_groups_of_their_machine(host: Host, machine: Booted) -> None:
    """systemd uses every control group hierarchy that it finds."""
    name = machine.groups()[0].name
    paths = [line.split(":", 2)[2] for line in Path(f"/proc/{machine.guest}/cgroup").read_text().splitlines()]
    assert [path for path in paths if f"/{name}/" not in path] == []


def test_a_machine_cannot_change_settings_of_the_host(machine: Booted) -> None:
    assert machine.ssh("echo 1 > /proc/sys/kernel/panic || echo refused", check=False) == "refused"
    assert machine.ssh("echo 1 > /proc/sys/net/ipv4/ip_forward && echo done") == "done"


def test_a_reboot_from_inside_does_not_run_the_script_again(machine: Booted) -> None:
    first = machine.guest
    machine.ssh("systemctl reboot", check=False)
    eventually(lambda: machine.status["boots"] == 2 and machine.status.get("guest"), "it did not come back")
    eventually(lambda: machine.ssh("hostname", check=False) == "first", "its SSH did not come back")
    assert machine.guest != first
    assert machine.ssh("systemctl is-system-running --wait; cat /root/runs") == "running\nran"


def test_a_machine_keeps_its_files_and_address_across_stop_and_start(machine: Booted) -> None:
    machine.hosted.stop()
    assert machine.hosted.state() is State.STOPPED
    assert machine.supervisor == 0
    machine.hosted.start()
    assert machine.hosted.state() is State.RUNNING
    assert machine.hosted.place() == machine.place
    assert machine.ssh("cat /root/runs") == "ran"


def test_a_machine_powered_off_from_inside_is_stopped(machine: Booted) -> None:
    machine.ssh("systemctl poweroff", check=False)
    eventually(lambda: machine.hosted.state() is State.STOPPED, "it still runs")
    machine.hosted.start()


def test_machines_reach_each_other_and_the_gateway(host: Host, machine: Booted) -> None:
    other = host.create("second")
    assert other.ssh(f"ping -c 1 -W 5 {machine.place.address} > /dev/null && echo answered") == "answered"
    gateway = other.ssh("ip route show default").split()[2]
    assert other.ssh(f"ping -c 1 -W 5 {gateway} > /dev/null && echo answered") == "answered"
    other.hosted.remove()


def test_cloud_init_runs_the_script_and_the_user_data(host: Host) -> None:
    users = b"#cloud-config\nwrite_files:\n- path: /root/brought\n  content: |\n    by the user\n"
    machine = host.create("clouded", script=COUNT_RUNS, user_data=users)
    assert machine.ssh("cloud-init status --wait").endswith("status: done")
    assert machine.ssh("hostname; cat /root/brought; cat /root/runs") == "clouded\nby the user\nran"
    assert machine.ssh("cat /run/cluster-api/bootstrap-success.complete") == "success"
    machine.hosted.remove()


def test_a_machine_with_kubernetes_meets_the_kubelets_requirements(host: Host) -> None:
    machine = host.create("kube", kubernetes=True)
    panic = Path("/proc/sys/kernel/panic").read_text()
    assert machine.ssh("echo 10 > /proc/sys/kernel/panic && cat /proc/sys/kernel/panic") == "10"
    assert Path("/proc/sys/kernel/panic").read_text() == panic
    assert machine.ssh("stat -f -c %T /var/lib/kubelet /var/lib/containerd") != "overlayfs\noverlayfs"
    assert machine.ssh("test -c /dev/kmsg && findmnt -n -o PROPAGATION /") == "shared"
    assert machine.ssh("systemctl is-system-running --wait; systemctl is-active containerd") == "running\nactive"
    assert machine.ssh("ctr plugins ls | grep overlayfs").split()[-1] == "ok"
    machine.hosted.remove()


def test_removal_leaves_nothing_behind(host: Host, machine: Booted) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    removed_machine = host.create("doomed", script=COUNT_RUNS)
    guest_namespaces = namespaces_of(removed_machine.guest)
    groups, directory, link = removed_machine.groups(), removed_machine.directory, host.links()
    removed_machine.hosted.remove()
    assert processes_in(guest_namespaces) == []
    assert [group for group in groups if group.exists()] == []
    assert not directory.exists()
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert host.links() == link
    assert machine.ssh("hostname") == "first", "other machines are not affected"


def test_the_network_is_deleted_with_the_last_machine(host: Host, machine: Booted) -> None:
    network = {os.readlink(f"/proc/{machine.status['fabric']}/ns/net")}
    groups = machine.groups()
    machine.hosted.remove()
    assert host.holder() == 0
    eventually(lambda: "hd-" not in host.links(), "the link to the network is still there")
    assert processes_in(network) == []
    assert not any(group.exists() for group in groups)  # their parent is shared by all daemons of this host


def test_a_machine_ends_with_its_supervisor(host: Host) -> None:
    machine = host.create("orphan")
    guest_namespaces = namespaces_of(machine.guest)
    os.kill(machine.supervisor, signal.SIGKILL)
    eventually(lambda: processes_in(guest_namespaces) == [], "the guest outlived its supervisor")
    assert machine.hosted.state() is State.STOPPED
    machine.hosted.remove()
