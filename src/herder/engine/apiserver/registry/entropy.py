"""Buffered random bytes: small amounts are served from a larger read.

Reading from the operating system is a system call that releases the GIL, and every request needs random bytes twice.
Keys and tokens are larger and always read directly.
"""

from __future__ import annotations

from collections.abc import Callable

_POOL_BYTES = 4096
_SMALL = 16


class EntropyPool:
    """A source of random bytes with a buffer. No byte is returned twice."""

    def __init__(self, draw: Callable[[int], bytes]) -> None:
        self._read = draw
        self._buffer = b""
        self._position = 0

    def __call__(self, count: int) -> bytes:
        if count > _SMALL:
            return self._read(count)
        start = self._position
        self._position = start + count
        if self._position > len(self._buffer):
            self._buffer = self._read(_POOL_BYTES)
            start, self._position = 0, count
        return self._buffer[start : self._position]
