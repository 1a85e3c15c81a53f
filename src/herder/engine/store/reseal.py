"""Rotating the encryption key: everything that the current key did not encrypt is encrypted again, in short steps.

Revisions and values stay as they are, only how they lie on disk changes. Once it is through, older keys are no longer
needed. Values that were written before their resource was to be encrypted are sealed as well.
"""

from __future__ import annotations

from herder.engine.store.database import Database
from herder.engine.store.records import Key

STEP = 128


class Reseal:
    """One pass over the log, as a chore for the writer."""

    def __init__(self) -> None:
        self._after = 0

    def __call__(self, database: Database) -> bool:
        connection = database.connection
        if database.cipher is None:
            return False
        rows = connection.execute(
            "SELECT revision, resource, namespace, name, sealed, value FROM revisions AS r JOIN lives AS l"
            " ON l.life = r.life WHERE revision > ? ORDER BY revision LIMIT ?",
            (self._after, STEP),
        ).fetchall()
        current = database.cipher.writes_with
        again = []
        for revision, resource, namespace, name, sealed, value in rows:
            if sealed and value.startswith(current.encode()):
                continue
            key = Key(resource, namespace, name)
            now_sealed, now = database.sealed(key, revision, database.opened(key, revision, sealed, value))
            if sealed or now_sealed:
                again.append((now_sealed, now, revision))
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("UPDATE revisions SET sealed = ?, value = ? WHERE revision = ?", again)
        if not rows:
            database.forget_other_seals()
        connection.execute("COMMIT")
        self._after = rows[-1][0] if rows else self._after
        return bool(rows)
