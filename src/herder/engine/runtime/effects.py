"""Performs effects: at least once, one at a time for each key, retried with backoff, results kept for the view.

A result is kept while passes look at it, and for some minutes longer: it may hold a secret, and whatever it says of the
world is true only of the time when it was obtained. An effect whose result was dropped is performed again on request.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from herder.engine.control.tasks import Tasks
from herder.engine.logs import get_logger
from herder.engine.runtime.decision import Effect, EffectKey, EffectResult

log = get_logger(__name__)

Performer = Callable[[Mapping[str, Any]], Awaitable[Any]]
RETRY_FIRST, RETRY_LIMIT = 1.0, 120.0

REPEAT_FIRST, REPEAT_LIMIT = 5.0, 300.0
"""Seconds after which an effect that is done, and is requested all the same, is performed again. The first pause is
longer than a watch needs to show what the effect created."""

RESULTS_KEPT = 1000
"""For one asker. One that asks for weeks, each time under another key, must not fill the memory with old answers."""

UNUSED_SECONDS = 900.0
"""A result that no pass has looked at for this long is dropped, at the latest after twice the time. Longer than any
pause between attempts."""


@dataclass(slots=True)
class _Repetition:
    """Of an effect that was done: when, and how often since it was first requested again."""

    done_at: float
    count: int = 0
    timer: asyncio.TimerHandle | None = None

    @property
    def due_at(self) -> float:
        return self.done_at + min(REPEAT_FIRST * 2.0 ** min(self.count, 20), REPEAT_LIMIT)


class Results(Mapping[EffectKey, EffectResult]):
    """What passes read. Reading a result keeps it."""

    def __init__(self) -> None:
        self._results: dict[EffectKey, EffectResult] = {}
        self._used: set[EffectKey] = set()  # since the last sweep

    def __getitem__(self, key: EffectKey) -> EffectResult:
        result = self._results[key]
        self._used.add(key)
        return result

    def get(self, key: EffectKey, default: Any = None) -> Any:
        return self[key] if key in self._results else default

    def __contains__(self, key: object) -> bool:
        return key in self._results

    def __iter__(self) -> Any:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    def put(self, key: EffectKey, result: EffectResult) -> None:
        self._results[key] = result
        self._used.add(key)

    def drop(self, key: EffectKey) -> None:
        self._results.pop(key, None)
        self._used.discard(key)

    def sweep(self) -> list[EffectKey]:
        """The keys of results that nobody has looked at since the last sweep."""
        unused = [key for key in self._results if key not in self._used]
        self._used.clear()
        return unused


class Effects:
    def __init__(self, performers: Mapping[str, Performer], tasks: Tasks) -> None:
        self._performers = dict(performers)
        self._tasks = tasks
        self._running: set[EffectKey] = set()
        self._asked_again: set[EffectKey] = set()  # while it was running
        self._asked_by: dict[EffectKey, Hashable] = {}
        self._asks: dict[Hashable, dict[EffectKey, None]] = {}  # the same, from the other side
        self._repetitions: dict[EffectKey, _Repetition] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self.results = Results()

    def perform(self, effect: Effect, asker: Hashable, on_result: Callable[[], None]) -> str:
        """Start an effect unless it is done or under way; `on_result` wakes who asked.

        Returns why its last attempt failed, "" if it did not.
        """
        if effect.performer not in self._performers:
            raise LookupError(f"nobody here performs '{effect.performer}'")
        self._asked_by[effect.key] = asker
        self._asks.setdefault(asker, {})[effect.key] = None
        self._drop_oldest(asker)
        result = self.results.get(effect.key)
        if effect.key in self._running:
            self._asked_again.add(effect.key)
        elif result is None or not result.done or (effect.repeat and self._is_due(effect, on_result)):
            self._running.add(effect.key)
            self._tasks.spawn(self._run(effect, on_result), name=f"effect {effect.performer}")
        return result.error if result is not None else ""

    def _is_due(self, effect: Effect, on_result: Callable[[], None]) -> bool:
        """Whether an effect that is done is performed again now. If not yet, who asked is woken when it is time."""
        now = asyncio.get_running_loop().time()
        repetition = self._repetitions.setdefault(effect.key, _Repetition(now))
        if now >= repetition.due_at:
            repetition.count += 1
            log.info("effect is performed again", performer=effect.performer, reason=effect.reason)
            return True
        if repetition.timer is None:
            repetition.timer = asyncio.get_running_loop().call_at(repetition.due_at, self._wake, effect.key, on_result)
        return False

    def _wake(self, key: EffectKey, on_result: Callable[[], None]) -> None:
        if (repetition := self._repetitions.get(key)) is not None:
            repetition.timer = None
            on_result()

    # --- forgetting -------------------------------------------------------------------------------------------------

    def _drop_oldest(self, asker: Hashable) -> None:
        asks = self._asks[asker]
        oldest = next(iter(asks))
        if len(asks) > RESULTS_KEPT and oldest not in self._running:
            self._drop(oldest)

    def forget(self, asker: Hashable) -> None:
        """The object that asked is gone: so are its results."""
        for key in [key for key in self._asks.get(asker, ()) if self._asked_by.get(key) == asker]:
            self._drop(key)
        self._asks.pop(asker, None)

    def _drop(self, key: EffectKey) -> None:
        self.results.drop(key)
        repetition = self._repetitions.pop(key, None)
        if repetition is not None and repetition.timer is not None:
            repetition.timer.cancel()
        asker = self._asked_by.pop(key, None)
        asks = self._asks.get(asker, {})
        asks.pop(key, None)
        if not asks:
            self._asks.pop(asker, None)

    def _sweep_later(self) -> None:
        if self._sweep is None and len(self.results):
            self._sweep = asyncio.get_running_loop().call_later(UNUSED_SECONDS, self._drop_unused)

    def _drop_unused(self) -> None:
        self._sweep = None
        for key in self.results.sweep():
            if key not in self._running:
                self._drop(key)
        self._sweep_later()

    # --- performing -------------------------------------------------------------------------------------------------

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
                self.results.put(effect.key, result)
                self._sweep_later()
                if result.done:
                    self._done(effect)
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

    def _done(self, effect: Effect) -> None:
        if effect.repeat:
            now = asyncio.get_running_loop().time()
            self._repetitions.setdefault(effect.key, _Repetition(now)).done_at = now

    async def _attempt(self, effect: Effect, attempts: int) -> EffectResult:
        try:
            value = await self._performers[effect.performer](effect.arguments)
        except Exception as error:
            text = error_text(error)
            before = self.results.get(effect.key)
            # The same failure again is no news: waiting for a token takes several attempts in a healthy system.
            news = before is None or before.error != text
            log_at = log.warning if news else log.debug
            log_at("effect failed", performer=effect.performer, reason=effect.reason, attempts=attempts, error=text)
            return EffectResult(error=text, attempts=attempts)
        return EffectResult(value=value, attempts=attempts)


_INTERNAL = ("builtins", "binascii", "json.decoder", "msgspec")


def error_text(error: Exception) -> str:
    """For conditions and logs: the performer's own words, which are made for people.

    An error of the language or of a decoder is a fault of ours and may quote what was decoded, a Secret for example:
    of such a one only the type and the place are told.
    """
    name = type(error).__name__
    written_by_us = isinstance(error, OSError | RuntimeError) or type(error) is LookupError
    if written_by_us or type(error).__module__ not in _INTERNAL:
        return f"{name}: {error}"
    frame = traceback.extract_tb(error.__traceback__)[-1:]
    place = f" at {frame[0].name}, line {frame[0].lineno}" if frame else ""
    return f"{name}{place}"
