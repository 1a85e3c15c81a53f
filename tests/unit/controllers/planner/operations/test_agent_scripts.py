"""The scripts that replace a node agent, run by a shell in a directory that stands for the machine.

Stand-ins for curl, systemctl and systemd-run record what they are called with.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from herder.controllers.planner.distributions.agent_task import REDEPLOY_SCRIPT, SWITCH_SCRIPT

URL = "https://manager.example/assets/herder-agent.pyz"
SERVICE = "rancher-system-agent"
OLD = "#!/bin/sh\necho old\n"
NEW = "#!/bin/sh\n# a program\necho herder-agent version 2\n"


class Machine:
    """A machine with or without systemd. The paths of the scripts are moved into its directory."""

    def __init__(self, root: Path, *, systemd: bool) -> None:
        self.root, self.systemd = root, systemd
        self.programs, self.bin, self.var = root / "stand-ins", root / "usr/local/bin", root / "agent"
        self.state, self.interlock = self.var / "herder-agent", self.var / "interlock"
        for each in (self.programs, self.bin, self.interlock, root / "boot.d", root / "run"):
            each.mkdir(parents=True)
        self.program = self.bin / SERVICE
        self.write(self.program, OLD)
        self.config = root / "config.yaml"
        self.config.write_text(f"workDirectory: {self.var}/work\ninterlockDirectory: {self.interlock}\n")
        self.boot = root / "boot.d" / f"40-{SERVICE}"
        if systemd:
            (root / "run/systemd/system").mkdir(parents=True)
        start = f"{self.program} sentinel"
        self.write(self.boot, f"#!/bin/sh\necho boot >> {root}/restarts\nexit 0\n    {start} >>log &\n")
        unit = f"[Service]\nExecStart={start}"
        self.write(
            self.programs / "systemctl",
            f"#!/bin/sh\ncase $1 in cat) echo '{unit}' ;; restart) echo boot >> {root}/restarts ;; esac\n",
        )
        self.write(
            self.programs / "systemd-run",
            f'#!/bin/sh\necho "$@" > {root}/unit\nshift 3\n"$@" > {root}/switch.log 2>&1 < /dev/null &\n',
        )
        self.serve(NEW)

    def write(self, path: Path, content: str) -> None:
        path.write_text(content)
        path.chmod(0o755)

    def serve(self, content: str) -> None:
        (self.root / "served").write_text(content)
        get = f'while [ "$#" -gt 0 ]; do [ "$1" != --output ] || cp {self.root}/served "$2"; shift; done'
        self.write(self.programs / "curl", f'#!/bin/sh\necho "$@" >> {self.root}/requests\n{get}\n')

    def moved(self, script: str) -> str:
        script = script.replace("/etc/herder/boot.d", str(self.root / "boot.d"))
        return script.replace("/run/", f"{self.root}/run/")

    def redeploy(
        self, checksum: str = "", certificates: str = "CA", come_up: int = 2
    ) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{self.programs}:{os.environ['PATH']}", "CATTLE_AGENT_CONFIG": str(self.config)}
        pinned = checksum or hashlib.sha256(NEW.encode()).hexdigest()
        arguments = (self.moved(SWITCH_SCRIPT), URL, pinned, certificates, "1", "3", str(come_up))
        command = ["/bin/sh", "-c", self.moved(REDEPLOY_SCRIPT), "task", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)

    def restarts(self) -> int:
        path = self.root / "restarts"
        return path.read_text().count("boot") if path.exists() else 0

    def confirm(self, content: str = NEW) -> None:
        """The agent has reported itself."""
        self.state.mkdir(exist_ok=True)
        (self.state / "running-agent").write_text(hashlib.sha256(content.encode()).hexdigest())


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(params=[True, False], ids=["systemd", "without systemd"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return Machine(tmp_path, systemd=request.param)


def test_the_agent_is_replaced_and_restarted_outside_its_service(machine: Machine) -> None:
    done = machine.redeploy(come_up=20)
    assert done.returncode == 0, done.stderr
    assert "herder-agent version 2: verified" in done.stdout
    wait_until(lambda: machine.restarts() == 1)
    machine.confirm()
    assert machine.program.read_text() == NEW
    assert os.access(machine.program, os.X_OK)
    assert (machine.bin / f"{SERVICE}.previous").read_text() == OLD
    requests = (machine.root / "requests").read_text()
    assert "--proto =https" in requests
    assert f"--cacert {machine.program}.ca" in requests
    assert {each.name for each in machine.bin.iterdir()} == {SERVICE, f"{SERVICE}.previous"}
    assert not (machine.interlock / "restart-pending").exists()
    assert (machine.root / "unit").exists() is machine.systemd


def test_it_waits_until_the_running_plan_is_done(machine: Machine) -> None:
    active = machine.interlock / "applyinator-active"
    active.write_text("")
    assert machine.redeploy().returncode == 0
    wait_until((machine.interlock / "restart-pending").exists)
    assert (machine.program.read_text(), machine.restarts()) == (OLD, 0)
    active.unlink()
    wait_until(lambda: machine.restarts() == 1)
    machine.confirm()


def test_an_agent_that_does_not_come_up_is_replaced_by_the_previous_one(machine: Machine) -> None:
    machine.confirm(OLD)
    assert machine.redeploy(come_up=1).returncode == 0
    wait_until(lambda: machine.restarts() == 2)
    assert machine.program.read_text() == OLD
    assert {each.name for each in machine.bin.iterdir()} == {SERVICE}


def test_it_can_be_repeated_after_it_was_interrupted(machine: Machine) -> None:
    """The program is replaced already, and the agent was not restarted: the previous one is kept."""
    machine.program.write_text(NEW)
    machine.write(machine.bin / f"{SERVICE}.previous", OLD)
    assert machine.redeploy(come_up=20).returncode == 0
    wait_until(lambda: machine.restarts() == 1)
    machine.confirm()
    assert machine.program.read_text() == NEW
    assert (machine.bin / f"{SERVICE}.previous").read_text() == OLD


def test_another_agent_than_the_pinned_one_changes_nothing(machine: Machine) -> None:
    done = machine.redeploy(checksum="0" * 64)
    assert done.returncode == 1
    assert f"not {'0' * 64}; nothing has changed" in done.stderr
    assert_unchanged(machine)


def test_an_agent_that_does_not_run_here_changes_nothing(machine: Machine) -> None:
    broken = "#!/bin/sh\necho no python >&2\nexit 1\n"
    machine.serve(broken)
    done = machine.redeploy(checksum=hashlib.sha256(broken.encode()).hexdigest())
    assert done.returncode == 1
    assert "does not run here; nothing has changed: no python" in done.stderr
    assert_unchanged(machine)


def test_a_download_that_fails_changes_nothing(machine: Machine) -> None:
    machine.write(machine.programs / "curl", "#!/bin/sh\necho 'no route to host' >&2\nexit 7\n")
    done = machine.redeploy()
    assert (done.returncode, done.stderr) == (1, f"{URL}: no route to host\n")
    assert_unchanged(machine)


def test_a_service_of_another_installation_is_left_alone(machine: Machine) -> None:
    machine.write(machine.boot, "#!/bin/sh\nexec agent\n")
    machine.write(machine.programs / "systemctl", "#!/bin/sh\necho 'ExecStart=/usr/bin/agent run'\n")
    done = machine.redeploy()
    assert done.returncode == 1
    assert "run the registration command of this machine again" in done.stderr
    assert_unchanged(machine)


def assert_unchanged(machine: Machine) -> None:
    assert machine.program.read_text() == OLD
    assert {each.name for each in machine.bin.iterdir()} == {SERVICE}
    assert machine.restarts() == 0
