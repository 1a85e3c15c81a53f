"""Moving the write-ahead log into the database, so that it neither grows for ever nor holds up writes.

Moving rewrites every page that changed and syncs the database: tens of milliseconds for a large log. SQLite lets it
happen beside writes, but starts the log afresh only when nothing is left to move, which never happens while writes
keep coming. So a helper thread moves the bulk while writes go on, and then the writer itself moves the little that
came meanwhile, in a millisecond or two, after which its next commit starts the log afresh.
"""

from __future__ import annotations

import contextlib
import sqlite3
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

BULK = 8 << 20
"""Bytes logged (about) after which the log is moved."""

ROUNDS = 3


class Checkpoints:
    """Belongs to whoever commits. `path` None: a store in memory, which has no log. Not `aside`: all in one go."""

    def __init__(self, connection: sqlite3.Connection, path: Path | None, *, aside: bool) -> None:
        self._connection = connection
        self._path = path
        self._aside = aside
        self._logged = 0
        self._helper: ThreadPoolExecutor | None = None
        self._moving: Future[None] | None = None

    def note(self, written: int) -> None:
        """So many bytes more are in the log; does what has become due."""
        self._logged += written
        if self._path is None:
            return
        if self._moving is not None:
            if self._moving.done():
                self._moving = None
                self._logged = 0
                move(self._connection)
        elif self._logged >= BULK:
            if self._aside:
                self._start(self._path)
            else:
                self._logged = 0
                move(self._connection)

    def _start(self, path: Path) -> None:
        if self._helper is None:
            self._helper = ThreadPoolExecutor(1, thread_name_prefix="herder-store-checkpoint")
        self._moving = self._helper.submit(move_beside_writes, path)

    def finish(self) -> None:
        """Wait for the helper, and leave an empty log behind."""
        if self._helper is not None:
            self._helper.shutdown()
        if self._path is not None:
            move(self._connection)


def move_beside_writes(path: Path) -> None:
    """Several rounds, each shorter than the one before, since each leaves only what was written during it."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for _ in range(ROUNDS):
            move(connection)


def move(connection: sqlite3.Connection) -> None:
    # Where it fails, the log stays whole and durable as it is; the next commit tells if the disk is really broken.
    with contextlib.suppress(sqlite3.Error):
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
