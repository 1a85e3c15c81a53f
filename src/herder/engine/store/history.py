"""Read past revisions from disk: an object or a list as of a revision, and the events between two revisions.

Each query is one read transaction that checks the compacted revision first, so a result is either complete or refused,
even while compaction runs. Reads use a connection and a thread of their own: they neither wait for writes nor block
them. An in-memory store has only one connection.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from herder.engine.store.database import Database
from herder.engine.store.errors import Compacted
from herder.engine.store.records import Event, Key, Record

CHUNK = 512
CHUNK_BYTES = 4 << 20
"""Maximum number and bytes of events read from disk at a time: bounds the memory of a watch that starts far back."""

Result = TypeVar("Result")

_OBJECTS_THEN = (
    "SELECT object_id, resource, namespace, name FROM objects WHERE resource = :resource AND deleted = 0"
    " AND object_id <= :at{more}"
    " UNION ALL "
    "SELECT object_id, resource, namespace, name FROM objects WHERE resource = :resource AND deleted > 0"
    " AND object_id <= :at AND deleted > :at{more}"
)
_RECORDS_THEN = (
    "SELECT resource, namespace, name, r.object_id, revision, sealed, value FROM ({objects}) AS o JOIN revisions AS r"
    " ON revision = (SELECT max(revision) FROM revisions WHERE object_id = o.object_id AND revision <= :at)"
)
_EVENTS = (
    "SELECT r.revision, r.sealed, r.value, r.object_id, resource, namespace, name, deleted = r.revision,"
    " p.revision, p.sealed, p.value"
    " FROM revisions AS r JOIN objects AS o ON o.object_id = r.object_id"
    " LEFT JOIN revisions AS p ON p.revision = r.previous"
    " WHERE r.revision > :after AND r.revision <= :up_to{more}"
    " ORDER BY r.revision LIMIT :limit"
)


class History:
    """Queries past revisions. Without a `path`, queries use the writer's connection on the calling thread."""

    def __init__(self, database: Database, path: Path | None) -> None:
        self._database = database
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._executor: ThreadPoolExecutor | None = None

    async def get_at(self, key: Key, revision: int) -> Record | None:
        records = await self.run(lambda connection: self._records(connection, *key, at=revision))
        return records[0] if records else None

    async def list_at(self, resource: str, namespace: str, revision: int) -> list[Record]:
        return await self.run(lambda connection: self._records(connection, resource, namespace, "", at=revision))

    async def events(self, wanted: tuple[str, str, str], *, after: int, up_to: int, limit: int = CHUNK) -> list[Event]:
        return await self.run(lambda connection: self._events(connection, *wanted, after, up_to, limit))

    async def revision_at(self, time: float) -> int:
        """Return the last revision written at or before a time; 0 if that is older than the history kept."""
        return await self.run(lambda connection: revision_at(connection, time))

    async def revision_within(self, most_bytes: int) -> int:
        """Return the revision after which the history fits into `most_bytes`; 0 if all of it does."""
        return await self.run(lambda connection: revision_within(connection, most_bytes))

    def _records(
        self, connection: sqlite3.Connection, resource: str, namespace: str, name: str, *, at: int
    ) -> list[Record]:
        check_compacted(connection, at)
        # With a name, an empty namespace means a cluster-scoped object; without a name, it means all namespaces.
        more = (
            " AND namespace = :namespace AND name = :name" if name else " AND namespace = :namespace" * bool(namespace)
        )
        query = _RECORDS_THEN.format(objects=_OBJECTS_THEN.format(more=more))
        rows = connection.execute(query, {"resource": resource, "namespace": namespace, "name": name, "at": at})
        records = []
        for resource_, namespace_, name_, object_id, revision, sealed, value in rows:
            key = Key(sys.intern(resource_), sys.intern(namespace_), name_)
            records.append(Record(key, revision, object_id, self._database.unseal_value(key, revision, sealed, value)))
        return records

    def _events(
        self,
        connection: sqlite3.Connection,
        resource: str,
        namespace: str,
        name: str,
        after: int,
        up_to: int,
        limit: int,
    ) -> list[Event]:
        check_compacted(connection, after)
        arguments = {"resource": resource, "namespace": namespace, "name": name}
        more = "".join(f" AND {column} = :{column}" for column, wanted in arguments.items() if wanted)
        rows = connection.execute(
            _EVENTS.format(more=more), {**arguments, "after": after, "up_to": up_to, "limit": limit}
        )
        unseal = self._database.unseal_value
        events, size = [], 0
        for (
            revision,
            sealed,
            value,
            object_id,
            resource_,
            namespace_,
            name_,
            deleted,
            old,
            old_sealed,
            old_value,
        ) in rows:
            key = Key(sys.intern(resource_), sys.intern(namespace_), name_)
            record = Record(key, revision, object_id, unseal(key, revision, sealed, value))
            previous = None if old is None else Record(key, old, object_id, unseal(key, old, old_sealed, old_value))
            events.append(Event(revision, record, previous, bool(deleted)))
            size += len(value) + len(old_value or b"")
            if size > CHUNK_BYTES:
                break
        return events

    async def run(self, query: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run a query on the reader thread, in one read transaction."""
        if self._path is None:
            return query(self._database.connection)
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="herder-store-reader")
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._run_on_reader, query)

    def _run_on_reader(self, query: Callable[[sqlite3.Connection], Result]) -> Result:
        if self._connection is None:
            assert self._path is not None
            self._connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA query_only = ON")
        self._connection.execute("BEGIN")
        try:
            return query(self._connection)
        finally:
            self._connection.execute("COMMIT")

    async def close(self) -> None:
        if self._executor is not None:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._close_reader)
            self._executor.shutdown()
            self._executor = None

    def _close_reader(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def check_compacted(connection: sqlite3.Connection, revision: int) -> None:
    row = connection.execute("SELECT value FROM state WHERE name = 'compacted'").fetchone()
    if row is not None and revision < row[0]:
        raise Compacted(revision, row[0])


def revision_at(connection: sqlite3.Connection, time: float) -> int:
    """Bisect the revisions by time. Times rise with revisions; a clock that was set back makes the result
    approximate."""
    low, high = 0, connection.execute("SELECT coalesce(max(revision), 0) FROM revisions").fetchone()[0]
    while low < high:
        middle = (low + high + 1) // 2
        row = connection.execute(
            "SELECT revision, at FROM revisions WHERE revision >= ? ORDER BY revision LIMIT 1", (middle,)
        ).fetchone()
        if row[1] <= time:
            low = row[0]
        else:
            high = middle - 1
    return int(low)


def revision_within(connection: sqlite3.Connection, most_bytes: int) -> int:
    """The sizes of single revisions are read only where the database is larger than its history may be."""
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    if (used := (pages - free) * size) <= most_bytes or used <= most_bytes + _live_bytes(connection):
        return 0
    written = 0
    for revision, length in connection.execute("SELECT revision, length(value) FROM revisions ORDER BY revision DESC"):
        written += length
        if written > most_bytes:
            return int(revision)
    return 0


def _live_bytes(connection: sqlite3.Connection) -> int:
    query = "SELECT sum(length(value)) FROM objects JOIN revisions ON revision = newest WHERE deleted = 0"
    return int(connection.execute(query).fetchone()[0] or 0)
