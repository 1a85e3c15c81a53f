"""Database schema and its migrations.

The table `objects` has a row for each object from its creation to its deletion and compaction; the revision that
created it is its ID. Each row points to the newest revision, so opening a store reads the live objects and never scans
`revisions`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from herder.engine.store.errors import SchemaTooNew, StoreError

APPLICATION_ID = 0x48455244
"""SQLite application ID of a store ("HERD"), so that the database of another program is never opened as a store."""

_LOG = """
CREATE TABLE log (
    revision  INTEGER PRIMARY KEY,
    resource  TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    created   INTEGER NOT NULL,
    previous  INTEGER NOT NULL,
    deleted   INTEGER NOT NULL,
    value     BLOB NOT NULL
) STRICT;
CREATE INDEX log_by_key ON log (resource, namespace, name, revision);
CREATE TABLE state (name TEXT PRIMARY KEY, value ANY) STRICT, WITHOUT ROWID;
"""

_LIVES = """
CREATE TABLE lives (
    life      INTEGER PRIMARY KEY,
    resource  TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    newest    INTEGER NOT NULL,
    ended     INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX lives_now ON lives (resource, namespace, name) WHERE ended = 0;
CREATE INDEX lives_ended ON lives (resource, namespace, name) WHERE ended > 0;
CREATE TABLE revisions (
    revision INTEGER PRIMARY KEY,
    life     INTEGER NOT NULL,
    previous INTEGER NOT NULL,
    at       REAL NOT NULL,
    sealed   INTEGER NOT NULL,
    value    BLOB NOT NULL
) STRICT;
CREATE INDEX revisions_of_life ON revisions (life, revision);
CREATE TABLE seals (key_id TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;
"""

_LOG_INTO_LIVES = """
INSERT INTO lives
    SELECT created, resource, namespace, name, max(revision), max(CASE WHEN deleted THEN revision ELSE 0 END)
    FROM log GROUP BY created;
INSERT INTO revisions
    SELECT revision, created, previous, CAST(strftime('%s', 'now') AS REAL), 0, value FROM log ORDER BY revision;
DROP TABLE log;
"""

_OBJECTS = """
ALTER TABLE lives RENAME TO objects;
ALTER TABLE objects RENAME COLUMN life TO object_id;
ALTER TABLE objects RENAME COLUMN ended TO deleted;
ALTER TABLE revisions RENAME COLUMN life TO object_id;
DROP INDEX lives_now;
DROP INDEX lives_ended;
DROP INDEX revisions_of_life;
CREATE UNIQUE INDEX live_objects ON objects (resource, namespace, name) WHERE deleted = 0;
CREATE INDEX deleted_objects ON objects (resource, namespace, name) WHERE deleted > 0;
CREATE INDEX revisions_of_object ON revisions (object_id, revision);
"""


def _to_1(connection: sqlite3.Connection) -> None:
    _run(connection, _LOG)


def _to_2(connection: sqlite3.Connection) -> None:
    """Add a table of objects (opening no longer reads the log), encryption, and the time of each revision.

    The times of existing revisions are unknown. They get the current time, so that age-based compaction does not drop
    them early.
    """
    _run(connection, _LIVES + _LOG_INTO_LIVES)


def _to_3(connection: sqlite3.Connection) -> None:
    """Rename `lives` to `objects`, and its columns to what they hold."""
    _run(connection, _OBJECTS)


MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (_to_1, _to_2, _to_3)
"""The n-th function migrates version n-1 to version n; version 0 is an empty file."""

VERSION = len(MIGRATIONS)


def migrate(connection: sqlite3.Connection, *, up_to: int = VERSION) -> None:
    """Migrate the database to the current version, one transaction per step; refuse foreign and newer databases."""
    check(connection)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    for target, step in enumerate(MIGRATIONS[version:up_to], start=version + 1):
        connection.execute("BEGIN EXCLUSIVE")
        try:
            step(connection)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {target}")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise


def check(connection: sqlite3.Connection) -> None:
    """Raise unless the database is empty or a store that this program can read."""
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError as error:
        raise StoreError(f"store file cannot be read as a store: {error}") from error
    if application != APPLICATION_ID and (tables or version):
        raise StoreError("store file belongs to another program; check the data directory")
    if version > VERSION:
        raise SchemaTooNew(
            f"store has schema version {version}, this program supports up to {VERSION}; use a newer program"
        )


def _run(connection: sqlite3.Connection, script: str) -> None:
    """Run a script inside the open transaction, which `executescript` would commit."""
    for statement in script.split(";\n"):
        if statement.strip():
            connection.execute(statement)
