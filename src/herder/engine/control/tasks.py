"""Registry of background tasks: keeps a reference to each, logs failures, and cancels all with their owner."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from herder.engine.logs import get_logger

log = get_logger(__name__)


class Tasks:
    """Background tasks of one owner."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}  # ordered, so that a simulation cancels them deterministically

    def spawn(self, coroutine: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("task failed", task=task.get_name(), exc_info=task.exception())

    def cancel(self) -> list[asyncio.Task[Any]]:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        return tasks

    async def stop(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        tasks = self.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
