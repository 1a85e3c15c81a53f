"""Snapshots on demand: every etcd machine saves one, and gets its plan back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from herder.api.rke import operations
from herder.api.rke.machines.strategy import is_lost
from herder.api.rke.names import PLAN_TASK
from herder.api.rke.operations import FINISHED, Run
from herder.controllers.planner.distributions.tasks import SaveSnapshot
from herder.controllers.planner.operations.interface import Batch, OperationScope, Phase, Step, is_new_request
from herder.controllers.planner.operations.snapshots.listing import record_snapshots
from herder.controllers.planner.rollout.machines import PlanEntry
from herder.controllers.planner.rollout.scope import PlanScope
from herder.engine.meta.kinds import Object

SAVE_TIMEOUT = timedelta(minutes=15)
RESTORE_PLAN_TIMEOUT = timedelta(minutes=15)
NO_MEMBER = "no etcd machine is reachable; it needs one to save a snapshot"


def members(scope: OperationScope) -> list[PlanEntry]:
    """Etcd machines that can save a snapshot."""
    return [entry for entry in scope.members() if not is_lost(entry.machine)]


def save(scope: OperationScope) -> Sequence[Batch]:
    return [[Step(entry, SaveSnapshot(scope.run.mark)) for entry in members(scope)]]


def restore_plans(scope: OperationScope) -> Sequence[Batch]:
    """Give machines with a task their plan back, and wait until servers have applied it.

    Workers are not waited for: a compromised one could make every operation of its cluster fail.
    """
    tasked = [entry for entry in scope.machines if entry.annotations.get(PLAN_TASK) and has_own_plan(entry)]
    return [[Step(entry) for entry in scope.machines if entry in tasked or _is_applying(entry)]]


def has_own_plan(entry: PlanEntry) -> bool:
    """Whether it has a plan besides its task: not a new machine on which a restore has failed."""
    return entry.is_init or bool(entry.joined_to) or entry.plan.has_run_a_plan


def _is_applying(entry: PlanEntry) -> bool:
    return entry.roles.is_server and entry.plan.has_run_a_plan and entry.plan.is_moving


class MemberSnapshots:
    """What snapshots on demand and scheduled ones have in common."""

    def preflight(self, scope: OperationScope) -> str:
        return "" if members(scope) else NO_MEMBER

    def inverse(self, scope: OperationScope) -> Mapping[str, str]:
        return {"message": "there is nothing to undo"}

    def leader(self, scope: OperationScope) -> str:
        return ""


@dataclass(frozen=True)
class Snapshot(MemberSnapshots):
    """`etcdSnapshotCreate`."""

    kind: str = operations.SNAPSHOT
    title: str = operations.TITLES[operations.SNAPSHOT]
    end: str = FINISHED
    phases: Sequence[Phase] = (
        Phase("Started", save, SAVE_TIMEOUT, attempts=3, record=record_snapshots),
        Phase("RestartCluster", restore_plans, RESTORE_PLAN_TIMEOUT),
    )

    def is_requested(self, scope: PlanScope) -> bool:
        return is_new_request(scope, self.kind)

    def status(self, run: Run, scope: PlanScope) -> Object:
        return {"etcdSnapshotCreate": scope.spec.get(self.kind) or {}, "etcdSnapshotCreatePhase": run.phase}


SNAPSHOT = Snapshot()
