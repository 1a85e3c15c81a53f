"""A container's own view of the files: the host's, with the pod's volumes at any absolute path.

A new root is put together in memory: the host's directories are bound into it, and only those on the way to a mount
point that the host does not have are rebuilt entry by entry, so nothing is ever created on the host. /dev, /proc
and /tmp are the container's own.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Any

from herder.engine.runner.shim import kernel

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
_OWN = ("/dev", "/proc", "/tmp")  # noqa: S108 - the container's, not ours
# Flags that a bind in a user namespace must keep, by their name in statvfs.
_KEPT_FLAGS = (
    (os.ST_NOSUID, kernel.MS_NOSUID),
    (os.ST_NODEV, kernel.MS_NODEV),
    (os.ST_NOEXEC, kernel.MS_NOEXEC),
    (os.ST_NOATIME, kernel.MS_NOATIME),
    (os.ST_NODIRATIME, kernel.MS_NODIRATIME),
    (os.ST_RELATIME, kernel.MS_RELATIME),
)


class Root:
    """`mounts` are {source, target, read_only}; `hidden` are host directories that no container may see."""

    def __init__(self, scratch: str, mounts: list[dict[str, Any]], hidden: list[str], own_processes: bool) -> None:
        self.scratch = scratch
        self.mounts = sorted(
            ({**mount, "target": os.path.realpath(mount["target"])} for mount in mounts),
            key=lambda mount: mount["target"].count("/"),
        )
        self.hidden = [os.path.realpath(path) for path in hidden]
        self.own_processes = own_processes
        self._rebuilt, self._replaced = self._plan()

    def enter(self) -> None:
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        kernel.mount("tmpfs", self.scratch, "tmpfs", kernel.MS_NODEV | kernel.MS_NOSUID, "mode=755,size=16m")
        # Binding a directory that lies above the new root must not copy the new root into itself.
        kernel.mount("none", self.scratch, flags=kernel.MS_UNBINDABLE)
        self._rebuild("/")
        self._own_places()
        for path in self.hidden:
            if os.path.isdir(self.scratch + path):
                kernel.mount("tmpfs", self.scratch + path, "tmpfs", kernel.MS_RDONLY, "mode=000,size=4k")
        for mount in self.mounts:
            self._mount_volume(mount["source"], self.scratch + mount["target"], bool(mount.get("read_only")))
        kernel.pivot_into(self.scratch)

    def _plan(self) -> tuple[set[str], set[str]]:
        """Directories to rebuild, and host entries that a volume takes the place of."""
        rebuilt, replaced = {"/"}, set()
        for mount in self.mounts:
            target = mount["target"]
            if _within(target, _OWN):
                continue
            if os.path.exists(target) and os.path.isdir(target) == os.path.isdir(mount["source"]):
                continue
            replaced.add(target)
            parent = os.path.dirname(target)
            while parent != "/":
                if os.path.isdir(parent):
                    rebuilt.add(parent)
                parent = os.path.dirname(parent)
        return rebuilt, replaced

    def _rebuild(self, directory: str) -> None:
        with os.scandir(directory) as entries:
            for entry in entries:
                path = os.path.join(directory, entry.name)
                if path in _OWN or path in self._replaced:
                    continue
                # An entry that goes away meanwhile, or cannot be bound, is one the container does without.
                with contextlib.suppress(OSError):
                    self._take_over(entry, path)

    def _take_over(self, entry: os.DirEntry[str], path: str) -> None:
        here = self.scratch + path
        if entry.is_symlink():
            os.symlink(os.readlink(path), here)
        elif entry.is_dir():
            os.mkdir(here, stat.S_IMODE(entry.stat().st_mode))
            if path in self._rebuilt:
                self._rebuild(path)
            else:
                _bind(path, here)
        else:
            os.close(os.open(here, os.O_WRONLY | os.O_CREAT, 0o644))
            _bind(path, here)

    def _own_places(self) -> None:
        dev, proc = f"{self.scratch}/dev", f"{self.scratch}/proc"
        os.mkdir(dev, 0o755)
        for name in _DEVICES:
            if os.path.exists(f"/dev/{name}"):
                os.close(os.open(f"{dev}/{name}", os.O_WRONLY | os.O_CREAT, 0o644))
                _bind(f"/dev/{name}", f"{dev}/{name}")
        for name, target in _DEVICE_LINKS.items():
            os.symlink(target, f"{dev}/{name}")
        self._private(f"{dev}/shm")
        self._private(f"{self.scratch}/tmp")  # noqa: S108
        os.mkdir(proc, 0o555)
        if self.own_processes:
            kernel.mount("proc", proc, "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
        else:
            _bind("/proc", proc)

    def _private(self, path: str) -> None:
        os.mkdir(path)
        kernel.mount("tmpfs", path, "tmpfs", kernel.MS_NODEV | kernel.MS_NOSUID, "mode=1777")

    def _mount_volume(self, source: str, target: str, read_only: bool) -> None:
        if os.path.isdir(source):
            os.makedirs(target, 0o755, exist_ok=True)
        elif not os.path.exists(target):
            os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT, 0o644))
        _bind(source, target)
        if read_only:
            kept = os.statvfs(target).f_flag
            flags = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY
            kernel.mount("none", target, flags=flags | sum(mount for seen, mount in _KEPT_FLAGS if kept & seen))


def _bind(source: str, target: str) -> None:
    kernel.mount(source, target, flags=kernel.MS_BIND | kernel.MS_REC)


def _within(path: str, directories: tuple[str, ...]) -> bool:
    return any(path == directory or path.startswith(directory + "/") for directory in directories)
