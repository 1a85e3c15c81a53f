"""Append-only revisions over SQLite: group commit, watches that resume exactly, history, compaction, backup.

    write(*changes) ──► revisions given out on the loop, checked against the latest state
          │                              │
          │                    writer thread: all that waits, one transaction, one sync
          ▼                              │
    future resolves ◄── published: live tables, recent events, watches ◄──┘

The store knows keys and bytes, not kinds. One process and one event loop own it.
"""

from herder.engine.store.backup import restore
from herder.engine.store.cipher import Cipher
from herder.engine.store.errors import (
    Compacted,
    FutureRevision,
    KeyMissing,
    Overflow,
    RevisionConflict,
    SchemaTooNew,
    StoreError,
    StoreFailed,
    StoreLocked,
)
from herder.engine.store.hub import CLIENT_BACKLOG_BYTES, Watch
from herder.engine.store.records import Change, Delete, Encode, Event, Key, Put, Record
from herder.engine.store.store import Store

__all__ = [
    "CLIENT_BACKLOG_BYTES",
    "Change",
    "Cipher",
    "Compacted",
    "Delete",
    "Encode",
    "Event",
    "FutureRevision",
    "Key",
    "KeyMissing",
    "Overflow",
    "Put",
    "Record",
    "RevisionConflict",
    "SchemaTooNew",
    "Store",
    "StoreError",
    "StoreFailed",
    "StoreLocked",
    "Watch",
    "restore",
]
