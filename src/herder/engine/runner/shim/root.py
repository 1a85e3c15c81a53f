"""A container's own view of the files: the host's, with the pod's volumes at any absolute path.

A new root is put together in memory: the host's directories are bound into it, and only those on the way to a mount
point that the host does not have are rebuilt entry by entry, so nothing is ever created on the host. Directories on
that way which are not for the container's user are rebuilt with nothing but the way. /dev, /proc and /tmp are the
container's own.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Iterator
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
    """`mounts` are {source, target, read_only}; `needs` are host files that it must be able to see where they are;
    `hidden` are host directories that no container may see."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.scratch: str = config["scratch"]
        self.own_processes: bool = config["isolation"]["pid"]
        self.user: dict[str, int] = config["user"]
        self.hidden = {os.path.realpath(path) for path in config["hidden"]}
        self.mounts = sorted(
            [
                *({**mount, "target": os.path.realpath(mount["target"])} for mount in config["mounts"]),
                *self._not_seen_yet(config["needs"]),
            ],
            key=lambda mount: mount["target"].count("/"),
        )
        self._rebuilt, self._replaced = {"/"}, set[str]()
        self._bare = set[str]()  # of those rebuilt, the ones of which only the way to a mount point is left
        self._plan()

    def enter(self) -> None:
        os.umask(0)  # modes are meant as they are written here
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        kernel.mount("tmpfs", self.scratch, "tmpfs", kernel.MS_NODEV | kernel.MS_NOSUID, "mode=755,size=16m")
        # Binding a directory that lies above the new root must not copy the new root into itself.
        kernel.mount("none", self.scratch, flags=kernel.MS_UNBINDABLE)
        self._rebuild("/")
        self._own_places()
        for path in self.hidden:
            if path not in self._bare and os.path.isdir(self.scratch + path):
                kernel.mount("tmpfs", self.scratch + path, "tmpfs", kernel.MS_RDONLY, "mode=000,size=4k")
        for mount in self.mounts:
            self._mount_volume(mount["source"], self.scratch + mount["target"], bool(mount.get("read_only")))
        kernel.pivot_into(self.scratch)

    def _not_seen_yet(self, needs: list[str]) -> Iterator[dict[str, Any]]:
        for path in map(os.path.realpath, needs):
            if _within(path, _OWN) or any(self._is_barred(directory) for directory in _way_to(path)):
                yield {"source": path, "target": path, "read_only": True}

    def _plan(self) -> None:
        """Directories to rebuild, and host entries that a volume takes the place of."""
        for mount in self.mounts:
            target, way = mount["target"], _way_to(mount["target"])
            if _within(target, _OWN):
                continue
            open_way = list(itertools.takewhile(lambda directory: not self._is_barred(directory), way))
            if open_way == way and os.path.exists(target) and os.path.isdir(target) == os.path.isdir(mount["source"]):
                continue
            self._replaced.add(target)
            self._rebuilt.update(directory for directory in way if os.path.isdir(directory))
            self._bare.update(way[len(open_way) :])

    def _is_barred(self, directory: str) -> bool:
        """Whether the container's user may not go through it."""
        if directory in self.hidden:
            return True
        try:
            found = os.stat(directory)
        except OSError as error:
            return not isinstance(error, FileNotFoundError)
        uid = self.user.get("host_uid")
        if uid is None:
            return not os.access(directory, os.X_OK)
        if uid == found.st_uid:
            return not found.st_mode & stat.S_IXUSR
        return not found.st_mode & (stat.S_IXGRP if self.user["host_gid"] == found.st_gid else stat.S_IXOTH)

    def _rebuild(self, directory: str) -> None:
        with os.scandir(directory) as entries:
            for entry in entries:
                path = os.path.join(directory, entry.name)
                if path in _OWN or path in self._replaced:
                    continue
                if directory in self._bare and not self._leads_on(entry, path):
                    continue
                # An entry that goes away meanwhile, or cannot be bound, is one the container does without.
                with contextlib.suppress(OSError):
                    self._take_over(entry, path)

    def _leads_on(self, entry: os.DirEntry[str], path: str) -> bool:
        if not entry.is_symlink():
            return path in self._rebuilt
        meant = os.path.realpath(path)
        return any(_within(meant, (mount["target"],)) or _within(mount["target"], (meant,)) for mount in self.mounts)

    def _take_over(self, entry: os.DirEntry[str], path: str) -> None:
        here = self.scratch + path
        if entry.is_symlink():
            os.symlink(os.readlink(path), here)
        elif entry.is_dir():
            os.mkdir(here, 0o755 if path in self._bare else stat.S_IMODE(entry.stat().st_mode))
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


def _way_to(path: str) -> list[str]:
    """The directories above it, the outermost first, but for the root."""
    steps = path.split("/")[1:-1]
    return ["/" + "/".join(steps[: count + 1]) for count in range(len(steps))]


def _within(path: str, directories: tuple[str, ...]) -> bool:
    return any(path == directory or path.startswith(directory + "/") for directory in directories)
