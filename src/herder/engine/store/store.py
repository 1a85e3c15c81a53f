"""Revisioned object store: live objects in memory, history on disk; a write is acknowledged once it is fsynced."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

from herder.engine.logs import get_logger
from herder.engine.store.cipher import Cipher
from herder.engine.store.database import Database, connect
from herder.engine.store.directory import RESERVE, Directory, starting_revision
from herder.engine.store.errors import Compacted, FutureRevision, RevisionConflict, StoreFailed
from herder.engine.store.history import History
from herder.engine.store.hub import BACKLOG, Hub, Watch, matches
from herder.engine.store.maintenance.backup import write_backup
from herder.engine.store.maintenance.compaction import Compaction
from herder.engine.store.maintenance.reseal import Reseal
from herder.engine.store.records import Change, Delete, Encode, Event, Key, Put, Record, Restored
from herder.engine.store.statistics import StoreStatistics, database_bytes
from herder.engine.store.table import Table, page, record_path
from herder.engine.store.writer import InlineWriter, MaintenanceTask, ThreadWriter, Write, Writer

log = get_logger(__name__)

Records = list[Record]

RENEW_BATCH = 500

PROBE_INITIAL_DELAY, PROBE_MAX_DELAY = 1.0, 30.0
"""Seconds until the store retries by itself after a failed commit: first delay and maximum."""

HISTORY_BYTES = 4 << 30
"""Whoever may update one object could else fill the disk, and so keep everybody from writing."""

SNAPSHOTS = 16
"""Number of past lists cached in memory, so that paging through a list does not read the disk for each page."""


class Store:
    """Key-value store with revisions and watches. Create it with `open`; call it from the event loop's thread only.

    Callers must not modify returned records.
    """

    def __init__(
        self, database: Database, directory: Directory | None, *, clock: Callable[[], float], inline: bool
    ) -> None:
        self._database = database
        self._directory = directory
        self._clock = clock

        self._records: dict[Key, Record] = {}
        self._tables: dict[str, Table] = {}
        self._load()

        self._compacted = int(database.state("compacted") or 0)
        self._restored = int(database.state("restored") or 0)
        self._restored_from = database.state("restored_from")
        self._hub = Hub(database.last()[0])
        self._assigned = self._hub.revision
        self._latest: dict[Key, Event] = {}
        """Last submitted but uncommitted change of each key."""
        self._submitted: dict[Key, Write] = {}
        """The write that contains that change, by the same keys."""

        self._failure: StoreFailed | None = None
        self._failed = asyncio.Event()  # set after a fatal failure
        self._epoch = 0  # number of failed commits
        self._failed_commits = 0
        self._probe: asyncio.TimerHandle | None = None
        self._closed = False
        self._snapshots: OrderedDict[tuple[str, str, int], Records] = OrderedDict()
        self._history = History(database, None if inline or directory is None else directory.database)
        writer = InlineWriter if inline or directory is None else ThreadWriter
        self._writer: Writer = writer(database, directory, self._publish)

    @classmethod
    def open(
        cls,
        directory: Path | None,
        *,
        clock: Callable[[], float],
        cipher: Cipher | None = None,
        encrypted: Callable[[str], bool] = lambda resource: False,
        inline: bool = False,
        start: int = 0,
    ) -> Store:
        """Open or create the store in a directory, or an empty in-memory store (None), which commits inline.

        `clock` returns the wall time that dates the history. Values of resources for which `encrypted` returns True are
        sealed with `cipher`. `inline` commits on the calling thread, before `write` returns. An in-memory store assigns
        revisions after `start`: use a value beyond the revisions of the store that it replaces, so that its watches
        restart.
        """
        if directory is None:
            database = Database(connect(None), cipher=cipher, encrypted=encrypted)
            if start:
                database.set_state(compacted=start)
            return cls(database, None, clock=clock, inline=True)
        opened = Directory(directory)
        try:
            connection = connect(opened.database)
            try:
                database = Database(connection, cipher=cipher, encrypted=encrypted)
                _resume_revision(database, opened, clock())
                return cls(database, opened, clock=clock, inline=inline)
            except BaseException:
                connection.close()
                raise
        except BaseException:
            opened.close()
            raise

    def _load(self) -> None:
        by_resource: dict[str, Records] = {}
        for record in self._database.live():
            self._records[record.key] = record
            by_resource.setdefault(record.key.resource, []).append(record)
        self._tables = {resource: Table(records) for resource, records in by_resource.items()}

    @property
    def revision(self) -> int:
        """The last committed revision: everything up to it is readable and was offered to watches."""
        return self._hub.revision

    @property
    def compacted(self) -> int:
        """The oldest revision that can be read and that a watch can start from."""
        return self._compacted

    @property
    def failure(self) -> StoreFailed | None:
        """Error of the last commit, or None if it succeeded. Health checks report it."""
        return self._failure

    async def wait_failed(self) -> StoreFailed:
        """Wait for a fatal failure, after which the store rejects all writes and the process should exit."""
        await self._failed.wait()
        assert self._failure is not None
        return self._failure

    def get(self, key: Key) -> Record | None:
        return self._records.get(key)

    def latest(self, key: Key) -> Record | None:
        """Return the state that the next write of this key is checked against: committed or in flight."""
        event = self._latest.get(key)
        if event is None:
            return self._records.get(key)
        return None if event.deleted else event.record

    def list(self, resource: str, namespace: str = "", *, after: str = "", limit: int = 0) -> Sequence[Record]:
        """Return a snapshot in list order (`Key.path`); `after` and `limit` select one page after that path."""
        table = self._tables.get(resource)
        records = table.select(namespace) if table is not None else []
        return page(records, after, limit) if after or limit else records

    def all(self) -> Sequence[Record]:
        """Return every live record of every resource."""
        return list(self._records.values())

    def statistics(self) -> StoreStatistics:
        """Current numbers for metrics. The cost depends on the number of resources, not of objects."""
        path = self._directory.database if self._directory is not None else None
        return StoreStatistics(
            objects={resource: len(table.records) for resource, table in self._tables.items()},
            pending=len(self._submitted),
            failed_commits=self._failed_commits,
            watches=self._hub.counts(),
            commit_times=self._writer.commit_times,
            database_bytes=database_bytes(path) if path is not None else 0,
        )

    def count(self, resource: str) -> int:
        table = self._tables.get(resource)
        return len(table.records) if table is not None else 0

    def write(self, *changes: Change) -> asyncio.Future[Records]:
        """Submit changes atomically. The future resolves when they are on disk and published.

        Raises RevisionConflict or StoreFailed immediately. The future returns the written records, final states for
        deletions.
        """
        if self._failure is not None and self._failure.fatal:
            raise self._failure
        if self._closed:
            raise StoreFailed("store is closed", fatal=True)
        done: asyncio.Future[Records] = asyncio.get_running_loop().create_future()
        if len({change.key for change in changes}) != len(changes) or not changes:
            raise ValueError("write needs at least one change, and at most one change per object")
        currents = [self._check_precondition(change) for change in changes]
        revision = self._assigned
        events = []
        for change, current in zip(changes, currents, strict=True):
            revision += 1
            key = change.key
            created = revision if current is None else current.created
            record = Record(key, revision, created, change.encode(revision))
            events.append(Event(revision, record, current, type(change) is Delete))
        self._assigned = revision
        write = Write(events, self._clock(), self._epoch, done)
        for event in events:
            self._latest[event.record.key] = event
            self._submitted[event.record.key] = write
        self._writer.submit(write)
        return done

    async def commit(self, *changes: Change) -> Records:
        """Write the changes and wait for the commit. Raises RevisionConflict once the conflicting write is
        committed.

        Use it for read-modify-write loops over `get` or `list`: if the conflict were raised immediately, they would
        read the same state again and spin.
        """
        try:
            return await self.write(*changes)
        except RevisionConflict as conflict:
            await self.wait_committed(self.in_flight(conflict.key))
            raise

    def in_flight(self, key: Key) -> Write | None:
        """Return the uncommitted write that contains the latest state of the key, if any."""
        return self._submitted.get(key)

    async def wait_committed(self, write: Write | None) -> None:
        """Return once the write is committed; raise StoreFailed if it failed.

        Every response derived from `latest` waits here first: a crash must not revoke what a response stated, be it a
        success or an error.
        """
        if write is not None and not write.committed:
            await write.wait()

    def _check_precondition(self, change: Change) -> Record | None:
        current = self.latest(change.key)
        expected = change.expected
        if expected is not None and expected != (0 if current is None else current.revision):
            raise RevisionConflict(change.key, current)
        if current is None and type(change) is Delete:
            raise RevisionConflict(change.key, None)
        return current

    def _publish(self, writes: Sequence[Write], failure: StoreFailed | None) -> None:
        """Publish committed writes in revision order, or fail them all."""
        if failure is not None:
            self._fail(writes, failure)
            return
        if self._failure is not None:
            self._recover()
        published = [event for write in writes for event in write.events]
        for event in published:
            self._apply(event)
        self._hub.publish(published)
        for write in writes:
            write.resolve(None)

    def _fail(self, writes: Sequence[Write], failure: StoreFailed) -> None:
        """Discard everything in flight: it was submitted with the failed writes or may depend on them."""
        self._failed_commits += 1
        if writes[-1].epoch == self._epoch:
            self._epoch += 1
            self._latest.clear()
            self._submitted.clear()
        for write in writes:
            write.resolve(failure)
        if self._failure is None or failure.fatal:
            log.error("commit failed", error=failure.message, fatal=failure.fatal)
        self._failure = failure
        if failure.fatal:
            self._failed.set()
        elif self._probe is None:
            self._probe_after(PROBE_INITIAL_DELAY)

    def _recover(self) -> None:
        self._failure = None
        log.info("commits work again", revision=self.revision)

    def _probe_after(self, delay: float) -> None:
        self._probe = asyncio.get_running_loop().call_later(delay, self._start_probe, delay)

    def _start_probe(self, delay: float) -> None:
        """Commit a small change, so that health recovers without a client that retries."""
        self._probe = None
        if self._failure is None or self._failure.fatal or self._closed:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.add_done_callback(lambda done: self._probed(done, delay))
        self._writer.add_task(MaintenanceTask(_probe, done))

    def _probed(self, done: asyncio.Future[None], delay: float) -> None:
        failed = done.cancelled() or done.exception() is not None
        if self._failure is None or self._failure.fatal or self._closed:
            return
        if failed:
            self._probe_after(min(2 * delay, PROBE_MAX_DELAY))
        else:
            self._recover()

    def _apply(self, event: Event) -> None:
        key = event.record.key
        if event.deleted:
            del self._records[key]
        else:
            self._records[key] = event.record
        table = self._tables.get(key.resource)
        if table is None:
            table = self._tables[key.resource] = Table()
        table.apply(event)
        if self._latest.get(key) is event:
            del self._latest[key], self._submitted[key]

    def watch(
        self,
        resource: str,
        namespace: str = "",
        name: str = "",
        *,
        since: int,
        backlog: int = BACKLOG,
        backlog_bytes: int | None = None,
    ) -> Watch:
        """Watch all events after `since`, in order: past events first, then live ones. Raises Compacted.

        An empty namespace or name matches any. An empty resource matches all resources; namespace and name must then be
        empty. Set `backlog_bytes` for client watches: the watch is closed when more is buffered for its reader.
        """
        if not resource and (namespace or name):
            raise ValueError("watch without a resource cannot select a namespace or a name")
        if since < self._compacted:
            raise Compacted(since, self._compacted)
        wanted = (resource, namespace, name)
        recent = self._hub.recent_after
        watch = self._hub.watch(wanted, since=max(since, recent), backlog=backlog, backlog_bytes=backlog_bytes)
        if since < recent:

            async def replay(after: int, up_to: int) -> Sequence[Event]:
                return await self._history.events(wanted, after=after, up_to=up_to)

            watch.replay_from_disk(replay, since=since, up_to=recent)
        return watch

    async def get_at(self, key: Key, revision: int) -> Record | None:
        """Return the object as of a revision; raises Compacted or FutureRevision."""
        self._check_readable(revision)
        current = self._records.get(key)
        if current is not None and current.revision <= revision:
            return current
        return await self._history.get_at(key, revision)

    async def list_at(
        self, resource: str, namespace: str, revision: int, *, after: str = "", limit: int = 0
    ) -> Sequence[Record]:
        """Return the list as of a revision, or one page of it; raises Compacted or FutureRevision."""
        self._check_readable(revision)
        records = await self._snapshot(resource, namespace, revision)
        return page(records, after, limit)

    def is_past(self, revision: int) -> bool:
        """Whether lists of a revision are read from the database, so that they share no memory with the live
        objects."""
        return revision < self._hub.recent_after

    async def revision_at(self, time: float) -> int:
        """Return the last revision committed at or before a wall time, as far back as history is kept."""
        return max(self._compacted, await self._history.revision_at(time))

    def _check_readable(self, revision: int) -> None:
        if revision < self._compacted:
            raise Compacted(revision, self._compacted)
        if revision > self.revision:
            raise FutureRevision(revision, self.revision)

    async def _snapshot(self, resource: str, namespace: str, revision: int) -> Records:
        table = self._tables.get(resource)
        if revision >= self._hub.recent_after and (table is None or table.changed <= revision):
            return table.select(namespace) if table is not None else []
        wanted = (resource, namespace, revision)
        snapshot = self._snapshots.get(wanted)
        if snapshot is None:
            if revision >= self._hub.recent_after:
                snapshot = self._rewind(resource, namespace, revision)
            else:
                snapshot = await self._history.list_at(resource, namespace, revision)
            snapshot.sort(key=record_path)
            self._snapshots[wanted] = snapshot
            if len(self._snapshots) > SNAPSHOTS:
                self._snapshots.popitem(last=False)
        else:
            self._snapshots.move_to_end(wanted)
        return snapshot

    def _rewind(self, resource: str, namespace: str, revision: int) -> Records:
        """Return the current list with all events after the revision undone."""
        past = {record.key: record for record in self.list(resource, namespace)}
        for event in reversed(self._hub.since(revision)):
            if matches(event, (resource, namespace, "")):
                if event.previous is None:
                    del past[event.record.key]
                else:
                    past[event.record.key] = event.previous
        return list(past.values())

    async def compact(self, revision: int) -> None:
        """Discard revisions that were superseded or deleted at or before a revision. Writes continue meanwhile."""
        revision = min(revision, self.revision)
        if revision <= self._compacted or self._closed:
            return
        self._compacted = revision
        for wanted in [wanted for wanted in self._snapshots if wanted[2] < revision]:
            del self._snapshots[wanted]
        await self._run_task(Compaction(revision))

    async def reseal(self) -> None:
        """Encrypt everything with the active key, after which older keys are not needed. Writes continue meanwhile."""
        await self._run_task(Reseal())

    async def _run_task(self, step: Callable[[Database], bool]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writer.add_task(MaintenanceTask(step, done))
        await done

    async def compact_by_age(
        self, retain: float | Callable[[], float], *, every: float = 60.0, most_bytes: int = HISTORY_BYTES
    ) -> None:
        """Background task: keep the history of the last `retain` seconds, and less where that takes more space than
        it may. Runs until cancelled or closed."""
        while not self._closed and not self._failed.is_set():
            try:
                kept = retain() if callable(retain) else retain
                fitting = await self._history.revision_within(most_bytes)
                await self.compact(max(fitting, await self._history.revision_at(self._clock() - kept)))
            except Exception as error:  # uncompacted history only costs space, so the next interval is soon enough
                log.warning("compaction failed", error=str(error), retry_in=every)
            await asyncio.sleep(every)

    @property
    def restored(self) -> Restored | None:
        """The last time that the database was replaced by an older one; None if that never happened."""
        return Restored(self._restored, self._restored_from) if self._restored else None

    async def renew(self, encode: Callable[[Record], Encode]) -> int:
        """Rewrite every object after a restore, so that its resourceVersion is one that no client has seen.

        Clients that compare an object's resourceVersion with the last one they saw (agents do) would otherwise ignore
        it as stale forever. Idempotent: an interrupted renewal continues at the next call. Returns the number of
        objects written.
        """
        stale = [record for record in self._records.values() if record.revision <= self._restored]
        for start in range(0, len(stale), RENEW_BATCH):
            batch = stale[start : start + RENEW_BATCH]
            await self.write(*(Put(record.key, encode(record), record.revision) for record in batch))
        return len(stale)

    async def backup(self, path: Path) -> int:
        """Copy a consistent state to a new file while the store is in use; returns the revision of the copy.

        Encryption keys are not included: the key file must be backed up separately.
        """
        return await self._history.run(lambda connection: write_backup(connection, path, self._clock()))

    async def close(self) -> None:
        """Wait until all submitted writes are on disk, close the watches, and release the directory."""
        if self._closed:
            return
        self._closed = True
        if self._probe is not None:
            self._probe.cancel()
        await self._writer.close()
        self._hub.close()
        await self._history.close()
        self._database.close()
        if self._directory is not None:
            if self._failure is None:
                self._directory.record_exact(self.revision)
            self._directory.close()


def _probe(database: Database) -> bool:
    database.set_state(probed=1)
    database.set_state(probed=None)
    return False


def _resume_revision(database: Database, directory: Directory, now: float) -> None:
    """Choose the revision to continue from, so that no revision is assigned twice (see `directory`)."""
    revision, written = database.last()
    backup_at = database.state("backup_at")
    idle = now - max(written, backup_at or 0)
    start = starting_revision(directory, database=revision, backup=backup_at is not None, idle=idle)
    if start.replaced:
        resumed = {"revision": start.revision, "compacted": start.revision, "restored": start.revision}
        database.set_state(backup_at=None, restored_from=backup_at or written, **resumed)
    elif start.revision != revision:
        database.set_state(revision=start.revision)
    directory.reserve(start.revision + RESERVE)
