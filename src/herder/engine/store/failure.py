"""Classify commit failures as recoverable or fatal.

A failed write leaves nothing behind: SQLite's write-ahead log counts a transaction only once its last frame is
complete, and the next transaction overwrites the partial one. A full disk is the usual case.

A failed fsync is different. The kernel may have dropped the dirty pages and marked them clean, so a second fsync
succeeds and proves nothing; only reading the disk again shows what it holds. Unexpected errors are treated the same.
"""

from __future__ import annotations

import errno
import sqlite3

from herder.engine.store.errors import StoreFailed

_RECOVERABLE = (
    "SQLITE_FULL",
    "SQLITE_IOERR_WRITE",
    "SQLITE_IOERR_SHMSIZE",
    "SQLITE_IOERR_NOMEM",
    "SQLITE_NOMEM",
    "SQLITE_BUSY",
    "SQLITE_LOCKED",
    "SQLITE_CANTOPEN",
)
_RECOVERABLE_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def commit_failure(error: Exception) -> StoreFailed:
    """Return the error for the callers whose changes were in the failed commit."""
    if is_recoverable(error):
        return StoreFailed(f"the store cannot commit: {error}; free disk space, writes are tried again")
    return StoreFailed(f"the store cannot commit: {error}; check the disk and restart", fatal=True)


def is_recoverable(error: Exception) -> bool:
    if isinstance(error, sqlite3.Error):
        name = getattr(error, "sqlite_errorname", "")
        return any(name == known or name.startswith(f"{known}_") for known in _RECOVERABLE)
    return isinstance(error, OSError) and error.errno in _RECOVERABLE_ERRNOS
