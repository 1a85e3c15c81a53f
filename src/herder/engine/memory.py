"""Freed memory goes back to the machine: after an attack, or a burst of clients, the C library would keep it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache


@lru_cache(maxsize=1)
def _trim() -> Callable[[int], object] | None:
    try:
        trim: Callable[[int], object] = ctypes.CDLL("libc.so.6").malloc_trim
        return trim
    except (OSError, AttributeError):
        return None  # another C library, another allocator


def return_freed_memory() -> None:
    """Takes milliseconds, so call it from a thread. The interpreter runs on meanwhile."""
    if (trim := _trim()) is not None:
        trim(0)
