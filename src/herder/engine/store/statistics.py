"""Numbers of a store for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from herder.engine.meta.histogram import Histogram
from herder.engine.store.hub import WatchScope


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Numbers of a store at one moment."""

    objects: Mapping[str, int]  # by resource
    pending: int  # objects with a write that is not committed
    failed_commits: int
    watches: Mapping[WatchScope, int]
    commit_times: Histogram  # of transactions that succeeded, in seconds
    database_bytes: int  # with the write-ahead log; 0 in memory


def database_bytes(path: Path) -> int:
    """Size of a database on disk, with its write-ahead log."""
    return sum(map(_size, (path, path.with_name(f"{path.name}-wal"))))


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0
