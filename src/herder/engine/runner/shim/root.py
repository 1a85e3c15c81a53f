"""Root file system of a container: the host's files read-only, with the pod's volumes mounted at any absolute path.

The new root is a tmpfs into which host directories are bind-mounted. Only directories on the path to a mount point that
the host does not have are rebuilt entry by entry, so nothing is ever created on the host. Directories on that path that
the container's user may not enter are rebuilt with only the path itself. /dev, /proc and /tmp are the container's own.

Other containers may change volumes and world-writable host directories meanwhile. So every mount source and mount point
is opened once, without following symbolic links, and then used by its descriptor.
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
from herder.engine.runner.shim.beneath import MayCreate, closing, make_directories, open_beneath, open_entry, proc_path

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
_PRIVATE_PATHS = ("/dev", "/proc", "/tmp")  # noqa: S108 - in the container
# Mount flags that a bind mount in a user namespace must preserve, by their statvfs flag.
_PRESERVED_FLAGS = (
    (os.ST_NOSUID, kernel.MS_NOSUID),
    (os.ST_NODEV, kernel.MS_NODEV),
    (os.ST_NOEXEC, kernel.MS_NOEXEC),
    (os.ST_NOATIME, kernel.MS_NOATIME),
    (os.ST_NODIRATIME, kernel.MS_NODIRATIME),
    (os.ST_RELATIME, kernel.MS_RELATIME),
)


@dataclass(frozen=True, slots=True)
class _Mount:
    """A volume mount with its open source."""

    source: int  # file descriptor
    target: str
    read_only: bool
    is_directory: bool


class Root:
    """Builds the root file system, in the mount namespace that it changes.

    `mounts` are {source, sub_path, target, read_only}; `needs` are host files that must be visible at their path;
    `hidden` are host paths that no container may see. Sources must belong to the same mount namespace to be
    bind-mounted.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.scratch: str = config["scratch"]
        self.own_processes: bool = config["isolation"]["pid"]
        self.user: dict[str, int] = config["user"]
        self.hidden = {os.path.realpath(path) for path in config["hidden"]}
        self.mounts = sorted(
            [*map(_open_mount, config["mounts"]), *self._mounts_for_needs(config["needs"])],
            key=lambda mount: mount.target.count("/"),
        )
        self._rebuilt, self._replaced = {"/"}, set[str]()
        self._path_only = set[str]()  # rebuilt directories that contain only the path to a mount point
        self._mounted: tuple[str, ...] = ()
        self._plan()

    def enter(self) -> None:
        os.umask(0)  # apply modes exactly as given below
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        kernel.mount("tmpfs", self.scratch, "tmpfs", kernel.MS_NODEV | kernel.MS_NOSUID, "mode=755,size=16m")
        # Binding a parent of the new root must not bind the new root into itself.
        kernel.mount("none", self.scratch, flags=kernel.MS_UNBINDABLE)
        with closing(os.open("/", os.O_RDONLY | os.O_DIRECTORY)) as host:
            self._rebuild("/", host)
        self._mount_private_paths()
        with closing(os.open(self.scratch, os.O_RDONLY | os.O_DIRECTORY)) as new_root:
            for path in sorted(self.hidden - self._path_only):
                if not _within(path, _PRIVATE_PATHS):  # those paths are the container's own
                    _hide(new_root, path)
            for mount in self.mounts:
                self._mount_volume(new_root, mount)
        kernel.pivot_into(self.scratch)
        for mount in self.mounts:
            os.close(mount.source)

    def _mounts_for_needs(self, needs: list[str]) -> Iterator[_Mount]:
        for path in map(os.path.realpath, needs):
            if _within(path, _PRIVATE_PATHS) or any(self._is_inaccessible(directory) for directory in _parents(path)):
                yield _open_mount({"source": path, "target": path, "read_only": True})

    def _plan(self) -> None:
        """Determine the directories to rebuild, and the host entries that a volume replaces."""
        for mount in self.mounts:
            target, parents = mount.target, _parents(mount.target)
            if _within(target, _PRIVATE_PATHS):
                continue
            accessible = list(itertools.takewhile(lambda directory: not self._is_inaccessible(directory), parents))
            if accessible == parents and os.path.exists(target) and os.path.isdir(target) == mount.is_directory:
                continue
            self._replaced.add(target)
            self._rebuilt.update(directory for directory in parents if os.path.isdir(directory))
            self._path_only.update(parents[len(accessible) :])

    def _is_inaccessible(self, directory: str) -> bool:
        """Return whether the container's user may not traverse the directory."""
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

    # --- host files -----------------------------------------------------------------------------------------------

    def _rebuild(self, directory: str, host: int) -> None:
        for name in os.listdir(host):
            path = os.path.join(directory, name)
            if path in _PRIVATE_PATHS or path in self._replaced:
                continue
            # Skip entries that vanish meanwhile or cannot be opened.
            with contextlib.suppress(OSError), closing(open_entry(host, name)) as entry:
                if directory not in self._path_only or self._is_on_path(entry, path):
                    self._bind_entry(entry, path)

    def _is_on_path(self, entry: int, path: str) -> bool:
        if not stat.S_ISLNK(os.fstat(entry).st_mode):
            return path in self._rebuilt
        resolved = os.path.realpath(path)
        return any(_within(resolved, (mount.target,)) or _within(mount.target, (resolved,)) for mount in self.mounts)

    def _bind_entry(self, entry: int, path: str) -> None:
        target, mode = self.scratch + path, os.fstat(entry).st_mode
        if stat.S_ISLNK(mode):
            os.symlink(os.readlink("", dir_fd=entry), target)
        elif not stat.S_ISDIR(mode):
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT, 0o644))
            _bind_read_only(entry, target)
        else:
            os.mkdir(target, 0o755 if path in self._path_only else stat.S_IMODE(mode))
            if path not in self._rebuilt:
                _bind_read_only(entry, target)
                return
            with closing(os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=entry)) as inner:
                self._rebuild(path, inner)

    def _mount_private_paths(self) -> None:
        dev, proc = f"{self.scratch}/dev", f"{self.scratch}/proc"
        os.mkdir(dev, 0o755)
        for name in _DEVICES:
            if os.path.exists(f"/dev/{name}"):
                os.close(os.open(f"{dev}/{name}", os.O_WRONLY | os.O_CREAT, 0o644))
                kernel.mount(f"/dev/{name}", f"{dev}/{name}", flags=kernel.MS_BIND)
        for name, target in _DEVICE_LINKS.items():
            os.symlink(target, f"{dev}/{name}")
        self._mount_tmpfs(f"{dev}/shm")
        self._mount_tmpfs(f"{self.scratch}/tmp")  # noqa: S108
        os.mkdir(proc, 0o555)
        if self.own_processes:
            kernel.mount("proc", proc, "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
        else:
            kernel.mount("/proc", proc, flags=kernel.MS_BIND | kernel.MS_REC)

    def _mount_tmpfs(self, path: str) -> None:
        os.mkdir(path)
        kernel.mount("tmpfs", path, "tmpfs", kernel.MS_NODEV | kernel.MS_NOSUID, "mode=1777")

    # --- volumes --------------------------------------------------------------------------------------------------

    def _mount_volume(self, new_root: int, mount: _Mount) -> None:
        above, name = os.path.split(mount.target)
        may_create = self._may_create(above, new_root)
        with closing(make_directories(new_root, above, may_create=may_create)) as parent:
            _make_mount_point(parent, name, mount, may_create)
            with closing(open_beneath(parent, name)) as target:
                kernel.mount(proc_path(mount.source), proc_path(target), flags=kernel.MS_BIND | kernel.MS_REC)
            if mount.read_only:
                with closing(open_beneath(parent, name)) as mounted:
                    _set_read_only(mounted)
        self._mounted += (mount.target,)

    def _may_create(self, directory: str, new_root: int) -> MayCreate:
        """Allow mount points in tmpfs and in volumes, but never on the host, even if a directory vanishes meanwhile."""
        own = _within(directory, (*_PRIVATE_PATHS, *self._mounted))
        device = os.fstat(new_root).st_dev
        return lambda parent, _name: own or os.fstat(parent).st_dev == device


def _open_mount(mount: dict[str, Any]) -> _Mount:
    """Open the source of a mount. The pod may change anything beneath it, but not above it.

    /proc is refused as a target, because the first process of the container uses it.
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
        return  # the container's user has no more rights than this process and cannot reach it either
    with closing(found):
        if stat.S_ISDIR(os.fstat(found).st_mode):
            kernel.mount("tmpfs", proc_path(found), "tmpfs", kernel.MS_RDONLY, "mode=000,size=4k")
        else:
            kernel.mount("/dev/null", proc_path(found), flags=kernel.MS_BIND)


def _bind_read_only(source: int, target: str) -> None:
    kernel.mount(proc_path(source), target, flags=kernel.MS_BIND | kernel.MS_REC)
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
        current_flags = os.fstatvfs(mounted).f_flag
        flags = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY
        kernel.mount(
            "none",
            proc_path(mounted),
            flags=flags | sum(mount for stat_flag, mount in _PRESERVED_FLAGS if current_flags & stat_flag),
        )


def _parents(path: str) -> list[str]:
    """Return the parent directories, outermost first, without the root."""
    parts = path.split("/")[1:-1]
    return ["/" + "/".join(parts[: count + 1]) for count in range(len(parts))]


def _within(path: str, directories: tuple[str, ...]) -> bool:
    return any(path == directory or path.startswith(directory + "/") for directory in directories)
