"""Leader election on a thread and event loop of its own: no list, however long, may delay the renewal of a lease."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from herder.engine.runtime.election import LeaderElection


async def lead_beside(make: Callable[[], LeaderElection], lead: Callable[[], Awaitable[None]]) -> None:
    """Wait for the lease, run `lead` here while the other thread holds it, end when it is lost.

    `make` is called on the other thread, so the connection that it opens belongs to that thread's loop.
    """
    here = asyncio.get_running_loop()
    held = asyncio.Event()
    thread = _ElectionThread(make, here, held)
    thread.start()
    try:
        await _first(thread.ended, asyncio.ensure_future(held.wait()))
        if held.is_set():
            await _first(thread.ended, asyncio.ensure_future(lead()))
    finally:
        thread.release()
        await asyncio.shield(thread.ended)


async def _first(ended: asyncio.Future[None], task: asyncio.Future[Any]) -> None:
    """Wait for either; whichever of them failed raises here, and the task does not outlive this call."""
    try:
        done, _ = await asyncio.wait([ended, task], return_when=asyncio.FIRST_COMPLETED)
        for finished in done:
            finished.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class _ElectionThread(threading.Thread):
    def __init__(
        self, make: Callable[[], LeaderElection], here: asyncio.AbstractEventLoop, held: asyncio.Event
    ) -> None:
        super().__init__(name="leader-election", daemon=True)
        self.ended: asyncio.Future[None] = here.create_future()
        self._make = make
        self._here = here
        self._held = held
        self._loop = asyncio.new_event_loop()
        self._done: asyncio.Task[None] | None = None

    def run(self) -> None:
        error: BaseException | None = None
        try:
            self._done = self._loop.create_task(self._elect())
            self._loop.run_until_complete(self._done)
        except asyncio.CancelledError:
            pass
        except Exception as failure:
            error = failure
        finally:
            self._loop.close()
            self._here.call_soon_threadsafe(self._end, error)

    async def _elect(self) -> None:
        election = self._make()
        try:
            await election.run(self._hold)
        finally:
            await election.close()

    async def _hold(self) -> None:
        self._here.call_soon_threadsafe(self._held.set)
        await asyncio.get_running_loop().create_future()

    def _end(self, error: BaseException | None) -> None:
        if self.ended.done():
            return
        if error is not None:
            self.ended.set_exception(error)
        else:
            self.ended.set_result(None)

    def release(self) -> None:
        """Give the lease back and end. Harmless when it has ended."""
        if self._done is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._done.cancel)
