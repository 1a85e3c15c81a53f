"""Debian's containerd pulls with the registry configuration of a kubeadm machine's plan."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from herder.api.rke.names import AUTH_SECRET_TYPE
from herder.controllers.planner.distributions.interface import ClusterInputs, Reference, Referenced
from herder.controllers.planner.distributions.kubeadm.registries import registry_files
from herder.machine.host.local import image as machine_image
from tests.support.clusters.site import require_local_machines
from tests.support.processes import terminate
from tests.support.registry import oci

USER, PASSWORD = "dolly", "hidden"
CONFIG = 'version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
HOST, IMAGE = "registry.example.com", "registry.example.com/farm/sheep:1"


class Containerd:
    """A containerd of its own directory, and the programs of `local` machines."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._root = machine_image.kubernetes_layer()
        self._socket = directory / "containerd.sock"
        (directory / "config.toml").write_text(CONFIG)
        self._process = subprocess.Popen(
            [
                self._root / "usr/bin/containerd",
                *("--config", directory / "config.toml", "--address", self._socket),
                *("--root", directory / "root", "--state", directory / "state"),
            ],
            env=self._environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "LD_LIBRARY_PATH": str(self._root / "usr/lib/x86_64-linux-gnu")}

    def wait(self) -> None:
        while not self._socket.exists():
            assert self._process.poll() is None, "containerd has exited"
            time.sleep(0.05)

    def fetch(self, image: str) -> str:
        """Fetch an image; return the error, or an empty text."""
        hosts = self.directory / "etc/containerd/certs.d"
        command = [self._root / "usr/bin/ctr", "--address", self._socket]
        command += ["content", "fetch", "--hosts-dir", hosts, image]
        done = subprocess.run(command, env=self._environment(), capture_output=True, text=True, timeout=60, check=False)
        return done.stderr if done.returncode else ""

    def stop(self) -> None:
        terminate(self._process)


@pytest.fixture
def containerd(tmp_path: Path) -> Iterator[Containerd]:
    require_local_machines()
    daemon = Containerd(tmp_path)
    try:
        daemon.wait()
        yield daemon
    finally:
        daemon.stop()


def configure(directory: Path, registry: oci.Registry, password: str) -> None:
    """Write the files of the plan, for a mirror with a login."""
    registries = {
        "mirrors": {HOST: {"endpoint": [registry.url]}},
        "configs": {registry.host: {"authConfigSecretName": "login"}},
    }
    login = Referenced({}, {"username": USER.encode(), "password": password.encode()}, AUTH_SECRET_TYPE)
    referenced = {Reference("Secret", "fleet-default", "login"): login}
    inputs = ClusterInputs(
        "fleet-default", "farm", "", "v1.36.3+kubeadm1", {"registries": registries}, referenced=referenced
    )
    for each in registry_files(inputs):
        path = directory / each.path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(each.decoded)


@pytest.mark.parametrize(("password", "error"), [(PASSWORD, ""), ("another", "401 Unauthorized")])
def test_containerd_logs_in_to_a_mirror(containerd: Containerd, password: str, error: str) -> None:
    with oci.registry() as registry:
        registry.credentials, registry.scheme = (USER, PASSWORD), "basic"
        registry.push("farm/sheep", "1", oci.image({"wool": "white"}))
        configure(containerd.directory, registry, password)
        found = containerd.fetch(IMAGE)
        assert (error in found) if error else found == ""
        assert any("/blobs/" in path for path in registry.requests) is not bool(error)


def test_a_registry_that_issues_tokens_needs_another_login(containerd: Containerd) -> None:
    """The limitation that docs/kubeadm.md names."""
    with oci.registry() as registry:
        registry.credentials = (USER, PASSWORD)
        registry.push("farm/sheep", "1", oci.image({"wool": "white"}))
        configure(containerd.directory, registry, PASSWORD)
        assert "failed to fetch anonymous token" in containerd.fetch(IMAGE)
