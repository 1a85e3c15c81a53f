"""Encryption key rotation: encrypt again, in short steps, everything that the active key did not encrypt.

Revisions and values stay the same; only their stored form changes. Older keys are not needed afterwards. Plaintext
values of resources that are encrypted now are sealed as well.
"""

from __future__ import annotations

from herder.engine.store.database import Database
from herder.engine.store.records import Key

STEP = 128


class Reseal:
    """One pass over the log, as a maintenance task for the writer."""

    def __init__(self) -> None:
        self._after = 0

    def __call__(self, database: Database) -> bool:
        connection = database.connection
        if database.cipher is None:
            return False
        rows = connection.execute(
            "SELECT revision, resource, namespace, name, sealed, value FROM revisions AS r JOIN objects AS o"
            " ON o.object_id = r.object_id WHERE revision > ? ORDER BY revision LIMIT ?",
            (self._after, STEP),
        ).fetchall()
        current = database.cipher.active_key_id
        resealed = []
        for revision, resource, namespace, name, sealed, value in rows:
            if sealed and value.startswith(current.encode()):
                continue
            key = Key(resource, namespace, name)
            now_sealed, new_value = database.seal_value(
                key, revision, database.unseal_value(key, revision, sealed, value)
            )
            if sealed or now_sealed:
                resealed.append((now_sealed, new_value, revision))
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("UPDATE revisions SET sealed = ?, value = ? WHERE revision = ?", resealed)
        if not rows:
            database.delete_other_seals()
        connection.execute("COMMIT")
        self._after = rows[-1][0] if rows else self._after
        return bool(rows)
