"""Performs effects: at least once, one at a time for each key, retried with backoff, results kept for the view."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any

from herder.engine.logs import get_logger
from herder.engine.runtime.decision import Effect, EffectKey, EffectResult
from herder.engine.runtime.tasks import Tasks

log = get_logger(__name__)

Performer = Callable[[Mapping[str, Any]], Awaitable[Any]]
RETRY_FIRST, RETRY_LIMIT = 1.0, 120.0

RESULTS_KEPT = 1000
"""For one asker. One that asks for weeks, each time under another key, must not fill the memory with old answers."""


class Effects:
    def __init__(self, performers: Mapping[str, Performer], tasks: Tasks) -> None:
        self._performers = dict(performers)
        self._tasks = tasks
        self._running: set[EffectKey] = set()
        self._asked_again: set[EffectKey] = set()  # while it was running
        self._asked_by: dict[EffectKey, Hashable] = {}
        self._asks: dict[Hashable, dict[EffectKey, None]] = {}  # the same, from the other side
        self.results: dict[EffectKey, EffectResult] = {}

    def perform(self, effect: Effect, asker: Hashable, on_result: Callable[[], None]) -> None:
        """Start an effect unless it has been performed or is under way; `on_result` wakes who asked."""
        if effect.performer not in self._performers:
            raise LookupError(f"nobody here performs '{effect.performer}'")
        self._asked_by[effect.key] = asker
        self._asks.setdefault(asker, {})[effect.key] = None
        self._drop_oldest(asker)
        if effect.key in self._running:
            self._asked_again.add(effect.key)
            return
        result = self.results.get(effect.key)
        if result is None or not result.done:
            self._running.add(effect.key)
            self._tasks.spawn(self._run(effect, on_result), name=f"effect {effect.performer}")

    def _drop_oldest(self, asker: Hashable) -> None:
        asks = self._asks[asker]
        oldest = next(iter(asks))
        if len(asks) > RESULTS_KEPT and oldest not in self._running:
            del asks[oldest]
            self._asked_by.pop(oldest, None)
            self.results.pop(oldest, None)

    def forget(self, asker: Hashable) -> None:
        """The object that asked is gone: so are its results."""
        for effect_key in self._asks.pop(asker, ()):
            if self._asked_by.get(effect_key) == asker:
                del self._asked_by[effect_key]
                self.results.pop(effect_key, None)

    async def _run(self, effect: Effect, on_result: Callable[[], None]) -> None:
        """Until it has worked, while decisions ask for it: each failure wakes who asked, to ask again or not."""
        attempts = 0
        try:
            while True:
                attempts += 1
                self._asked_again.discard(effect.key)
                result = await self._attempt(effect, attempts)
                if effect.key not in self._asked_by:
                    return
                self.results[effect.key] = result
                if result.done:
                    return
                on_result()
                await asyncio.sleep(min(RETRY_FIRST * 2.0 ** (attempts - 1), RETRY_LIMIT))
                if effect.key not in self._asked_again:
                    return
        finally:
            self._running.discard(effect.key)
            self._asked_again.discard(effect.key)
            if effect.key in self.results:
                on_result()

    async def _attempt(self, effect: Effect, attempts: int) -> EffectResult:
        try:
            value = await self._performers[effect.performer](effect.arguments)
        except Exception as error:
            # The type tells a reader what happened; the text is the performer's own, made for people.
            log.warning("effect failed", performer=effect.performer, reason=effect.reason, attempts=attempts)
            return EffectResult(error=f"{type(error).__name__}: {error}", attempts=attempts)
        return EffectResult(value=value, attempts=attempts)
