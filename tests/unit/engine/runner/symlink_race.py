"""A pod that exchanges a directory of its volume with a symbolic link while the runner works on it."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

AT_FDCWD, RENAME_EXCHANGE = -100, 2


@contextmanager
def swap_with_symlink(entry: Path, outside: Path) -> Iterator[None]:
    """Alternate `entry` between a directory and a symbolic link to `outside`, until the end of the block."""
    end, link = threading.Event(), entry.with_name("link")
    link.symlink_to(outside)
    exchange = ctypes.CDLL(None).renameat2

    def swap() -> None:
        while not end.is_set():
            exchange(AT_FDCWD, bytes(entry), AT_FDCWD, bytes(link), RENAME_EXCHANGE)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
