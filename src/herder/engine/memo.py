"""Remembered results of pure functions whose input must not be remembered.

`functools.lru_cache` keeps the arguments of every call, and arguments may hold keys and tokens of clusters that were
deleted long ago. Here the key is a digest that the caller makes, and only the result is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")

Digest = str | bytes | tuple[str, ...]


class DigestMemo(Generic[V]):
    """At most `size` results, the least recently used first to go. Results must not hold secrets either."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._results: OrderedDict[Digest, V] = OrderedDict()

    def get(self, digest: Digest, make: Callable[[], V]) -> V:
        if digest in self._results:
            self._results.move_to_end(digest)
            return self._results[digest]
        result = make()
        self._results[digest] = result
        if len(self._results) > self._size:
            self._results.popitem(last=False)
        return result
