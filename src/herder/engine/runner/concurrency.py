"""Concurrency limit for pods: further pods wait in FIFO order."""

from __future__ import annotations

import asyncio
from collections import deque


class PodSlots:
    """FIFO semaphore of pod slots."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free = capacity
        self._waiting: deque[asyncio.Future[None]] = deque()

    def acquire(self) -> asyncio.Future[None]:
        """Return a future that resolves when a slot is free. Cancel it to give up; call `release` when done."""
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(slot)
        self._advance()
        return slot

    def acquire_now(self) -> asyncio.Future[None]:
        """Take a slot for a pod that is already running, even beyond the capacity."""
        self._free -= 1
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        slot.set_result(None)
        return slot

    def release(self) -> None:
        self._free += 1
        self._advance()

    def _advance(self) -> None:
        while self._waiting and self._free > 0:
            slot = self._waiting.popleft()
            if not slot.done():
                self._free -= 1
                slot.set_result(None)
