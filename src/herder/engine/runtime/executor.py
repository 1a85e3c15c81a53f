"""Carries a decision out: asks the guards, then makes the writes in order, then has the effects performed.

It stops at the first act that fails or is refused. What was done stays done and is in the cache, so the next pass
decides from what is true; that is why the order of writes in a decision is the order in which they are safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from herder.engine.control.cache import Key
from herder.engine.meta.errors import ServiceUnavailable
from herder.engine.runtime.decision import MANAGEMENT, Decision, Effect, Outcome, Parallel, Patch, Refusal, Write
from herder.engine.runtime.view import View
from herder.engine.runtime.writer import Writer

Act = Write | Effect
Guard = Callable[[Act, View, Sequence[Act]], Refusal | None]
"""Pure: may this act be carried out, given the view that it was decided on, and what the same decision does before?"""

AT_ONCE = 16
"""Writes of one decision on their way at the same time."""
DOWNSTREAM_SECONDS = 30.0
"""For the writes of one decision to downstream clusters; the rest follows in later passes. How many there are may be a
cluster's own choice, as may be how late it answers each, and a worker is held up meanwhile."""


class DecisionExecutor:
    def __init__(
        self,
        writer: Writer,
        *,
        guards: Sequence[Guard] = (),
        perform: Callable[[Effect, Key], str] | None = None,
    ) -> None:
        self._writer = writer
        self._guards = tuple(guards)
        self._perform = perform
        self._put_off: dict[Key, datetime] = {}  # since when a key has patient writes that wait for more news

    async def settle(self) -> None:
        await self._writer.settle()

    async def carry_out(self, decision: Decision, view: View, *, manager: str, now: datetime) -> Outcome:
        outcome = Outcome(decision, now)
        await self._carry_out(decision, view, manager, outcome)
        if outcome.put_off_until is None:
            self._put_off.pop(view.key, None)
        return outcome

    async def _carry_out(self, decision: Decision, view: View, manager: str, outcome: Outcome) -> None:
        unrestricted = view.unrestricted()
        before: list[Act] = []
        ends = asyncio.get_running_loop().time() + DOWNSTREAM_SECONDS
        for step in decision.writes:
            writes = step.writes if isinstance(step, Parallel) else (step,)
            outcome.refusal = self._refused(writes, unrestricted, before)
            if outcome.refusal is not None:
                return
            now = [write for write in writes if not self._waits(write, view.key, outcome)]
            await self._make(now, manager, outcome, ends)
        for effect in decision.effects:
            outcome.refusal = self._refused((effect,), unrestricted, before)
            if outcome.refusal is not None:
                return
            if self._perform is None:
                raise LookupError(f"nobody here performs '{effect.performer}'")
            error = self._perform(effect, view.key)
            outcome.error = outcome.error or (f"effect {effect.performer}: {error}" if error else "")
            outcome.done += 1

    def forget(self, key: Key) -> None:
        self._put_off.pop(key, None)

    def _refused(self, acts: Sequence[Act], view: View, before: list[Act]) -> Refusal | None:
        """Acts are looked at one after the other, each with those before it: a batch cannot slip past together."""
        for act in acts:
            for guard in self._guards:
                refusal = guard(act, view, before)
                if refusal is not None:
                    return refusal
            before.append(act)
        return None

    def _waits(self, write: Write, key: Key, outcome: Outcome) -> bool:
        """Whether a patient write is left for later; its patience counts from when it was first put off."""
        if not isinstance(write, Patch) or not write.patience or self._writer.is_noop(write):
            return False
        until = self._put_off.setdefault(key, outcome.at) + timedelta(seconds=write.patience)
        if until <= outcome.at:
            return False
        outcome.put_off_until = min(until, outcome.put_off_until or until)
        return True

    async def _make(self, writes: Sequence[Write], manager: str, outcome: Outcome, ends: float) -> None:
        if len(writes) == 1:
            await self._one(writes[0], manager, outcome, ends)
            return
        failures: list[Exception] = []
        waiting = iter(writes)

        async def some() -> None:
            for write in waiting:
                try:
                    await self._one(write, manager, outcome, ends)
                except Exception as error:  # the others are made all the same; the first failure is told
                    failures.append(error)

        await asyncio.gather(*(some() for _ in range(min(AT_ONCE, len(writes)))))
        if failures:
            raise failures[0]

    async def _one(self, write: Write, manager: str, outcome: Outcome, ends: float) -> None:
        if write.target != MANAGEMENT and asyncio.get_running_loop().time() >= ends:
            raise ServiceUnavailable(f"cluster {write.target}: its writes take too long, the rest follows later")
        if await self._writer.write(write, manager):
            outcome.details.append(write.reason)
        else:
            outcome.skipped += 1
        outcome.done += 1
