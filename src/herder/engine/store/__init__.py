"""Append-only revision store over SQLite: group commit, resumable watches, history, compaction, encryption, backup.

    write(*changes) ──► revisions assigned on the event loop, preconditions checked against the latest state
          │                              │
          │                    writer thread: all pending writes, one transaction, one fsync
          ▼                              │
    future resolves ◄── published: live tables, recent events, watches ◄──┘

The store handles keys and bytes and knows nothing about kinds. One process and one event loop own it.
"""

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
from herder.engine.store.maintenance.backup import restore
from herder.engine.store.records import Change, Delete, Encode, Event, Key, Put, Record, Restored
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
    "Restored",
    "RevisionConflict",
    "SchemaTooNew",
    "Store",
    "StoreError",
    "StoreFailed",
    "StoreLocked",
    "Watch",
    "restore",
]
