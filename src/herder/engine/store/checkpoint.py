"""When the write-ahead log is moved into the database, so that it neither grows for ever nor holds up writes.

Moving rewrites every page that changed and syncs the database, tens of milliseconds for a large log. So it is
done early while nobody waits, and in spite of waiting writes only once the log is large.
"""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from herder.engine.store.database import Database

WHEN_IDLE = 4 << 20
WHEN_BUSY = 32 << 20


class Checkpoints:
    def __init__(self, *, on_disk: bool) -> None:
        self._on_disk = on_disk
        self._logged = 0

    @property
    def due(self) -> bool:
        return self._on_disk and self._logged >= WHEN_IDLE

    def note(self, written: int) -> None:
        self._logged += written

    def step(self, database: Database, *, idle: bool) -> None:
        if self.due and (idle or self._logged >= WHEN_BUSY):
            self._move(database)

    def finish(self, database: Database) -> None:
        if self._on_disk:
            self._move(database)

    def _move(self, database: Database) -> None:
        # Where it fails, the log stays whole and durable as it is; the next commit tells if the disk is really broken.
        with contextlib.suppress(sqlite3.Error):
            database.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        self._logged = 0
