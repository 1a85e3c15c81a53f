"""SQLite database of one store: open it, load the live objects, append commits. `history` reads past revisions."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from herder.engine.store import schema
from herder.engine.store.cipher import Cipher, missing_keys_message
from herder.engine.store.errors import KeyMissing, StoreError
from herder.engine.store.files import create_durably
from herder.engine.store.records import Event, Key, Record

OLDEST_SQLITE = (3, 37)
"""The first version with STRICT tables."""

_CACHE_KIB = 8_192
_BUSY_SECONDS = 5.0
_OVERHEAD = 512
_PAGES_TOUCHED = 5 * 4096
_ROWS_AT_ONCE = 64


class Commit(Protocol):
    """Changes that become durable together, and the wall time at which they were submitted."""

    @property
    def events(self) -> Sequence[Event]: ...
    @property
    def at(self) -> float: ...


class Database:
    """The writable connection. Only one thread may use it at a time."""

    def __init__(
        self, connection: sqlite3.Connection, *, cipher: Cipher | None, encrypted: Callable[[str], bool]
    ) -> None:
        self.connection = connection
        self.cipher = cipher
        self._encrypted = encrypted
        schema.migrate(connection)
        self._seals = {row[0] for row in connection.execute("SELECT key_id FROM seals")}
        if unknown := sorted(seal for seal in self._seals if cipher is None or not cipher.has_key(seal)):
            raise KeyMissing(missing_keys_message(unknown))

    def state(self, name: str) -> float | None:
        row = self.connection.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
        return None if row is None else row[0]

    def set_state(self, **values: float | None) -> None:
        """Write entries of the state table in one transaction; None deletes an entry."""
        self.connection.execute("BEGIN IMMEDIATE")
        for name, value in values.items():
            if value is None:
                self.connection.execute("DELETE FROM state WHERE name = ?", (name,))
            else:
                self.connection.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (name, value))
        self.connection.execute("COMMIT")

    def last(self) -> tuple[int, float]:
        """Return the last assigned revision known to the database, and its time. Compaction may have deleted its
        row."""
        row = self.connection.execute("SELECT revision, at FROM revisions ORDER BY revision DESC LIMIT 1").fetchone()
        revision, at = row or (0, 0.0)
        return max(revision, int(self.state("compacted") or 0), int(self.state("revision") or 0)), at

    def live(self) -> list[Record]:
        """Return every live object. Decrypting all of them here also verifies the keys."""
        rows = self.connection.execute(
            "SELECT resource, namespace, name, objects.object_id, newest, sealed, value"
            " FROM objects JOIN revisions ON revision = newest WHERE deleted = 0"
        )
        intern = sys.intern
        records = []
        for resource, namespace, name, object_id, newest, sealed, value in rows:
            key = Key(intern(resource), intern(namespace), name)
            records.append(Record(key, newest, object_id, self.unseal_value(key, newest, sealed, value)))
        return records

    def unseal_value(self, key: Key, revision: int, sealed: int, value: bytes) -> bytes:
        if not sealed:
            return value
        assert self.cipher is not None  # __init__ raises KeyMissing if a key is unknown
        return self.cipher.open(key, revision, value)

    def append(self, commits: Sequence[Commit]) -> int:
        """Commit in one transaction with one fsync. Returns the approximate number of bytes appended to the log."""
        rows: list[tuple[int, int, int, float, int, bytes]] = []
        new_objects: dict[int, tuple[int, str, str, str, int, int]] = {}
        updated_objects: dict[int, tuple[int, int, int]] = {}
        for commit in commits:
            for event in commit.events:
                record = event.record
                key, revision, object_id = record.key, event.revision, record.created
                deleted = revision if event.deleted else 0
                sealed, value = self.seal_value(key, revision, record.value)
                previous = event.previous.revision if event.previous is not None else 0
                rows.append((revision, object_id, previous, commit.at, sealed, value))
                if not previous or object_id in new_objects:
                    new_objects[object_id] = (object_id, *key, revision, deleted)
                else:
                    updated_objects[object_id] = (revision, deleted, object_id)
        self._insert(rows, list(new_objects.values()), list(updated_objects.values()))
        return sum(len(row[-1]) for row in rows) + _OVERHEAD * (len(rows) + len(new_objects)) + _PAGES_TOUCHED

    def _insert(
        self,
        rows: Sequence[tuple[int, int, int, float, int, bytes]],
        new_objects: Sequence[tuple[int, str, str, str, int, int]],
        updated_objects: Sequence[tuple[int, int, int]],
    ) -> None:
        """Update deleted objects before inserting new ones: a unique index allows only one live object per key."""
        execute = self.connection.execute
        execute("BEGIN IMMEDIATE")
        self._insert_into("revisions", rows)
        if updated_objects:
            self.connection.executemany(
                "UPDATE objects SET newest = ?, deleted = ? WHERE object_id = ?", updated_objects
            )
        if new_objects:
            self._insert_into("objects", new_objects)
        execute("COMMIT")

    def _insert_into(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert many rows per statement, because the thread gives up and reacquires the GIL for each statement."""
        start = 0
        while start < len(rows):
            count = min(1 << ((len(rows) - start).bit_length() - 1), _ROWS_AT_ONCE)
            values = [value for row in rows[start : start + count] for value in row]
            self.connection.execute(_insert_statement(table, len(rows[0]), count), values)
            start += count

    def seal_value(self, key: Key, revision: int, value: bytes) -> tuple[int, bytes]:
        if self.cipher is None or not self._encrypted(key.resource):
            return 0, value
        if self.cipher.active_key_id not in self._seals:
            self._record_seal(self.cipher.active_key_id)
        return 1, self.cipher.seal(key, revision, value)

    def _record_seal(self, key_id: str) -> None:
        """Record the key ID before the first value that needs it, so that opening without the key fails immediately."""
        self.connection.execute("INSERT OR IGNORE INTO seals VALUES (?)", (key_id,))
        self._seals.add(key_id)

    def delete_other_seals(self) -> None:
        """Delete the recorded key IDs other than the active one; nothing is sealed with them any more."""
        assert self.cipher is not None
        self.connection.execute("DELETE FROM seals WHERE key_id != ?", (self.cipher.active_key_id,))
        self._seals &= {self.cipher.active_key_id}

    def close(self) -> None:
        self.connection.close()


@cache
def _insert_statement(table: str, columns: int, rows: int) -> str:
    """Return the INSERT statement. `rows` is always a power of two, so few statements are compiled."""
    row = f"({', '.join('?' * columns)})"
    return f"INSERT INTO {table} VALUES {', '.join([row] * rows)}"  # noqa: S608 -- constant table names


def connect(path: Path | None) -> sqlite3.Connection:
    """Open a connection whose commits return once they are fsynced. Automatic checkpoints are off: the writer runs
    them."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old; the store needs {oldest} or newer")
    if path is None:
        return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    if not path.exists():
        create_durably(path, b"")  # mode 0600, which the write-ahead log inherits
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        schema.check(connection)
        if connection.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
            raise StoreError(f"{path}: the file system does not support a write-ahead log; use a local file system")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    except BaseException:
        connection.close()
        raise
    return connection
