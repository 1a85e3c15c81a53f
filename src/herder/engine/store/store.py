"""The store: what is live is in memory, what was is on disk, and a write counts when it is synced."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

from herder.engine.logs import get_logger
from herder.engine.store.backup import write_backup
from herder.engine.store.cipher import Cipher
from herder.engine.store.compaction import Compaction
from herder.engine.store.database import Database, connect
from herder.engine.store.directory import RESERVE, Directory, where_to_start
from herder.engine.store.errors import Compacted, FutureRevision, RevisionConflict, StoreFailed
from herder.engine.store.history import History
from herder.engine.store.hub import BACKLOG, Hub, Watch, matches
from herder.engine.store.records import Change, Delete, Encode, Event, Key, Put, Record
from herder.engine.store.reseal import Reseal
from herder.engine.store.table import Table, page, path_of
from herder.engine.store.writer import InlineWriter, MaintenanceTask, ThreadWriter, Write, Writer

log = get_logger(__name__)

Records = list[Record]

RENEWED_AT_ONCE = 500

PROBE_FIRST, PROBE_LIMIT = 1.0, 30.0
"""Seconds until a store whose last commit failed tries one by itself, at first and at most."""

SNAPSHOTS = 16
"""Past lists kept in memory, so that paging through one does not read the disk for each page."""


class Store:
    """Made by `open`. All methods belong to the event loop's thread; results must not be changed."""

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
        self._hub = Hub(database.last()[0])
        self._assigned = self._hub.revision
        self._latest: dict[Key, Event] = {}
        """The last submitted change of each key that has one on its way to disk."""
        self._submitted: dict[Key, Write] = {}
        """The write that holds that change, by the same keys."""

        self._failure: StoreFailed | None = None
        self._failed = asyncio.Event()  # for good
        self._epoch = 0  # failed commits
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
        """Open or create the store in a directory, or an empty one in memory (None), which commits inline.

        `clock` is the wall time that history is dated by. Values of resources for which `encrypted` holds are
        sealed with `cipher`. `inline` commits on the calling thread, before `write` returns. One in memory counts its
        revisions from `start`: beyond those of one that it takes the place of, so that watches of that start anew.
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
        """The last committed revision: everything up to it can be read and has been offered to watches."""
        return self._hub.revision

    @property
    def compacted(self) -> int:
        """The oldest revision that can still be read, and that a watch can still start from."""
        return self._compacted

    @property
    def failure(self) -> StoreFailed | None:
        """Why the last commit failed; None while the store works. Health checks report it."""
        return self._failure

    async def wait_failed(self) -> StoreFailed:
        """Wait until the store takes no more writes until it is opened again; the process should end."""
        await self._failed.wait()
        assert self._failure is not None
        return self._failure

    def get(self, key: Key) -> Record | None:
        return self._records.get(key)

    def latest(self, key: Key) -> Record | None:
        """The state that the next write of this key is checked against: what is committed, or still on its way."""
        event = self._latest.get(key)
        if event is None:
            return self._records.get(key)
        return None if event.deleted else event.record

    def list(self, resource: str, namespace: str = "", *, after: str = "", limit: int = 0) -> Sequence[Record]:
        """A snapshot in list order (`Key.path`); `after` and `limit` make it one page, after that path."""
        table = self._tables.get(resource)
        records = table.select(namespace) if table is not None else []
        return page(records, after, limit) if after or limit else records

    def all(self) -> Sequence[Record]:
        """Everything that lives, whatever it is: for who must look at all of it once."""
        return list(self._records.values())

    def count(self, resource: str) -> int:
        table = self._tables.get(resource)
        return len(table.records) if table is not None else 0

    def write(self, *changes: Change) -> asyncio.Future[Records]:
        """Submit changes that happen together or not at all. Done when they are on disk and published.

        Raises RevisionConflict or StoreFailed at once. The results are the records written, final states for deletions.
        """
        if self._failure is not None and self._failure.fatal:
            raise self._failure
        if self._closed:
            raise StoreFailed("the store is closed", fatal=True)
        done: asyncio.Future[Records] = asyncio.get_running_loop().create_future()
        if len({change.key for change in changes}) != len(changes) or not changes:
            raise ValueError("a write needs at least one change, and no two changes of one object")
        currents = [self._checked(change) for change in changes]
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
        """Write the changes and wait for the disk. Raises RevisionConflict once what it lost to is committed.

        For writers that start from `get` or `list`: at once, they would find the same state again, and try for ever.
        """
        try:
            return await self.write(*changes)
        except RevisionConflict as conflict:
            await self.wait_committed(self.in_flight(conflict.key))
            raise

    def in_flight(self, key: Key) -> Write | None:
        """The write that holds the latest state of the key, if that state is not committed yet."""
        return self._submitted.get(key)

    async def wait_committed(self, write: Write | None) -> None:
        """Return once the write is committed; raise StoreFailed if it failed.

        Every answer that was derived from `latest` passes here before it is given: a crash must not be able to take
        back what a client was told, be it a success or a refusal.
        """
        if write is not None and not write.committed:
            await write.wait()

    def _checked(self, change: Change) -> Record | None:
        current = self.latest(change.key)
        expected = change.expected
        if expected is not None and expected != (0 if current is None else current.revision):
            raise RevisionConflict(change.key, current)
        if current is None and type(change) is Delete:
            raise RevisionConflict(change.key, None)
        return current

    def _publish(self, writes: Sequence[Write], failure: StoreFailed | None) -> None:
        """Make committed writes visible, in revision order; or tell everyone that the disk refused them."""
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
            write.settle(None)

    def _fail(self, writes: Sequence[Write], failure: StoreFailed) -> None:
        """Forget all that is in flight: it was submitted with these writes, or may be based on them."""
        if writes[-1].epoch == self._epoch:
            self._epoch += 1
            self._latest.clear()
            self._submitted.clear()
        for write in writes:
            write.settle(failure)
        if self._failure is None or failure.fatal:
            log.error("commit failed", error=failure.message, fatal=failure.fatal)
        self._failure = failure
        if failure.fatal:
            self._failed.set()
        elif self._probe is None:
            self._probe_after(PROBE_FIRST)

    def _recover(self) -> None:
        self._failure = None
        log.info("commits work again", revision=self.revision)

    def _probe_after(self, delay: float) -> None:
        self._probe = asyncio.get_running_loop().call_later(delay, self._start_probe, delay)

    def _start_probe(self, delay: float) -> None:
        """Commit something small: health must come back without a client that tries."""
        self._probe = None
        if self._failure is None or self._failure.fatal or self._closed:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.add_done_callback(lambda done: self._probed(done, delay))
        self._writer.add_chore(MaintenanceTask(_probe, done))

    def _probed(self, done: asyncio.Future[None], delay: float) -> None:
        failed = done.cancelled() or done.exception() is not None
        if self._failure is None or self._failure.fatal or self._closed:
            return
        if failed:
            self._probe_after(min(2 * delay, PROBE_LIMIT))
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
        """Every event after `since`, in order, first the past and then as it happens; raises Compacted.

        An empty namespace or name means any; so does an empty resource, where the others are empty too. A watch for a
        client has `backlog_bytes`, and is ended where more waits for its reader.
        """
        if not resource and (namespace or name):
            raise ValueError("a watch of everything cannot be narrowed to a namespace or a name")
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
        """The object as it was at that revision; raises Compacted or FutureRevision."""
        self._check_readable(revision)
        current = self._records.get(key)
        if current is not None and current.revision <= revision:
            return current
        return await self._history.get_at(key, revision)

    async def list_at(
        self, resource: str, namespace: str, revision: int, *, after: str = "", limit: int = 0
    ) -> Sequence[Record]:
        """The list as it was at that revision, or one page of it; raises Compacted or FutureRevision."""
        self._check_readable(revision)
        records = await self._snapshot(resource, namespace, revision)
        return page(records, after, limit)

    async def revision_at(self, time: float) -> int:
        """The last revision committed at or before that wall time, as far back as history goes."""
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
                snapshot = self._rewound(resource, namespace, revision)
            else:
                snapshot = await self._history.list_at(resource, namespace, revision)
            snapshot.sort(key=path_of)
            self._snapshots[wanted] = snapshot
            if len(self._snapshots) > SNAPSHOTS:
                self._snapshots.popitem(last=False)
        else:
            self._snapshots.move_to_end(wanted)
        return snapshot

    def _rewound(self, resource: str, namespace: str, revision: int) -> Records:
        """The present list with everything undone that happened after that revision."""
        then = {record.key: record for record in self.list(resource, namespace)}
        for event in reversed(self._hub.since(revision)):
            if matches(event, (resource, namespace, "")):
                if event.previous is None:
                    del then[event.record.key]
                else:
                    then[event.record.key] = event.previous
        return list(then.values())

    async def compact(self, revision: int) -> None:
        """Forget what was superseded or deleted at or before that revision. Writes go on meanwhile."""
        revision = min(revision, self.revision)
        if revision <= self._compacted or self._closed:
            return
        self._compacted = revision
        for wanted in [wanted for wanted in self._snapshots if wanted[2] < revision]:
            del self._snapshots[wanted]
        await self._do(Compaction(revision))

    async def reseal(self) -> None:
        """Encrypt everything with the current key; the others are no longer needed after. Writes go on meanwhile."""
        await self._do(Reseal())

    async def _do(self, chore: Callable[[Database], bool]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writer.add_chore(MaintenanceTask(chore, done))
        await done

    async def compact_by_age(self, retain: float | Callable[[], float], *, every: float = 60.0) -> None:
        """A background task: keep the history of the last `retain` seconds. Runs until cancelled or closed."""
        while not self._closed and not self._failed.is_set():
            try:
                kept = retain() if callable(retain) else retain
                await self.compact(await self._history.revision_at(self._clock() - kept))
            except Exception as error:  # old history costs space, no more: the next attempt is soon enough
                log.warning("compaction failed", error=str(error), retry_in=every)
            await asyncio.sleep(every)

    async def renew(self, encode: Callable[[Record], Encode]) -> int:
        """After a restore, write every object again, so that its revision too is one that nobody has seen before.

        A client that compares an object's revision with the last it saw (agents do) would else call it too old for
        ever. Done once; interrupted, it goes on at the next call. Answers how many were written.
        """
        stale = [record for record in self._records.values() if record.revision <= self._restored]
        for start in range(0, len(stale), RENEWED_AT_ONCE):
            batch = stale[start : start + RENEWED_AT_ONCE]
            await self.write(*(Put(record.key, encode(record), record.revision) for record in batch))
        return len(stale)

    async def backup(self, path: Path) -> int:
        """Copy everything as of one moment to a new file while the store goes on; returns the copy's revision.

        The key of encrypted values is not in it: it has a file of its own, to be kept elsewhere.
        """
        return await self._history.ask(lambda connection: write_backup(connection, path, self._clock()))

    async def close(self) -> None:
        """Wait until everything submitted is on disk, end the watches, and let go of the directory."""
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
                self._directory.settle(self.revision)
            self._directory.close()


def _probe(database: Database) -> bool:
    database.set_state(probed=1)
    database.set_state(probed=None)
    return False


def _resume_revision(database: Database, directory: Directory, now: float) -> None:
    """Decide the revision to go on from, so that none is ever given out twice (see `directory`)."""
    revision, written = database.last()
    backup_at = database.state("backup_at")
    idle = now - max(written, backup_at or 0)
    start = where_to_start(directory, database=revision, backup=backup_at is not None, idle=idle)
    if start.replaced:
        went_on_at = {"revision": start.revision, "compacted": start.revision, "restored": start.revision}
        database.set_state(backup_at=None, **went_on_at)
    elif start.revision != revision:
        database.set_state(revision=start.revision)
    directory.reserve(start.revision + RESERVE)
