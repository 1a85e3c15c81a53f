"""File operations beneath a directory descriptor (RESOLVE_BENEATH), safe against concurrent changes by a pod.

A pod can rename, replace and link anything in its volumes at any moment, so a checked path may lead elsewhere when it
is used. Every function starts at a descriptor and follows no symbolic link.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator

from herder.engine.runner.shim import kernel

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ENTRY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_ATTEMPTS = 16
"""openat2 fails with EAGAIN if another process renames directories on the path; a pod can do so endlessly."""


MayCreate = Callable[[int, str], bool]
"""Returns whether a directory of this name may be created in the directory of this descriptor."""


def components(path: str) -> list[str]:
    """Return the components of a relative path. Raises for `..`, which could leave the directory."""
    names = [name for name in path.split("/") if name not in {"", "."}]
    if ".." in names or "\0" in path:
        raise OSError(errno.EXDEV, "path leaves its directory", path)
    return names


@contextlib.contextmanager
def closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def proc_path(descriptor: int) -> str:
    """Return a path to an open file, for system calls that accept only paths."""
    return f"/proc/self/fd/{descriptor}"


def open_beneath(directory: int, path: str, flags: int = os.O_PATH) -> int:
    """Open a file beneath `directory`; fail if a component is a symbolic link. The empty path is the directory
    itself."""
    names = components(path)
    if not names:
        return os.open(".", flags | os.O_CLOEXEC, dir_fd=directory)
    for attempt in range(_ATTEMPTS):
        try:
            return kernel.open_beneath(directory, "/".join(names), flags | os.O_CLOEXEC)
        except BlockingIOError:
            if attempt == _ATTEMPTS - 1:
                raise
        except OSError as error:
            # Seccomp filters that do not know the call return EPERM.
            if error.errno not in {errno.ENOSYS, errno.EPERM}:
                raise
            return walk(directory, names, flags)
    raise AssertionError("unreachable")


def walk(directory: int, names: list[str], flags: int) -> int:
    """Like `open_beneath`, one component at a time: for kernels before 5.6."""
    current = os.dup(directory)
    try:
        for name in names[:-1]:
            child = os.open(name, _ENTRY | os.O_DIRECTORY, dir_fd=current)
            os.close(current)
            current = child
        found = os.open(names[-1], flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
    finally:
        os.close(current)
    if stat.S_ISLNK(os.fstat(found).st_mode):  # O_PATH opens the link itself
        os.close(found)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), names[-1])
    return found


def open_entry(directory: int, name: str) -> int:
    """Open one directory entry, even a symbolic link: for fstat, readlink and mounts."""
    return os.open(name, _ENTRY, dir_fd=directory)


def make_directories(
    directory: int,
    path: str,
    *,
    mode: int = 0o755,
    owner: tuple[int, int] | None = None,
    may_create: MayCreate = lambda _parent, _name: True,
) -> int:
    """Create the directory at `path` and its missing parents, and return its descriptor.

    Only directories created by this call get the mode and owner.
    """
    current = os.dup(directory)
    try:
        for name in components(path):
            created = not _exists(current, name) and may_create(current, name)
            if created:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=current)
            child = os.open(name, _DIRECTORY if created else _ENTRY | os.O_DIRECTORY, dir_fd=current)
            os.close(current)
            current = child
            if created:
                set_mode_and_owner(current, mode, owner)
        return current
    except BaseException:
        os.close(current)
        raise


def set_mode_and_owner(descriptor: int, mode: int, owner: tuple[int, int] | None) -> None:
    """Set mode and owner of a file that this process created, not of one that a pod put in its place."""
    if os.fstat(descriptor).st_uid != os.geteuid():
        return
    os.fchmod(descriptor, mode)
    if owner is not None:
        os.fchown(descriptor, *owner)


def write_file(directory: int, path: str, content: bytes, *, mode: int, owner: tuple[int, int] | None) -> None:
    """Replace a file atomically; create missing directories."""
    *above, name = components(path)
    with closing(make_directories(directory, "/".join(above), owner=owner)) as parent:
        scratch = f".{name}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(scratch, dir_fd=parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(scratch, flags, 0o600, dir_fd=parent), "wb") as file:
            file.write(content)
            set_mode_and_owner(file.fileno(), mode, owner)
        os.replace(scratch, name, src_dir_fd=parent, dst_dir_fd=parent)


def remove_tree(directory: int, name: str) -> None:
    """Remove a directory tree, regardless of its depth and of directory modes.

    Nested directories are moved to the top one, so that neither paths nor recursion grow with a deep tree.
    """
    try:
        top = _open_for_removal(directory, name)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        os.unlink(name, dir_fd=directory)
        return
    with closing(top):
        moved = 0
        while names := os.listdir(top):
            for entry in names:
                if _is_removed(top, entry):
                    continue
                with closing(_open_for_removal(top, entry)) as inner:
                    for child in os.listdir(inner):
                        if not _is_removed(inner, child):
                            moved = _free_number(top, moved)
                            _open_and_close(inner, child)
                            os.rename(child, f".{moved}", src_dir_fd=inner, dst_dir_fd=top)
                os.rmdir(entry, dir_fd=top)
    os.rmdir(name, dir_fd=directory)


def _open_for_removal(directory: int, name: str) -> int:
    with closing(open_entry(directory, name)) as entry:
        if not stat.S_ISDIR(os.fstat(entry).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
        # owned by another user: only root can remove it, and root needs no mode
        with contextlib.suppress(PermissionError):
            os.chmod(proc_path(entry), 0o700)
        return os.open(".", _DIRECTORY, dir_fd=entry)


def _open_and_close(directory: int, name: str) -> None:
    """Make a directory writable before it is moved: moving changes its `..` entry."""
    os.close(_open_for_removal(directory, name))


def _is_removed(directory: int, name: str) -> bool:
    try:
        os.unlink(name, dir_fd=directory)
    except IsADirectoryError:
        try:
            os.rmdir(name, dir_fd=directory)
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise
            return False
    return True


def _free_number(directory: int, last: int) -> int:
    number = last + 1
    while _exists(directory, f".{number}"):
        number += 1
    return number


def _exists(directory: int, name: str) -> bool:
    try:
        os.lstat(name, dir_fd=directory)
    except FileNotFoundError:
        return False
    return True
