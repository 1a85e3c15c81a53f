"""CPU time of each turn of an asyncio event loop: how long one callback keeps every other client waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass
class Turns:
    """The longest turn since the last `reset`, in CPU seconds of the loop's thread, and what ran in it."""

    longest: float = 0.0
    what: str = ""
    count: int = 0

    def reset(self) -> None:
        self.longest, self.what, self.count = 0.0, "", 0


async def in_turns_of_its_own(work: Coroutine[Any, Any, T]) -> T:
    """Run it as a task, so that none of it counts for the caller's turn."""
    return await asyncio.create_task(work)


@contextmanager
def measured_turns() -> Iterator[Turns]:
    """Measure every callback of every asyncio loop of this process (uvloop does not run callbacks this way).

    What the caller itself does before it next waits is part of a turn that began earlier: use `in_turns_of_its_own`.
    """
    turns = Turns()
    run = asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        started = time.thread_time()
        try:
            run(handle)
        finally:
            took = time.thread_time() - started
            turns.count += 1
            if took > turns.longest:
                turns.longest, turns.what = took, repr(handle)[:300]

    asyncio.Handle._run = measured  # type: ignore[method-assign]
    try:
        yield turns
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]
