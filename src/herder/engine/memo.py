"""LRU cache for pure functions whose input must not be retained.

`functools.lru_cache` keeps the arguments of every call, which may contain keys and tokens of clusters that were deleted
long ago. Here the caller provides a digest as the key, and only the result is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")

Digest = str | bytes | tuple[str, ...]


class DigestMemo(Generic[V]):
    """LRU cache of at most `size` results. Results must not contain secrets either."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._results: OrderedDict[Digest, V] = OrderedDict()

    def get(self, digest: Digest, compute: Callable[[], V]) -> V:
        if digest in self._results:
            self._results.move_to_end(digest)
            return self._results[digest]
        result = compute()
        self._results[digest] = result
        if len(self._results) > self._size:
            self._results.popitem(last=False)
        return result
