"""Errors of the store."""

from __future__ import annotations

from herder.engine.meta.errors import ServiceUnavailable
from herder.engine.store.records import Key, Record


class StoreError(Exception):
    """The store cannot be opened or used; the message says why and what to do."""


class StoreLocked(StoreError):
    """Another process has this directory open."""


class SchemaTooNew(StoreError):
    """A newer version of this program wrote the database."""


class KeyMissing(StoreError):
    """Values are encrypted with a key that is not in the key file. Nothing was changed; restore the key and open
    again."""


class StoreFailed(ServiceUnavailable):
    """A commit failed: none of its changes happened, and everything committed before can still be read.

    After a `fatal` failure it is unknown what the disk holds: the store rejects all writes, and the process must
    restart to read the disk again. After any other failure the next write is tried as usual.
    """

    def __init__(self, message: str, *, fatal: bool = False) -> None:
        headers = {} if fatal else {"retry-after": "1"}
        super().__init__(message, details=None if fatal else {"retryAfterSeconds": 1}, headers=headers)
        self.fatal = fatal


class RevisionConflict(Exception):
    """The object is not at the expected revision; `current` is its latest state, or None if it does not exist."""

    def __init__(self, key: Key, current: Record | None) -> None:
        at = f"at revision {current.revision}" if current else "absent"
        super().__init__(f"{key} is {at}")
        self.key = key
        self.current = current


class Compacted(Exception):
    """The history of this revision was compacted; `compacted` is the oldest revision that can still be read."""

    def __init__(self, revision: int, compacted: int) -> None:
        super().__init__(f"revision {revision} is older than the compacted revision {compacted}")
        self.revision = revision
        self.compacted = compacted


class FutureRevision(Exception):
    """This revision was not assigned yet; `current` is the newest."""

    def __init__(self, revision: int, current: int) -> None:
        super().__init__(f"revision {revision} is newer than the current revision {current}")
        self.revision = revision
        self.current = current


class Overflow(Exception):
    """A watch fell too far behind and was closed; its reader must list or resume from the last revision it saw."""
