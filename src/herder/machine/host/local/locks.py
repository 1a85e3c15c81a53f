"""File locks that identify their holder through the kernel, so nothing can be stale."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterator

_FLOCK = "hhqqi"  # struct flock: type, whence, start, length, process


def hold(path: str | os.PathLike[str]) -> int:
    """Hold the lock while this process keeps the descriptor; raise BlockingIOError if another holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def holder_of(path: str | os.PathLike[str]) -> int:
    """Return the PID of the holder; 0 if there is none."""
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
    """Yield a pidfd of the holder, to signal and wait for; None if there is none."""
    descriptor = None
    with contextlib.suppress(ProcessLookupError):
        if pid := holder_of(path):
            descriptor = os.pidfd_open(pid)
    try:
        # Check again now that the PID cannot be reused.
        yield descriptor if descriptor is not None and holder_of(path) == pid else None
    finally:
        if descriptor is not None:
            os.close(descriptor)
