"""Back up and restore a store without ever assigning a revision twice.

A backup is one database file with a timestamp. It contains no keys: encrypted values stay encrypted, and the key file
must be backed up separately. A store that is opened on a backup, whether by `restore` or by copying the file, continues
far beyond any revision that the original can have assigned since (see `directory`). Everything before counts as
compacted, so clients of the original list again.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from herder.engine.store import schema
from herder.engine.store.directory import BEFORE_RESTORE, DATABASE, RESTORED, finish_restore, locked
from herder.engine.store.errors import StoreError
from herder.engine.store.files import create_durably, sync_directory, sync_file


def write_backup(source: sqlite3.Connection, path: Path, now: float) -> int:
    """Copy a consistent state of `source` to a new file, which gets its final name only once it is complete."""
    if path.exists():
        raise StoreError(f"{path} already exists; choose another file")
    staged = path.with_name(path.name + ".partial")
    staged.unlink(missing_ok=True)
    create_durably(staged, b"")
    try:
        with closing(sqlite3.connect(staged, isolation_level=None)) as copy:
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
            copy.execute("INSERT OR REPLACE INTO state VALUES ('backup_at', ?)", (now,))
            revision = _last_revision(copy)
        sync_file(staged)
        staged.rename(path)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
    return revision


def _last_revision(database: sqlite3.Connection) -> int:
    (revision,) = database.execute(
        "SELECT max(coalesce((SELECT max(revision) FROM revisions), 0),"
        " coalesce((SELECT max(value) FROM state WHERE name IN ('compacted', 'revision')), 0))"
    ).fetchone()
    return int(revision)


def backup_directory(directory: Path, path: Path, *, now: float) -> int:
    """Back up a store from another process while the store is in use, through a read-only SQLite connection."""
    database = directory / DATABASE
    if not database.is_file():
        raise StoreError(f"{directory} contains no store; check --data-dir")
    try:
        with closing(
            sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        ) as source:
            schema.check(source)
            return write_backup(source, path, now)
    except sqlite3.Error as error:
        raise StoreError(f"cannot read {database}: {error}") from error


def restore(backup: Path, directory: Path) -> None:
    """Replace the store in a directory with a backup. The previous database is kept in `before-restore`.

    The store must not be open. An interrupted restore either has not happened or is completed by the next open.
    """
    if not backup.is_file():
        raise StoreError(f"{backup} is not a file")
    with locked(directory):
        finish_restore(directory)
        staged = directory / (RESTORED + ".partial")
        staged.unlink(missing_ok=True)
        create_durably(staged, b"")
        try:
            _copy(backup, staged)
        except BaseException:
            staged.unlink(missing_ok=True)
            raise
        aside = directory / BEFORE_RESTORE
        if aside.exists():
            for old in aside.iterdir():
                old.unlink()
        staged.rename(directory / RESTORED)
        sync_directory(directory)
        finish_restore(directory)


class BackupContent(NamedTuple):
    """Facts about a valid backup. Its encrypted values need the keys with these IDs."""

    revision: int
    schema: int
    key_ids: frozenset[str]


def check_backup(backup: Path) -> BackupContent:
    """Read a whole backup; raise StoreError if it is damaged, or of a newer version of the store."""
    try:
        with closing(_open_backup(backup)) as source:
            version = _check(backup, source)
            sealed = version >= 2  # the first schema has neither encryption nor the table of revisions
            keys = source.execute("SELECT key_id FROM seals") if sealed else ()
            return BackupContent(_last_revision(source) if sealed else 0, version, frozenset(key for (key,) in keys))
    except sqlite3.Error as error:
        raise StoreError(f"cannot read the backup {backup}: {error}") from error


def _open_backup(backup: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{backup.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)


def _check(backup: Path, source: sqlite3.Connection) -> int:
    schema.check(source)
    if source.execute("PRAGMA quick_check").fetchone() != ("ok",):
        raise StoreError(f"{backup} is damaged")
    (version,) = source.execute("PRAGMA user_version").fetchone()
    if version == 0:
        raise StoreError(f"{backup} is not a backup of a store")
    return int(version)


def _copy(backup: Path, staged: Path) -> None:
    try:
        with closing(_open_backup(backup)) as source, closing(sqlite3.connect(staged, isolation_level=None)) as copy:
            _check(backup, source)
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
            copy.execute("INSERT OR IGNORE INTO state VALUES ('backup_at', 0)")
    except sqlite3.Error as error:
        raise StoreError(f"cannot read the backup {backup}: {error}") from error
    sync_file(staged)
