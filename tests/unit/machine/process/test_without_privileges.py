"""The daemon and machines of an unprivileged user (`nobody`), and unprivileged Jobs that use a daemon."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import herder
from herder.api.machines.hosts import machine_credential
from herder.engine.runner.shim import kernel
from herder.engine.runner.shim.init import map_ids
from herder.machine.errors import MachineError
from herder.machine.host import places
from herder.machine.host.autostart import answers
from herder.machine.host.client import HostClient
from tests.unit.machine.host.hosts import Host
from tests.unit.machine.process.machine_ssh import output_of, run, wait_bootstrapped

NOBODY = 65534

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to change the user")

# Python may be in a directory that only root can enter; a mount namespace makes it visible elsewhere for `nobody`.
_START = """
mount --bind "$1" "$4/python" && mount --bind "$2" "$4/site" && mount --bind "$3" "$4/source" || exit 1
exec setpriv --reuid 65534 --regid 65534 --clear-groups env -i PATH="$PATH" HOME="$4" \
    PYTHONHOME="$4/python" PYTHONPATH="$4/source:$4/site" \
    "$4/python/bin/$5" -m herder.machine.host --state-dir "$6" --detach
"""


class UnprivilegedHost(Host):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._directory = directory

    def start(self) -> None:
        if not answers(self.state_dir):
            parts = (sys.base_prefix, sysconfig.get_path("purelib"), str(Path(herder.__file__).parents[1]))
            interpreter = f"python{sys.version_info.major}.{sys.version_info.minor}"
            arguments = ("sh", *parts, str(self._directory), interpreter, str(self.state_dir))
            subprocess.run(["unshare", "--mount", "sh", "-c", _START, *arguments], check=True)
        self.pid = self.client.version()["pid"]

    def daemons(self) -> list[int]:
        return [self.pid] if self.pid else []


@pytest.fixture
def directory() -> Iterator[Path]:
    """Create a directory that the user `nobody` can enter; pytest's own are private to root."""
    place = Path(tempfile.mkdtemp(prefix="herder-nobody-"))
    place.chmod(0o755)
    for name in ("python", "site", "source", "data"):
        (place / name).mkdir()
    os.chown(place / "data", NOBODY, NOBODY)
    try:
        yield place
    finally:
        shutil.rmtree(place)


async def test_an_unprivileged_user_can_create_machines(directory: Path) -> None:
    with UnprivilegedHost(directory) as host:
        host.start()
        assert os.stat(f"/proc/{host.pid}").st_uid == NOBODY
        place = host.create("m1", "#!/bin/sh\ntouch /etc/rancher/here\n")
        await wait_bootstrapped(place)
        assert await output_of(place, "id -u; hostname; ls /etc/rancher") == "0\nm1\nhere"
        assert "No such file" in await output_of(place, f"ls {host.state_dir} 2>&1 || true")
        assert (await run(place, "mount -o remount,bind,rw /usr")).exit_status != 0
        assert (await run(place, "umount /usr/local")).exit_status != 0
        host.kill()
        host.start()
        assert host.runs("m1")
        assert await output_of(place, "mkdir /root/closed && chmod 0 /root/closed && echo still here") == "still here"
        host.machine("m1").stop()
        host.machine("m1").start()
        assert await output_of(place, "hostname") == "m1"
        host.machine("m1").remove()
        assert host.leftovers() == []


def test_a_job_in_a_user_namespace_uses_its_mounted_socket(tmp_path: Path) -> None:
    """Pods of the runner have another user, a user namespace, the mounted socket directory and one credential."""
    mounted = Path(tempfile.mkdtemp(prefix="herder-job-"))
    mounted.chmod(0o755)
    try:
        with Host(tmp_path) as host:
            host.start()
            host.create("m1")
            key = (host.state_dir / places.KEY).read_bytes()
            credential = machine_credential(key, "fleet", "m1")
            results = run_in_job(host.state_dir / places.API, mounted, credential)
            assert results == ["Running", "refused"]
    finally:
        mounted.rmdir()


def run_in_job(api: Path, mounted: Path, credential: str) -> list[str]:
    read_end, write_end = os.pipe()
    job = os.fork()
    if job == 0:
        try:
            kernel.unshare(kernel.CLONE_NEWNS)
            kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
            kernel.mount(str(api), str(mounted), flags=kernel.MS_BIND)
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            kernel.keep_own_proc_files()
            kernel.unshare(kernel.CLONE_NEWUSER)
            map_ids((1000, NOBODY), (1000, NOBODY))
            os.write(write_end, "\n".join(_job(mounted, credential)).encode())
        except BaseException as error:
            os.write(write_end, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as stream:
        results = stream.read().splitlines()
    os.waitpid(job, 0)
    return results


def _job(mounted: Path, credential: str) -> list[str]:
    client = HostClient.from_environment(
        {"HERDER_HOST_SOCKET": str(mounted / "socket"), "HERDER_HOST_CREDENTIAL": credential}
    )
    results = [str(client.machine("process", "fleet", "m1", "token-of-m1").state())]
    try:
        client.machine("process", "fleet", "m2", "token-of-m2").state()
    except MachineError:
        results.append("refused")
    return results
