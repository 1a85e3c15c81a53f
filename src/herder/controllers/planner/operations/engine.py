"""Run operations: start what the spec requests, drive it phase by phase, and store each step before it acts.

The engine is part of the planner pass. While an operation runs, nothing else is rolled out. A run that fails is stored
as failed, and the rollout gives all machines their plans again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NoReturn

import msgspec

from herder.api.rke.events import cluster_events
from herder.api.rke.names import PLAN_TASK
from herder.api.rke.node.plan import Plan
from herder.api.rke.node.plan_secret import IN_PROGRESS
from herder.api.rke.operations import FAILED, Run, active_run, without_tasks
from herder.api.rke.strategy import is_lost
from herder.controllers.planner.distributions.tasks import Mode, Task, UnsupportedTask
from herder.controllers.planner.operations.certificates import CERTIFICATES
from herder.controllers.planner.operations.encryption_keys import ENCRYPTION_KEYS
from herder.controllers.planner.operations.interface import Batch, Operation, OperationScope, Phase, Step
from herder.controllers.planner.operations.restore import RESTORE
from herder.controllers.planner.operations.snapshot import SNAPSHOT
from herder.controllers.planner.plan.tokens import redact_tokens
from herder.controllers.planner.plan.writes import deliver_task
from herder.controllers.planner.rollout import messages
from herder.controllers.planner.rollout.machines import PlanEntry, entries_by_key
from herder.controllers.planner.rollout.scope import PassEnded, PlanScope, RequeuePass, Result
from herder.engine.runtime.decision import NORMAL, WARNING, Patch

OPERATIONS: Sequence[Operation] = (SNAPSHOT, RESTORE, CERTIFICATES, ENCRYPTION_KEYS)
MAX_CAUSE = 400  # characters of a task's output in a message
_BY_KIND = {each.kind: each for each in OPERATIONS}


@dataclass(frozen=True)
class RenderedTask:
    plan: Plan
    joins: str  # the server that the machine joins


RenderTask = Callable[[PlanEntry, Task], RenderedTask]
"""Renders the files and instructions of a task."""


def run_operation(scope: PlanScope, render: Callable[[], RenderTask], result: Result) -> None:
    """Continue or start an operation. Ends the pass while one runs."""
    run = active_run(scope.control_plane)
    if run is None:
        requested = next((each for each in OPERATIONS if each.is_requested(scope)), None)
        if requested is not None and (scope.initialized or (requested.kind == RESTORE.kind and scope.established)):
            _start(requested, scope, result)
        return
    operation = _BY_KIND.get(run.kind)
    if operation is None:
        raise PassEnded(f"operation {run.kind} was started by another version of the manager; upgrade this one")
    _Drive(operation, OperationScope(scope, run, _machines(scope)), render, result).run()


def _machines(scope: PlanScope) -> list[PlanEntry]:
    hidden = [key for keys in scope.up_to_date.values() for key in keys]
    found = [*scope.active_entries(), *entries_by_key(scope.view, hidden)]
    return sorted(found, key=lambda entry: entry.name)


# --- start and end ----------------------------------------------------------------------------------------------------


def _start(operation: Operation, scope: PlanScope, result: Result) -> NoReturn:
    """Store the run, or why it is refused. The first phase begins in the next pass."""
    now, first = scope.view.now, operation.phases[0]
    generation = int((scope.spec.get(operation.kind) or {}).get("generation") or 0)
    name = f"{operation.kind}-{generation}-{int(now.timestamp())}"
    run = Run(name, operation.kind, first.name, generation, started_at=now, deadline=now + first.timeout)
    planned = OperationScope(scope, run, _machines(scope))
    if problem := operation.preflight(planned):
        _end(operation, replace(run, phase=FAILED, deadline=None, message=problem), scope, result)
    run = replace(run, leader=operation.leader(planned))
    _store(operation, run, scope, result)
    message = f"{operation.title} {generation} has started"
    result.events += cluster_events(scope.cluster, scope.control_plane, "OperationStarted", message, NORMAL)
    raise PassEnded(f"{operation.title}: starting")


def _store(operation: Operation, run: Run, scope: PlanScope, result: Result) -> None:
    result.status |= {"operation": run.to_status(), **operation.status(run, scope)}


def _end(operation: Operation, run: Run, scope: PlanScope, result: Result) -> NoReturn:
    _store(operation, run, scope, result)
    failed = run.phase == FAILED
    what = f"has failed: {run.message}" if failed else "has finished"
    message, reason = f"{operation.title} {run.generation} {what}", f"Operation{'Failed' if failed else 'Finished'}"
    type_ = WARNING if failed else NORMAL
    result.events += cluster_events(scope.cluster, scope.control_plane, reason, message, type_)
    raise PassEnded(message)


# --- phases -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _StepFailed(Exception):
    entry: PlanEntry
    reason: str


@dataclass(frozen=True)
class _Drive:
    """One pass of an active run."""

    operation: Operation
    scope: OperationScope
    render: Callable[[], RenderTask]
    result: Result

    def run(self) -> NoReturn:
        phase = self._phase()
        if problem := phase.blocker(self.scope):
            self._fail(problem)
        if writes := phase.prepare(self.scope):
            self._check_deadline(phase, "its preparation")
            self.result.writes += writes
            self.result.plans = True
            raise RequeuePass
        try:
            self._run_batches(phase)
        except _StepFailed as failed:
            self._retry_or_fail(phase, f"machine {failed.entry.name}: {failed.reason}")
        self.result.writes += phase.record(self.scope)
        self._advance(phase)

    @property
    def _now(self) -> datetime:
        return self.scope.planning.view.now

    def _redact(self, report: str) -> str:
        """Nodes report what they like, also join tokens."""
        view = self.scope.planning.view
        return redact_tokens(view, view.name, report)

    def _phase(self) -> Phase:
        run = self.scope.run
        found = next((each for each in self.operation.phases if each.name == run.phase), None)
        if found is None:
            self._fail(f"phase {run.phase} is unknown to this version of the manager")
        return found

    def _run_batches(self, phase: Phase) -> None:
        for batch in phase.batches(self.scope):
            waits = {step.entry.name: wait for step in batch if (wait := self._run_step(step))}
            if waits:
                self._wait(phase, batch, waits)

    def _run_step(self, step: Step) -> str:
        """What the step waits for; empty if it is done."""
        entry = step.entry
        if not self._is_delivered(step):
            if _is_busy(step):
                return self._redact(messages.plan_status(entry, self._now)) or messages.NOT_APPLIED
            self.result.writes.append(self._delivery(step))
            self.result.plans = True
            return messages.NOT_APPLIED
        if step.task is None and is_lost(entry.machine):
            return ""  # it applies its plan when it returns
        if entry.plan.failed:
            raise _StepFailed(entry, _evidence(entry, self._redact))
        return "" if entry.plan.is_done else self._redact(messages.plan_status(entry, self._now))

    def _is_delivered(self, step: Step) -> bool:
        """A task that an earlier attempt at the phase has finished is not repeated."""
        delivered, plan = step.entry.annotations.get(PLAN_TASK, ""), step.entry.plan
        if step.task is None:
            return not delivered
        return delivered == step.task.mark or (self.scope.run.is_own_phase(delivered) and plan.in_sync)

    def _delivery(self, step: Step) -> Patch:
        """Add the task to the plan that the machine has, so that nothing else changes with it."""
        current = without_tasks(step.entry.plan.plan or Plan())
        if step.task is None:
            return deliver_task(step.entry, current, "", self._now)
        try:
            rendered = self.render()(step.entry, step.task)
        except UnsupportedTask as error:
            self._fail(str(error))
        plan = _combined(current, rendered.plan, step.task.mode)
        joins = rendered.joins if step.task.mode is Mode.RENDERED else step.entry.joined_to
        return deliver_task(step.entry, plan, step.task.mark, self._now, joins=joins)

    def _wait(self, phase: Phase, batch: Batch, waits: dict[str, str]) -> NoReturn:
        run = self.scope.run
        waiting = [step.entry for step in batch if step.entry.name in waits]
        message = messages.name_machines(
            "waiting for machine(s)", waiting, {name: [why] for name, why in waits.items()}
        )
        self._check_deadline(phase, message)
        self.result.wake_at = run.deadline
        raise PassEnded(f"{self.operation.title}, phase {phase.name}: {message}")

    def _check_deadline(self, phase: Phase, waits_for: str) -> None:
        """Fail the run if the phase takes too long, also if a guard refuses its writes."""
        run, refused = self.scope.run, self.scope.planning.view.refused
        if run.deadline is not None and self._now >= run.deadline:
            minutes = int(phase.timeout.total_seconds()) // 60
            self._fail(f"not finished within {minutes} minutes: {refused or waits_for}")

    def _advance(self, phase: Phase) -> NoReturn:
        run, phases = self.scope.run, list(self.operation.phases)
        following = [each for each in phases[phases.index(phase) + 1 :] if run.message or not each.after_failure]
        if not following:
            end = FAILED if run.message else self.operation.end
            _end(self.operation, replace(run, phase=end, deadline=None), self.scope.planning, self.result)
        advanced = run.at(following[0].name, self._now + following[0].timeout)
        _store(self.operation, advanced, self.scope.planning, self.result)
        raise PassEnded(f"{self.operation.title}: phase {advanced.phase}")

    def _retry_or_fail(self, phase: Phase, problem: str) -> NoReturn:
        run = self.scope.run
        if run.attempt >= phase.attempts:
            self._fail(problem)
        again = replace(run, attempt=run.attempt + 1, deadline=self._now + phase.timeout)
        _store(self.operation, again, self.scope.planning, self.result)
        raise PassEnded(f"{self.operation.title}, phase {phase.name}: attempt {again.attempt} after: {problem}")

    def _fail(self, problem: str) -> NoReturn:
        """End the run as failed, after its last phase, which gives all machines their plans back.

        Its failure is stored without the writes of this pass: a guard may refuse them, and nothing after them is
        stored then.
        """
        self.result.writes.clear()
        run, phases = self.scope.run, {each.name: each for each in self.operation.phases}
        last, problem = self.operation.phases[-1], f"phase {run.phase}: {problem}"
        current = phases.get(run.phase, last)
        if current is last:
            failed = replace(run, phase=FAILED, deadline=None, message=run.message or problem)
            _end(self.operation, failed, self.scope.planning, self.result)
        following = phases[current.on_failure] if current.on_failure else last
        ending = run.at(following.name, self._now + following.timeout, message=run.message or problem)
        _store(self.operation, ending, self.scope.planning, self.result)
        raise PassEnded(f"{self.operation.title}: {problem}")


def _combined(current: Plan, task: Plan, mode: Mode) -> Plan:
    if mode is Mode.RENDERED:
        return task
    files = {each.path: each for each in (*current.files, *task.files)}
    if mode is Mode.ALONE:
        return Plan(files=tuple(files.values()), instructions=task.instructions)
    instructions = (*current.instructions, *task.instructions)
    return msgspec.structs.replace(current, files=tuple(files.values()), instructions=instructions)


def _is_busy(step: Step) -> bool:
    """Whether the machine must finish its plan first. A task that it has not begun is withdrawn."""
    plan = step.entry.plan
    is_begun_task = plan.state == IN_PROGRESS and not is_lost(step.entry.machine)
    withdraws = step.task is None and not is_begun_task
    return plan.is_moving and not withdraws


def _evidence(entry: PlanEntry, redact: Callable[[str], str]) -> str:
    """Why the plan failed. Redacted before it is cut: a part of a token is not recognized."""
    evidence = entry.plan.evidence
    if evidence is None:
        return messages.FAILED
    first = next((line for line in evidence.tail.splitlines() if line.strip()), "")
    cause = redact(first)[:MAX_CAUSE]
    parts = (f'instruction "{evidence.instruction}"', f"exit code {evidence.exit_code}", evidence.error, cause)
    return redact(": ".join(part for part in parts if part))
