"""The wheel in a virtual environment of its own: what it lacks fails here, although the checkout has it."""

from __future__ import annotations

import ssl
import subprocess
import tarfile
import urllib.request
from pathlib import Path

import herder
from herder.api.rke.node.agents import ASSET
from herder.engine.client import kubeconfig as kubeconfigs
from herder.kubeadm.installer import PROGRAMS
from tests.packages.conftest import Installation
from tests.unit.k3s.test_installer import K3S
from tests.unit.kubeadm.test_installer import KUBEADM

DEMO_SECONDS = 400  # for a busy host


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def succeeded(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def layer_of(archive: Path, scratch: Path) -> Path:
    """Files of the only layer of an image archive."""
    with tarfile.open(archive) as image:
        image.extractall(scratch / "image", filter="data")
    for path in (scratch / "image" / "blobs" / "sha256").iterdir():
        if path.read_bytes()[:2] == b"\x1f\x8b":
            with tarfile.open(path) as layer:
                layer.extractall(scratch / "root", filter="tar")
    return scratch / "root"


def is_source(content: bytes, source: str) -> bool:
    """Whether this is a file of the package."""
    return content == (Path(herder.__file__).parent / source).read_bytes()


def test_the_installation_is_used(installation: Installation) -> None:
    assert succeeded(installation.run("herder", "version", "--client")) == f"client: {herder.__version__}\n"
    print_path = "import herder, click; print(herder.__file__, click.__file__, sep='\\n')"
    own, dependency = succeeded(installation.run("python", "-c", print_path)).splitlines()
    assert Path(own).is_relative_to(installation.site_packages)
    assert not Path(dependency).is_relative_to(installation.directory)
    assert "amazonec2" in succeeded(installation.run("herder-machine", "create", "--help"))


def test_the_demo_runs(installation: Installation) -> None:
    """It starts the manager, the host daemon and machines, and installs the agents and the embedded distribution."""
    output = succeeded(installation.run("herder", "demo", "--once", "--workers", "1", seconds=DEMO_SECONDS))
    assert "All 2 nodes have the label; no machine was replaced" in output
    assert "The demo is done and cleaned up" in output.splitlines()[-1]


def test_kubeadm_installers_contain_the_scripts(installation: Installation, tmp_path: Path) -> None:
    for name in PROGRAMS:
        executable(tmp_path / name, KUBEADM if name == "kubeadm" else f"#!/bin/sh\necho {name}\n")
    target = tmp_path / "kubeadm.tar"
    flags = ("--version", "v1.36.3+kubeadm1", "--from", tmp_path, "--output", target)
    succeeded(installation.run("herder", "installer", "kubeadm", *flags))
    root = layer_of(target, tmp_path)
    assert is_source((root / "run.sh").read_bytes(), "kubeadm/run.sh")
    help_text = subprocess.run(
        [root / "bin" / "herder-snapshots", "--help"], capture_output=True, text=True, check=True
    )
    assert "usage" in help_text.stdout


def test_k3s_installers_contain_the_scripts(installation: Installation, tmp_path: Path) -> None:
    binary, target = executable(tmp_path / "k3s", K3S.format(version="v1.36.3+k3s1")), tmp_path / "k3s.tar"
    succeeded(installation.run("herder", "installer", "k3s", "--binary", binary, "--output", target))
    root = layer_of(target, tmp_path)
    files = [path.read_bytes() for path in root.rglob("*") if path.is_file()]
    for source in ("run.sh", "killall.sh", "uninstall.sh"):
        assert any(is_source(content, f"k3s/{source}") for content in files), source


def test_the_agent_image_is_built(installation: Installation, tmp_path: Path) -> None:
    target = tmp_path / "agent.tar"
    succeeded(installation.run("herder", "agent", "image", "--output", target, seconds=DEMO_SECONDS))
    root = layer_of(target, tmp_path)
    assert list(root.rglob("herder/clusteragent/__main__.py"))


def test_the_manager_serves_scripts_and_the_node_agent(installation: Installation, tmp_path: Path) -> None:
    data, agent = tmp_path / "data", tmp_path / "herder-agent"
    flags = ("--data-dir", data, "--listen", "127.0.0.1:0", "--no-machines", "--no-runner")
    succeeded(installation.run("herder", "up", "--detach", *flags))
    try:
        server = kubeconfigs.load(data / "kubeconfig")
        trusted = ssl.create_default_context(cadata=(server.ca or b"").decode())

        def download(path: str) -> bytes:
            with urllib.request.urlopen(f"{server.server}{path}", context=trusted, timeout=60) as response:
                return bytes(response.read())

        assert download("/system-agent-install.sh").startswith(b"#!")
        assert is_source(download("/assets/system-agent-uninstall.sh"), "gateway/nodes/scripts/uninstall.sh")
        assert b"param" in download("/wins-agent-install.ps1").lower()
        agent.write_bytes(download(f"/assets/{ASSET}"))
    finally:
        succeeded(installation.run("herder", "down", "--data-dir", data))
    agent.chmod(0o755)
    assert subprocess.run([agent, "--help"], capture_output=True, check=True).stdout
