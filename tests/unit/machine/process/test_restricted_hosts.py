"""Hosts that forbid user namespaces: machines of root work without them, and other users get advice."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from herder.engine.runner.shim import kernel
from herder.machine.errors import PreCreateFailed
from herder.machine.host.autostart import answers
from tests.unit.machine.host.hosts import Host
from tests.unit.machine.process.machine_ssh import output_of, wait_bootstrapped

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a place where rules are stricter")

ALL_USERS = "0 0 4294967295"
ROOT_ALONE = "0 0 1"


class StrictHost(Host):
    """A host whose daemon runs in a user namespace that allows no nested ones."""

    def __init__(self, directory: Path, users: str) -> None:
        super().__init__(directory)
        self._users = users

    def start(self) -> None:
        if not answers(self.state_dir):
            self._spawn()
        self.pid = self.client.version()["pid"]

    def _spawn(self) -> None:
        unshared, mapped = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            try:
                kernel.unshare(kernel.CLONE_NEWUSER)
                os.write(unshared[1], b"u")
                os.read(mapped[0], 1)
                Path("/proc/sys/user/max_user_namespaces").write_text("0")
                command = [sys.executable, "-m", "herder.machine.host", "--state-dir", str(self.state_dir), "--detach"]
                os.execv(sys.executable, command)
            finally:
                os._exit(1)
        os.read(unshared[0], 1)
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{child}/{name}").write_text(self._users)
        os.write(mapped[1], b"m")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        for descriptor in (*unshared, *mapped):
            os.close(descriptor)


async def test_machines_of_root_work_without_user_namespaces(tmp_path: Path) -> None:
    with StrictHost(tmp_path, ALL_USERS) as host:
        host.start()
        place = host.create("m1", "#!/bin/sh\ntouch /etc/rancher/here /run/here\n")
        await wait_bootstrapped(place)
        assert await output_of(place, "id -un; hostname; ls /etc/rancher; cat /proc/1/comm") == "nobody\nm1\nhere\nsh"
        host.machine("m1").restart()
        assert await output_of(place, "echo kept > ~/file; cat ~/file") == "kept"
        host.machine("m1").remove()
        assert host.leftovers() == []


def test_an_unprivileged_user_gets_advice(tmp_path: Path) -> None:
    with StrictHost(tmp_path, ROOT_ALONE) as host:
        host.start()
        with pytest.raises(
            PreCreateFailed, match=r"does not allow namespaces for machines: .*; allow them \(sysctl user"
        ):
            host.machine("m1").check({})
        with pytest.raises(PreCreateFailed):
            host.create("m1")
        assert host.leftovers() == []
