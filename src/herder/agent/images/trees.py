"""Race-free directory operations for untrusted names: every name is one entry of an open directory.

On POSIX a directory is a file descriptor, and no call follows symlinks. Windows has no such calls: there, symlinks are
never created, so that paths cannot escape.
"""

import contextlib
import errno
import os
import re
import stat
from typing import IO, Iterator, List, Optional

_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_OPEN_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _NO_LINKS
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINKS
_BINARY = getattr(os, "O_BINARY", 0)
_NOT_A_DIRECTORY = (errno.ENOTDIR, errno.ELOOP, errno.EMLINK)
_MODE = 0o755


class BadName(ValueError):
    """Not a valid name of a directory entry."""


class Directory:
    """An open directory on POSIX. Names are single components, validated by `check`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def at(cls, path: str) -> "Directory":
        return cls(os.open(path, _OPEN_DIRECTORY))

    @staticmethod
    def check(name: str) -> str:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise BadName(f"{name!r} is not the name of a file")
        return name

    def close(self) -> None:
        os.close(self._descriptor)

    def child(self, name: str) -> Optional["Directory"]:
        """Open a subdirectory; None if it is missing, a file or a symlink."""
        try:
            return Directory(os.open(name, _OPEN_DIRECTORY, dir_fd=self._descriptor))
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in _NOT_A_DIRECTORY:
                return None
            raise

    def link_target(self, name: str) -> Optional[str]:
        """Return the target of a symlink; None if it is not one."""
        try:
            return os.readlink(name, dir_fd=self._descriptor)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return None
            raise

    def names(self) -> List[str]:
        return os.listdir(self._descriptor)

    def make(self, name: str) -> None:
        os.mkdir(name, _MODE, dir_fd=self._descriptor)

    def set_mode(self, mode: int) -> None:
        os.fchmod(self._descriptor, mode)

    @contextlib.contextmanager
    def create(self, name: str, mode: int) -> Iterator[IO[bytes]]:
        """Create a file with exactly this mode."""
        descriptor = os.open(name, _CREATE, mode, dir_fd=self._descriptor)
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            os.fchmod(descriptor, mode)

    def symlink(self, target: str, name: str) -> None:
        os.symlink(target, name, dir_fd=self._descriptor)

    def link(self, source: "Directory", source_name: str, name: str) -> None:
        os.link(
            source_name,
            name,
            src_dir_fd=source._descriptor,
            dst_dir_fd=self._descriptor,
            follow_symlinks=False,
        )

    def unlink(self, name: str) -> None:
        os.unlink(name, dir_fd=self._descriptor)

    def remove_directory(self, name: str) -> None:
        os.rmdir(name, dir_fd=self._descriptor)

    def exists(self, name: str) -> bool:
        try:
            os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True


_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?$", re.IGNORECASE)
_FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f]|[. ]$')


class WindowsDirectory(Directory):
    """The same with paths; names must be plain file names on Windows."""

    def __init__(self, path: str) -> None:
        self._path = path

    @classmethod
    def at(cls, path: str) -> "Directory":
        return cls(path)

    @staticmethod
    def check(name: str) -> str:
        if _FORBIDDEN.search(name) or _RESERVED.match(name):
            raise BadName(f"{name!r} is not the name of a file on Windows")
        return Directory.check(name)

    def close(self) -> None:
        pass

    def child(self, name: str) -> Optional[Directory]:
        path = os.path.join(self._path, name)
        try:
            return WindowsDirectory(path) if stat.S_ISDIR(os.lstat(path).st_mode) else None
        except FileNotFoundError:
            return None

    def link_target(self, name: str) -> Optional[str]:
        return None

    def names(self) -> List[str]:
        return os.listdir(self._path)

    def make(self, name: str) -> None:
        os.mkdir(os.path.join(self._path, name))

    def set_mode(self, mode: int) -> None:
        pass

    @contextlib.contextmanager
    def create(self, name: str, mode: int) -> Iterator[IO[bytes]]:
        with os.fdopen(os.open(os.path.join(self._path, name), _CREATE | _BINARY, mode), "wb") as stream:
            yield stream

    def symlink(self, target: str, name: str) -> None:
        pass

    def link(self, source: Directory, source_name: str, name: str) -> None:
        assert isinstance(source, WindowsDirectory)
        os.link(os.path.join(source._path, source_name), os.path.join(self._path, name))

    def unlink(self, name: str) -> None:
        os.unlink(os.path.join(self._path, name))

    def remove_directory(self, name: str) -> None:
        os.rmdir(os.path.join(self._path, name))

    def exists(self, name: str) -> bool:
        return os.path.lexists(os.path.join(self._path, name))


KIND = WindowsDirectory if os.name == "nt" else Directory
"""The implementation for this system."""


def opened(path: str) -> Directory:
    return KIND.at(path)


def remove(parent: Directory, name: str) -> None:
    """Remove an entry recursively, if it exists."""
    inner = parent.child(name)
    if inner is None:
        if parent.exists(name):
            parent.unlink(name)
        return
    try:
        for each in inner.names():
            remove(inner, each)
    finally:
        inner.close()
    parent.remove_directory(name)
