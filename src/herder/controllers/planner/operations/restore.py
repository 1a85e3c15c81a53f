"""Restore of an etcd snapshot: stop all servers, restore on one of them, and let the others join it.

Until the phase Restore begins, the operation can fail without a trace: all servers are started again. The server that
restores keeps its old data beside the new, and puts it back if the restore fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from herder.api.rke import operations
from herder.api.rke.kinds import ETCD_SNAPSHOT
from herder.api.rke.operations import FINISHED, Run
from herder.api.rke.strategy import is_lost
from herder.controllers.planner.distributions.tasks import (
    CheckSnapshot,
    DeleteStaleNodes,
    Rejoin,
    RestoreSnapshot,
    SnapshotFile,
    StartServices,
    StopServices,
)
from herder.controllers.planner.operations.interface import Batch, OperationScope, Phase, Step, is_new_request
from herder.controllers.planner.operations.listing import FILE_NAME
from herder.controllers.planner.operations.snapshot import RESTORE_PLAN_TIMEOUT, restore_plans
from herder.controllers.planner.rollout.init_node import move_init_node
from herder.controllers.planner.rollout.machines import PlanEntry
from herder.controllers.planner.rollout.scope import PlanScope
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Write

CHECK_TIMEOUT = STOP_TIMEOUT = CLEAN_UP_TIMEOUT = timedelta(minutes=10)
RESTORE_TIMEOUT = REJOIN_TIMEOUT = timedelta(minutes=30)
_ABORT = "Abort"
_MACHINE, _S3 = "Machine", "s3"


# --- the snapshot -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """The snapshot that the request names, and the machine that has it."""

    file: SnapshotFile
    machine: str = ""  # name of its Machine; empty for S3


def source_of(scope: OperationScope) -> Source | str:
    """The source, or why there is none."""
    name = str(scope.request.get("name") or "")
    found = scope.planning.view.get(ETCD_SNAPSHOT, name) if name else None
    if found is None or (found.get("spec") or {}).get("clusterName") != scope.planning.view.name:
        return f'snapshot "{name}" does not exist; see: herder snapshot list {scope.planning.view.name}'
    file: Object = found.get("snapshotFile") or {}
    if (found.get("status") or {}).get("missing") or file.get("status") == "failed":
        return f'snapshot "{name}" has no file to restore: {file.get("message") or "it is missing"}'
    if not FILE_NAME.fullmatch(str(file.get("name") or "")):
        return f'snapshot "{name}" has an invalid file name'
    if str(file["name"]).endswith(".zip"):
        return f'snapshot "{name}" is compressed; unpack it on its machine, and restore the file that results'
    snapshot = SnapshotFile(str(file["name"]), in_s3=file.get("nodeName") == _S3 or bool(file.get("s3")))
    if snapshot.in_s3:
        return Source(snapshot)
    owners = [each["name"] for each in found["metadata"].get("ownerReferences") or () if each["kind"] == _MACHINE]
    return Source(snapshot, owners[0]) if owners else f'snapshot "{name}" belongs to no machine'


def _leader(scope: OperationScope, source: Source) -> PlanEntry | None:
    """The machine that restores: the one with the file; for S3 the init node, or another etcd machine."""
    etcd = [entry for entry in scope.machines if entry.roles.etcd and not is_lost(entry.machine)]
    if source.machine:
        return next((entry for entry in etcd if entry.name == source.machine), None)
    return min(etcd, key=lambda entry: (not entry.is_init, entry.name), default=None)


def _blocker(scope: OperationScope) -> str:
    """Why the snapshot cannot be restored any more. Objects may change between phases, and all servers drop their data
    for the one that restores."""
    if int(scope.request.get("generation") or 0) != scope.run.generation:
        return "another request has replaced it"
    source = source_of(scope)
    if isinstance(source, str):
        return source
    if source.machine not in ("", scope.run.leader):
        return f'snapshot "{scope.request["name"]}" is not on machine {scope.run.leader}, which restores it'
    return _leader_blocker(scope)


def _leader_blocker(scope: OperationScope) -> str:
    name = scope.run.leader
    return (
        "" if scope.leader() else f"machine {name}, which restores the snapshot, is deleted; restore another snapshot"
    )


# --- phases -----------------------------------------------------------------------------------------------------------


def _servers(scope: OperationScope) -> list[PlanEntry]:
    return [entry for entry in scope.machines if entry.roles.is_server and entry.plan.has_plan]


def _check(scope: OperationScope) -> Sequence[Batch]:
    source, leader = source_of(scope), scope.leader()
    if isinstance(source, str) or leader is None or not leader.plan.has_plan:
        return []  # a new machine has nothing installed that could check it
    return [[Step(leader, CheckSnapshot(scope.run.mark, source.file))]]


def _stop(scope: OperationScope) -> Sequence[Batch]:
    return [[Step(entry, StopServices(scope.run.mark)) for entry in _servers(scope)]]


def _elect(scope: OperationScope) -> Sequence[Write]:
    leader = scope.leader()
    return move_init_node(scope.planning.entries, leader) if leader is not None else ()


def _restore(scope: OperationScope) -> Sequence[Batch]:
    source, leader = source_of(scope), scope.leader()
    if isinstance(source, str) or leader is None:
        return []
    return [[Step(leader, RestoreSnapshot(scope.run.mark, source.file))]]


def _restart(scope: OperationScope) -> Sequence[Batch]:
    """Start the restored server, then the others one at a time: each adds a member."""
    leader = scope.leader()
    others = [entry for entry in _servers(scope) if leader is None or entry.name != leader.name]
    first = [[Step(leader, Rejoin(scope.run.mark))]] if leader is not None else []
    return first + [[Step(entry, Rejoin(scope.run.mark, drop_data=entry.roles.etcd))] for entry in others]


def _delete_nodes(scope: OperationScope) -> Sequence[Batch]:
    leader = scope.leader()
    machines = tuple(sorted(entry.uid for entry in scope.machines))
    candidates = [entry for entry in _servers(scope) if entry.roles.control_plane]
    chosen = leader if leader in candidates else next(iter(candidates), None)
    return [[Step(chosen, DeleteStaleNodes(scope.run.mark, machines))]] if chosen is not None else []


def _start(scope: OperationScope) -> Sequence[Batch]:
    return [[Step(entry, StartServices(scope.run.mark)) for entry in _servers(scope) if not is_lost(entry.machine)]]


@dataclass(frozen=True)
class Restore:
    """`etcdSnapshotRestore`."""

    kind: str = operations.RESTORE
    title: str = operations.TITLES[operations.RESTORE]
    end: str = FINISHED
    phases: Sequence[Phase] = (
        Phase("Started", _check, CHECK_TIMEOUT, blocker=_blocker),
        Phase("Shutdown", _stop, STOP_TIMEOUT, attempts=2, blocker=_blocker, on_failure=_ABORT),
        Phase("Restore", _restore, RESTORE_TIMEOUT, blocker=_blocker, on_failure=_ABORT),
        Phase("InitialRestartCluster", _restart, REJOIN_TIMEOUT, attempts=3, blocker=_leader_blocker, prepare=_elect),
        Phase("PostRestoreNodeCleanup", _delete_nodes, CLEAN_UP_TIMEOUT, attempts=3),
        Phase(_ABORT, _start, STOP_TIMEOUT, attempts=3, after_failure=True),
        Phase("RestartCluster", restore_plans, RESTORE_PLAN_TIMEOUT),
    )

    def is_requested(self, scope: PlanScope) -> bool:
        return is_new_request(scope, self.kind)

    def preflight(self, scope: OperationScope) -> str:
        source = source_of(scope)
        if isinstance(source, str):
            return source
        lost = sorted(entry.name for entry in _servers(scope) if is_lost(entry.machine))
        if lost:
            return f"server(s) {', '.join(lost)} are not reachable; delete them first: they still have the old data"
        if _leader(scope, source) is None:
            where = f"machine {source.machine}, which has the file," if source.machine else "an etcd machine"
            return f"{where} is not reachable or does not exist"
        return ""

    def leader(self, scope: OperationScope) -> str:
        source = source_of(scope)
        found = _leader(scope, source) if isinstance(source, Source) else None
        return found.name if found is not None else ""

    def status(self, run: Run, scope: PlanScope) -> Object:
        """Rancher has no phase for a restore that is aborted: there it is the restart of the cluster."""
        phase = "RestartCluster" if run.phase == _ABORT else run.phase
        status: Object = {"etcdSnapshotRestore": scope.spec.get(self.kind) or {}, "etcdSnapshotRestorePhase": phase}
        begins = run.phase == "InitialRestartCluster" and run.attempt == 1
        if begins:  # plans of another generation restart every machine
            status["configGeneration"] = int(scope.status.get("configGeneration") or 0) + 1
        return status


RESTORE = Restore()
