"""Deletion of snapshots: an ETCDSnapshot that is deleted keeps its finalizer until its file is gone.

All snapshots that were deleted before the run started are handled by it: local files on the machine that has them,
objects in S3 by any etcd machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from herder.api.capi.names import is_deleting
from herder.api.rke import operations
from herder.api.rke.etcd.snapshots import (
    SNAPSHOTS_OF,
    has_finalizer,
    is_in_s3,
    is_of_former_cluster,
    machine_uid,
    without_finalizer,
)
from herder.api.rke.kinds import ETCD_SNAPSHOT
from herder.api.rke.machines.strategy import is_lost
from herder.api.rke.operations import FAILED, FINISHED, Run
from herder.api.times import parse_time
from herder.controllers.planner.distributions.tasks import DeleteSnapshots, SnapshotFile
from herder.controllers.planner.operations.interface import Batch, OperationScope, Phase, Step
from herder.controllers.planner.operations.snapshots.creation import RESTORE_PLAN_TIMEOUT, members, restore_plans
from herder.controllers.planner.operations.snapshots.listing import FILE_NAME
from herder.controllers.planner.rollout.machines import PlanEntry
from herder.controllers.planner.rollout.scope import PlanScope
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Write

DELETE_TIMEOUT = timedelta(minutes=10)
RETRY_AFTER_FAILURE = timedelta(minutes=10)
MAX_FILES = 50
"""Most files of one machine in one run; further ones are handled by the next run."""


def _deleted(scope: PlanScope, before: datetime) -> list[Object]:
    """Snapshots that were deleted before this time. Times have whole seconds, so those of the same second wait."""
    view = scope.view
    found = view.select(ETCD_SNAPSHOT, index=(SNAPSHOTS_OF, f"{view.namespace}/{view.name}"))
    own = (each for each in found if not is_of_former_cluster(each, scope.cluster))
    waiting = [each for each in own if is_deleting(each) and has_finalizer(each)]
    return sorted(
        (each for each in waiting if _deletion_time(each) < before.replace(microsecond=0)),
        key=lambda each: str(each["metadata"]["name"]),
    )


def _deletion_time(snapshot: Object) -> datetime:
    found = parse_time(str(snapshot["metadata"]["deletionTimestamp"]))
    assert found is not None  # written by the API server
    return found


def _by_machine(snapshots: Sequence[Object], machines: Sequence[PlanEntry]) -> dict[str, list[Object]]:
    """Snapshots by the name of the machine that deletes their files. Others wait until their machine returns."""
    by_uid = {entry.uid: entry.name for entry in machines}
    found: dict[str, list[Object]] = {}
    for each in snapshots:
        name = next(iter(sorted(by_uid.values())), "") if is_in_s3(each) else by_uid.get(machine_uid(each), "")
        if name and len(found.setdefault(name, [])) < MAX_FILES:
            found[name].append(each)
    return found


def _selected(scope: OperationScope) -> dict[str, list[Object]]:
    return _by_machine(_deleted(scope.planning, scope.run.started_at), members(scope))


def _delete(scope: OperationScope) -> Sequence[Batch]:
    entries = {entry.name: entry for entry in members(scope)}
    steps = []
    for name, snapshots in sorted(_selected(scope).items()):
        files = [_file(each) for each in snapshots]
        task = DeleteSnapshots(scope.run.mark, tuple(each for each in files if FILE_NAME.fullmatch(each.name)))
        steps.append(Step(entries[name], task))
    return [steps]


def _file(snapshot: Object) -> SnapshotFile:
    name = str((snapshot.get("snapshotFile") or {}).get("name") or "")
    return SnapshotFile(name, in_s3=is_in_s3(snapshot))


def _release(scope: OperationScope) -> Sequence[Write]:
    selected = [each for snapshots in _selected(scope).values() for each in snapshots]
    return [write for each in selected for write in without_finalizer(each, "its file is deleted")]


@dataclass(frozen=True)
class SnapshotDeletion:
    """Deleted ETCDSnapshot objects."""

    kind: str = operations.DELETION
    title: str = operations.TITLES[operations.DELETION]
    end: str = FINISHED
    phases: Sequence[Phase] = (
        Phase("Delete", _delete, DELETE_TIMEOUT, attempts=2, record=_release),
        Phase("RestartCluster", restore_plans, RESTORE_PLAN_TIMEOUT),
    )

    def due_at(self, scope: PlanScope) -> datetime | None:
        """A second after the deletion, and not at once after a failure."""
        servers = [entry for entry in scope.active_entries() if entry.roles.etcd and entry.plan.has_run_a_plan]
        reachable = [entry for entry in servers if not is_lost(entry.machine)]
        waiting = _deleted(scope, datetime.max.replace(tzinfo=scope.view.now.tzinfo))
        chosen = [each for found in _by_machine(waiting, reachable).values() for each in found]
        if not chosen:
            return None
        due = max(_deletion_time(each) for each in chosen) + timedelta(seconds=1)
        last = Run.of(scope.control_plane)
        if last is not None and last.kind == self.kind and last.phase == FAILED:
            due = max(due, last.started_at + RETRY_AFTER_FAILURE)
        return due

    def preflight(self, scope: OperationScope) -> str:
        return ""

    def inverse(self, scope: OperationScope) -> Mapping[str, str]:
        return {"message": "deleted snapshots cannot be recovered"}

    def leader(self, scope: OperationScope) -> str:
        return ""

    def status(self, run: Run, scope: PlanScope) -> Object:
        return {}


SNAPSHOT_DELETION = SnapshotDeletion()
