"""Event loop on virtual time: when nothing is ready, it jumps to the next timer.

A week of controller time runs as fast as its work, and deterministically: nothing outside the loop is waited for, so
the order of events follows from the order of scheduling.
"""

from __future__ import annotations

import asyncio
import os
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

ROUNDING_SECONDS = 1e-6


class Stuck(RuntimeError):
    """Deadlock: nothing is ready and no timer is set."""


class _JumpingSelector(selectors.BaseSelector):
    """Never reports input; waiting advances the clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rounded: Callable[[float], float] = float
        self._keys: dict[int, selectors.SelectorKey] = {}

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck("deadlock: no task is ready and no timer is set")
        self.now = max(self.now, self.rounded(self.now + max(timeout, 0.0)))
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = selectors.SelectorKey(fileobj, number, events, data)
        self._keys[number] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop with a virtual clock."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self._jumping.rounded = self._rounded

    def time(self) -> float:
        return self._jumping.now

    def _rounded(self, now: float) -> float:
        """The time of the next timer, if only a rounding error lies between.

        A sum of delays can end just before a timer. The timer fires anyway, and code that compares times would set it
        again and again while time stands still.
        """
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        due = scheduled[0].when() if scheduled else now
        return due if abs(due - now) < ROUNDING_SECONDS else now


def fork() -> int:
    """os.fork for a running simulation, which is then duplicated."""
    loop = asyncio.get_running_loop()
    process = os.fork()
    if process == 0:
        asyncio._set_running_loop(loop)  # asyncio checks the PID of the running loop
    return process


def run(work: Coroutine[Any, Any, T]) -> T:
    """Like asyncio.run, on virtual time."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        try:
            pending = asyncio.all_tasks(loop)
            for task in pending:
                task.cancel()
            if pending:
                loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        finally:
            loop.close()
