"""Group commit: a writer thread that commits all pending writes in one transaction, and an inline variant.

Between transactions the thread runs maintenance (compaction, checkpoints) in short steps, so a write never waits for
more than one step.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import NamedTuple, Protocol

from herder.engine.meta.histogram import Histogram
from herder.engine.store.database import Database
from herder.engine.store.directory import RESERVE, Directory
from herder.engine.store.errors import StoreFailed
from herder.engine.store.failure import commit_failure
from herder.engine.store.maintenance.checkpoint import Checkpoints
from herder.engine.store.records import Event, Record

MAX_BATCH_WRITES = 2_048
MAX_BATCH_BYTES = 16 << 20
"""Maximum number and bytes of writes in one transaction: bounds how long the first write waits for the last."""


@dataclass(slots=True, eq=False)
class Write:
    """Submitted changes and the futures that wait for them."""

    events: list[Event]
    at: float
    epoch: int
    """Number of failed commits when the preconditions of these changes were checked. If a commit fails, all writes
    that were checked before the failure fail too, because they may depend on the lost changes."""
    done: asyncio.Future[list[Record]]
    """The caller's future. Cancelling it does not cancel the commit."""
    committed: bool = False
    failure: StoreFailed | None = None
    resolved: asyncio.Future[None] | None = None
    """Done when the changes are committed or have failed. Created lazily, since few callers wait for it."""

    def resolve(self, failure: StoreFailed | None) -> None:
        self.committed = failure is None
        self.failure = failure
        if self.resolved is not None and not self.resolved.done():
            self.resolved.set_result(None)
        if self.done.done():
            return
        if failure is None:
            self.done.set_result([event.record for event in self.events])
        else:
            self.done.set_exception(failure)

    async def wait(self) -> None:
        """Return once the changes are committed; raise if their commit failed."""
        if not self.committed and self.failure is None:
            if self.resolved is None:
                self.resolved = asyncio.get_running_loop().create_future()
            await asyncio.wait((self.resolved,))  # shared future: a cancelled waiter must not cancel it
        if self.failure is not None:
            raise self.failure


class MaintenanceTask(NamedTuple):
    """Maintenance in steps: `step` does a bounded amount of work and returns whether there is more to do."""

    step: Callable[[Database], bool]
    done: asyncio.Future[None]


Publish = Callable[[Sequence[Write], StoreFailed | None], None]


class Writer(Protocol):
    """Commits writes and runs maintenance tasks. `InlineWriter` and `ThreadWriter` implement it."""

    @property
    def commit_times(self) -> Histogram: ...
    def submit(self, write: Write) -> None: ...
    def add_task(self, task: MaintenanceTask) -> None: ...
    async def close(self) -> None: ...


class InlineWriter:
    """Commits before `submit` returns: for in-memory stores and deterministic simulation."""

    def __init__(self, database: Database, directory: Directory | None, publish: Publish) -> None:
        self._committer = _Committer(database, directory, background=False)
        self._publish = publish
        self.commit_times = self._committer.times

    def submit(self, write: Write) -> None:
        self._publish([write], self._committer.commit([write]))  # writes are never pending, so none can be stale

    def add_task(self, task: MaintenanceTask) -> None:
        try:
            while task.step(self._committer.database):
                pass
        except Exception as error:
            self._committer.roll_back()
            task.done.set_exception(maintenance_error(error))
        else:
            task.done.set_result(None)

    async def close(self) -> None:
        self._committer.checkpoints.finish()


class ThreadWriter:
    """Commits on its own thread and notifies the event loop once per transaction."""

    def __init__(self, database: Database, directory: Directory | None, publish: Publish) -> None:
        self._committer = _Committer(database, directory, background=True)
        self._publish = publish
        self.commit_times = self._committer.times
        self._queue: SimpleQueue[Write | MaintenanceTask | None] = SimpleQueue()
        self._tasks: deque[MaintenanceTask] = deque()
        self._closing = False
        self._thread: threading.Thread | None = None

    def submit(self, write: Write) -> None:
        self._queue.put(write)
        if self._thread is None:
            self._start()

    def add_task(self, task: MaintenanceTask) -> None:
        self._queue.put(task)
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="herder-store-writer", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Return when all submitted writes are on disk and published."""
        if self._thread is not None:
            self._queue.put(None)
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
        self._committer.checkpoints.finish()

    def _run(self) -> None:
        while not self._closing:
            if writes := self._take():
                self._commit(writes)
            if self._tasks:
                self._step()
        for task in self._tasks:
            _call_soon(task.done.get_loop(), _finish, task.done, None)  # the remaining steps run after the next open

    def _commit(self, writes: list[Write]) -> None:
        loop = writes[-1].done.get_loop()
        if stale := self._committer.stale(writes):
            _call_soon(loop, self._publish, stale, self._committer.failure)
            writes = writes[len(stale) :]
        if writes:
            _call_soon(loop, self._publish, writes, self._committer.commit(writes))

    def _take(self) -> list[Write]:
        """Return all pending writes. Blocks until there is one, unless maintenance is pending."""
        writes: list[Write] = []
        size = 0
        try:
            item = self._queue.get(block=not self._tasks)
            while True:
                if item is None:
                    self._closing = True
                elif isinstance(item, Write):
                    writes.append(item)
                    size += sum(len(event.record.value) for event in item.events)
                    if len(writes) >= MAX_BATCH_WRITES or size >= MAX_BATCH_BYTES:
                        return writes
                else:
                    self._tasks.append(item)
                item = self._queue.get_nowait()
        except Empty:
            return writes

    def _step(self) -> None:
        task = self._tasks[0]
        try:
            if task.step(self._committer.database):
                return
            _call_soon(task.done.get_loop(), _finish, task.done, None)
        except Exception as error:
            self._committer.roll_back()
            _call_soon(task.done.get_loop(), _finish, task.done, maintenance_error(error))
        self._tasks.popleft()


class _Committer:
    """Commit logic shared by both writers."""

    def __init__(self, database: Database, directory: Directory | None, *, background: bool) -> None:
        self.database = database
        self.checkpoints = Checkpoints(
            database.connection, directory.database if directory is not None else None, background=background
        )
        self._directory = directory
        self.failure: StoreFailed | None = None
        """Error of the last commit, if it failed."""
        self._failed_epoch = -1
        self.times = Histogram()  # of transactions that succeeded, in seconds

    def commit(self, writes: Sequence[Write]) -> StoreFailed | None:
        if self.failure is not None and self.failure.fatal:
            return self.failure
        begun = time.perf_counter()
        try:
            self._reserve(writes[-1].events[-1].revision)
            written = self.database.append(writes)
        except Exception as error:
            self.roll_back()
            self.failure = commit_failure(error)
            self._failed_epoch = writes[-1].epoch
        else:
            self.failure = None
            self.times.observe(time.perf_counter() - begun)
            self.checkpoints.record(written)
        return self.failure

    def stale(self, writes: Sequence[Write]) -> list[Write]:
        """Return the leading writes whose preconditions were checked before the last failure was known."""
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
    with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing waits for the result
        loop.call_soon_threadsafe(function, *arguments)


def _finish(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def maintenance_error(error: Exception) -> StoreFailed:
    """Wrap a maintenance error for the caller of the task. It does not fail the store: the next write shows whether
    commits work."""
    return StoreFailed(f"store maintenance failed: {error}")
