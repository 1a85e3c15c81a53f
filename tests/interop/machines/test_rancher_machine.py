"""The real rancher-machine and Herder's take over each other's machines, with only the state Secret in common."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import pytest

from herder.machine.state.saved_machine import saved_machine
from tests.support.api import Api
from tests.support.engines import Engine
from tests.support.peers import peer
from tests.support.sshd import Sshd, sshd

OURS = (sys.executable, "-m", "herder.machine.cli.main")
SCRIPT = "#!/bin/sh\necho installed by $(hostname) >>/run/machine/installed\n"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with sshd(tmp_path_factory.mktemp("host")) as host:
        yield host


@dataclass
class Programs:
    """Both programs with the same Secret. The disk is cleared after each command: only the Secret keeps state."""

    directory: Path
    engine: Engine | None = None  # None: there is no Secret, and the disk keeps the state
    namespace: str = ""

    def ours(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._run([*OURS], arguments)

    def go(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._run([str(peer("rancher-machine")), "--native-ssh"], arguments)

    def archive(self) -> bytes:
        assert self.engine is not None
        output = self.engine.kubectl("get", "secret", "state", "-n", self.namespace, "-o", "json").stdout
        return base64.b64decode(json.loads(output).get("data", {}).get("extractedConfig", ""))

    def script(self) -> str:
        path = self.directory / "script"
        path.write_text(SCRIPT)
        return str(path)

    def _run(self, program: list[str], arguments: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        store = self.directory / "store"
        (store / "machines").mkdir(parents=True, exist_ok=True)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.directory),
            "MACHINE_STORAGE_PATH": str(store),
            "HERDER_RANCHER_MACHINE": str(peer("rancher-machine")),
        }
        if self.engine is not None:
            secret_variables = {"K8S_SECRET_NAME": "state", "K8S_SECRET_NAMESPACE": self.namespace}
            environment |= {**secret_variables, "KUBECONFIG": str(self.engine.kubeconfig)}
        try:
            return subprocess.run(
                [*program, *arguments], capture_output=True, text=True, env=environment, timeout=60, check=False
            )
        finally:
            shutil.rmtree(store)


@pytest.fixture
def programs(engine: Engine, api: Api, tmp_path: Path) -> Programs:
    engine.kubectl("create", "secret", "generic", "state", "-n", api.namespace, "--type", "rke.cattle.io/machine-state")
    return Programs(tmp_path, engine, api.namespace)


def generic(host: Sshd, script: str, name: str) -> tuple[str, ...]:
    return (
        *("create", "--driver", "generic", "--custom-install-script", script),
        *("--generic-ip-address", host.address, "--generic-ssh-port", str(host.port)),
        *("--generic-ssh-key", str(host.key), name),
    )


def succeeded(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.replace("(m1) Closing plugin on server side\n", "")  # which the Go program prints sometimes


def test_herder_takes_over_machines_of_the_go_program(programs: Programs, host: Sshd) -> None:
    succeeded(programs.go(*generic(host, programs.script(), "m1")))

    assert succeeded(programs.ours("ip", "m1")) == "127.0.0.1\n"
    assert succeeded(programs.ours("status", "m1")) == "Running\n"
    assert json.loads(succeeded(programs.ours("inspect", "m1")))["DriverName"] == "generic"
    assert succeeded(programs.ours("ssh", "m1", "hostname")) == "m1\n"
    assert saved_machine(programs.archive()).reach.port == host.port
    assert "already exists" in programs.ours(*generic(host, programs.script(), "m1")).stderr

    assert "Successfully removed m1" in succeeded(programs.ours("rm", "-y", "--update-config", "m1"))
    assert entries(programs.archive()) == []


def test_the_go_program_takes_over_machines_of_herder(programs: Programs, host: Sshd) -> None:
    succeeded(programs.ours(*generic(host, programs.script(), "m1")))
    assert "installed by m1" in (host.directory / "installed").read_text()

    assert succeeded(programs.go("ip", "m1")) == "127.0.0.1\n"
    assert succeeded(programs.go("status", "m1")) == "Running\n"
    assert succeeded(programs.go("ssh", "m1", "hostname")) == "m1\n"
    inspected = json.loads(succeeded(programs.go("inspect", "m1")))
    assert inspected["Driver"]["SSHPort"] == host.port

    assert "already exists" in programs.go(*generic(host, programs.script(), "m1")).stderr
    assert "Successfully removed m1" in succeeded(programs.go("rm", "-y", "--update-config", "m1"))
    assert entries(programs.archive()) == []


def test_a_machine_can_be_taken_over_repeatedly(programs: Programs, host: Sshd) -> None:
    """The Go program drops Herder's own fields from the record, and keeps the machine."""
    succeeded(programs.ours(*generic(host, programs.script(), "m1")))
    for program in (programs.go, programs.ours, programs.go, programs.ours):
        assert succeeded(program("status", "m1")) == "Running\n"
    succeeded(programs.ours("ssh", "m1", "true"))
    succeeded(programs.ours("rm", "-y", "m1"))


def test_archives_of_both_have_the_same_entries(programs: Programs, host: Sshd) -> None:
    succeeded(programs.go(*generic(host, programs.script(), "m1")))
    of_go = entries(programs.archive())
    succeeded(programs.go("rm", "-y", "m1"))
    succeeded(programs.ours(*generic(host, programs.script(), "m1")))
    ours = [entry for entry in entries(programs.archive()) if not entry[0].endswith("known_hosts")]
    assert ours == of_go


def test_other_drivers_run_in_the_go_program(programs: Programs) -> None:
    succeeded(programs.ours("create", "--driver", "noop", "--url", "tcp://127.0.0.1:1", "m1"))
    assert saved_machine(programs.archive()).driver == "noop"
    assert succeeded(programs.ours("url", "m1")) == "tcp://127.0.0.1:1\n"
    assert json.loads(succeeded(programs.ours("inspect", "m1")))["DriverName"] == "noop"
    assert "m1" in succeeded(programs.ours("ls", "-q"))
    succeeded(programs.ours("rm", "-y", "--update-config", "m1"))
    assert entries(programs.archive()) == []


def test_errors_and_exit_status_of_the_go_program_are_returned(programs: Programs) -> None:
    failed = programs.ours("create", "--driver", "digitalocean", "m1")
    assert failed.returncode == 1
    assert "digitalocean-access-token" in failed.stdout + failed.stderr


LOCAL = "create --driver generic --generic-ip-address 127.0.0.1"


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ("rm -y unknown", 0),
        ("rm -y --update-config unknown", 1),
        ("rm -y", 1),
        ("status unknown", 1),
        ("ip unknown", 1),
        ("inspect unknown", 1),
        ("create --driver generic m", 1),
        (f"{LOCAL} under_score", 1),
        (f"{LOCAL} --generic-ssh-key /none m", 3),
        (f"{LOCAL} --generic-nonsense m", 1),
        ("nonsense", 1),
        ("version", 0),
        ("ls -q", 0),
    ],
)
def test_exit_statuses_are_the_same(tmp_path: Path, arguments: str, status: int) -> None:
    programs = Programs(tmp_path)
    assert (programs.ours(*arguments.split()).returncode, programs.go(*arguments.split()).returncode) == (
        status,
        status,
    )


def entries(archive: bytes) -> list[tuple[str, int, bool]]:
    """Names without the test's own part, modes, and whether each is a directory."""
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        return sorted((e.name.partition("/machines/")[2], e.mode, e.isdir()) for e in tar)
