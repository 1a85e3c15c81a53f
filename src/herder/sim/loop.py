"""An event loop whose time is a number: when nothing is ready it jumps to the next timer instead of waiting.

A week of controller time runs in as long as its work takes, and twice the same: nothing outside the loop is ever
waited for, so the order of everything follows from the order in which it was scheduled.
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
    """Nothing is ready and no timer is set: the simulated program waits for something that can never come."""


class _JumpingSelector(selectors.BaseSelector):
    """Never reports input; being asked to wait moves the clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rounded: Callable[[float], float] = float
        self._keys: dict[int, selectors.SelectorKey] = {}

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck("the simulation waits for something that nobody will ever bring")
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
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self._jumping.rounded = self._rounded

    def time(self) -> float:
        return self._jumping.now

    def _rounded(self, now: float) -> float:
        """The time of the next timer, if only a rounding error lies between.

        A sum of pauses can end a fraction before a timer. The timer fires all the same, and code that compares the
        time would set it again and again, while the time stands still.
        """
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        due = scheduled[0].when() if scheduled else now
        return due if abs(due - now) < ROUNDING_SECONDS else now


def fork() -> int:
    """As os.fork. All that a simulation is stands in its process, so from here on there are two of it."""
    loop = asyncio.get_running_loop()
    process = os.fork()
    if process == 0:
        asyncio._set_running_loop(loop)  # it is known by its process too
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
