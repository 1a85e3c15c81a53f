"""Crash-safe file writes: a file is written completely or not at all."""

import contextlib
import errno
import os
from typing import Optional

_BINARY = getattr(os, "O_BINARY", 0)  # Windows would translate line endings
_CANNOT_BE_SYNCED = (errno.EINVAL, errno.ENOTSUP, errno.EACCES)


def write(path: str, content: bytes, mode: int = 0o600, durable: bool = False) -> None:
    """Replace a file atomically; readers see the old or the new content. `durable` also survives a power failure."""
    put_in_place(path, content, mode, durable)
    if durable:
        sync_directory(os.path.dirname(path))


def write_plainly(path: str, content: bytes, mode: int = 0o600) -> None:
    """Write a file that is not needed after a crash; it may be incomplete then."""
    _write(path, content, mode, False)


def put_in_place(path: str, content: bytes, mode: int, durable: bool) -> None:
    """Replace a file like `write`, but call `sync_directory` to make the new name durable."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        _write(temporary, content, mode, durable)
        os.replace(temporary, path)
    except OSError:
        remove(temporary)
        raise


def _write(path: str, content: bytes, mode: int, durable: bool) -> None:
    descriptor = open_for_writing(path, os.O_TRUNC, mode)
    try:
        write_all(descriptor, content)
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_for_writing(path: str, flags: int, mode: int = 0o600) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | _BINARY | flags, mode)


def write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


def sync_directory(path: str) -> None:
    """Fsync a directory, which makes new names durable. Windows and some file systems do not support it."""
    if os.name == "nt":
        return
    descriptor = os.open(path or ".", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_BE_SYNCED:
            raise
    finally:
        os.close(descriptor)


def read(path: str) -> Optional[bytes]:
    try:
        with open(path, "rb", buffering=0) as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
