"""Perform effects at least once, with retries and back-off, and cache their results for views.

Effects with the same key run one at a time. A result is kept while reconciles read it, and for some minutes longer. It
may contain a secret, and it describes the world only at the time when it was obtained. An effect whose result was
dropped is performed again on request.
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
"""Seconds until a completed effect that is still requested is performed again: first and maximum delay. The first
delay is longer than a watch needs to deliver what the effect created."""

MAX_RESULTS = 1000
"""Maximum results per requester. A requester that uses a new key each time must not fill the memory."""

UNUSED_SECONDS = 900.0
"""A result that no reconcile reads for this long is dropped, after twice the time at the latest. Longer than any
retry delay."""


@dataclass(slots=True)
class _Repetition:
    """When a repeatable effect last completed, and how often it was repeated."""

    done_at: float
    count: int = 0
    timer: asyncio.TimerHandle | None = None

    @property
    def due_at(self) -> float:
        return self.done_at + min(REPEAT_FIRST * 2.0 ** min(self.count, 20), REPEAT_LIMIT)


class Results(Mapping[EffectKey, EffectResult]):
    """Results of effects, as reconciles read them. Reading a result keeps it."""

    def __init__(self) -> None:
        self._results: dict[EffectKey, EffectResult] = {}
        self._used: set[EffectKey] = set()  # keys read since the last sweep

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
        """Return the keys of results that were not read since the last sweep."""
        unused = [key for key in self._results if key not in self._used]
        self._used.clear()
        return unused


class Effects:
    """Runs effects and keeps their results."""

    def __init__(self, performers: Mapping[str, Performer], tasks: Tasks) -> None:
        self._performers = dict(performers)
        self._tasks = tasks
        self._running: set[EffectKey] = set()
        self._requested_again: set[EffectKey] = set()  # requested while running
        self._requester_of: dict[EffectKey, Hashable] = {}
        self._requests: dict[Hashable, dict[EffectKey, None]] = {}  # keys by requester, oldest first
        self._repetitions: dict[EffectKey, _Repetition] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self.results = Results()

    def perform(self, effect: Effect, requester: Hashable, on_result: Callable[[], None]) -> str:
        """Start an effect unless it is done or running; `on_result` wakes the requester.

        Returns the error of the last attempt, or an empty string.
        """
        if effect.performer not in self._performers:
            raise LookupError(f"effect performer '{effect.performer}' is not registered")
        self._requester_of[effect.key] = requester
        self._requests.setdefault(requester, {})[effect.key] = None
        self._drop_oldest(requester)
        result = self.results.get(effect.key)
        if effect.key in self._running:
            self._requested_again.add(effect.key)
        elif result is None or not result.done or (effect.repeat and self._is_due(effect, on_result)):
            self._running.add(effect.key)
            self._tasks.spawn(self._run(effect, on_result), name=f"effect {effect.performer}")
        return result.error if result is not None else ""

    def _is_due(self, effect: Effect, on_result: Callable[[], None]) -> bool:
        """Return whether to repeat a completed effect now; otherwise wake the requester when it is due."""
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

    # --- expiry -----------------------------------------------------------------------------------------------------

    def _drop_oldest(self, requester: Hashable) -> None:
        requests = self._requests[requester]
        oldest = next(iter(requests))
        if len(requests) > MAX_RESULTS and oldest not in self._running:
            self._drop(oldest)

    def forget(self, requester: Hashable) -> None:
        """Drop the results of a requester whose object was deleted."""
        for key in [key for key in self._requests.get(requester, ()) if self._requester_of.get(key) == requester]:
            self._drop(key)
        self._requests.pop(requester, None)

    def _drop(self, key: EffectKey) -> None:
        self.results.drop(key)
        repetition = self._repetitions.pop(key, None)
        if repetition is not None and repetition.timer is not None:
            repetition.timer.cancel()
        requester = self._requester_of.pop(key, None)
        requests = self._requests.get(requester, {})
        requests.pop(key, None)
        if not requests:
            self._requests.pop(requester, None)

    def _sweep_later(self) -> None:
        if self._sweep is None and len(self.results):
            self._sweep = asyncio.get_running_loop().call_later(UNUSED_SECONDS, self._drop_unused)

    def _drop_unused(self) -> None:
        self._sweep = None
        for key in self.results.sweep():
            if key not in self._running:
                self._drop(key)
        self._sweep_later()

    # --- execution --------------------------------------------------------------------------------------------------

    async def _run(self, effect: Effect, on_result: Callable[[], None]) -> None:
        """Retry until the effect succeeds or is no longer requested: each failure wakes the requester, which
        requests it again or not."""
        attempts = 0
        try:
            while True:
                attempts += 1
                self._requested_again.discard(effect.key)
                result = await self._attempt(effect, attempts)
                if effect.key not in self._requester_of:
                    return
                self.results.put(effect.key, result)
                self._sweep_later()
                if result.done:
                    self._done(effect)
                    return
                on_result()
                await asyncio.sleep(min(RETRY_FIRST * 2.0 ** (attempts - 1), RETRY_LIMIT))
                if effect.key not in self._requested_again:
                    return
        finally:
            self._running.discard(effect.key)
            self._requested_again.discard(effect.key)
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
            # Log a repeated failure at debug level: waiting for a token takes several attempts in a healthy system.
            is_new = before is None or before.error != text
            log_failure = log.warning if is_new else log.debug
            log_failure(
                "effect failed", performer=effect.performer, reason=effect.reason, attempts=attempts, error=text
            )
            return EffectResult(error=text, attempts=attempts)
        return EffectResult(value=value, attempts=attempts)


_INTERNAL = ("builtins", "binascii", "json.decoder", "msgspec")


def error_text(error: Exception) -> str:
    """Return the message of an error for conditions and logs.

    An exception of Python or of a decoder is a bug of ours and may quote its input, for example a Secret. For these,
    return only the type and the location.
    """
    name = type(error).__name__
    has_own_message = isinstance(error, OSError | RuntimeError) or type(error) is LookupError
    if has_own_message or type(error).__module__ not in _INTERNAL:
        return f"{name}: {error}"
    frame = traceback.extract_tb(error.__traceback__)[-1:]
    place = f" at {frame[0].name}, line {frame[0].lineno}" if frame else ""
    return f"{name}{place}"
