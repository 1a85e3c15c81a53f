"""What a long-running command does around its work: the clock, the event loop, the collector, signals."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any


def wall_clock() -> datetime:
    return datetime.now(UTC)


def run_loop(work: Coroutine[Any, Any, None]) -> None:
    """On uvloop where it is installed: a third less time for each request."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


def tune_interpreter() -> None:
    """Called when start-up is done, by a process that serves.

    What exists now lives as long as the process, and most of what comes is freed by counting references: walking all
    of it again and again would cost a pause of tens of milliseconds each time. And the store's writer thread needs the
    interpreter for moments only; with the default of five milliseconds it would wait that long for each of them, and
    every acknowledgement with it (measured: p99 of a create under load 31 ms, with this 17).
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    sys.setswitchinterval(0.0003)
    _return_freed_memory()


def _return_freed_memory() -> None:
    """A list of ten thousand objects is tens of megabytes for a moment. glibc would keep them for the next one;
    told these thresholds, it gives them back to the machine (measured: 127 MB resident afterwards instead of 161)."""
    import ctypes

    trim_threshold, mmap_threshold = -1, -3  # names of mallopt(3)
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return  # another C library, another allocator
    mallopt(trim_threshold, 1 << 20)
    mallopt(mmap_threshold, 1 << 18)


def stop_signal() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def first_of(group: BaseExceptionGroup[Any]) -> BaseException:
    """Of what ended tasks that work together, the failure that ended them all."""
    first = group.exceptions[0]
    return first_of(first) if isinstance(first, BaseExceptionGroup) else first


async def until_stopped(stop: asyncio.Event, *work: asyncio.Task[Any]) -> None:
    """Wait for the signal, or for the first of the tasks to end, which is a failure it raises."""
    waiting = asyncio.ensure_future(stop.wait())
    try:
        done, _ = await asyncio.wait([waiting, *work], return_when=asyncio.FIRST_COMPLETED)
        for task in done - {waiting}:
            task.result()
    finally:
        waiting.cancel()
