"""`herder up` as a service of a real systemd: that of a Debian machine, for a user of its own."""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from herder.machine.host.local import image
from herder.packing import packed
from tests.unit.machine.local.host import Booted, Host, eventually

PROGRAM = "/opt/herder/bin/herder"
SITE_PACKAGES = f"opt/herder/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
LAUNCHER = """#!/opt/herder/bin/python3
import sys
from herder.cli.main import main
sys.exit(main())
"""
AS_ADMINISTRATOR = "KUBECONFIG=/var/lib/herder/kubeconfig"
AGENTS = "pgrep -f 'rancher-system-agent sentinel'"
UNIT = "/etc/systemd/system/herder.service"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "nsenter", "ssh", "ssh-keygen", "mmdebstrap"))):
        pytest.skip("a Debian machine with systemd: needs root, and scripts/setup dev")
    image.make("", lambda _percent, _text: None)
    with Host(tmp_path_factory.mktemp("systemd")) as host:
        booted = host.create("service")
        root = Path(f"/proc/{booted.guest}/root")
        with tarfile.open(fileobj=BytesIO(packed(SITE_PACKAGES, ["herder"]))) as archive:
            archive.extractall(root, filter="tar")
        directory = root / "opt/herder"
        (directory / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
        (directory / "bin").mkdir(mode=0o755)
        (directory / "bin/python3").symlink_to("/usr/bin/python3")
        (directory / "bin/herder").write_text(LAUNCHER)
        (directory / "bin/herder").chmod(0o755)
        booted.ssh("chmod -R a+rX /opt/herder; useradd --system --home-dir /var/lib/herder herder")
        yield booted


def test_a_hardened_service_has_process_machines_that_survive_its_restart(machine: Booted) -> None:
    machine.ssh(f"{PROGRAM} up --systemd-unit --systemd-user herder > {UNIT} && systemctl daemon-reload")
    assert machine.ssh(f"systemd-analyze verify {UNIT} 2>&1") == ""
    machine.ssh("systemctl enable --now herder")
    manager = machine.ssh("systemctl show --property MainPID --value herder")
    status = machine.ssh(f"grep -E '^(NoNewPrivs|CapBnd)' /proc/{manager}/status; stat -c %U:%a /var/lib/herder")
    assert status.split() == ["CapBnd:", "0" * 16, "NoNewPrivs:", "1", "herder:700"]

    machine.ssh(f"{AS_ADMINISTRATOR} timeout 50 {PROGRAM} create cluster meadow --servers 1 --workers 1")
    before = machine.ssh(AGENTS)
    assert len(before.split()) == 2
    machine.ssh("systemctl restart herder")
    assert machine.ssh("systemctl show --property MainPID --value herder") != manager
    assert machine.ssh(AGENTS) == before
    machine.ssh(f"{AS_ADMINISTRATOR} timeout 50 {PROGRAM} scale cluster meadow workers=2")
    machine.ssh(f"{AS_ADMINISTRATOR} timeout 50 {PROGRAM} delete cluster meadow --yes")
    machine.ssh("systemctl stop herder")
    eventually(
        lambda: not machine.ssh("cat /sys/fs/cgroup/system.slice/herder.service/cgroup.procs || true"), "it ends"
    )


def test_a_restart_after_a_crash(machine: Booted) -> None:
    machine.ssh("systemctl start herder")
    machine.ssh("systemctl kill --signal KILL --kill-who main herder")
    eventually(lambda: machine.ssh("systemctl show --property NRestarts --value herder") == "1", "systemd restarts it")
    machine.ssh("systemctl start herder && systemctl is-active herder && systemctl stop herder")
