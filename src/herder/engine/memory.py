"""Return freed memory to the operating system (malloc_trim), which glibc would keep after a burst of clients."""

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
        return None  # not glibc


def return_freed_memory() -> None:
    """Call malloc_trim. It takes milliseconds and releases the GIL, so call it from a thread."""
    if (trim := _trim()) is not None:
        trim(0)
