"""Reading the past from disk: one object or a list as of a revision, and the events between two revisions.

Each question is one read transaction that first looks at the compacted revision, so that an answer is either
whole or refused, whatever compaction does meanwhile. Reads go through a connection and a thread of their own,
and neither wait for writes nor hold them up; a store in memory has only the one connection.
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
"""Events, and bytes of events, read from disk at a time: bounds the memory of a watch that starts far back."""

Result = TypeVar("Result")

_LIVES_THEN = (
    "SELECT life, resource, namespace, name FROM lives WHERE resource = :resource AND ended = 0 AND life <= :at{more}"
    " UNION ALL "
    "SELECT life, resource, namespace, name FROM lives WHERE resource = :resource AND ended > 0"
    " AND life <= :at AND ended > :at{more}"
)
_RECORDS_THEN = (
    "SELECT resource, namespace, name, r.life, revision, sealed, value FROM ({lives}) AS l JOIN revisions AS r"
    " ON revision = (SELECT max(revision) FROM revisions WHERE life = l.life AND revision <= :at)"
)
_EVENTS = (
    "SELECT r.revision, r.sealed, r.value, r.life, resource, namespace, name, ended = r.revision,"
    " p.revision, p.sealed, p.value"
    " FROM revisions AS r JOIN lives AS l ON l.life = r.life LEFT JOIN revisions AS p ON p.revision = r.previous"
    " WHERE r.revision > :after AND r.revision <= :up_to{more}"
    " ORDER BY r.revision LIMIT :limit"
)


class History:
    """Asks the database about the past. `path` None: through the writer's own connection, on the calling thread."""

    def __init__(self, database: Database, path: Path | None) -> None:
        self._database = database
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._executor: ThreadPoolExecutor | None = None

    async def get_at(self, key: Key, revision: int) -> Record | None:
        records = await self.ask(lambda connection: self._records(connection, *key, at=revision))
        return records[0] if records else None

    async def list_at(self, resource: str, namespace: str, revision: int) -> list[Record]:
        return await self.ask(lambda connection: self._records(connection, resource, namespace, "", at=revision))

    async def events(self, wanted: tuple[str, str, str], *, after: int, up_to: int, limit: int = CHUNK) -> list[Event]:
        return await self.ask(lambda connection: self._events(connection, *wanted, after, up_to, limit))

    async def revision_at(self, time: float) -> int:
        """The last revision written at or before that time; 0 if that is older than anything kept."""
        return await self.ask(lambda connection: revision_at(connection, time))

    def _records(
        self, connection: sqlite3.Connection, resource: str, namespace: str, name: str, *, at: int
    ) -> list[Record]:
        check_compacted(connection, at)
        # A name without a namespace is a cluster-scoped object's; without a name, an empty namespace means all.
        more = (
            " AND namespace = :namespace AND name = :name" if name else " AND namespace = :namespace" * bool(namespace)
        )
        query = _RECORDS_THEN.format(lives=_LIVES_THEN.format(more=more))
        rows = connection.execute(query, {"resource": resource, "namespace": namespace, "name": name, "at": at})
        records = []
        for resource_, namespace_, name_, life, revision, sealed, value in rows:
            key = Key(sys.intern(resource_), sys.intern(namespace_), name_)
            records.append(Record(key, revision, life, self._database.opened(key, revision, sealed, value)))
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
        opened = self._database.opened
        events, size = [], 0
        for revision, sealed, value, life, resource_, namespace_, name_, deleted, was, was_sealed, was_value in rows:
            key = Key(sys.intern(resource_), sys.intern(namespace_), name_)
            record = Record(key, revision, life, opened(key, revision, sealed, value))
            previous = None if was is None else Record(key, was, life, opened(key, was, was_sealed, was_value))
            events.append(Event(revision, record, previous, bool(deleted)))
            size += len(value) + len(was_value or b"")
            if size > CHUNK_BYTES:
                break
        return events

    async def ask(self, question: Callable[[sqlite3.Connection], Result]) -> Result:
        if self._path is None:
            return question(self._database.connection)
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="herder-store-reader")
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._ask_reader, question)

    def _ask_reader(self, question: Callable[[sqlite3.Connection], Result]) -> Result:
        if self._connection is None:
            assert self._path is not None
            self._connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA query_only = ON")
        self._connection.execute("BEGIN")
        try:
            return question(self._connection)
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
    """By bisection over the log, since times rise with revisions (a clock that was set back only blurs the answer)."""
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
