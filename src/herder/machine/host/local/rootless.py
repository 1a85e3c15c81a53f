"""Rootless operation: a user namespace in which this process is root, with the user's subordinate IDs.

`python -m herder.machine.host.local.rootless PROGRAM ARGUMENT…` runs a program as that root: its files belong to the
machines' IDs.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

from herder.engine.runner.shim import kernel
from herder.machine.errors import PreCreateFailed


def needed() -> bool:
    return os.geteuid() != 0


def check() -> None:
    """Raise `PreCreateFailed` with what the host or user lacks."""
    user = _user_name()
    for kind, tool in (("uid", "newuidmap"), ("gid", "newgidmap")):
        _subordinate(kind)
        if not any((Path(directory) / tool).exists() for directory in ("/usr/bin", "/bin", "/usr/local/bin")):
            raise PreCreateFailed(
                f"{tool} is not installed, but local machines require it without root",
                "install the package uidmap, or run herder as root",
            )
    allowed = Path("/proc/sys/user/max_user_namespaces")
    if allowed.exists() and allowed.read_text().strip() == "0":
        raise PreCreateFailed(
            f"this host does not allow user namespaces for {user}",
            "set the sysctl user.max_user_namespaces, or run herder as root",
        )


def join(pid: int) -> None:
    """Become root of a process's user namespace."""
    kernel.join_namespace(pid, "user")
    _become_root()


def enter() -> None:
    """Become root of a new user namespace."""
    pid, (reading, writing) = os.getpid(), os.pipe()
    commands = [[f"new{kind}map", str(pid), *_id_map(kind)] for kind in ("uid", "gid")]
    helper = os.fork()
    if helper == 0:
        os.close(writing)
        _map_on_request(commands, reading)
    os.close(reading)
    kernel.unshare(kernel.CLONE_NEWUSER)
    os.write(writing, b"m")
    os.close(writing)
    _, status = os.waitpid(helper, 0)
    if status != 0:
        raise OSError(f"newuidmap or newgidmap refused to map the subordinate ids of {_user_name()}")
    _become_root()


def _become_root() -> None:
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def _map_on_request(commands: list[list[str]], reading: int) -> None:
    code = 1
    try:
        if os.read(reading, 1):
            code = max(subprocess.run(command, check=False).returncode for command in commands)
    finally:
        os._exit(code)


def _id_map(kind: str) -> list[str]:
    """Map root to this user, and all other IDs to subordinate IDs."""
    own = os.geteuid() if kind == "uid" else os.getegid()
    first, count = _subordinate(kind)
    return ["0", str(own), "1", "1", str(first), str(min(count, 65535))]


def _subordinate(kind: str) -> tuple[int, int]:
    path = Path(f"/etc/sub{kind}")
    for line in path.read_text().splitlines() if path.exists() else []:
        owner, _, numbers = line.partition(":")
        first, _, count = numbers.partition(":")
        if owner in (_user_name(), str(os.geteuid())) and count.strip().isdecimal() and int(count) >= 65535:
            return int(first), int(count)
    raise PreCreateFailed(
        f"{path} has no range of 65536 ids for {_user_name()}",
        f"run as root: usermod --add-sub{kind}s 100000-165535 {_user_name()}",
    )


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


if __name__ == "__main__":
    enter()
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606
