"""A machine on which a shell runs the scripts of tasks.

Stand-ins for k3s and systemctl behave as the real ones were observed to.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from herder.controllers.planner.distributions.rancher import tasks

PROGRAMS = ["k3s", "rke2"]


class Machine:
    """A directory of programs and one of data."""

    def __init__(self, directory: Path) -> None:
        self.programs, self.data = directory / "bin", directory / "data with spaces"
        self.db = self.data / "server" / "db"
        self.units = directory / "systemd units"
        for each in (self.programs, self.db):
            each.mkdir(parents=True)
        self.program("systemctl", 'echo "$@" >> "$0.log"')

    def program(self, name: str, script: str) -> None:
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def run(self, script: str, *arguments: str, operation: str = "") -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{self.programs}:{os.environ['PATH']}", "OPERATION": operation}
        command = ["/bin/sh", "-c", script, "task", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


def put(machine: Machine, content: str) -> None:
    """The data of etcd, and the keys of the server."""
    (machine.db / "etcd").mkdir(exist_ok=True)
    (machine.db / "etcd" / "member").write_text(content)
    (machine.data / "server" / "cred").mkdir(exist_ok=True)
    (machine.data / "server" / "cred" / "keys").write_text(content)


def systemctl_of(machine: Machine) -> list[str]:
    return (machine.programs / "systemctl.log").read_text().splitlines()


def is_fenced(machine: Machine) -> bool:
    """Whether systemd would not start the service."""
    (drop_in,) = (machine.units / "k3s.service.d").iterdir()
    header, condition = drop_in.read_text().splitlines()
    name, _, path = condition.partition("=!")
    assert (drop_in.suffix, header, name) == (".conf", "[Unit]", "ConditionPathExists")
    return Path(path.replace("%%", "%")).exists()


def undo(machine: Machine, run: str = "run-1", accepted: str = "") -> int:
    arguments = ("k3s", str(machine.data), accepted)
    return machine.run(tasks.UNDO_RESTORE_SCRIPT, *arguments, operation=f"{run}/Abort/1").returncode


def expect(machine: Machine, program: str, *arguments: str, then: str) -> None:
    """A program that accepts these arguments alone, and then does this."""
    wanted = "|".join(arguments)
    check = f"""given=
for each in "$@"; do given="$given${{given:+|}}$each"; done
if [ "$given" != '{wanted}' ]; then echo "unexpected arguments: $given" >&2; exit 64; fi
"""
    machine.program(program, f"{check}{then}")
