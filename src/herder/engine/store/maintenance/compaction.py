"""Compaction: delete superseded and deleted revisions, in steps that do not delay writes.

A pass walks the log once, oldest first, and deletes what each revision superseded. Its position is kept in the
database, so it never visits a row twice. The newest state as of the compacted revision of every object that existed
then stays, so queries for later revisions stay correct. Free pages are reused; the file does not shrink.
"""

from __future__ import annotations

import sqlite3

from herder.engine.store.database import Database

STEP = 256
"""Revisions visited per transaction: one to three milliseconds."""


class Compaction:
    """One compaction up to a revision, as a maintenance task for the writer."""

    def __init__(self, up_to: int) -> None:
        self._up_to = up_to
        self._started = False

    def __call__(self, database: Database) -> bool:
        """Do one step; return whether there is more to do."""
        if not self._started:
            self._started = True
            self._up_to = max(self._up_to, int(database.state("compacted") or 0))
            database.set_state(compacted=self._up_to)
            return True
        # A step that is lost in a power loss is repeated, so it does not need an fsync.
        database.connection.execute("PRAGMA synchronous = NORMAL")
        try:
            return self._step(database)
        finally:
            # SQLite ignores the pragma inside a transaction, and all later commits would skip the fsync.
            if database.connection.in_transaction:
                database.connection.execute("ROLLBACK")
            database.connection.execute("PRAGMA synchronous = FULL")

    def _step(self, database: Database) -> bool:
        connection = database.connection
        swept = int(database.state("swept") or 0)
        rows = connection.execute(
            "SELECT revision, previous, r.object_id, deleted = revision"
            " FROM revisions AS r JOIN objects AS o ON o.object_id = r.object_id"
            " WHERE revision > ? AND revision <= ? ORDER BY revision LIMIT ?",
            (swept, self._up_to, STEP),
        ).fetchall()
        if not rows:
            return False
        connection.execute("BEGIN IMMEDIATE")
        self._delete(connection, rows)
        connection.execute("INSERT OR REPLACE INTO state VALUES ('swept', ?)", (rows[-1][0],))
        connection.execute("COMMIT")
        return len(rows) == STEP

    def _delete(self, connection: sqlite3.Connection, rows: list[tuple[int, int, int, int]]) -> None:
        superseded = [(previous,) for _, previous, _, _ in rows if previous]
        deleted = [(revision,) for revision, _, _, end in rows if end]
        connection.executemany("DELETE FROM revisions WHERE revision = ?", superseded + deleted)
        gone = [(object_id,) for _, _, object_id, is_last in rows if is_last]
        connection.executemany("DELETE FROM objects WHERE object_id = ?", gone)
