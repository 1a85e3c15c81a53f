"""Run operations: start what the spec requests, drive it phase by phase, and store each step before it acts.

The engine is part of the planner pass. While an operation runs, nothing else is rolled out. A run that fails is stored
as failed, and the rollout gives all machines their plans again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NoReturn

from herder.api.capi.conditions import timestamp
from herder.api.capi.names import annotations_of
from herder.api.guards.plans import version_refusal
from herder.api.rke import operations
from herder.api.rke.events import cluster_events
from herder.api.rke.machines.strategy import is_lost, is_node_deleted
from herder.api.rke.names import ABORT_OPERATION, PLAN_TASK, PLAN_UPDATED
from herder.api.rke.node.plan import Plan
from herder.api.rke.node.plan_secret import IN_PROGRESS, PENDING
from herder.api.rke.operation_history import extended_history
from herder.api.rke.operations import ABORTED, FAILED, Run, active_run, is_abortable, request_in, without_tasks
from herder.api.times import parse_time
from herder.api.writes import ref
from herder.controllers.planner.distributions.tasks import HostTask, Mode, Task, UnsupportedTask, combined
from herder.controllers.planner.operations.agents import NODE_AGENTS
from herder.controllers.planner.operations.certificates import AUTHORITIES, CERTIFICATES
from herder.controllers.planner.operations.encryption_keys import ENCRYPTION_KEYS
from herder.controllers.planner.operations.failures import MAX_CAUSE, failure_of
from herder.controllers.planner.operations.interface import (
    AutomaticOperation,
    Batch,
    Operation,
    OperationScope,
    Phase,
    RequestedOperation,
    Step,
)
from herder.controllers.planner.operations.inverse import saved_inverse
from herder.controllers.planner.operations.restore import RESTORE
from herder.controllers.planner.operations.snapshots.before_upgrade import UPGRADE_SNAPSHOT
from herder.controllers.planner.operations.snapshots.creation import SNAPSHOT
from herder.controllers.planner.operations.snapshots.deletion import SNAPSHOT_DELETION
from herder.controllers.planner.operations.snapshots.schedule import SCHEDULED_SNAPSHOT, record_schedule
from herder.controllers.planner.plan.inputs import InputsNotReady
from herder.controllers.planner.plan.tokens import redact_tokens
from herder.controllers.planner.plan.writes import deliver_task
from herder.controllers.planner.rollout import messages
from herder.controllers.planner.rollout.machines import PlanEntry, entries_by_key
from herder.controllers.planner.rollout.scope import PassEnded, PlanScope, RequeuePass, Result, earliest
from herder.engine.meta.printable import printable
from herder.engine.runtime.decision import NORMAL, WARNING, Create, Patch, Write

OPERATIONS: Sequence[RequestedOperation] = (
    SNAPSHOT,
    RESTORE,
    CERTIFICATES,
    AUTHORITIES,
    ENCRYPTION_KEYS,
    NODE_AGENTS,
    UPGRADE_SNAPSHOT,
)
AUTOMATIC: Sequence[AutomaticOperation] = (SNAPSHOT_DELETION, SCHEDULED_SNAPSHOT)
WORKER_TIMEOUT = timedelta(minutes=10)
"""How long a phase waits for a worker that it may skip, since its plan was written or its Node was lost."""
RETRY_FIRST, RETRY_LIMIT = timedelta(seconds=15), timedelta(minutes=5)
"""Time before the second attempt at a phase, doubled for each further one."""
_BY_KIND: Mapping[str, Operation] = {each.kind: each for each in (*OPERATIONS, *AUTOMATIC)}


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
        _start_requested(scope, result)
        return
    operation = _BY_KIND.get(run.kind)
    if operation is None:
        raise PassEnded(f"operation {run.kind} was started by another version of the manager; upgrade this one")
    if run.suspended_at is not None:  # stored alone: a guard may refuse the writes that follow
        _store(operation, run.resumed(scope.view.now), scope, result)
        raise PassEnded(f"{operation.title}: continuing")
    planned = OperationScope(scope, run, _machines(scope)).with_whole_phase(operation.phases)
    if planned.run != run:
        result.status["operation"] = planned.run.to_status()
    _Drive(operation, planned, render, result).run()


def _start_requested(scope: PlanScope, result: Result) -> None:
    requested = next((each for each in OPERATIONS if each.is_requested(scope)), None)
    if requested is not None and (scope.initialized or (requested.kind == RESTORE.kind and scope.established)):
        _start(requested, scope, result)
    if not scope.initialized:
        return
    result.status |= record_schedule(scope)
    for automatic in AUTOMATIC:
        due = automatic.due_at(scope)
        if due is not None and due <= scope.view.now:
            _start(automatic, scope, result)
        result.wake_at = earliest(result.wake_at, due)


def _machines(scope: PlanScope) -> list[PlanEntry]:
    hidden = [key for keys in scope.up_to_date.values() for key in keys]
    found = [*scope.active_entries(), *entries_by_key(scope.view, hidden)]
    return sorted(found, key=lambda entry: entry.name)


# --- start and end ----------------------------------------------------------------------------------------------------


def _start(operation: Operation, scope: PlanScope, result: Result) -> NoReturn:
    """Store the run, or why it is refused. The first phase begins in the next pass."""
    now, first = scope.view.now, operation.phases[0]
    generation = int(request_in(scope.spec, operation.kind).get("generation") or 0)
    name = f"{operation.kind}-{generation}-{int(now.timestamp())}"
    run = Run(name, operation.kind, first.name, generation, now, deadline=now + first.timeout, phase_started_at=now)
    planned = OperationScope(scope, run, _machines(scope))
    result.status |= operations.stored_request(
        scope.spec, operation.kind
    )  # from now on, the run depends on this request, whatever the spec says
    if problem := operation.preflight(planned):
        _end(operation, replace(run, phase=FAILED, deadline=None, message=problem), scope, result)
    run = replace(run, leader=operation.leader(planned), inverse=operation.inverse(planned))
    _store(operation, run, scope, result)
    undo = run.inverse.get("message", "")
    message = f"{_title(operation, run)} has started" + (f"; {undo}" if undo else "")
    result.events += cluster_events(scope.cluster, scope.control_plane, "OperationStarted", message, NORMAL)
    raise PassEnded(f"{operation.title}: starting")


def _title(operation: Operation, run: Run) -> str:
    return f"{operation.title} {run.generation}" if run.generation else operation.title


def _store(operation: Operation, run: Run, scope: PlanScope, result: Result) -> None:
    """The request stays as it was when the run started: the spec may request another run by now."""
    fields = {name: value for name, value in operation.status(run, scope).items() if name != operation.kind}
    result.status |= {"operation": run.to_status(), **fields}
    result.in_background = run.is_in_background


def _end(operation: Operation, run: Run, scope: PlanScope, result: Result) -> NoReturn:
    _store(operation, run, scope, result)
    result.status["operationHistory"] = extended_history(scope.status, run, scope.view.now)
    failed = run.phase == FAILED
    what = f"has failed: {run.message}" if failed else "has finished"
    what += f"; {run.skipped_message}" if run.skipped else ""
    message, reason = f"{_title(operation, run)} {what}", f"Operation{'Failed' if failed else 'Finished'}"
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
        self._check_abort()
        self._check_leader(phase)
        self._wait_for_retry(phase)
        if problem := phase.blocker(self.scope):
            self._fail(problem)
        if writes := phase.prepare(self.scope):
            self._check_deadline(phase, "its preparation")
            self.result.writes += writes
            self.result.plans = True
            raise RequeuePass
        batches = phase.batches(self.scope)
        if absent := self._absent(phase, batches):
            self._skip(phase, absent)
        try:
            self._run_batches(phase, batches)
        except _StepFailed as failed:
            self._retry_or_fail(phase, failed)
        if problem := phase.check(self.scope):
            self._fail(problem)
        writes = phase.record(self.scope)
        if rejection := self._rejection(writes):
            self._fail(rejection)
        self.result.writes += writes
        inverse = saved_inverse(self.scope, writes) if phase.saves_inverse else None
        self._advance(phase, inverse or {})

    def _check_abort(self) -> None:
        run, control_plane = self.scope.run, self.scope.planning.control_plane
        if annotations_of(control_plane).get(ABORT_OPERATION) == run.id and is_abortable(run):
            self._fail(ABORTED, is_final=True)

    def _wait_for_retry(self, phase: Phase) -> None:
        """What made the last attempt fail, such as an API server that restarts, may pass."""
        run = self.scope.run
        if run.retry_at is not None and self._now < run.retry_at:
            self.result.wake_at = earliest(self.result.wake_at, run.retry_at)
            self.result.in_background = run.is_in_background
            raise PassEnded(self._retry_message(run))

    def _retry_message(self, run: Run) -> str:
        at = f" at {timestamp(run.retry_at)}" if run.retry_at else ""
        return f"{self.operation.title}, phase {run.phase}: attempt {run.attempt}{at} after: {run.retry_reason}"

    def _check_leader(self, phase: Phase) -> None:
        """Fail at once if nobody can do the task of the leader, instead of at the deadline."""
        run = self.scope.run
        if not phase.needs_leader:
            return
        leader, remedy = self.scope.leader(), "request the operation again"
        if leader is None:
            problem = f"machine {run.leader}, which acts for the others, is deleted; {remedy}"
            if phase.ends_without_leader:
                self._end_as_failed(f"phase {run.phase}: {problem}")
            self._fail(problem, is_final=True)
        if problem := messages.machine_problem(leader.machine):
            self._fail(f"machine {run.leader}, which acts for the others: {problem}; {remedy}", is_final=True)
        if leader.annotations.get(PLAN_TASK) == run.mark and self.scope.is_silent(leader):
            why = self._redact(messages.plan_status(leader, self._now))
            self._fail(f"machine {run.leader}: {why}; repair or delete it, and {remedy}", is_final=True)
        self.result.wake_at = self.scope.silent_since(leader)

    def _rejection(self, writes: Sequence[Write]) -> str:
        """Why the API server rejected one of these in the last pass, such as a quota: repeating it would not help."""
        rejected = self.scope.planning.view.rejected
        created = [ref(write.kind, write.obj) for write in writes if isinstance(write, Create)]
        return printable(rejected, MAX_CAUSE) if any(f"{each}:" in rejected for each in created) else ""

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

    def _absent(self, phase: Phase, batches: Sequence[Batch]) -> list[str]:
        """Names of workers that have had enough time to respond, and have not done their task."""
        steps = [step for batch in batches for step in batch if step.task is not None] if phase.skips_workers else []
        due = {step.entry.name: self._absent_since(step.entry) for step in steps if not self._is_done(step)}
        return [name for name, since in due.items() if since is not None and self._now >= since]

    def _skip(self, phase: Phase, names: Sequence[str]) -> NoReturn:
        run, scope = self.scope.run, self.scope.planning
        run = replace(run, skipped=sorted({*run.skipped, *names}), deadline=self._now + phase.timeout)
        _store(self.operation, run, scope, self.result)
        message = f"{_title(self.operation, run)}: {run.skipped_message}"
        self.result.events += cluster_events(scope.cluster, scope.control_plane, "WorkersSkipped", message, WARNING)
        raise PassEnded(f"{self.operation.title}, phase {phase.name}: {run.skipped_message}")

    def _is_done(self, step: Step) -> bool:
        return self._is_delivered(step) and step.entry.plan.is_done and not step.missing

    def _run_batches(self, phase: Phase, batches: Sequence[Batch]) -> None:
        for batch in batches:
            waits = {step.entry.name: wait for step in batch if (wait := self._run_step(step))}
            if waits:
                self._wait(phase, batch, waits)

    def _run_step(self, step: Step) -> str:
        """What the step waits for; empty if it is done."""
        entry = step.entry
        if self._is_overdue(step):
            return ""
        if not self._is_delivered(step):
            if _is_busy(step) and not self._is_unresponsive(step):
                return self._redact(messages.plan_status(entry, self._now)) or messages.NOT_APPLIED
            try:
                delivery = self._delivery(step)
            except InputsNotReady as missing:  # the deadline of the phase counts for this too
                self.result.effects += [each for each in missing.effects if each not in self.result.effects]
                return str(missing)
            if entry.roles.only_worker and (refusal := version_refusal(delivery, self.scope.planning.view)):
                return self._wait_for_version(step, str(refusal))
            self.result.writes.append(delivery)
            self.result.plans = True
            return messages.NOT_APPLIED
        if self._is_unresponsive(step):
            return ""  # it applies its plan when it returns
        if entry.plan.failed:
            raise _StepFailed(entry, failure_of(entry, self._redact))
        if not entry.plan.is_done:
            return self._redact(messages.plan_status(entry, self._now))
        if self._lacks_report(step):
            raise _StepFailed(entry, f"{step.missing} within {int(step.report_timeout.total_seconds()) // 60} minutes")
        return step.missing

    def _wait_for_version(self, step: Step, refusal: str) -> str:
        """Wait for a worker that reports another version than it should have, and then continue without it. After a
        restore of the manager, its version may not be known yet."""
        run = self.scope.run
        due = max(run.phase_started_at or run.started_at, self.scope.driven_since) + WORKER_TIMEOUT
        if self._now < due:
            self.result.wake_at = earliest(self.result.wake_at, due)
            return refusal
        if step.is_of_worker:
            return ""
        raise _StepFailed(step.entry, refusal)

    def _lacks_report(self, step: Step) -> bool:
        """Whether the machine must have reported by now that its task had an effect."""
        due = self._report_due(step)
        return due is not None and self._now >= due

    def _report_due(self, step: Step) -> datetime | None:
        due, since = step.report_due, self.scope.driven_since
        return max(due, since + step.report_timeout) if due is not None else None

    def _is_unresponsive(self, step: Step) -> bool:
        """Whether the phase continues without the machine.

        A worker whose Node is missing is waited for: a restore may not know the Node, which its task registers again.
        """
        if step.is_optional and self.scope.is_silent(step.entry):
            return True
        waits = step.is_optional and step.is_of_worker and is_node_deleted(step.entry.machine)
        return (step.task is None or step.is_optional) and is_lost(step.entry.machine) and not waits

    def _is_overdue(self, step: Step) -> bool:
        """Whether the phase continues without a worker that has failed, or that does not finish in time.

        Workers report what they like. None may fail an operation of servers, or keep its last phases from running.
        """
        if not step.is_of_worker or step.entry.plan.is_done:
            return False
        due = earliest(self._overdue_since(step), self.scope.run.deadline)
        return (step.entry.plan.failed and self._is_delivered(step)) or (due is not None and self._now >= due)

    def _overdue_since(self, step: Step) -> datetime | None:
        """When the plan that the machine has is too old to wait for."""
        written, since = parse_time(step.entry.annotations.get(PLAN_UPDATED)), self.scope.driven_since
        return max(written, since) + WORKER_TIMEOUT if written is not None else None

    def _absent_since(self, entry: PlanEntry) -> datetime | None:
        """When a worker is skipped that is down until then, as guards hold back others of its tier; None for others."""
        if not entry.roles.only_worker:
            return None
        run, connected = self.scope.run, self.scope.driven_since
        written = parse_time(entry.annotations.get(PLAN_UPDATED))
        begun = max(run.phase_started_at or run.started_at, written or run.started_at)
        long_after = max(begun, connected) + messages.LONG_AFTER
        if is_lost(entry.machine):  # again and again, if it likes, but not after it has had its task for long
            due = max(self.scope.lost_since(entry) or begun, connected) + WORKER_TIMEOUT
            return min(due, long_after) if run.is_own_phase(entry.annotations.get(PLAN_TASK, "")) else due
        if written is None or entry.plan.is_done:
            return None
        if entry.plan.is_moving:
            return max(written, connected) + (WORKER_TIMEOUT if entry.plan.state == PENDING else messages.LONG_AFTER)
        return long_after

    def _is_delivered(self, step: Step) -> bool:
        """A task that an earlier attempt at the phase has finished is not repeated."""
        delivered, plan = step.entry.annotations.get(PLAN_TASK, ""), step.entry.plan
        if step.task is None:
            return not delivered
        if delivered == step.task.mark:
            return True
        return self.scope.run.is_own_phase(delivered) and plan.in_sync and not self._lacks_report(step)

    def _delivery(self, step: Step) -> Patch:
        """Add the task to the plan that the machine has, so that nothing else changes with it."""
        current = without_tasks(step.entry.plan.plan or Plan())
        if step.task is None:
            return deliver_task(step.entry, current, "", self._now)
        if isinstance(step.task, HostTask):
            plan = combined(current, Plan(instructions=(step.task.instruction(),)), step.task.mode)
            return deliver_task(step.entry, plan, step.task.mark, self._now, joins=step.entry.joined_to)
        try:
            rendered = self.render()(step.entry, step.task)
        except UnsupportedTask as error:
            self._fail(str(error))
        plan = combined(current, rendered.plan, step.task.mode)
        joins = rendered.joins if step.task.mode is Mode.RENDERED else step.entry.joined_to
        return deliver_task(step.entry, plan, step.task.mark, self._now, joins=joins)

    def _wait(self, phase: Phase, batch: Batch, waits: dict[str, str]) -> NoReturn:
        run = self.scope.run
        waiting = [step.entry for step in batch if step.entry.name in waits]
        message = messages.name_machines(
            "waiting for machine(s)", waiting, {name: [why] for name, why in waits.items()}
        )
        self._check_deadline(phase, message)
        wakes = [self.result.wake_at, run.deadline, *(self.scope.silent_since(step.entry) for step in batch)]
        wakes += [self._report_due(step) for step in batch]
        wakes += [self._overdue_since(step) for step in batch if step.is_of_worker]
        wakes += [self._absent_since(step.entry) for step in batch if phase.skips_workers]
        self.result.wake_at = earliest(*(each for each in wakes if each is not None and each > self._now))
        self.result.waiting_machines = sorted(waits)
        self.result.in_background = run.is_in_background
        raise PassEnded(f"{self.operation.title}, phase {phase.name}: {message}")

    def _check_deadline(self, phase: Phase, waits_for: str) -> None:
        """Fail the run if the phase takes too long, also if a guard refuses its writes."""
        run, refused = self.scope.run, self.scope.planning.view.refused
        if run.deadline is not None and self._now >= run.deadline:
            minutes = int(phase.timeout.total_seconds()) // 60
            self._fail(f"not finished within {minutes} minutes: {refused or waits_for}")

    def _advance(self, phase: Phase, inverse: Mapping[str, str]) -> NoReturn:
        run, phases = self.scope.run, list(self.operation.phases)
        run = replace(run, inverse=inverse or run.inverse)
        following = [each for each in phases[phases.index(phase) + 1 :] if run.message or not each.after_failure]
        if not following:
            end = FAILED if run.message else self.operation.end
            _end(self.operation, run.at(end, self._now, None), self.scope.planning, self.result)
        self._begin(run.at(following[0].name, self._now, self._now + following[0].timeout))
        raise PassEnded(f"{self.operation.title}: phase {following[0].name}")

    def _begin(self, run: Run) -> None:
        """Store a run that begins another phase."""
        scope = self.scope.planning
        _store(self.operation, run, scope, self.result)
        after = f" after: {run.message}" if run.message else ""
        message = f"{_title(self.operation, run)}: phase {run.phase}{after}"
        self.result.events += cluster_events(scope.cluster, scope.control_plane, "OperationPhase", message, NORMAL)

    def _retry_or_fail(self, phase: Phase, failed: _StepFailed) -> NoReturn:
        run, problem = self.scope.run, f"machine {failed.entry.name}: {failed.reason}"
        if run.attempt >= phase.attempts and phase.skips_workers and failed.entry.roles.only_worker:
            self._skip(phase, [failed.entry.name])
        if run.attempt >= phase.attempts:
            self._fail(problem)
        self.result.writes.clear()
        at = self._now + min(RETRY_FIRST * 2 ** (run.attempt - 1), RETRY_LIMIT)
        again = replace(
            run, attempt=run.attempt + 1, deadline=at + phase.timeout, retry_at=at, retry_reason=problem[:MAX_CAUSE]
        )
        _store(self.operation, again, self.scope.planning, self.result)
        self.result.wake_at = at
        raise PassEnded(self._retry_message(again))

    def _fail(self, problem: str, *, is_final: bool = False) -> NoReturn:
        """End the run as failed, after its last phase, which gives all machines their plans back.

        An optional phase that fails is skipped, unless the whole run cannot continue (`is_final`). The failure is
        stored without the writes of this pass: a guard may refuse them, and nothing after them is stored then.
        """
        self.result.writes.clear()
        run, phases = self.scope.run, {each.name: each for each in self.operation.phases}
        last, problem = self.operation.phases[-1], f"phase {run.phase}: {problem}"
        current = phases.get(run.phase, last)
        if current.is_optional and not is_final:
            self._advance(current, {"message": f"it cannot be undone: {problem}"})
        message = run.message or problem
        if current is last:
            self._end_as_failed(message)
        following = phases[current.on_failure] if current.on_failure else last
        self._begin(run.at(following.name, self._now, self._now + following.timeout, message=message))
        raise PassEnded(f"{self.operation.title}: {problem}")

    def _end_as_failed(self, message: str) -> NoReturn:
        failed = self.scope.run.at(FAILED, self._now, None, message=message)
        _end(self.operation, failed, self.scope.planning, self.result)


def _is_busy(step: Step) -> bool:
    """Whether the machine must finish its plan first. A task that it has not begun is withdrawn."""
    plan = step.entry.plan
    is_begun_task = plan.state == IN_PROGRESS and not is_lost(step.entry.machine) and not step.supersedes
    withdraws = (step.task is None or step.is_optional) and not is_begun_task
    return plan.is_moving and not withdraws
