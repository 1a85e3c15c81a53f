"""Histogram in plain integers, which a scrape reads: a labeled one costs more than many observations are worth."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Bounds in seconds, the defaults of the Prometheus client."""


class Histogram:
    """Counts of observed values by upper bound, and their sum."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.total += value
        self._counts[bisect_left(self._bounds, value)] += 1

    def cumulative(self) -> list[tuple[str, int]]:
        """Bounds with the number of values at or below each, as Prometheus expects them."""
        found, count = [], 0
        for bound, values in zip((*map(str, map(float, self._bounds)), "+Inf"), self._counts, strict=True):
            count += values
            found.append((bound, count))
        return found
