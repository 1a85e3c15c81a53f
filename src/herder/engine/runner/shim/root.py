"""A container's own view of the files: the host's, read-only, with the pod's volumes at any absolute path.

A new root is put together in memory: the host's directories are bound into it, and only those on the way to a mount
point that the host does not have are rebuilt entry by entry, so nothing is ever created on the host. Directories on
that way which are not for the container's user are rebuilt with nothing but the way. /dev, /proc and /tmp are the
container's own.

Other containers may change volumes and world-writable directories of the host meanwhile. So whatever is mounted, and
whatever it is mounted on, is opened once without following symbolic links, and used by its descriptor from then on.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from herder.engine.runner.shim import kernel
from herder.engine.runner.shim.beneath import MayCreate, closing, link_to, make_directories, open_beneath, open_entry

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


@dataclass(frozen=True, slots=True)
class _Mount:
    source: int  # a descriptor
    target: str
    read_only: bool
    is_directory: bool


class Root:
    """`mounts` are {source, sub_path, target, read_only}; `needs` are host files that it must be able to see where they
    are; `hidden` are host files and directories that no container may see.

    Belongs into the mount namespace that it changes: a mount of another one cannot be bound.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.scratch: str = config["scratch"]
        self.own_processes: bool = config["isolation"]["pid"]
        self.user: dict[str, int] = config["user"]
        self.hidden = {os.path.realpath(path) for path in config["hidden"]}
        self.mounts = sorted(
            [*map(_opened, config["mounts"]), *self._not_seen_yet(config["needs"])],
            key=lambda mount: mount.target.count("/"),
        )
        self._rebuilt, self._replaced = {"/"}, set[str]()
        self._bare = set[str]()  # of those rebuilt, the ones of which only the way to a mount point is left
        self._mounted: tuple[str, ...] = ()
        self._plan()

    def enter(self) -> None:
        os.umask(0)  # modes are meant as they are written here
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        kernel.mount("tmpfs", self.scratch, "tmpfs", kernel.MS_NODEV | kernel.MS_NOSUID, "mode=755,size=16m")
        # Binding a directory that lies above the new root must not copy the new root into itself.
        kernel.mount("none", self.scratch, flags=kernel.MS_UNBINDABLE)
        with closing(os.open("/", os.O_RDONLY | os.O_DIRECTORY)) as host:
            self._rebuild("/", host)
        self._own_places()
        with closing(os.open(self.scratch, os.O_RDONLY | os.O_DIRECTORY)) as new_root:
            for path in sorted(self.hidden - self._bare):
                if not _within(path, _OWN):  # what is there now is the container's
                    _hide(new_root, path)
            for mount in self.mounts:
                self._mount_volume(new_root, mount)
        kernel.pivot_into(self.scratch)
        for mount in self.mounts:
            os.close(mount.source)

    def _not_seen_yet(self, needs: list[str]) -> Iterator[_Mount]:
        for path in map(os.path.realpath, needs):
            if _within(path, _OWN) or any(self._is_barred(directory) for directory in _way_to(path)):
                yield _opened({"source": path, "target": path, "read_only": True})

    def _plan(self) -> None:
        """Directories to rebuild, and host entries that a volume takes the place of."""
        for mount in self.mounts:
            target, way = mount.target, _way_to(mount.target)
            if _within(target, _OWN):
                continue
            open_way = list(itertools.takewhile(lambda directory: not self._is_barred(directory), way))
            if open_way == way and os.path.exists(target) and os.path.isdir(target) == mount.is_directory:
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

    # --- the host's files -----------------------------------------------------------------------------------------

    def _rebuild(self, directory: str, host: int) -> None:
        for name in os.listdir(host):
            path = os.path.join(directory, name)
            if path in _OWN or path in self._replaced:
                continue
            # An entry that goes away meanwhile, or cannot be opened, is one the container does without.
            with contextlib.suppress(OSError), closing(open_entry(host, name)) as entry:
                if directory not in self._bare or self._leads_on(entry, path):
                    self._take_over(entry, path)

    def _leads_on(self, entry: int, path: str) -> bool:
        if not stat.S_ISLNK(os.fstat(entry).st_mode):
            return path in self._rebuilt
        meant = os.path.realpath(path)
        return any(_within(meant, (mount.target,)) or _within(mount.target, (meant,)) for mount in self.mounts)

    def _take_over(self, entry: int, path: str) -> None:
        here, mode = self.scratch + path, os.fstat(entry).st_mode
        if stat.S_ISLNK(mode):
            os.symlink(os.readlink("", dir_fd=entry), here)
        elif not stat.S_ISDIR(mode):
            os.close(os.open(here, os.O_WRONLY | os.O_CREAT, 0o644))
            _bind_read_only(entry, here)
        else:
            os.mkdir(here, 0o755 if path in self._bare else stat.S_IMODE(mode))
            if path not in self._rebuilt:
                _bind_read_only(entry, here)
                return
            with closing(os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=entry)) as inner:
                self._rebuild(path, inner)

    def _own_places(self) -> None:
        dev, proc = f"{self.scratch}/dev", f"{self.scratch}/proc"
        os.mkdir(dev, 0o755)
        for name in _DEVICES:
            if os.path.exists(f"/dev/{name}"):
                os.close(os.open(f"{dev}/{name}", os.O_WRONLY | os.O_CREAT, 0o644))
                kernel.mount(f"/dev/{name}", f"{dev}/{name}", flags=kernel.MS_BIND)
        for name, target in _DEVICE_LINKS.items():
            os.symlink(target, f"{dev}/{name}")
        self._private(f"{dev}/shm")
        self._private(f"{self.scratch}/tmp")  # noqa: S108
        os.mkdir(proc, 0o555)
        if self.own_processes:
            kernel.mount("proc", proc, "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
        else:
            kernel.mount("/proc", proc, flags=kernel.MS_BIND | kernel.MS_REC)

    def _private(self, path: str) -> None:
        os.mkdir(path)
        kernel.mount("tmpfs", path, "tmpfs", kernel.MS_NODEV | kernel.MS_NOSUID, "mode=1777")

    # --- volumes --------------------------------------------------------------------------------------------------

    def _mount_volume(self, new_root: int, mount: _Mount) -> None:
        above, name = os.path.split(mount.target)
        may_create = self._may_create(above, new_root)
        with closing(make_directories(new_root, above, may_create=may_create)) as parent:
            _make_mount_point(parent, name, mount, may_create)
            with closing(open_beneath(parent, name)) as target:
                kernel.mount(link_to(mount.source), link_to(target), flags=kernel.MS_BIND | kernel.MS_REC)
            if mount.read_only:
                with closing(open_beneath(parent, name)) as mounted:
                    _set_read_only(mounted)
        self._mounted += (mount.target,)

    def _may_create(self, directory: str, new_root: int) -> MayCreate:
        """Mount points are created in memory and in volumes: never on the host, should a directory vanish meanwhile."""
        own = _within(directory, (*_OWN, *self._mounted))
        device = os.fstat(new_root).st_dev
        return lambda parent, _name: own or os.fstat(parent).st_dev == device


def _opened(mount: dict[str, Any]) -> _Mount:
    """The source, below which the pod may change anything, while what is above it belongs to the host.

    In /proc, the first process of the container itself reads and writes.
    """
    target = os.path.realpath(mount["target"])
    if target == "/" or _within(os.path.normpath(mount["target"]), ("/proc",)) or _within(target, ("/proc",)):
        raise OSError(errno.EINVAL, "a volume cannot be mounted there", mount["target"])
    with closing(os.open(mount["source"], os.O_PATH)) as volume:
        source = open_beneath(volume, mount["sub_path"]) if mount.get("sub_path") else os.dup(volume)
    is_directory = stat.S_ISDIR(os.fstat(source).st_mode)
    return _Mount(source, target, bool(mount.get("read_only")), is_directory)


def _make_mount_point(parent: int, name: str, mount: _Mount, may_create: MayCreate) -> None:
    with contextlib.suppress(FileExistsError):
        if not may_create(parent, name):
            return
        if mount.is_directory:
            os.mkdir(name, 0o755, dir_fd=parent)
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            os.close(os.open(name, flags, 0o644, dir_fd=parent))


def _hide(new_root: int, path: str) -> None:
    try:
        found = open_beneath(new_root, path)
    except (FileNotFoundError, NotADirectoryError):
        return
    except PermissionError:
        return  # the container's user, who has no more rights than this process, does not reach it either
    with closing(found):
        if stat.S_ISDIR(os.fstat(found).st_mode):
            kernel.mount("tmpfs", link_to(found), "tmpfs", kernel.MS_RDONLY, "mode=000,size=4k")
        else:
            kernel.mount("/dev/null", link_to(found), flags=kernel.MS_BIND)


def _bind_read_only(source: int, target: str) -> None:
    kernel.mount(link_to(source), target, flags=kernel.MS_BIND | kernel.MS_REC)
    try:
        with closing(os.open(target, os.O_PATH | os.O_NOFOLLOW)) as mounted:
            _set_read_only(mounted)
    except OSError:
        kernel.unmount(target)
        raise


def _set_read_only(mounted: int) -> None:
    try:
        kernel.set_mounts_read_only(mounted)
    except OSError as error:
        if error.errno not in {errno.ENOSYS, errno.EPERM}:
            raise
        kept = os.fstatvfs(mounted).f_flag
        flags = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY
        kernel.mount("none", link_to(mounted), flags=flags | sum(mount for seen, mount in _KEPT_FLAGS if kept & seen))


def _way_to(path: str) -> list[str]:
    """The directories above it, the outermost first, but for the root."""
    steps = path.split("/")[1:-1]
    return ["/" + "/".join(steps[: count + 1]) for count in range(len(steps))]


def _within(path: str, directories: tuple[str, ...]) -> bool:
    return any(path == directory or path.startswith(directory + "/") for directory in directories)
