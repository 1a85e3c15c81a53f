"""Background work that cannot die: every failure is logged with what it was about, counted and tried again.

`supervised` keeps one long-running task alive. `RetryQueue` is for work that comes in keys: one that fails is retried
by itself, with back-off, and holds up no other.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from herder.engine.logs import get_logger
from herder.engine.meta.errors import Conflict, StatusError

log = get_logger(__name__)

K = TypeVar("K", bound=Hashable)

RETRY_FIRST, RETRY_LIMIT = 0.1, 30.0
STEADY_SECONDS = 60.0
"""A task that ran this long before it failed is restarted without the back-off of earlier failures."""

FAILURES: Counter[str] = Counter()
"""Failures by name of the task or queue, for the process's metrics. Names are constants of the program."""


def backoff(failures: int) -> float:
    """Seconds until the next attempt after this many failures in a row."""
    return min(RETRY_FIRST * 2.0 ** min(failures - 1, 20), RETRY_LIMIT)


async def supervised(
    run: Callable[[], Awaitable[None]], *, name: str, ends_with: tuple[type[Exception], ...] = ()
) -> None:
    """Run a task until it returns or is cancelled; start it again, after a back-off, whenever it fails.

    Exceptions of the types `ends_with` are passed on: they say that a restart would be of no use.
    """
    loop = asyncio.get_running_loop()
    failures = 0
    while True:
        began = loop.time()
        try:
            await run()
            return
        except ends_with:
            raise
        except Exception as error:
            failures = 1 if loop.time() - began >= STEADY_SECONDS else failures + 1
            _report("task failed", name, error, failures)
        await asyncio.sleep(backoff(failures))


class RetryQueue(Generic[K]):
    """Keys to handle: each at most once in the queue, never by two workers at a time, again after a failure.

    A key that is added while it is being handled is handled once more afterwards.
    """

    def __init__(self, handle: Callable[[K], Awaitable[None]], *, name: str, workers: int = 1) -> None:
        self.name = name
        self._handle = handle
        self._workers = workers
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._queued: dict[K, None] = {}
        self._busy: dict[K, bool] = {}  # whether it was added again meanwhile
        self._failures: dict[K, int] = {}

    def add(self, key: K) -> None:
        if key in self._busy:
            self._busy[key] = True
        elif key not in self._queued:
            self._queued[key] = None
            self._ready.put_nowait(key)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as workers:
            for _ in range(self._workers):
                workers.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self._ready.get()
            self._queued.pop(key, None)
            self._busy[key] = False
            try:
                await self._handle(key)
                self._failures.pop(key, None)
            except Exception as error:
                self._retry(key, error)
            finally:
                if self._busy.pop(key):
                    self.add(key)
            await asyncio.sleep(0)  # a client may cause thousands of keys, and handling one may wait for nothing

    def _retry(self, key: K, error: Exception) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        if not isinstance(error, Conflict):  # another writer was faster: that is ordinary
            _report("retrying", self.name, error, failures, key)
        asyncio.get_running_loop().call_later(backoff(failures), self.add, key)


def _report(event: str, name: str, error: Exception, failures: int, key: Hashable = "") -> None:
    FAILURES[name] += 1
    expected = isinstance(error, StatusError | OSError)
    message = error.message if isinstance(error, StatusError) else f"{type(error).__name__}: {error}"
    fields = {"task": name, "error": message, "attempt": failures, "retry_in": backoff(failures)}
    if key:
        fields["object"] = str(key)
    (log.warning if expected else log.error)(event, **fields, exc_info=None if expected else error)
