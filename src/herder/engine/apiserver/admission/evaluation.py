"""Evaluate CEL expressions of policies and webhooks on the event loop, or in a thread if they are expensive."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from herder.engine.apiserver.admission.chain import Attributes
from herder.engine.apiserver.compute import LOOP_UNITS, ComputeExecutor
from herder.engine.meta.work import TooMuchWork, metered

T = TypeVar("T")


class Evaluation:
    """Keeps authors of policies from stalling others: in-memory clusters have administrators of their own, and share
    the event loop with the manager."""

    def __init__(self, executor: ComputeExecutor) -> None:
        self._executor = executor

    async def run(self, attributes: Attributes, function: Callable[[], T]) -> T:
        """Call a pure function, in a thread if it is expensive. Raises TooMuchWork if it exceeds that limit, too."""
        try:
            with metered(LOOP_UNITS):
                return function()
        except TooMuchWork:
            return await self._executor.run(attributes.user.name, function)
