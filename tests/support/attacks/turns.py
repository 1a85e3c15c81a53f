"""CPU time of each turn of an asyncio event loop: how long one callback keeps every other client waiting.

CPU seconds depend on the machine and on what runs beside the test (a busy sibling core doubles them). Each long turn
is therefore compared with a fixed piece of work done right after it, and counts as what it costs on an idle core.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

YARDSTICK_SECONDS = 0.0052
"""CPU time of `_yardstick` on an idle core that is neither fast nor slow (an EPYC at 2.6 GHz, CPython 3.11)."""
LONG_SECONDS = 0.02
"""Shorter turns are recorded as they are."""

_DOCUMENT = json.dumps({f"key-{number}": [number, {"name": str(number)}] for number in range(2_000)})


@dataclass
class Turns:
    """The longest turn since the last `reset`, in CPU seconds of an idle core, and what ran in it."""

    longest: float = 0.0
    what: str = ""
    count: int = 0

    def reset(self) -> None:
        self.longest, self.what, self.count = 0.0, "", 0


async def in_own_turns(work: Coroutine[Any, Any, T]) -> T:
    """Run it as a task, so that none of its work counts for the caller's turn."""
    return await asyncio.create_task(work)


@contextmanager
def measured_turns() -> Iterator[Turns]:
    """Measure every callback of every asyncio loop of this process (uvloop does not run callbacks this way).

    What the caller itself does before it next waits is part of a turn that began earlier: use `in_own_turns`.
    As in a server (`tune_interpreter`), the garbage collector ignores objects that exist now, here all test modules.
    """
    turns = Turns()
    gc.collect()
    gc.freeze()
    run = asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        started = time.thread_time()
        try:
            run(handle)
        finally:
            took = time.thread_time() - started
            turns.count += 1
            if took > max(turns.longest, LONG_SECONDS):
                took *= min(1.0, YARDSTICK_SECONDS / _yardstick())
            if took > turns.longest:
                turns.longest, turns.what = took, repr(handle)[:300]

    asyncio.Handle._run = measured  # type: ignore[method-assign]
    try:
        yield turns
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]
        gc.unfreeze()


def _yardstick() -> float:
    """CPU seconds that work of the server's kind takes at this moment: decoding, sorting, many small objects."""
    collecting = gc.isenabled()
    gc.disable()  # what it takes depends on the server's heap, not on the machine
    started = time.thread_time()
    for _ in range(6):
        sorted(json.loads(_DOCUMENT).items(), key=lambda item: item[0])
    took = time.thread_time() - started
    if collecting:
        gc.enable()
    return took
