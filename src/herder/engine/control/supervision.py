"""Supervision of long-running tasks: a task that fails is logged, counted and restarted after a back-off."""

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
"""Failures by task name, for the metrics of the process. Names are constants."""


def backoff(failures: int) -> float:
    """Return the seconds until the next attempt after this many consecutive failures."""
    return min(RETRY_FIRST * 2.0 ** min(failures - 1, 20), RETRY_LIMIT)


async def supervised(
    run: Callable[[], Awaitable[None]], *, name: str, ends_with: tuple[type[Exception], ...] = ()
) -> None:
    """Run a task until it returns or is cancelled; restart it with back-off whenever it fails.

    Exceptions of the types `ends_with` propagate: a restart would not help.
    """
    loop = asyncio.get_running_loop()
    failures = 0
    while True:
        started = loop.time()
        try:
            await run()
            return
        except ends_with:
            raise
        except Exception as error:
            failures = 1 if loop.time() - started >= STEADY_SECONDS else failures + 1
            _report(name, error, failures)
        await asyncio.sleep(backoff(failures))


def _report(name: str, error: Exception, failures: int) -> None:
    FAILURES[name] += 1
    expected = isinstance(error, StatusError | OSError)
    message = error.message if isinstance(error, StatusError) else f"{type(error).__name__}: {error}"
    fields = {"task": name, "error": message, "attempt": failures, "retry_in": backoff(failures)}
    (log.warning if expected else log.error)("task failed", **fields, exc_info=None if expected else error)
