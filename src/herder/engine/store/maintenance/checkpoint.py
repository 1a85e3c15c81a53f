"""WAL checkpoints that bound the write-ahead log without delaying writes.

A checkpoint rewrites every changed page and fsyncs the database: tens of milliseconds for a large log. SQLite runs it
concurrently with writes, but resets the log only when nothing is left to checkpoint, which never happens under constant
writes. So a helper thread checkpoints the bulk concurrently. Then the writer checkpoints the small rest in a
millisecond or two, after which its next commit resets the log.
"""

from __future__ import annotations

import contextlib
import sqlite3
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

CHECKPOINT_BYTES = 8 << 20
"""Approximate bytes in the log that trigger a checkpoint."""

ROUNDS = 3


class Checkpoints:
    """Schedules checkpoints; owned by the committing thread. An in-memory store (no `path`) has no log.

    Without `background`, the committing thread runs each checkpoint completely.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path | None, *, background: bool) -> None:
        self._connection = connection
        self._path = path
        self._background = background
        self._logged = 0
        self._helper: ThreadPoolExecutor | None = None
        self._running: Future[None] | None = None

    def record(self, written: int) -> None:
        """Add the bytes written to the log, and run or start a checkpoint if one is due."""
        self._logged += written
        if self._path is None:
            return
        if self._running is not None:
            if self._running.done():
                self._running = None
                self._logged = 0
                checkpoint(self._connection)
        elif self._logged >= CHECKPOINT_BYTES:
            if self._background:
                self._start(self._path)
            else:
                self._logged = 0
                checkpoint(self._connection)

    def _start(self, path: Path) -> None:
        if self._helper is None:
            self._helper = ThreadPoolExecutor(1, thread_name_prefix="herder-store-checkpoint")
        self._running = self._helper.submit(checkpoint_concurrently, path)

    def finish(self) -> None:
        """Wait for the helper thread and leave an empty log behind."""
        if self._helper is not None:
            self._helper.shutdown()
        if self._path is not None:
            checkpoint(self._connection)


def checkpoint_concurrently(path: Path) -> None:
    """Checkpoint several times, each shorter than the one before, since each leaves only what was written during it."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for _ in range(ROUNDS):
            checkpoint(connection)


def checkpoint(connection: sqlite3.Connection) -> None:
    # If it fails, the log stays intact and durable; the next commit shows whether the disk is broken.
    with contextlib.suppress(sqlite3.Error):
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
