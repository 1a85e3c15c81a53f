"""What can go wrong in the store, each with what a person or a caller needs to act on it."""

from __future__ import annotations

from herder.engine.meta.errors import ServiceUnavailable
from herder.engine.store.records import Key, Record


class StoreError(Exception):
    """The store cannot be opened or used as asked; the message says why and what to do."""


class StoreLocked(StoreError):
    """Another process has this directory open."""


class SchemaTooNew(StoreError):
    """The database was written by a newer version of this program."""


class KeyMissing(StoreError):
    """Values are encrypted with a key that was not given. Nothing was changed; give the key and open again."""


class StoreFailed(ServiceUnavailable):
    """The disk refused a commit: none of its changes happened, and what was committed can still be read.

    If it is `fatal`, nobody knows what the disk kept: the store takes no more writes, and the process has to restart,
    which reads the disk again. Else the next write is tried as usual.
    """

    def __init__(self, message: str, *, fatal: bool = False) -> None:
        again = {} if fatal else {"retry-after": "1"}
        super().__init__(message, details=None if fatal else {"retryAfterSeconds": 1}, headers=again)
        self.fatal = fatal


class RevisionConflict(Exception):
    """The object is not at the expected revision; `current` is its latest state, or None where it does not exist."""

    def __init__(self, key: Key, current: Record | None) -> None:
        at = f"at revision {current.revision}" if current else "absent"
        super().__init__(f"{key} is {at}")
        self.key = key
        self.current = current


class Compacted(Exception):
    """That revision's history is gone; the oldest that can still be read is `compacted`."""

    def __init__(self, revision: int, compacted: int) -> None:
        super().__init__(f"revision {revision} is older than the compacted revision {compacted}")
        self.revision = revision
        self.compacted = compacted


class FutureRevision(Exception):
    """That revision has not been given out yet; `current` is the newest."""

    def __init__(self, revision: int, current: int) -> None:
        super().__init__(f"revision {revision} is newer than the current revision {current}")
        self.revision = revision
        self.current = current


class Overflow(Exception):
    """A watch fell too far behind and was ended; its reader starts again from what it saw last."""
