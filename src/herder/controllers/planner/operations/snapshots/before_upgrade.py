"""A snapshot before each change of the Kubernetes version, so that the change can be undone.

It is taken once for each change, not for other edits of the spec. The rollout waits for it. `status.rollback` records
the change and its snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from herder.api.capi.conditions import timestamp
from herder.api.capi.names import annotations_of
from herder.api.rke import names, operations
from herder.api.rke.distributions import Release, release_of, skip_error
from herder.api.rke.operations import FAILED, FINISHED, Run
from herder.api.times import parse_time
from herder.controllers.planner.operations.interface import OperationScope, Phase
from herder.controllers.planner.operations.snapshots.creation import (
    RESTORE_PLAN_TIMEOUT,
    SAVE_TIMEOUT,
    members,
    restore_plans,
    save,
)
from herder.controllers.planner.operations.snapshots.listing import record_snapshots
from herder.controllers.planner.rollout.scope import PassEnded, PlanScope, Result
from herder.engine.meta.kinds import Object

RETRY_AFTER = timedelta(minutes=10)
SAVED, SKIPPED = "Saved", "Skipped"


@dataclass(frozen=True)
class VersionChange:
    """A change of the version that machines do not have yet."""

    before: str
    after: str


def version_change(scope: PlanScope) -> VersionChange | None:
    """The upgrade that the spec requests; None if it requests none that is possible."""
    before = str((scope.status.get("appliedSpec") or {}).get("kubernetesVersion") or "")
    after = str(scope.spec.get("kubernetesVersion") or "")
    known, wanted = release_of(before), release_of(after)
    if known is None or wanted is None or before == after or not scope.initialized or wanted < known:
        return None
    if _is_upgraded(scope, wanted):
        return None
    return None if skip_error(known, after, annotations_of(scope.control_plane)) else VersionChange(before, after)


def _is_upgraded(scope: PlanScope, wanted: Release) -> bool:
    """Whether all servers run the version already, such as after the restore of an older manager."""
    servers = [each for each in scope.active_entries() if each.plan.is_etcd or each.plan.is_control_plane]
    return bool(servers) and all(
        release_of(str(each.node_info.get("kubeletVersion") or "")) == wanted for each in servers
    )


def _record_of(scope: PlanScope, change: VersionChange) -> Object:
    """What `status.rollback` says about this change; empty if nothing."""
    known: Object = scope.status.get("rollback") or {}
    return known if (known.get("from"), known.get("to")) == (change.before, change.after) else {}


def _is_opted_out(scope: PlanScope) -> bool:
    return annotations_of(scope.control_plane).get(names.NO_UPGRADE_SNAPSHOT) == "true"


def check_upgrade_snapshot(scope: PlanScope, result: Result) -> None:
    """Let the rollout of another version wait for its snapshot, or record that it has none."""
    change = version_change(scope)
    if change is None:
        if _is_revoked(scope):
            result.status["rollback"] = {}
        return
    record = _record_of(scope, change)
    if _is_opted_out(scope):
        if record.get("result") not in (SAVED, SKIPPED):
            message = f"no snapshot was taken before it: the Cluster has the annotation {names.NO_UPGRADE_SNAPSHOT}"
            result.status["rollback"] = _record(change, SKIPPED, scope, message=message)
    elif record.get("result") == FAILED:
        due = _retry_at(record)
        result.wake_at = due if due is not None and due > scope.view.now else None
        raise PassEnded(
            f"upgrade to {change.after}: waiting for its snapshot, which has failed: {record.get('message')}; it is "
            f"taken again after {int(RETRY_AFTER.total_seconds()) // 60} minutes. To upgrade without it, set "
            f"annotation {names.NO_UPGRADE_SNAPSHOT} of the Cluster to true"
        )


def _is_revoked(scope: PlanScope) -> bool:
    """Whether the spec has the version again that all machines had before: a later upgrade needs another snapshot."""
    record, wanted = scope.status.get("rollback") or {}, scope.spec.get("kubernetesVersion")
    applied = (scope.status.get("appliedSpec") or {}).get("kubernetesVersion")
    return bool(record) and wanted == applied == record.get("from")


def _retry_at(record: Object) -> datetime | None:
    at = parse_time(str(record.get("time") or ""))
    return at + RETRY_AFTER if at is not None else None


def _record(change: VersionChange, result: str, scope: PlanScope, **fields: str) -> Object:
    record = {"from": change.before, "to": change.after, "result": result, "time": timestamp(scope.view.now), **fields}
    return {name: value for name, value in record.items() if value}


@dataclass(frozen=True)
class UpgradeSnapshot:
    """Taken by the manager itself."""

    kind: str = operations.UPGRADE_SNAPSHOT
    title: str = operations.TITLES[operations.UPGRADE_SNAPSHOT]
    end: str = FINISHED
    phases: Sequence[Phase] = (
        Phase("Started", save, SAVE_TIMEOUT, attempts=3, record=record_snapshots, saves_inverse=True),
        Phase("RestartCluster", restore_plans, RESTORE_PLAN_TIMEOUT),
    )

    def is_requested(self, scope: PlanScope) -> bool:
        change = version_change(scope)
        if change is None or _is_opted_out(scope):
            return False
        record = _record_of(scope, change)
        if record.get("result") != FAILED:
            return not record
        due = _retry_at(record)
        return due is None or scope.view.now >= due

    def preflight(self, scope: OperationScope) -> str:
        return "" if members(scope) else "no etcd machine is reachable; it needs one to save a snapshot"

    def inverse(self, scope: OperationScope) -> Mapping[str, str]:
        return {}

    def leader(self, scope: OperationScope) -> str:
        return ""

    def status(self, run: Run, scope: PlanScope) -> Object:
        """The record of the change, once the snapshot is saved or has failed."""
        change = version_change(scope)
        if change is None or run.is_active:
            return {}
        if run.phase == FAILED:
            return {"rollback": _record(change, FAILED, scope, message=run.message)}
        saved = {each: run.inverse.get(each, "") for each in ("snapshotTime", "snapshotSHA256")}
        saved["snapshot"] = run.inverse.get("name", "")
        return {"rollback": _record(change, SAVED, scope, message=run.inverse.get("message", ""), **saved)}


UPGRADE_SNAPSHOT = UpgradeSnapshot()
