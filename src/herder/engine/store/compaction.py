"""Forgetting: what was superseded or deleted at or before a revision goes, in steps too short to hold up a write.

A sweep walks the log once, oldest first, and removes what each revision superseded; how far it came is kept in
the database, so it never looks at a row twice. The newest state at the compacted revision of everything that lived
then stays, and with it every answer about later revisions. Space is reused, the file does not shrink.
"""

from __future__ import annotations

import sqlite3

from herder.engine.store.database import Database

STEP = 256
"""Revisions looked at in one transaction: one to three milliseconds."""


class Compaction:
    """One compaction up to a revision, as a chore for the writer."""

    def __init__(self, up_to: int) -> None:
        self._up_to = up_to
        self._begun = False

    def __call__(self, database: Database) -> bool:
        """Do one step; says whether there is more to do."""
        if not self._begun:
            self._begun = True
            self._up_to = max(self._up_to, int(database.state("compacted") or 0))
            database.set_state(compacted=self._up_to)
            return True
        # Losing a step to a power loss only means doing it again, so it need not wait for the disk.
        database.connection.execute("PRAGMA synchronous = NORMAL")
        try:
            return self._step(database)
        finally:
            # Within a transaction SQLite refuses to change it, and every later commit would go without a sync.
            if database.connection.in_transaction:
                database.connection.execute("ROLLBACK")
            database.connection.execute("PRAGMA synchronous = FULL")

    def _step(self, database: Database) -> bool:
        connection = database.connection
        swept = int(database.state("swept") or 0)
        rows = connection.execute(
            "SELECT revision, previous, r.life, ended = revision FROM revisions AS r JOIN lives AS l ON l.life = r.life"
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
        ended = [(revision,) for revision, _, _, end in rows if end]
        connection.executemany("DELETE FROM revisions WHERE revision = ?", superseded + ended)
        connection.executemany("DELETE FROM lives WHERE life = ?", [(life,) for _, _, life, end in rows if end])
