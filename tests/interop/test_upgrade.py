"""Upgrade of the manager: this version takes over what the previous release created, without affecting machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from herder.api.rke.node.certificates import certificates_of
from tests.support.embedded import HERDER, Embedded
from tests.support.kube import free_port
from tests.support.manager.machines import host_shutdown
from tests.support.peers import peer

PREVIOUS = "558573ca90de44815902287b281b7e04d1adb3fd"
"""The commit of the previous release."""

REPOSITORY = Path(__file__).parents[2]
PLAN = "rke.cattle.io/machine-plan"
AGENT = "rancher-system-agent"
RUNS_ON_MACHINES = ("herder.embedded", "herder.clusteragent", AGENT)
TIMEOUT = 300


@pytest.fixture(scope="module")
def previous_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its `herder` command, on the packages of this environment: both releases pin the same ones."""
    directory = tmp_path_factory.mktemp("previous")
    archive = subprocess.run(["git", "-C", REPOSITORY, "archive", PREVIOUS, "src"], capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"a clone without history: {archive.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", directory], input=archive.stdout, check=True)
    command = directory / "herder"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={directory}/src exec {sys.executable} -m herder.cli "$@"\n')
    command.chmod(0o755)
    return command


class Manager:
    """One data directory, served by one release after the other."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._listen = f"127.0.0.1:{free_port()}"  # the same for all releases: machines know it
        self._process: Embedded | None = None

    def start(self, program: Path) -> None:
        flags = ("--gateway",)
        self._process = Embedded(self.directory, flags=flags, listen=self._listen, program=program).start()

    def stop(self) -> None:
        """Stop it as a service manager does. The secret scan of the store only supports the current schema."""
        assert self._process is not None
        assert self._process.process is not None
        self._process.process.terminate()
        assert self._process.process.wait(30) == 0

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def run(self, *command: str | Path) -> str:
        variables = os.environ | {"KUBECONFIG": str(self.directory / "kubeconfig"), "HOME": str(self.directory)}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=TIMEOUT)
        log = self._process.log()[-3000:] if self._process else ""
        assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr}\n{log}"
        return done.stdout

    def get(self, path: str) -> Any:
        return json.loads(self.run(peer("kubectl"), "get", "--raw", path))

    def secrets(self, query: str = "") -> Any:
        return self.get(f"/api/v1/namespaces/fleet-default/secrets{query}")

    def plans(self) -> dict[str, Any]:
        found = [each for each in self.secrets()["items"] if each["type"] == PLAN]
        return {each["metadata"]["name"]: each["data"] for each in found}

    def processes(self) -> dict[int, tuple[str, str]]:
        """What runs on the machines: process ID → machine and command."""
        machines = {each["metadata"]["name"] for each in self._machines()}
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                variables = process.joinpath("environ").read_text().split("\0")
                command = process.joinpath("cmdline").read_text().replace("\0", " ")
            except (OSError, UnicodeDecodeError):
                continue  # it has ended, or is not ours
            name = next((each.partition("=")[2] for each in variables if each.startswith("HERDER_MACHINE=")), "")
            if name in machines and any(each in command for each in RUNS_ON_MACHINES):
                found[int(process.name)] = (name, command)
        return found

    def reported_certificates(self) -> dict[str, set[tuple[str, int, datetime]]]:
        """Of machines that report any, by their plan Secret: path, serial number and expiry."""
        found = {each["metadata"]["name"]: certificates_of(each) for each in self._machines()}
        return {
            f"{name}-machine-plan": {(each.path, int(each.serial, 16), each.expires) for each in certificates}
            for name, certificates in found.items()
            if certificates
        }

    def certificate_files(self, plan: str) -> set[tuple[str, int, datetime]]:
        """Those that the server has on its disk."""
        (root,) = (self.directory / "host" / "machines").glob(f"*-{plan.removesuffix('-machine-plan')}/root")
        files = (root / "var/lib/rancher/herder/server/tls").glob("*.crt")
        found = {f"/{path.relative_to(root)}": x509.load_pem_x509_certificate(path.read_bytes()) for path in files}
        return {(path, each.serial_number, each.not_valid_after_utc) for path, each in found.items()}

    def _machines(self) -> list[Any]:
        found: list[Any] = self.get("/apis/cluster.x-k8s.io/v1beta2/namespaces/fleet-default/machines")["items"]
        return found


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    found = Manager(tmp_path / "data")
    with host_shutdown(tmp_path / "data"):
        try:
            yield found
        finally:
            found.kill()


def test_a_running_cluster_is_taken_over_unchanged(manager: Manager, previous_release: Path) -> None:
    manager.start(previous_release)
    manager.run(previous_release, "create", "cluster", "meadow", "--servers", "1", "--workers", "1")
    before, running = manager.plans(), manager.processes()
    assert len(before) == 2
    assert {name for name, _ in running.values()} == {name.removesuffix("-machine-plan") for name in before}
    revision = manager.secrets()["metadata"]["resourceVersion"]
    history = manager.secrets(f"?resourceVersion={revision}&resourceVersionMatch=Exact")
    manager.stop()

    manager.start(HERDER)
    # The command returns when the new machine is Ready: every controller has decided about the cluster by then.
    manager.run(HERDER, "scale", "cluster", "meadow", "workers=2")
    after = manager.plans()
    assert len(after) == 3
    assert {name: after[name] for name in before} == before
    current = manager.processes()
    assert {process: current.get(process) for process in running} == running
    assert manager.secrets(f"?resourceVersion={revision}&resourceVersionMatch=Exact") == history
    assert not manager.reported_certificates().keys() & before.keys(), "only new plans report certificates"

    # Agents of the previous release report no version. They are replaced on request. The server restarts once, because
    # the plan that is applied again installs the server of this release.
    assert "herder redeploy agents meadow" in manager.run(HERDER, "describe", "cluster", "meadow")
    manager.run(HERDER, "redeploy", "agents", "meadow")
    redeployed, replaced = manager.plans(), manager.processes()
    assert len({each["agent-checksum"] for each in redeployed.values()}) == 1
    assert {name: each["plan"] for name, each in redeployed.items()} == {
        name: each["plan"] for name, each in after.items()
    }
    for process, (name, command) in current.items():
        is_old_agent = AGENT in command and f"{name}-machine-plan" in before
        assert not (is_old_agent and process in replaced), command
        assert f"{name}-machine-plan" in before or process in replaced, command
    assert {name for name, command in replaced.values() if AGENT in command} == {
        name.removesuffix("-machine-plan") for name in after
    }
    assert "node agents:" not in manager.run(HERDER, "describe", "cluster", "meadow")

    manager.run(HERDER, "rotate", "certificates", "meadow")
    server = min(name for name in before if "servers" in name)
    deadline = time.monotonic() + TIMEOUT
    while manager.reported_certificates().get(server) != manager.certificate_files(server):
        assert time.monotonic() < deadline, manager.reported_certificates()
        time.sleep(1)

    manager.run(HERDER, "delete", "cluster", "meadow")
    assert manager.processes() == {}
