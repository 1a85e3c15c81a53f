"""Unix sockets with paths of any length, using /proc/self/fd; the kernel limits paths to 107 bytes."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def connected(path: Path, timeout: float | None) -> socket.socket:
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.settimeout(timeout)
    try:
        with _short(path) as address:
            stream.connect(address)
    except BaseException:
        stream.close()
        raise
    return stream


def listening(path: Path, mode: int) -> socket.socket:
    """Replaces a stale socket; the caller must hold a lock."""
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        with _short(path) as address:
            stream.bind(address)
        path.chmod(mode)
        stream.listen(512)
    except BaseException:
        stream.close()
        raise
    return stream


@contextmanager
def _short(path: Path) -> Iterator[str]:
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
