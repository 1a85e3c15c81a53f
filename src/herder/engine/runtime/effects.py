"""Performs effects: at least once, one at a time for each key, retried with backoff, results kept for the view."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from herder.engine.logs import get_logger
from herder.engine.runtime.cache import Key
from herder.engine.runtime.decision import Effect, EffectKey, EffectResult
from herder.engine.runtime.tasks import Tasks

log = get_logger(__name__)

Performer = Callable[[Mapping[str, Any]], Awaitable[Any]]
RETRY_FIRST, RETRY_LIMIT = 1.0, 120.0


class Effects:
    def __init__(self, performers: Mapping[str, Performer], tasks: Tasks) -> None:
        self._performers = dict(performers)
        self._tasks = tasks
        self._running: set[EffectKey] = set()
        self._wanted_by: dict[EffectKey, Key] = {}
        self.results: dict[EffectKey, EffectResult] = {}

    def perform(self, effect: Effect, key: Key, on_result: Callable[[], None]) -> None:
        """Start an effect unless it has been performed or is under way; `on_result` wakes who asked."""
        self._wanted_by[effect.key] = key
        result = self.results.get(effect.key)
        if effect.key in self._running or (result is not None and result.done):
            return
        if effect.performer not in self._performers:
            raise LookupError(f"nobody here performs '{effect.performer}'")
        self._running.add(effect.key)
        self._tasks.spawn(self._run(effect, on_result), name=f"effect {effect.performer}")

    def forget(self, key: Key) -> None:
        """The object that asked is gone: so are its results."""
        for effect_key in [known for known, asker in self._wanted_by.items() if asker == key]:
            del self._wanted_by[effect_key]
            self.results.pop(effect_key, None)

    async def _run(self, effect: Effect, on_result: Callable[[], None]) -> None:
        attempts = 0
        try:
            while effect.key in self._wanted_by:
                attempts += 1
                try:
                    value = await self._performers[effect.performer](effect.arguments)
                except Exception as error:
                    # The type tells a reader what happened; the text is the performer's own, made for people.
                    message = f"{type(error).__name__}: {error}"
                    self.results[effect.key] = EffectResult(error=message, attempts=attempts)
                    log.warning("effect failed", performer=effect.performer, reason=effect.reason, attempts=attempts)
                    on_result()
                    await asyncio.sleep(min(RETRY_FIRST * 2.0 ** (attempts - 1), RETRY_LIMIT))
                else:
                    self.results[effect.key] = EffectResult(value=value, attempts=attempts)
                    on_result()
                    return
        finally:
            self._running.discard(effect.key)
