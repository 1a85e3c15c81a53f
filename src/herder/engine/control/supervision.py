"""Long-running tasks that cannot die: a task that fails is logged, counted and started again after a back-off."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from herder.engine.logs import get_logger
from herder.engine.meta.errors import StatusError

log = get_logger(__name__)

RETRY_FIRST, RETRY_LIMIT = 0.1, 30.0
STEADY_SECONDS = 60.0
"""A task that ran this long before it failed is restarted without the back-off of earlier failures."""

FAILURES: Counter[str] = Counter()
"""Failures by name of the task, for the metrics of the process. Names are constants of the program."""


def backoff(failures: int) -> float:
    """Seconds until the next attempt after this many failures in a row."""
    return min(RETRY_FIRST * 2.0 ** min(failures - 1, 20), RETRY_LIMIT)


async def supervised(
    run: Callable[[], Awaitable[None]], *, name: str, ends_with: tuple[type[Exception], ...] = ()
) -> None:
    """Run a task until it returns or is cancelled; start it again, after a back-off, whenever it fails.

    Exceptions of the types `ends_with` are passed on: they say that a restart would be of no use.
    """
    loop = asyncio.get_running_loop()
    failures = 0
    while True:
        began = loop.time()
        try:
            await run()
            return
        except ends_with:
            raise
        except Exception as error:
            failures = 1 if loop.time() - began >= STEADY_SECONDS else failures + 1
            _report(name, error, failures)
        await asyncio.sleep(backoff(failures))


def _report(name: str, error: Exception, failures: int) -> None:
    FAILURES[name] += 1
    expected = isinstance(error, StatusError | OSError)
    message = error.message if isinstance(error, StatusError) else f"{type(error).__name__}: {error}"
    fields = {"task": name, "error": message, "attempt": failures, "retry_in": backoff(failures)}
    (log.warning if expected else log.error)("task failed", **fields, exc_info=None if expected else error)
