"""Leader election on its own thread and event loop, so that no long list on the main loop delays a renewal."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from herder.engine.runtime.election import LeaderElection

CLOSE_GRACE_SECONDS = 0.05
"""Time for connections that were abandoned during a handshake to close, which needs this thread's loop."""


async def run_as_leader(
    create_election: Callable[[], LeaderElection],
    lead: Callable[[], Awaitable[None]],
    *,
    abort: Callable[[], None] = lambda: None,
) -> None:
    """Run `lead` on this loop while the election thread holds the Lease; return when either ends.

    On cancellation, `lead` gets the time it needs to shut down in order, and the Lease is held until then. If the Lease
    is lost there is no such time: `abort` is called first, since another leader may already be active.
    `create_election` is called on the election thread, so its connection belongs to that thread's loop.
    """
    held = asyncio.Event()
    thread = _ElectionThread(create_election, asyncio.get_running_loop(), held)
    thread.start()
    try:
        await _wait_held(thread.ended, held)
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


async def _wait_held(ended: asyncio.Future[None], held: asyncio.Event) -> None:
    """Wait until the Lease is held; raise if the election thread ends before."""
    waiting: asyncio.Future[Any] = asyncio.ensure_future(held.wait())
    try:
        await asyncio.wait([ended, waiting], return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            ended.result()
    finally:
        waiting.cancel()


class _ElectionThread(threading.Thread):
    def __init__(
        self, create_election: Callable[[], LeaderElection], caller_loop: asyncio.AbstractEventLoop, held: asyncio.Event
    ) -> None:
        super().__init__(name="leader-election", daemon=True)
        self.lost: asyncio.Future[None] = caller_loop.create_future()  # resolves when the Lease is lost
        self.ended: asyncio.Future[None] = caller_loop.create_future()
        self._create_election = create_election
        self._caller_loop = caller_loop
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
        self._caller_loop.call_soon_threadsafe(self._end, error)

    async def _elect(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self._released:  # released before the task existed
            return
        election = self._create_election()
        try:
            await election.run(self._hold)
        finally:
            await election.close()
            await asyncio.sleep(CLOSE_GRACE_SECONDS)

    async def _hold(self) -> None:
        self._caller_loop.call_soon_threadsafe(self._held.set)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._caller_loop.call_soon_threadsafe(self.lost.set_result, None)  # before the release, which may be slow

    def _end(self, error: BaseException | None) -> None:
        if error is not None:
            self.ended.set_exception(error)
        else:
            self.ended.set_result(None)

    def release(self) -> None:
        """Release the Lease and end the thread. Safe to call after it has ended."""
        self._released = True
        if self._loop is not None and self._task is not None:
            with suppress(RuntimeError):  # the loop is closed, so the thread has ended
                self._loop.call_soon_threadsafe(self._task.cancel)
