"""Locks that say who holds them. The kernel knows, so nothing written down can be wrong or left over."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterator

_FLOCK = "hhqqi"  # struct flock: type, whence, start, length, process


def hold(path: str | os.PathLike[str]) -> int:
    """As long as this process lives and keeps the descriptor. BlockingIOError where another one holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def holder_of(path: str | os.PathLike[str]) -> int:
    """The process that holds it; 0 where none does."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    finally:
        os.close(descriptor)
    kind, _, _, _, pid = struct.unpack(_FLOCK, answer)
    return 0 if kind == fcntl.F_UNLCK else pid


@contextlib.contextmanager
def holding_process(path: str | os.PathLike[str]) -> Iterator[int | None]:
    """A descriptor of the process that holds it, to signal and to wait for; None where there is none."""
    descriptor = None
    with contextlib.suppress(ProcessLookupError):
        if pid := holder_of(path):
            descriptor = os.pidfd_open(pid)
    try:
        # Asked again now that its number cannot become another's.
        yield descriptor if descriptor is not None and holder_of(path) == pid else None
    finally:
        if descriptor is not None:
            os.close(descriptor)
