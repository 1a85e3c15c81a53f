"""Leader election on a thread and event loop of its own: no list, however long, may delay the renewal of a lease."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from herder.engine.runtime.election import LeaderElection

FAREWELL_SECONDS = 0.05
"""Until connections that were given up in the middle of a handshake have closed: they need this loop for it."""


async def run_as_leader(
    make: Callable[[], LeaderElection],
    lead: Callable[[], Awaitable[None]],
    *,
    abort: Callable[[], None] = lambda: None,
) -> None:
    """Wait for the lease, run `lead` here while the other thread holds it, end when either ends.

    Cancelled, `lead` gets the time that it takes to finish its work in order, and the lease is held for as long. When
    the lease is lost there is no such time: `abort` is called first, since another may lead already. `make` is called
    on the other thread, so the connection that it opens belongs to that thread's loop.
    """
    held = asyncio.Event()
    thread = _ElectionThread(make, asyncio.get_running_loop(), held)
    thread.start()
    try:
        await _held(thread.ended, held)
        work: asyncio.Future[None] = asyncio.ensure_future(lead())
        try:
            await asyncio.wait([thread.lost, work], return_when=asyncio.FIRST_COMPLETED)
            if thread.lost.done():
                abort()
            else:
                work.result()
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
    finally:
        thread.release()
        await asyncio.shield(thread.ended)


async def _held(ended: asyncio.Future[None], held: asyncio.Event) -> None:
    """Until the lease is held; raises where the other thread ends before."""
    waiting: asyncio.Future[Any] = asyncio.ensure_future(held.wait())
    try:
        await asyncio.wait([ended, waiting], return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            ended.result()
    finally:
        waiting.cancel()


class _ElectionThread(threading.Thread):
    def __init__(
        self, make: Callable[[], LeaderElection], here: asyncio.AbstractEventLoop, held: asyncio.Event
    ) -> None:
        super().__init__(name="leader-election", daemon=True)
        self.lost: asyncio.Future[None] = here.create_future()  # the lease, once it was held
        self.ended: asyncio.Future[None] = here.create_future()
        self._make = make
        self._here = here
        self._held = held
        self._released = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def run(self) -> None:
        error: BaseException | None = None
        try:
            asyncio.run(self._elect())
        except asyncio.CancelledError:
            pass
        except Exception as failure:
            error = failure
        self._here.call_soon_threadsafe(self._end, error)

    async def _elect(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self._released:  # before there was anything to cancel
            return
        election = self._make()
        try:
            await election.run(self._hold)
        finally:
            await election.close()
            await asyncio.sleep(FAREWELL_SECONDS)

    async def _hold(self) -> None:
        self._here.call_soon_threadsafe(self._held.set)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._here.call_soon_threadsafe(self.lost.set_result, None)  # before the slow business of releasing it

    def _end(self, error: BaseException | None) -> None:
        if error is not None:
            self.ended.set_exception(error)
        else:
            self.ended.set_result(None)

    def release(self) -> None:
        """Give the lease back and end. Harmless when it has ended."""
        self._released = True
        if self._loop is not None and self._task is not None:
            with suppress(RuntimeError):  # its loop has closed: it has ended
                self._loop.call_soon_threadsafe(self._task.cancel)
