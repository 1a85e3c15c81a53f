"""Who commits: a thread that takes everything that waits into one transaction, or the calling thread itself.

Between transactions the thread does housekeeping in short steps (compaction, moving the log into the database),
so that a write never waits for more than one step.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import NamedTuple, Protocol

from herder.engine.store.checkpoint import Checkpoints
from herder.engine.store.database import Database
from herder.engine.store.directory import RESERVE, Directory
from herder.engine.store.errors import StoreFailed
from herder.engine.store.failure import commit_failure
from herder.engine.store.records import Event, Record

MOST_AT_ONCE = 2_048
MOST_BYTES_AT_ONCE = 16 << 20
"""Writes taken into one transaction, and their bytes: bounds how long the first of them waits for the last."""


@dataclass(slots=True, eq=False)
class Write:
    """Changes on their way to disk, and who waits for them."""

    events: list[Event]
    at: float
    epoch: int
    """How many commits had failed when these changes were checked. All that were checked before a failure fail too:
    they may be based on the changes that were lost."""
    done: asyncio.Future[list[Record]]
    """The caller's, who may cancel it; the changes are committed all the same."""
    committed: bool = False
    failure: StoreFailed | None = None
    settled: asyncio.Future[None] | None = None
    """Done when the changes are committed or have failed. Created by the first that waits, since few do."""

    def settle(self, failure: StoreFailed | None) -> None:
        self.committed = failure is None
        self.failure = failure
        if self.settled is not None and not self.settled.done():
            self.settled.set_result(None)
        if self.done.done():
            return
        if failure is None:
            self.done.set_result([event.record for event in self.events])
        else:
            self.done.set_exception(failure)

    async def wait(self) -> None:
        """Return once the changes are committed; raise if their commit failed."""
        if not self.committed and self.failure is None:
            if self.settled is None:
                self.settled = asyncio.get_running_loop().create_future()
            await asyncio.wait((self.settled,))  # several may wait: none of them may cancel the future of the others
        if self.failure is not None:
            raise self.failure


class MaintenanceTask(NamedTuple):
    """Housekeeping: `step` does a little and says whether there is more to do."""

    step: Callable[[Database], bool]
    done: asyncio.Future[None]


Publish = Callable[[Sequence[Write], StoreFailed | None], None]


class Writer(Protocol):
    def submit(self, write: Write) -> None: ...
    def add_chore(self, chore: MaintenanceTask) -> None: ...
    async def close(self) -> None: ...


class InlineWriter:
    """Commits before `submit` returns: for stores in memory and for deterministic simulation."""

    def __init__(self, database: Database, directory: Directory | None, publish: Publish) -> None:
        self._log = _Log(database, directory, aside=False)
        self._publish = publish

    def submit(self, write: Write) -> None:
        self._publish([write], self._log.commit([write]))  # nothing is ever checked before the one before it is done

    def add_chore(self, chore: MaintenanceTask) -> None:
        try:
            while chore.step(self._log.database):
                pass
        except Exception as error:
            self._log.roll_back()
            chore.done.set_exception(maintenance_error(error))
        else:
            chore.done.set_result(None)

    async def close(self) -> None:
        self._log.checkpoints.finish()


class ThreadWriter:
    """Commits on a thread of its own. The loop is told once for each transaction."""

    def __init__(self, database: Database, directory: Directory | None, publish: Publish) -> None:
        self._log = _Log(database, directory, aside=True)
        self._publish = publish
        self._queue: SimpleQueue[Write | MaintenanceTask | None] = SimpleQueue()
        self._chores: deque[MaintenanceTask] = deque()
        self._closing = False
        self._thread: threading.Thread | None = None

    def submit(self, write: Write) -> None:
        self._queue.put(write)
        if self._thread is None:
            self._start()

    def add_chore(self, chore: MaintenanceTask) -> None:
        self._queue.put(chore)
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="herder-store-writer", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Returns when everything submitted before is on disk and published."""
        if self._thread is not None:
            self._queue.put(None)
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
        self._log.checkpoints.finish()

    def _run(self) -> None:
        while not self._closing:
            if writes := self._take():
                self._commit(writes)
            if self._chores:
                self._step()
        for chore in self._chores:
            _call_soon(chore.done.get_loop(), _finish, chore.done, None)  # what is left of it is done another time

    def _commit(self, writes: list[Write]) -> None:
        loop = writes[-1].done.get_loop()
        if lost := self._log.lost(writes):
            _call_soon(loop, self._publish, lost, self._log.failure)
            writes = writes[len(lost) :]
        if writes:
            _call_soon(loop, self._publish, writes, self._log.commit(writes))

    def _take(self) -> list[Write]:
        """All that waits. Sleeps until there is something, unless there is housekeeping to do."""
        writes: list[Write] = []
        size = 0
        try:
            item = self._queue.get(block=not self._chores)
            while True:
                if item is None:
                    self._closing = True
                elif isinstance(item, Write):
                    writes.append(item)
                    size += sum(len(event.record.value) for event in item.events)
                    if len(writes) >= MOST_AT_ONCE or size >= MOST_BYTES_AT_ONCE:
                        return writes
                else:
                    self._chores.append(item)
                item = self._queue.get_nowait()
        except Empty:
            return writes

    def _step(self) -> None:
        chore = self._chores[0]
        try:
            if chore.step(self._log.database):
                return
            _call_soon(chore.done.get_loop(), _finish, chore.done, None)
        except Exception as error:
            self._log.roll_back()
            _call_soon(chore.done.get_loop(), _finish, chore.done, maintenance_error(error))
        self._chores.popleft()


class _Log:
    """The commits themselves, the same for both writers."""

    def __init__(self, database: Database, directory: Directory | None, *, aside: bool) -> None:
        self.database = database
        self.checkpoints = Checkpoints(
            database.connection, directory.database if directory is not None else None, aside=aside
        )
        self._directory = directory
        self.failure: StoreFailed | None = None
        """Of the last commit, if that failed."""
        self._failed_epoch = -1

    def commit(self, writes: Sequence[Write]) -> StoreFailed | None:
        if self.failure is not None and self.failure.fatal:
            return self.failure
        try:
            self._reserve(writes[-1].events[-1].revision)
            written = self.database.append(writes)
        except Exception as error:
            self.roll_back()
            self.failure = commit_failure(error)
            self._failed_epoch = writes[-1].epoch
        else:
            self.failure = None
            self.checkpoints.note(written)
        return self.failure

    def lost(self, writes: Sequence[Write]) -> list[Write]:
        """Those of the writes that were checked before the last failure was known; they come first."""
        if self._failed_epoch < writes[0].epoch:
            return []
        return [write for write in writes if write.epoch <= self._failed_epoch]

    def _reserve(self, revision: int) -> None:
        directory = self._directory
        if directory is not None and (directory.high_water is None or revision > directory.high_water.revision):
            directory.reserve(revision + RESERVE)

    def roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self.database.connection.in_transaction:
                self.database.connection.execute("ROLLBACK")


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: object) -> None:
    with contextlib.suppress(RuntimeError):  # the loop was closed, and nobody waits any more
        loop.call_soon_threadsafe(function, *arguments)


def _finish(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def maintenance_error(error: Exception) -> StoreFailed:
    """Housekeeping that fails is told to whoever asked for it; whether writes still work, the next one finds out."""
    return StoreFailed(f"the store cannot be tidied: {error}")
