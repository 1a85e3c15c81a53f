"""Machines see neither the manager's data directory nor its user's home, and have their own files there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount directories in place of the host's")

SECRET = "secret-of-the-manager"

# In a user namespace with a single ID, the daemon cannot map the machine's root to another user, as when an
# ordinary user runs it: file permissions do not protect the manager's files from the machine.
_START = """
for place in /opt /srv /usr/local/share /var/lib; do mount -t tmpfs none "$place" || exit 1; done
mkdir /srv/home && echo "$3" > /srv/home/id_ed25519 || exit 1
sed 's#:/root:#:/srv/home:#' /etc/passwd > /srv/passwd && mount --bind /srv/passwd /etc/passwd || exit 1
exec "$0" -c "$1" "$2"
"""

_DAEMON = f"""
import sys, time
from pathlib import Path
from herder.machine.host.client import HostClient
from tests.unit.machine.host.hosts import Host

data = Path(sys.argv[1])
host = Host(data)
host.state_dir = data / "host"
host.client = HostClient.of(host.state_dir, timeout=20)
script = "#!/bin/sh\\ncat {{0}}/kubeconfig /.host{{0}}/kubeconfig /srv/home/id_ed25519; echo the end\\n"
with host:
    host.start()
    (data / "kubeconfig").write_text("{SECRET}")
    host.create("m", script.format(data))
    for _ in range(100):
        said = (host.directory("m") / "console.log").read_text()
        if "the end" in said:
            break
        time.sleep(0.1)
    print(said)
"""


@pytest.mark.parametrize(
    "data", ["/opt/herder", "/usr/local/share/herder", "/var/lib/herder", "/srv/herder", "/var/lib/other"]
)
def test_a_machine_cannot_read_the_managers_data(data: str) -> None:
    assert SECRET not in _console_output(data)


def _console_output(data: str) -> str:
    command = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        _START,
        sys.executable,
        _DAEMON,
        data,
        SECRET,
    ]
    done = subprocess.run(command, cwd=Path(__file__).parents[4], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "the end" in done.stdout, "its bootstrap script did not run"
    return done.stdout
