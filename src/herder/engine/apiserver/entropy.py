"""Random bytes in small portions, drawn from their source in large ones.

Asking the system is a call during which other threads take the interpreter, and a request asks twice. What keys and
tokens are made of is still asked for each time.
"""

from __future__ import annotations

from collections.abc import Callable

_POOL_BYTES = 4096
_SMALL = 16


class Pool:
    """No byte is ever handed out twice."""

    def __init__(self, draw: Callable[[int], bytes]) -> None:
        self._draw = draw
        self._pool = b""
        self._used = 0

    def __call__(self, count: int) -> bytes:
        if count > _SMALL:
            return self._draw(count)
        start = self._used
        self._used = start + count
        if self._used > len(self._pool):
            self._pool = self._draw(_POOL_BYTES)
            start, self._used = 0, count
        return self._pool[start : self._used]
