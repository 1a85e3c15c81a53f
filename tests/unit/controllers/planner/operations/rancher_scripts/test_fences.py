"""Scripts that stop servers, which are fenced until their data is restored or dropped."""

from __future__ import annotations

import subprocess

import pytest

from herder.controllers.planner.distributions.rancher import tasks
from tests.unit.controllers.planner.operations.rancher_scripts.machine import (
    PROGRAMS,
    Machine,
    expect,
    is_fenced,
    put,
    systemctl_of,
    undo,
)


def stop(machine: Machine, program: str = "k3s", *, units: str = "") -> subprocess.CompletedProcess[str]:
    arguments = (f"{program}-killall.sh", "k3s", str(machine.data), units)
    return machine.run(tasks.STOP_SCRIPT, *arguments, operation="run-1/Shutdown/1")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_server_is_stopped_by_the_script_of_its_distribution(machine: Machine, program: str) -> None:
    expect(machine, f"{program}-killall.sh", then='echo stopped >> "$0.log"')
    assert stop(machine, program).returncode == 0
    assert (machine.programs / f"{program}-killall.sh.log").read_text() == "stopped\n"
    assert not machine.units.exists(), "it has no etcd"


def test_a_server_that_cannot_be_stopped_fails(machine: Machine) -> None:
    machine.program("k3s-killall.sh", "echo 'cannot stop' >&2; exit 7")
    done = stop(machine)
    assert (done.returncode, done.stderr) == (7, "cannot stop\n")
    assert stop(machine, "rke2").returncode == 127


@pytest.mark.parametrize("name", ["data", "100%data"])
def test_a_server_with_etcd_is_fenced_before_it_stops(machine: Machine, name: str) -> None:
    """A machine that restarts between both steps would start the service with the old data."""
    machine.data = machine.data.parent / name
    fence = machine.data / "server" / "db" / "restore-fence"
    expect(machine, "k3s-killall.sh", then=f'[ "$(cat "{fence}")" = run-1 ]')
    for _ in range(2):
        done = stop(machine, units=str(machine.units))
        assert (done.returncode, done.stderr, is_fenced(machine)) == (0, "", True)
    assert systemctl_of(machine) == ["daemon-reload", "daemon-reload"]
    assert undo(machine) == 0
    assert not is_fenced(machine)


def test_a_server_that_cannot_be_fenced_is_not_stopped(machine: Machine) -> None:
    machine.program("systemctl", "exit 1")
    machine.program("k3s-killall.sh", 'echo stopped >> "$0.log"')
    assert stop(machine, units=str(machine.units)).returncode == 1
    assert not (machine.programs / "k3s-killall.sh.log").exists()


def test_a_server_is_fenced_until_it_has_dropped_its_data(machine: Machine) -> None:
    """Also if the agent was killed after it had dropped the data."""
    machine.program("k3s-killall.sh", "exit 0")
    for dropped in (True, False):
        assert stop(machine, units=str(machine.units)).returncode == 0
        put(machine, "old")
        operation = "run-1/InitialRestartCluster/1"
        assert machine.run(tasks.DROP_SCRIPT, "k3s", str(machine.data), operation=operation).returncode == 0
        assert ((machine.db / "etcd").exists(), is_fenced(machine)) == (not dropped, False)


def test_a_server_whose_data_cannot_be_dropped_stays_fenced(machine: Machine) -> None:
    machine.program("k3s-killall.sh", "exit 0")
    assert stop(machine, units=str(machine.units)).returncode == 0
    machine.program("rm", 'case $1 in -rf) exit 1 ;; *) exec /bin/rm "$@" ;; esac')
    operation = "run-1/InitialRestartCluster/1"
    assert machine.run(tasks.DROP_SCRIPT, "k3s", str(machine.data), operation=operation).returncode == 1
    assert is_fenced(machine)
