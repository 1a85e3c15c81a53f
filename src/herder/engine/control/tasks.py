"""The one place that starts background tasks: none is lost, none fails unseen, all end with their owner."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from herder.engine.logs import get_logger

log = get_logger(__name__)


class Tasks:
    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in order: a simulation must end them the same each time

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("task failed", task=task.get_name(), exc_info=task.exception())

    def cancel(self) -> list[asyncio.Task[Any]]:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        return tasks

    async def stop(self) -> None:
        """Cancel all and wait until they have ended."""
        tasks = self.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
