"""A machine's own files, created once; the host's are shown read-only or linked.

/etc, /opt and /usr/local are directories of the machine whose entries link to the host's, so that it can add and
replace files; some that install scripts write to are real from the start.
"""

from __future__ import annotations

import os
from typing import Any

HOST = "/.host"  # where a machine sees the host's version of its own directories
LOCAL = "local"  # its /usr/local, outside its root because /usr is the host's
OWN = ("dev", "etc", "home", "opt", "proc", "root", "run", "tmp", "var")
LINKED = ("etc", "opt", "usr/local")

_EMPTY = {
    "etc/herder/boot.d": 0o755,
    "etc/kubernetes": 0o755,
    "etc/rancher": 0o755,
    "home": 0o755,
    "root": 0o700,
    "tmp": 0o1777,
    "var/cache": 0o755,
    "var/lib/herder": 0o700,
    "var/lib/kubelet": 0o755,
    "var/lib/rancher": 0o755,
    "var/log": 0o755,
    "var/tmp": 0o1777,
}
# Directories of /etc that programs put files into.
_SHALLOW = ("cron.d", "default", "logrotate.d", "modules-load.d", "profile.d", "ssl", "sysctl.d", "systemd")
_COPIED = ("resolv.conf",)  # often a link into /run, which is the machine's own

SCRIPT = "var/lib/herder/bootstrap"
INIT = "etc/herder/init"


class Tree:
    """The tree of a machine directory; `seed` has hostname, address, name, script and init."""

    def __init__(self, directory: str, seed: dict[str, Any], owner: list[int] | None) -> None:
        self._root = f"{directory}/root.new"
        self._local = f"{directory}/{LOCAL}"
        self._seed = seed
        self._owner = owner

    def make(self) -> None:
        """Create the tree; remains of an interrupted attempt have been deleted."""
        self._directory(self._root)
        self._show_host()
        for path, mode in _EMPTY.items():
            self._directory(f"{self._root}/{path}", mode)
        self._own_etc()
        self._link("/etc", f"{self._root}/etc", deep=_SHALLOW)
        self._link("/opt", f"{self._root}/opt")
        self._directory(self._local)
        self._link("/usr/local", self._local, deep=None)
        self._file(INIT, self._seed["init"], 0o755)
        if self._seed["script"]:
            self._file(SCRIPT, self._seed["script"], 0o700)

    def _show_host(self) -> None:
        """Create mount points for the host's top-level directories, and copy its links."""
        with os.scandir("/") as entries:
            for entry in entries:
                if entry.is_symlink():
                    os.symlink(os.readlink(entry.path), f"{self._root}/{entry.name}")
                elif entry.is_dir():
                    self._directory(f"{self._root}/{entry.name}")
        for path in (*OWN, *(f"{HOST[1:]}/{linked}" for linked in LINKED)):
            self._directory(f"{self._root}/{path}")

    def _own_etc(self) -> None:
        hostname, address = self._seed["hostname"], self._seed["address"]
        names = dict.fromkeys((hostname, hostname.partition(".")[0], self._seed["name"]))
        hosts = f"127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n{address} {' '.join(names)}\n"
        self._file("etc/hosts", hosts.encode(), 0o644)
        self._file("etc/hostname", f"{hostname}\n".encode(), 0o644)
        self._file("etc/machine-id", f"{os.urandom(16).hex()}\n".encode(), 0o444)
        for name in _COPIED:
            if os.path.exists(f"/etc/{name}"):
                with open(f"/etc/{name}", "rb") as file:
                    self._file(f"etc/{name}", file.read(), 0o644)

    def _link(self, source: str, target: str, deep: tuple[str, ...] | None = ()) -> None:
        """Link the entries of `target` to the host's; those of `deep` (None: all) become directories of links."""
        self._directory(target)
        if not os.path.isdir(source) or os.path.islink(source):
            return
        with os.scandir(source) as entries:
            for entry in entries:
                here = f"{target}/{entry.name}"
                if entry.is_symlink():
                    _symlink(os.readlink(entry.path), here)
                elif entry.is_dir() and (deep is None or entry.name in deep) and os.access(entry.path, os.R_OK):
                    self._link(entry.path, here)
                else:
                    _symlink(f"{HOST}{entry.path}", here)

    def _directory(self, path: str, mode: int = 0o755) -> None:
        """Including parents."""
        if not os.path.isdir(path):
            if not os.path.isdir(os.path.dirname(path)):
                self._directory(os.path.dirname(path))
            os.mkdir(path)
            self._give(path)
        os.chmod(path, mode)

    def _file(self, path: str, content: bytes, mode: int) -> None:
        whole = f"{self._root}/{path}"
        with open(whole, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())  # a machine reported as created is complete after a power failure
        self._give(whole)

    def _give(self, path: str) -> None:
        if self._owner is not None:
            os.chown(path, self._owner[0], self._owner[1])


def _symlink(target: str, path: str) -> None:
    if not os.path.lexists(path):
        os.symlink(target, path)
