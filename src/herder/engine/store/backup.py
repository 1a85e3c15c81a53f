"""Copies of a store, and coming back from one without ever giving out a revision twice.

A backup is one database file that says when it was made. It holds no keys: encrypted values stay encrypted, and the
key file must be kept as well, somewhere else. When a store finds itself opened on a backup, restored by `restore`
or put in place by hand, it goes on far beyond any revision that the original can have given out since (see
`directory`), and counts everything before as compacted, so that clients of the original list anew.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from herder.engine.store import schema
from herder.engine.store.directory import BEFORE_RESTORE, DATABASE, RESTORED, finish_restore, locked
from herder.engine.store.errors import StoreError
from herder.engine.store.files import create_durably, sync_directory, sync_file


def write_backup(source: sqlite3.Connection, path: Path, now: float) -> int:
    """Copy one consistent state of `source` to a new file, which appears under its name only once it is whole."""
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
            (revision,) = copy.execute(
                "SELECT max(coalesce((SELECT max(revision) FROM revisions), 0),"
                " coalesce((SELECT max(value) FROM state WHERE name IN ('compacted', 'revision')), 0))"
            ).fetchone()
        sync_file(staged)
        staged.rename(path)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
    return int(revision)


def backup_directory(directory: Path, path: Path, *, now: float) -> int:
    """Back up a store from outside its process, while it goes on: SQLite lets others read one moment of it."""
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
    """Replace the store in a directory by a backup. What was there is kept beside it, in `before-restore`.

    The store must not be open. An interrupted restore is finished by the next open, or has not happened.
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


def _copy(backup: Path, staged: Path) -> None:
    try:
        with (
            closing(sqlite3.connect(f"{backup.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)) as source,
            closing(sqlite3.connect(staged, isolation_level=None)) as copy,
        ):
            schema.check(source)
            if source.execute("PRAGMA quick_check").fetchone() != ("ok",):
                raise StoreError(f"{backup} is damaged")
            if source.execute("PRAGMA user_version").fetchone() == (0,):
                raise StoreError(f"{backup} is not a backup of a store")
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
            copy.execute("INSERT OR IGNORE INTO state VALUES ('backup_at', 0)")
    except sqlite3.Error as error:
        raise StoreError(f"cannot read the backup {backup}: {error}") from error
    sync_file(staged)
