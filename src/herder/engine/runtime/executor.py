"""Execute a decision: check the guards, perform the writes in order, then start the effects.

Execution stops at the first action that fails or is refused. Completed actions are in the cache, so the next reconcile
decides on the actual state. Reconcilers therefore list writes in an order in which it is safe to stop anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from herder.engine.control.cache import Key
from herder.engine.meta.errors import ServiceUnavailable
from herder.engine.meta.kinds import Kind
from herder.engine.runtime.decision import MANAGEMENT, Decision, Effect, Outcome, Parallel, Patch, Refusal, Write
from herder.engine.runtime.events.recorder import ControllerEvents
from herder.engine.runtime.rejection import rejection_of
from herder.engine.runtime.view import View
from herder.engine.runtime.writer import Writer

Action = Write | Effect
Guard = Callable[[Action, View, Sequence[Action]], Refusal | None]
"""Pure function that may refuse an action, given the view it was decided on and the earlier actions of the same
decision."""


class Reconciled(NamedTuple):
    """The object that a decision is about: its kind, and its cluster if the controller knows it."""

    kind: Kind
    cluster: str


Withhold = Callable[[Action, View, Reconciled], Refusal | None]
"""Pure function that may withhold an action. Unlike with a guard, the other actions are executed."""

MAX_CONCURRENT_WRITES = 16
"""Concurrent writes of one decision."""
DOWNSTREAM_SECONDS = 30.0
"""Time limit for the downstream writes of one decision; the remaining ones follow in later reconciles. A downstream
cluster may control how many there are and how slowly it responds, and they occupy a worker."""


class DecisionExecutor:
    """Executes decisions through a writer, subject to guards."""

    def __init__(
        self,
        writer: Writer,
        *,
        guards: Sequence[Guard] = (),
        withhold: Withhold | None = None,
        perform: Callable[[Effect, Key], str] | None = None,
        events: ControllerEvents | None = None,
    ) -> None:
        self._writer = writer
        self._guards = tuple(guards)
        self._withhold = withhold
        self._perform = perform
        self._events = events
        self._rejected: dict[Key, str] = {}
        self._deferred_since: dict[Key, datetime] = {}  # when the first debounced write of a key was deferred

    async def resolve_uncertain(self) -> None:
        """Resolve writes with an unknown outcome before deciding again."""
        await self._writer.resolve_uncertain()

    async def execute(
        self, decision: Decision, view: View, *, manager: str, now: datetime, reconciled: Reconciled | None = None
    ) -> Outcome:
        outcome = Outcome(decision, now)
        await self._execute(decision, view, manager, outcome, reconciled)
        self._rejected.pop(view.key, None)
        if outcome.deferred_until is None:
            self._deferred_since.pop(view.key, None)
        return outcome

    async def _execute(
        self, decision: Decision, view: View, manager: str, outcome: Outcome, reconciled: Reconciled | None
    ) -> None:
        unrestricted = view.unrestricted()
        earlier: list[Action] = []
        deadline = asyncio.get_running_loop().time() + DOWNSTREAM_SECONDS
        for step in decision.writes:
            all_writes = step.writes if isinstance(step, Parallel) else (step,)
            writes = [each for each in all_writes if not self._is_withheld(each, unrestricted, reconciled, outcome)]
            if refusal := self._check_guards(writes, unrestricted, earlier):
                outcome.refusal = refusal
                return
            due = [write for write in writes if not self._is_deferred(write, view.key, outcome)]
            await self._write_all(due, view.key, manager, outcome, deadline)
        for effect in decision.effects:
            if self._is_withheld(effect, unrestricted, reconciled, outcome):
                continue
            if refusal := self._check_guards((effect,), unrestricted, earlier):
                outcome.refusal = refusal
                return
            if self._perform is None:
                raise LookupError(f"effect performer '{effect.performer}' is not registered")
            error = self._perform(effect, view.key)
            outcome.error = outcome.error or (f"effect {effect.performer}: {error}" if error else "")
            outcome.done += 1

    def rejected(self, key: Key) -> str:
        """Message about the last write for the key, if the API server rejected it."""
        return self._rejected.get(key, "")

    def forget(self, key: Key) -> None:
        self._deferred_since.pop(key, None)
        self._rejected.pop(key, None)

    def _check_guards(self, actions: Sequence[Action], view: View, earlier: list[Action]) -> Refusal | None:
        """Check actions one by one, each with those before it, so that a batch cannot bypass a guard that counts."""
        for action in actions:
            for guard in self._guards:
                refusal = guard(action, view, earlier)
                if refusal is not None:
                    return refusal
            earlier.append(action)
        return None

    def _is_withheld(self, action: Action, view: View, reconciled: Reconciled | None, outcome: Outcome) -> bool:
        """Return whether to leave out an action; record the first reason, unless the action would change nothing."""
        if self._withhold is None or reconciled is None:
            return False
        refusal = self._withhold(action, view, reconciled)
        if refusal is None:
            return False
        if isinstance(action, Effect) or not self._writer.changes_nothing(action):
            outcome.refusal = outcome.refusal or refusal
        return True

    def _is_deferred(self, write: Write, key: Key, outcome: Outcome) -> bool:
        """Return whether to defer a debounced write; the debounce time counts from the first deferral."""
        if not isinstance(write, Patch) or not write.debounce or self._writer.is_noop(write):
            return False
        until = self._deferred_since.setdefault(key, outcome.at) + timedelta(seconds=write.debounce)
        if until <= outcome.at:
            return False
        outcome.deferred_until = min(until, outcome.deferred_until or until)
        return True

    async def _write_all(
        self, writes: Sequence[Write], key: Key, manager: str, outcome: Outcome, deadline: float
    ) -> None:
        if len(writes) == 1:
            await self._write_one(writes[0], key, manager, outcome, deadline)
            return
        failures: list[Exception] = []
        pending = iter(writes)

        async def write_pending() -> None:
            for write in pending:
                try:
                    await self._write_one(write, key, manager, outcome, deadline)
                except Exception as error:  # the other writes continue; the first failure is raised
                    failures.append(error)

        await asyncio.gather(*(write_pending() for _ in range(min(MAX_CONCURRENT_WRITES, len(writes)))))
        if failures:
            raise failures[0]

    async def _write_one(self, write: Write, key: Key, manager: str, outcome: Outcome, deadline: float) -> None:
        if write.target != MANAGEMENT and asyncio.get_running_loop().time() >= deadline:
            raise ServiceUnavailable(
                f"cluster {write.target}: writes exceeded {DOWNSTREAM_SECONDS:.0f} s;"
                " the remaining writes follow in the next reconcile"
            )
        if await self._write_and_record(write, key, manager):
            outcome.details.append(write.reason)
        else:
            outcome.skipped += 1
        outcome.done += 1

    async def _write_and_record(self, write: Write, key: Key, manager: str) -> bool:
        """Send a write, and record its Events if it changed something, or that the API server rejects it."""
        try:
            changed = await self._writer.write(write, manager)
        except Exception as error:
            rejection = rejection_of(key, write, error, creates=self._writer.creates(write))
            if rejection is not None:
                self._rejected[key] = rejection.message
                if self._events is not None:
                    self._events.rejected(key, rejection)
            raise
        if changed and self._events is not None:
            for event in write.events:
                self._events.record(event)
        return changed
