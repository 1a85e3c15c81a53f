"""A gate before the store's commits, which keeps writes in flight as long as a test needs it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from herder.engine.store import Store

T = TypeVar("T")

TURNS = 300
"""Turns of the event loop after which a request that waits for nothing has long been answered."""


class CommitGate:
    """Wraps the append of the store's database, on the writer's thread."""

    def __init__(self, store: Store) -> None:
        self._append: Callable[..., int] = store._database.append
        self._entered = threading.Event()
        self._open = threading.Event()
        self._open.set()
        self._permits = threading.Semaphore(0)
        self.error: Exception | None = None
        """Raised by every commit while set, as the disk would."""
        store._database.append = self._gated  # type: ignore[method-assign]

    def _gated(self, commits: Any) -> int:
        self._entered.set()
        if not self._open.is_set() and not self._permits.acquire(timeout=30):
            raise AssertionError("the gate stayed closed")
        if self.error is not None:
            raise self.error
        return self._append(commits)

    @contextmanager
    def closed(self) -> Iterator[None]:
        self._permits = threading.Semaphore(0)
        self._entered.clear()
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()
            self._permits.release()

    async def let_one_pass(self, *, expect_another: bool = True) -> None:
        """Let the waiting commit pass; return once the next one waits."""
        self._entered.clear()
        self._permits.release()
        if expect_another:
            assert await asyncio.to_thread(self._entered.wait, 30), "nothing followed"

    async def in_flight(self, request: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Send a request; return once its write waits at the closed gate."""
        self._entered.clear()
        task = asyncio.ensure_future(request)
        entered = await asyncio.to_thread(self._entered.wait, 30)
        assert entered, "nothing was written"
        return task


async def settled_turns(answer: Awaitable[T]) -> asyncio.Future[T]:
    """Yield to the event loop until a request could have finished without a commit."""
    task = asyncio.ensure_future(answer)
    for _ in range(TURNS):
        await asyncio.sleep(0)
    return task


def sqlite_error(name: str) -> sqlite3.OperationalError:
    """Return an SQLite error as Python raises it, with its code."""
    error = sqlite3.OperationalError(name.lower())
    error.sqlite_errorname = name
    error.sqlite_errorcode = getattr(sqlite3, name)
    return error
