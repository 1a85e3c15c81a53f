"""Run a program as an ordinary user that does not exist on this host: `ordinary_user.py SCRATCH PROGRAM …`.

The user and its subordinate IDs, which machines need, exist only in the mount namespace of this process: files of the
host are bind-mounted over, never written. The caller creates the user's control group, and this program enters it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from herder.engine.runner.shim import kernel

USER, UID = "herder-ordinary", 54321
SUBORDINATE = (5_400_000, 65536)


def main() -> None:
    scratch, program = Path(sys.argv[1]), sys.argv[2:]
    for group in os.environ.pop("TEST_CONTROL_GROUPS").split(":"):
        Path(group, "cgroup.procs").write_text("0")
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    home = scratch / "home"
    home.mkdir(exist_ok=True)
    os.chown(home, UID, UID)
    first, count = SUBORDINATE
    for path, line in (
        ("/etc/passwd", f"{USER}:x:{UID}:{UID}::{home}:/bin/sh\n"),
        ("/etc/group", f"{USER}:x:{UID}:\n"),
        ("/etc/subuid", f"{USER}:{first}:{count}\n"),
        ("/etc/subgid", f"{USER}:{first}:{count}\n"),
    ):
        _bind_over(path, line, scratch)
    _open_the_way(Path(sys.base_prefix), scratch)
    os.setgroups([])
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)
    os.environ |= {"HOME": str(home), "USER": USER, "LOGNAME": USER}
    os.chdir("/")
    os.execvp(program[0], program)


def _bind_over(path: str, line: str, scratch: Path) -> None:
    copy = scratch / Path(path).name
    copy.write_text((Path(path).read_text() if Path(path).exists() else "") + line)
    copy.chmod(0o644)
    if Path(path).exists():
        kernel.mount(str(copy), path, flags=kernel.MS_BIND)


def _open_the_way(needed: Path, scratch: Path) -> None:
    """Make the interpreter accessible to the user if it is in root's home directory."""
    closed = next((parent for parent in reversed(needed.parents) if not parent.stat().st_mode & 0o001), None)
    if closed is not None:
        bind_source = scratch / "interpreter"
        bind_source.mkdir(exist_ok=True)
        kernel.mount(str(needed), str(bind_source), flags=kernel.MS_BIND)
        kernel.mount("tmpfs", str(closed), "tmpfs", data="mode=755")
        needed.mkdir(parents=True)
        kernel.mount(str(bind_source), str(needed), flags=kernel.MS_BIND)


if __name__ == "__main__":
    main()
