"""What a container can read of the manager: its keys, its database, its home, its processes. Nothing, as root and as an
ordinary user, whose containers have its own uid."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import herder

SECRET = "very-secret"

MANAGER = """
import asyncio, os, sys
from pathlib import Path
from herder.engine.runner.pod.attempt import Attempt
from herder.engine.runner.isolation import HostUser, Isolation, container_config, private_paths
data, script, seen_as = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
user, pid = sys.argv[4:] or ("True", "True")
held = open(data / "ca.key")
async def main():
    told = container_config(
        ["sh", "-c", script.replace("MANAGER", str(os.getpid()))],
        {"PATH": "/usr/bin:/bin"},
        isolation=Isolation(user=user == "True", pid=pid == "True"),
        user=HostUser.named(),
        container_ids=(seen_as, seen_as),
        hidden=[str(data), *map(str, private_paths())],
    )
    attempt = await Attempt.start(data / "work" / "0", told)
    outcome = await attempt.ended()
    assert outcome is not None and not outcome.reason, outcome
    print(attempt.log.read_text())
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def sources() -> Iterator[Path]:
    """A copy of the sources that every user can read."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="host-sources-") as name:
        os.chmod(name, 0o755)
        shutil.copytree(Path(herder.__file__).parent, f"{name}/herder")
        yield Path(name)


@pytest.fixture
def host() -> Iterator[Path]:
    """A home directory with keys, and a data directory next to it."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="host-files-") as name:
        place = Path(name)
        place.chmod(0o755)
        for path in (
            "home/.ssh/id_ed25519",
            "home/.kube/config",
            "data/ca.key",
            "data/encryption.key",
            "data/store.db",
        ):
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_text(SECRET)
        (place / "writable").mkdir()
        yield place


def system_python() -> str:
    for candidate in (sys.executable, "/usr/bin/python3"):
        code = "import subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)"
        command = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", candidate, "-c", code]
        if shutil.which("setpriv") and subprocess.run(command, capture_output=True, cwd="/").returncode == 0:
            return candidate
    pytest.skip("needs setpriv, and a Python that others than root can run")


async def run_in_container(host: Path, sources: Path, script: str, *arguments: str, uid: int) -> str:
    """Return the output of a container whose manager has this uid."""
    for path in (host, *host.rglob("*")):
        os.chown(path, uid, uid, follow_symlinks=False)
    command = [system_python(), "-c", MANAGER, str(host / "data"), script, *arguments]
    if uid:
        command = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *command]
    environment = {"PYTHONPATH": str(sources), "HOME": str(host / "home"), "TOKEN": SECRET}
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, cwd="/", timeout=60, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SEARCH = """
cat {host}/data/ca.key {host}/data/encryption.key {host}/data/store.db
cat {host}/home/.ssh/id_ed25519 {host}/home/.kube/config
for process in /proc/[0-9]* /proc/MANAGER; do
  tr '\\0' '\\n' <$process/environ | grep TOKEN
  cat $process/root{host}/data/ca.key $process/cwd{host}/home/.ssh/id_ed25519
  find $process/fd -lname '*ca.key' -exec cat {{}} ';'
done
touch {host}/writable/planted && echo planted
unshare -Ur echo nested namespace
grep -E '^Cap|NoNewPrivs' /proc/self/status
echo end
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become an ordinary user")
@pytest.mark.parametrize(
    ("uid", "arguments"),
    [
        (1000, ("1000",)),
        (1000, ("0",)),
        (0, ("1000",)),
        (0, ("0",)),
        (0, ("0", "True", "False")),
        (0, ("0", "False", "False")),
    ],
)
async def test_a_container_cannot_read_files_of_the_manager(
    host: Path, sources: Path, uid: int, arguments: tuple[str, ...]
) -> None:
    (host / "writable").chmod(0o777)
    output = await run_in_container(host, sources, SEARCH.format(host=host), *arguments, uid=uid)
    assert SECRET not in output
    assert " F end\n" in output
    assert " planted\n" not in output
    assert arguments[1:2] == ("False",) or "nested namespace" not in output
    assert not (host / "writable" / "planted").exists()
    capabilities = {line.split()[-2]: line.split()[-1] for line in output.splitlines() if "\t" in line}
    assert capabilities == {
        "NoNewPrivs:": "1",
        **{f"Cap{name}:": "0" * 16 for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")},
    }
