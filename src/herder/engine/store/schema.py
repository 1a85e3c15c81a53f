"""The shape of the database, and how older shapes become the current one.

A *life* is the time of one object under one key, from its creation to its deletion; it is named by the revision
that created it. Lives point to their newest revision, so that a start reads the live objects and never the log.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from herder.engine.store.errors import SchemaTooNew, StoreError

APPLICATION_ID = 0x48455244
"""Marks the file as one of ours ("HERD"), so that no other database is taken for a store."""

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


def _to_1(connection: sqlite3.Connection) -> None:
    _run(connection, _LOG)


def _to_2(connection: sqlite3.Connection) -> None:
    """Adds lives (a start no longer reads the log), encryption, and the time of each revision.

    When the old ones were written is not known; they count from now, so that no history goes before its time.
    """
    _run(connection, _LIVES + _LOG_INTO_LIVES)


MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (_to_1, _to_2)
"""The n-th makes version n out of version n-1; version 0 is an empty file."""

VERSION = len(MIGRATIONS)


def migrate(connection: sqlite3.Connection, *, up_to: int = VERSION) -> None:
    """Bring the database to the current version, each step in its own transaction; refuse what is not ours or newer."""
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
        raise StoreError(f"this file cannot be read as a store: {error}") from error
    if application != APPLICATION_ID and (tables or version):
        raise StoreError("this file is a database of another program, not a store")
    if version > VERSION:
        raise SchemaTooNew(
            f"the store has schema version {version}, this program knows versions up to {VERSION}; use a newer program"
        )


def _run(connection: sqlite3.Connection, script: str) -> None:
    """Like executescript, but inside the transaction that is open (which executescript would commit)."""
    for statement in script.split(";\n"):
        if statement.strip():
            connection.execute(statement)
