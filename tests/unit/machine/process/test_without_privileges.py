"""An ordinary user's daemon and machines, and unprivileged Jobs that use a daemon: nobody, on this host."""

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
from tests.unit.machine.process.visits import bootstrapped, run, said

NOBODY = 65534

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become nobody")

# Python may lie where only root can go: nobody sees it at another place, in a mount namespace of its own.
_START = """
mount --bind "$1" "$4/python" && mount --bind "$2" "$4/site" && mount --bind "$3" "$4/source" || exit 1
exec setpriv --reuid 65534 --regid 65534 --clear-groups env -i PATH="$PATH" HOME="$4" \
    PYTHONHOME="$4/python" PYTHONPATH="$4/source:$4/site" \
    "$4/python/bin/$5" -m herder.machine.host --state-dir "$6" --detach
"""


class HostOfNobody(Host):
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
    """Where nobody can go: pytest's own are for root alone."""
    place = Path(tempfile.mkdtemp(prefix="herder-nobody-"))
    place.chmod(0o755)
    for name in ("python", "site", "source", "data"):
        (place / name).mkdir()
    os.chown(place / "data", NOBODY, NOBODY)
    try:
        yield place
    finally:
        shutil.rmtree(place)


async def test_an_ordinary_user_has_machines_too(directory: Path) -> None:
    with HostOfNobody(directory) as host:
        host.start()
        assert os.stat(f"/proc/{host.pid}").st_uid == NOBODY
        place = host.create("m1", "#!/bin/sh\ntouch /etc/rancher/here\n")
        await bootstrapped(place)
        assert await said(place, "id -u; hostname; ls /etc/rancher") == "0\nm1\nhere"
        assert "No such file" in await said(place, f"ls {host.state_dir} 2>&1 || true")
        assert (await run(place, "mount -o remount,bind,rw /usr")).exit_status != 0
        assert (await run(place, "umount /usr/local")).exit_status != 0
        host.kill()
        host.start()
        assert host.runs("m1")
        assert await said(place, "mkdir /root/closed && chmod 0 /root/closed && echo still here") == "still here"
        host.machine("m1").stop()
        host.machine("m1").start()
        assert await said(place, "hostname") == "m1"
        host.machine("m1").remove()
        assert host.leftovers() == []


def test_a_job_in_a_user_namespace_of_its_own_uses_the_socket_it_is_shown(tmp_path: Path) -> None:
    """As pods of the runner: another user, a user namespace, the socket's directory mounted, one credential."""
    mounted = Path(tempfile.mkdtemp(prefix="herder-job-"))
    mounted.chmod(0o755)
    try:
        with Host(tmp_path) as host:
            host.start()
            host.create("m1")
            key = (host.state_dir / places.KEY).read_bytes()
            credential = machine_credential(key, "fleet", "m1")
            heard = in_a_job(host.state_dir / places.API, mounted, credential)
            assert heard == ["Running", "refused"]
    finally:
        mounted.rmdir()


def in_a_job(api: Path, mounted: Path, credential: str) -> list[str]:
    hear, tell = os.pipe()
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
            os.write(tell, "\n".join(_job(mounted, credential)).encode())
        except BaseException as error:
            os.write(tell, repr(error).encode())
        finally:
            os._exit(0)
    os.close(tell)
    with os.fdopen(hear) as told:
        heard = told.read().splitlines()
    os.waitpid(job, 0)
    return heard


def _job(mounted: Path, credential: str) -> list[str]:
    client = HostClient.from_environment(
        {"HERDER_HOST_SOCKET": str(mounted / "socket"), "HERDER_HOST_CREDENTIAL": credential}
    )
    heard = [str(client.machine("process", "fleet", "m1", "token-of-m1").state())]
    try:
        client.machine("process", "fleet", "m2", "token-of-m2").state()
    except MachineError:
        heard.append("refused")
    return heard
