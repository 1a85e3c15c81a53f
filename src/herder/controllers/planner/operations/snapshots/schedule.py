"""Scheduled snapshots of distributions whose servers have no schedule of their own.

The manager starts them, with the name and retention that K3s uses for its own. The status records the schedule and the
last time that it was carried out: a time that passes while the manager is down is made up for once, when it is back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from herder.api.capi.conditions import timestamp
from herder.api.cron import MIN_SNAPSHOT_INTERVAL, has_zone, next_time, validate_schedule
from herder.api.rke import operations
from herder.api.rke.operations import FINISHED, Run
from herder.api.times import parse_time
from herder.controllers.planner.distributions.tasks import SaveSnapshot
from herder.controllers.planner.operations.interface import Batch, OperationScope, Phase, Step
from herder.controllers.planner.operations.snapshots.creation import (
    RESTORE_PLAN_TIMEOUT,
    SAVE_TIMEOUT,
    MemberSnapshots,
    members,
    restore_plans,
)
from herder.controllers.planner.operations.snapshots.listing import record_snapshots
from herder.controllers.planner.rollout.scope import PlanScope
from herder.engine.meta.kinds import Object

STATUS = "snapshotSchedule"


def schedule_of(scope: PlanScope) -> str:
    """The schedule that the manager carries out; empty if there is none."""
    etcd: Object = scope.spec.get("etcd") or {}
    schedule = str(etcd.get("snapshotScheduleCron") or "")
    if scope.distribution.schedules_snapshots or etcd.get("disableSnapshots"):
        return ""
    # Admission refuses time zones: they would be read from a database outside the decision.
    return "" if has_zone(schedule) or validate_schedule(schedule) else schedule


def record_schedule(scope: PlanScope) -> Object:
    """Fields of the status after an edit of the schedule. A new schedule begins now."""
    schedule, known = schedule_of(scope), scope.status.get(STATUS) or {}
    if schedule == (known.get("schedule") or ""):
        return {}
    return {STATUS: {"schedule": schedule, "lastScheduleTime": timestamp(scope.view.now)} if schedule else None}


def _save(scope: OperationScope) -> Sequence[Batch]:
    return [[Step(entry, SaveSnapshot(scope.run.mark, scheduled=True)) for entry in members(scope)]]


@dataclass(frozen=True)
class ScheduledSnapshot(MemberSnapshots):
    """`etcd.snapshotScheduleCron`."""

    kind: str = operations.SCHEDULED_SNAPSHOT
    title: str = operations.TITLES[operations.SCHEDULED_SNAPSHOT]
    end: str = FINISHED
    phases: Sequence[Phase] = (
        Phase("Started", _save, SAVE_TIMEOUT, attempts=3, record=record_snapshots),
        Phase("RestartCluster", restore_plans, RESTORE_PLAN_TIMEOUT),
    )

    def due_at(self, scope: PlanScope) -> datetime | None:
        known: Object = scope.status.get(STATUS) or {}
        last = parse_time(str(known.get("lastScheduleTime") or ""))
        schedule = schedule_of(scope)
        if not schedule or last is None or known.get("schedule") != schedule:
            return None
        following = next_time(schedule, last)
        # The schedule may be older than the limit in admission.
        return following and max(following, last + timedelta(seconds=MIN_SNAPSHOT_INTERVAL))

    def status(self, run: Run, scope: PlanScope) -> Object:
        return {STATUS: {"schedule": schedule_of(scope), "lastScheduleTime": timestamp(run.started_at)}}


SCHEDULED_SNAPSHOT = ScheduledSnapshot()
