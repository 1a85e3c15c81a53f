"""The database of one store: how it is opened, loaded, and appended to. History is read in `history`."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from herder.engine.store import schema
from herder.engine.store.cipher import Cipher, missing
from herder.engine.store.errors import KeyMissing, StoreError
from herder.engine.store.files import create_durably
from herder.engine.store.records import Event, Key, Record

OLDEST_SQLITE = (3, 37)
"""The first with strict tables."""

_CACHE_KIB = 8_192
_BUSY_SECONDS = 5.0
_OVERHEAD = 512
_PAGES_TOUCHED = 5 * 4096
_ROWS_AT_ONCE = 64


class Commit(Protocol):
    """Changes that become durable together, and the wall time at which they were asked for."""

    @property
    def events(self) -> Sequence[Event]: ...
    @property
    def at(self) -> float: ...


class Database:
    """One writable connection. Whoever uses it does so from one thread at a time."""

    def __init__(
        self, connection: sqlite3.Connection, *, cipher: Cipher | None, encrypted: Callable[[str], bool]
    ) -> None:
        self.connection = connection
        self.cipher = cipher
        self._encrypted = encrypted
        schema.migrate(connection)
        self._seals = {row[0] for row in connection.execute("SELECT key_id FROM seals")}
        if unknown := sorted(seal for seal in self._seals if cipher is None or not cipher.knows(seal)):
            raise KeyMissing(missing(unknown))

    def state(self, name: str) -> float | None:
        row = self.connection.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
        return None if row is None else row[0]

    def set_state(self, **values: float | None) -> None:
        """Remember small facts, all in one transaction; None forgets one."""
        self.connection.execute("BEGIN IMMEDIATE")
        for name, value in values.items():
            if value is None:
                self.connection.execute("DELETE FROM state WHERE name = ?", (name,))
            else:
                self.connection.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (name, value))
        self.connection.execute("COMMIT")

    def last(self) -> tuple[int, float]:
        """The last revision given out, as far as the database knows, and when. Compaction may have taken its row."""
        row = self.connection.execute("SELECT revision, at FROM revisions ORDER BY revision DESC LIMIT 1").fetchone()
        revision, at = row or (0, 0.0)
        return max(revision, int(self.state("compacted") or 0), int(self.state("revision") or 0)), at

    def live(self) -> list[Record]:
        """Every live object. Decrypting them all here is also the proof that the keys are right."""
        rows = self.connection.execute(
            "SELECT resource, namespace, name, lives.life, newest, sealed, value"
            " FROM lives JOIN revisions ON revision = newest WHERE ended = 0"
        )
        intern = sys.intern
        records = []
        for resource, namespace, name, life, newest, sealed, value in rows:
            key = Key(intern(resource), intern(namespace), name)
            records.append(Record(key, newest, life, self.opened(key, newest, sealed, value)))
        return records

    def opened(self, key: Key, revision: int, sealed: int, value: bytes) -> bytes:
        if not sealed:
            return value
        assert self.cipher is not None  # every key that ever sealed is known, or the store would not be open
        return self.cipher.open(key, revision, value)

    def append(self, commits: Sequence[Commit]) -> int:
        """Make all of these durable in one transaction, with one sync. Returns about how many bytes were logged."""
        rows: list[tuple[int, int, int, float, int, bytes]] = []
        born: dict[int, tuple[int, str, str, str, int, int]] = {}
        moved: dict[int, tuple[int, int, int]] = {}
        for commit in commits:
            for event in commit.events:
                record = event.record
                key, revision, life = record.key, event.revision, record.created
                ended = revision if event.deleted else 0
                sealed, value = self.sealed(key, revision, record.value)
                previous = event.previous.revision if event.previous is not None else 0
                rows.append((revision, life, previous, commit.at, sealed, value))
                if not previous or life in born:
                    born[life] = (life, *key, revision, ended)
                else:
                    moved[life] = (revision, ended, life)
        self._insert(rows, list(born.values()), list(moved.values()))
        return sum(len(row[-1]) for row in rows) + _OVERHEAD * (len(rows) + len(born)) + _PAGES_TOUCHED

    def _insert(
        self,
        rows: Sequence[tuple[int, int, int, float, int, bytes]],
        born: Sequence[tuple[int, str, str, str, int, int]],
        moved: Sequence[tuple[int, int, int]],
    ) -> None:
        """Lives that ended go before those that began, since a key has but one live life at any time."""
        execute = self.connection.execute
        execute("BEGIN IMMEDIATE")
        self._insert_into("revisions", rows)
        if moved:
            self.connection.executemany("UPDATE lives SET newest = ?, ended = ? WHERE life = ?", moved)
        if born:
            self._insert_into("lives", born)
        execute("COMMIT")

    def _insert_into(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Many rows with each statement: after each, the interpreter is handed from thread to thread and back."""
        start = 0
        while start < len(rows):
            count = min(1 << ((len(rows) - start).bit_length() - 1), _ROWS_AT_ONCE)
            values = [value for row in rows[start : start + count] for value in row]
            self.connection.execute(_insertion(table, len(rows[0]), count), values)
            start += count

    def sealed(self, key: Key, revision: int, value: bytes) -> tuple[int, bytes]:
        if self.cipher is None or not self._encrypted(key.resource):
            return 0, value
        if self.cipher.writes_with not in self._seals:
            self._remember_seal(self.cipher.writes_with)
        return 1, self.cipher.seal(key, revision, value)

    def _remember_seal(self, key_id: str) -> None:
        """On disk before the first value that needs it, so that an open without the key is refused at once."""
        self.connection.execute("INSERT OR IGNORE INTO seals VALUES (?)", (key_id,))
        self._seals.add(key_id)

    def forget_other_seals(self) -> None:
        """Nothing is sealed any more but with the current key."""
        assert self.cipher is not None
        self.connection.execute("DELETE FROM seals WHERE key_id != ?", (self.cipher.writes_with,))
        self._seals &= {self.cipher.writes_with}

    def close(self) -> None:
        self.connection.close()


@cache
def _insertion(table: str, columns: int, rows: int) -> str:
    """Only powers of two are asked for, so that few statements are ever compiled."""
    row = f"({', '.join('?' * columns)})"
    return f"INSERT INTO {table} VALUES {', '.join([row] * rows)}"  # noqa: S608 -- the names are our own


def connect(path: Path | None) -> sqlite3.Connection:
    """A connection set up for durability (a commit returns when it is synced); checkpoints are the writer's matter."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        raise StoreError(f"the store needs SQLite {oldest} or newer, this Python has {sqlite3.sqlite_version}")
    if path is None:
        return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    if not path.exists():
        create_durably(path, b"")  # for its owner alone; the log beside it inherits that
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        schema.check(connection)
        if connection.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
            raise StoreError(f"{path} is on a file system that cannot hold a write-ahead log")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    except BaseException:
        connection.close()
        raise
    return connection
