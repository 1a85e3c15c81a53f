"""Which failures of a commit a store survives.

A write that fails leaves nothing behind: the log of SQLite counts a transaction only once its last frame is whole, and
the next transaction overwrites what was written of this one. A full disk is the usual case.

A sync that fails is different. The kernel may have dropped the pages that it could not write and call them clean, so
that a second sync succeeds and proves nothing. What the disk holds is known only after it was read again. The same is
true of everything that should not happen at all.
"""

from __future__ import annotations

import errno
import sqlite3

from herder.engine.store.errors import StoreFailed

_SURVIVED = (
    "SQLITE_FULL",
    "SQLITE_IOERR_WRITE",
    "SQLITE_IOERR_SHMSIZE",
    "SQLITE_IOERR_NOMEM",
    "SQLITE_NOMEM",
    "SQLITE_BUSY",
    "SQLITE_LOCKED",
    "SQLITE_CANTOPEN",
)
_SURVIVED_BY_ERRNO = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def commit_failure(error: Exception) -> StoreFailed:
    """What to answer to those whose changes were in a commit that failed with this error."""
    if is_survived(error):
        return StoreFailed(f"the store cannot commit: {error}; free disk space, writes are tried again")
    return StoreFailed(f"the store cannot commit: {error}; check the disk and restart", fatal=True)


def is_survived(error: Exception) -> bool:
    if isinstance(error, sqlite3.Error):
        name = getattr(error, "sqlite_errorname", "")
        return any(name == known or name.startswith(f"{known}_") for known in _SURVIVED)
    return isinstance(error, OSError) and error.errno in _SURVIVED_BY_ERRNO
