"""How much CPU each turn of an event loop takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar


@dataclass
class Turns:
    """CPU seconds of the longest callback so far, and what it was."""

    longest: float = 0.0
    what: str = ""
    calls: int = field(default=0)


T = TypeVar("T")


async def in_turns_of_its_own(work: Coroutine[Any, Any, T]) -> T:
    """Run it as a task, so that none of it counts for the caller's turn."""
    return await asyncio.create_task(work)


@contextmanager
def measured_turns() -> Iterator[Turns]:
    """Measure every callback that begins within. CPU time of the thread: a busy machine changes nothing.

    What the caller itself does before it next waits is part of a turn that began earlier: use `in_turns_of_its_own`.
    """
    turns = Turns()
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        spent = time.thread_time() - began
        turns.calls += 1
        if spent > turns.longest:
            turns.longest, turns.what = spent, repr(handle)[:300]

    asyncio.Handle._run = timed  # type: ignore[method-assign]
    try:
        yield turns
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]
