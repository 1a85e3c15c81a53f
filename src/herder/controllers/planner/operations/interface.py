"""Interface between the operations engine and operations.

An operation is a list of phases. A phase names its machines in batches and the task of each; the engine delivers the
tasks, waits for them, retries, and stores progress. Operations decide nothing about plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from herder.api.capi.conditions import find
from herder.api.rke.machines.strategy import is_lost
from herder.api.rke.names import PLAN_TASK, PLAN_UPDATED
from herder.api.rke.operations import Run, active_run, request_in
from herder.api.times import parse_time
from herder.controllers.planner.distributions.interface import Distribution
from herder.controllers.planner.distributions.tasks import Task
from herder.controllers.planner.rollout import messages
from herder.controllers.planner.rollout.machines import PlanEntry
from herder.controllers.planner.rollout.scope import PlanScope
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Write

SKEW = timedelta(minutes=5)
"""How far the clock of a machine may be ahead."""


@dataclass(frozen=True)
class OperationScope:
    """What an operation decides on: the pass, its run and all machines, including workers that are up to date."""

    planning: PlanScope
    run: Run
    machines: Sequence[PlanEntry]  # that are not being deleted

    @property
    def request(self) -> Object:
        """The request that started the run. Later changes of the spec request another run."""
        stored = active_run(self.planning.control_plane)
        source = self.planning.status if stored is not None and stored.id == self.run.id else self.planning.spec
        return request_in(source, self.run.kind)

    @property
    def distribution(self) -> Distribution:
        return self.planning.distribution

    @property
    def driven_since(self) -> datetime:
        """Since when the run is driven without a break. Before, the manager was down, its API server was not available,
        or the run was suspended: what was not done or reported then is not late."""
        connected, resumed = self.planning.view.connected_since, self.run.resumed_at
        return max(connected, resumed) if resumed is not None else connected

    def with_whole_phase(self, phases: Sequence[Phase]) -> OperationScope:
        """After a break, the phase has its whole time again: in the break, no machine got its task."""
        run = self.run
        due = next((self.driven_since + each.timeout for each in phases if each.name == run.phase), None)
        is_late = run.deadline is not None and due is not None and run.deadline < due
        return replace(self, run=replace(run, deadline=due)) if is_late else self

    def silent_since(self, entry: PlanEntry) -> datetime | None:
        """When the agent counts as silent."""
        due = messages.silent_since(entry)
        return max(due, self.driven_since + messages.SILENT_AFTER) if due is not None else None

    def is_silent(self, entry: PlanEntry) -> bool:
        due = self.silent_since(entry)
        return due is not None and self.planning.view.now >= due

    def lost_since(self, entry: PlanEntry) -> datetime | None:
        """When the Node of the machine was lost. Its kubelet reports the time, so that one in the future is none."""
        ready = find(entry.machine, "NodeReady") or {}
        since = parse_time(str(ready.get("lastTransitionTime") or "")) if is_lost(entry.machine) else None
        return since if since is not None and since <= self.planning.view.now + SKEW else None

    def leader(self) -> PlanEntry | None:
        return next((entry for entry in self.machines if entry.name == self.run.leader), None)

    def members(self) -> list[PlanEntry]:
        """Machines that run etcd and have completed a plan."""
        return [entry for entry in self.machines if entry.roles.etcd and entry.plan.has_run_a_plan]


@dataclass(frozen=True)
class Step:
    """The task of one machine. Without a task, the machine gets its plan back as it was before its last task."""

    entry: PlanEntry
    task: Task | None = None
    is_optional: bool = False
    """Replaces a task that the machine has not begun, and does not wait for a machine that is lost or silent."""
    supersedes: bool = False
    """Replaces a task that the machine has begun. The agent runs it when that task has ended."""
    missing: str = ""
    """What the machine has not reported yet, although its task may have succeeded; empty if nothing is missing."""
    report_timeout: timedelta = timedelta(0)
    """Time after the delivery of the task until the missing report counts as a failure."""

    @property
    def report_due(self) -> datetime | None:
        """When the missing report counts as a failure; None if none is missing."""
        delivered = parse_time(self.entry.annotations.get(PLAN_UPDATED)) if self.missing else None
        return delivered + self.report_timeout if delivered else None

    @property
    def is_of_worker(self) -> bool:
        """Whether the operation succeeds without this machine: a worker, which does nothing that others need."""
        return self.entry.roles.only_worker and (self.task is None or self.is_optional)


Batch = Sequence[Step]
"""Steps that run at the same time."""


@dataclass(frozen=True)
class Phase:
    """One phase of an operation."""

    name: str
    batches: Callable[[OperationScope], Sequence[Batch]]  # one after the other
    timeout: timedelta
    attempts: int = 1
    blocker: Callable[[OperationScope], str] = lambda _scope: ""
    """Why the phase must not go on, such as a machine that is deleted meanwhile. The run fails then."""
    prepare: Callable[[OperationScope], Sequence[Write]] = lambda _scope: ()
    """Writes that the tasks depend on; the phase continues once there are none."""
    after_failure: bool = False  # runs only if an earlier phase has failed
    on_failure: str = ""  # phase to continue with; by default the last
    is_optional: bool = False  # if it fails, the next phase follows as if it had succeeded
    skips_workers: bool = False
    """Continues without workers that do not respond, or fail in the last attempt. After each of them, the others have
    the whole time of the phase again: several workers could take all of it."""
    needs_leader: bool = False  # fails as soon as the leader is deleted, or its agent is silent
    ends_without_leader: bool = False  # then no phase follows: machines cannot get their plans back without it
    saves_inverse: bool = False  # its snapshot undoes the operation
    check: Callable[[OperationScope], str] = lambda _scope: ""
    """Why the phase has failed although all its tasks have succeeded; empty if it has not."""
    record: Callable[[OperationScope], Sequence[Write]] = lambda _scope: ()
    """Objects to write once the phase is done."""


class Operation(Protocol):
    @property
    def kind(self) -> str: ...

    @property
    def title(self) -> str:
        """For messages: what runs, such as `etcd snapshot`."""

    @property
    def phases(self) -> Sequence[Phase]: ...

    @property
    def end(self) -> str:
        """The phase of a run that succeeded."""

    def preflight(self, scope: OperationScope) -> str:
        """Why it cannot run; empty if it can. Nothing has been changed then."""

    def inverse(self, scope: OperationScope) -> Mapping[str, str]:
        """How it is undone, known before it starts: see `Run.inverse`."""

    def leader(self, scope: OperationScope) -> str:
        """The Machine that acts for the others; empty if none does. Chosen at the start, and stored."""

    def status(self, run: Run, scope: PlanScope) -> Object:
        """Fields of the control plane's status that Rancher's clients read, when this phase begins."""


class RequestedOperation(Operation, Protocol):
    """An operation that a field of the spec requests; the field is its kind."""

    def is_requested(self, scope: PlanScope) -> bool:
        """Whether the spec requests a run that has neither succeeded nor failed yet."""


class AutomaticOperation(Operation, Protocol):
    """An operation that the manager starts by itself."""

    def due_at(self, scope: PlanScope) -> datetime | None:
        """When to start it next; None if nothing is to be done."""


def withdrawals(scope: OperationScope) -> Batch:
    """Give workers that are skipped their plans back, so that they do nothing of the operation when they return."""
    skipped = [each for each in scope.machines if each.name in scope.run.skipped and each.annotations.get(PLAN_TASK)]
    return [Step(entry, is_optional=True) for entry in skipped]


def is_new_request(scope: PlanScope, kind: str) -> bool:
    """Whether the request differs from the one in the status, as in Rancher."""
    request = request_in(scope.spec, kind)
    return bool(request.get("generation")) and request != request_in(scope.status, kind)
