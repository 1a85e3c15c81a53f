"""Restore of an etcd snapshot: stop all servers, restore on one of them, and let the others join it.

Until the phase Restore begins, the operation can be aborted: all servers are started again. The server that restores
keeps its old data beside the new until it starts with the new. If the restore fails, or its success is not reported in
time, it puts the old data back before it starts. A snapshot of the old data is taken before, if etcd still serves.

Admission has applied `restoreRKEConfig` to the spec already, with the rights of the author of the request. The restore
only checks that the spec is still that of the snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from herder.api.capi.names import annotations_of
from herder.api.rke import operations
from herder.api.rke.cluster_spec import decode_spec
from herder.api.rke.distributions import release_of
from herder.api.rke.etcd.restore import NONE, mode_of, restored_spec, saved_spec, saved_version, version_problem
from herder.api.rke.kinds import ETCD_SNAPSHOT
from herder.api.rke.machines.strategy import is_lost, quorum
from herder.api.rke.names import CLUSTER_SPEC, PLAN_TASK, SNAPSHOT_SHA256
from herder.api.rke.operations import FINISHED, Run
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
from herder.controllers.planner.operations.inverse import hash_that_undoes
from herder.controllers.planner.operations.snapshots.creation import (
    RESTORE_PLAN_TIMEOUT,
    has_own_plan,
    members,
    restore_plans,
    save,
)
from herder.controllers.planner.operations.snapshots.keys import keys_for_restore, missing_keys
from herder.controllers.planner.operations.snapshots.listing import FILE_NAME, record_snapshots
from herder.controllers.planner.rollout.init_node import move_init_node
from herder.controllers.planner.rollout.machines import PlanEntry
from herder.controllers.planner.rollout.scope import PlanScope
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Write

SAVE_TIMEOUT = timedelta(minutes=5)
CHECK_TIMEOUT = STOP_TIMEOUT = CLEAN_UP_TIMEOUT = timedelta(minutes=10)
CLEAN_UP_ATTEMPTS = 5  # the API server may be restarting
RESTORE_TIMEOUT = REJOIN_TIMEOUT = timedelta(minutes=30)
_SNAPSHOT, _ABORT = "Snapshot", operations.ABORT_PHASE
_UNJOINED = "unjoinedServers"
_COMPRESSED = ".zip"
_MACHINE, _S3 = "Machine", "s3"


# --- the snapshot -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """The snapshot that the request names, and the machine that has it."""

    snapshot: Object  # empty if no object lists the file
    file: SnapshotFile
    machine: str = ""  # name of its Machine; empty for S3


def source_of(scope: OperationScope) -> Source | str:
    """The source, or why there is none."""
    name = str(scope.request.get("name") or "")
    found = scope.planning.view.get(ETCD_SNAPSHOT, name) if name else None
    if found is None and (unlisted := _unlisted(scope, name)) is not None:
        return unlisted
    if found is None or (found.get("spec") or {}).get("clusterName") != scope.planning.view.name:
        return f'snapshot "{name}" does not exist; see: herder snapshot list {scope.planning.view.name}'
    file: Object = found.get("snapshotFile") or {}
    if (found.get("status") or {}).get("missing") or file.get("status") == "failed":
        return f'snapshot "{name}" has no file to restore: {file.get("message") or "it is missing"}'
    if not FILE_NAME.fullmatch(str(file.get("name") or "")):
        return f'snapshot "{name}" has an invalid file name'
    if str(file["name"]).endswith(_COMPRESSED):
        return f'snapshot "{name}" is compressed; unpack it on its machine, and restore the file that results'
    in_s3 = file.get("nodeName") == _S3 or bool(file.get("s3"))
    sha256, saved = annotations_of(found).get(SNAPSHOT_SHA256, ""), hash_that_undoes(scope.planning.status, name)
    if sha256 and saved and sha256 != saved:
        return f'snapshot "{name}" is another file than the one that was saved: its hash differs; use another snapshot'
    snapshot = SnapshotFile(str(file["name"]), in_s3, saved or sha256)
    if snapshot.in_s3:
        return Source(found, snapshot)
    owners = [each["name"] for each in found["metadata"].get("ownerReferences") or () if each["kind"] == _MACHINE]
    return Source(found, snapshot, owners[0]) if owners else f'snapshot "{name}" belongs to no machine'


def _unlisted(scope: OperationScope, name: str) -> Source | None:
    """A file without an object, such as one that was copied to the machine. As in Rancher, it is only looked for where
    it must be: on the only etcd machine."""
    etcd = [entry for entry in scope.machines if entry.roles.etcd and entry.plan.has_plan]
    if len(etcd) != 1 or not FILE_NAME.fullmatch(name) or name.endswith(_COMPRESSED):
        return None
    return Source({}, SnapshotFile(name), etcd[0].name)


def _leader(scope: OperationScope, source: Source) -> PlanEntry | None:
    """The machine that restores: the one with the file; for S3 the init node, or another etcd machine."""
    etcd = [entry for entry in scope.machines if entry.roles.etcd and not _is_out_of_reach(scope, entry)]
    if source.machine:
        return next((entry for entry in etcd if entry.name == source.machine), None)
    return min(etcd, key=lambda entry: (not entry.is_init, entry.name), default=None)


def _is_out_of_reach(scope: OperationScope, entry: PlanEntry) -> bool:
    """Whether the machine is lost. Servers that a failed restore has stopped look like it, but their agents run."""
    return is_lost(entry.machine) and entry.name not in _unjoined(scope.planning)


def _unjoined(scope: PlanScope) -> Sequence[str]:
    return scope.status.get(_UNJOINED) or () if operations.unfinished_restore(scope.status) is not None else ()


def _spec_problem(scope: OperationScope, snapshot: Object) -> str:
    """Why the data does not fit the spec; empty if it does."""
    plane, mode, version = scope.planning.control_plane, mode_of(scope.request), _version_of(scope.planning)
    if mode == NONE:
        return _data_problem(version, saved_version(snapshot))
    try:
        saved = saved_spec(snapshot, plane)
        current = decode_spec(annotations_of(plane).get(CLUSTER_SPEC, ""))
    except ValueError as error:
        return str(error)
    if restored_spec(current, saved, mode) == current:
        return ""
    return (
        f"the spec of the Cluster is not that of the snapshot, as restoreRKEConfig {mode} requires; it was changed "
        "after the request, or admission is disabled; request the restore again"
    )


def _data_problem(version: str, saved: str) -> str:
    now, then = release_of(version), release_of(saved)
    if not saved or now is None or then is None:
        return ""
    if then[:2] > now[:2]:
        return (
            f"the snapshot is of {saved}, which is newer than {version}; "
            "restore it with its version (restoreRKEConfig: kubernetesVersion)"
        )
    return version_problem(version, saved)


def _version_of(scope: PlanScope) -> str:
    return str(scope.spec.get("kubernetesVersion") or "")


def version_to_start(scope: PlanScope) -> str:
    """The version that servers have, if a restore that is aborted starts them again with their old data.

    The spec has the version of the snapshot already. Servers may be in the middle of an upgrade, which continues.
    """
    if mode_of(scope.status.get(operations.RESTORE)) == NONE:
        return _version_of(scope)
    upgrade = str((scope.status.get("rollback") or {}).get("to") or "")
    applied = str((scope.status.get("appliedSpec") or {}).get("kubernetesVersion") or "")
    known = [each for each in (applied, upgrade) if release_of(each)]
    return max(known, key=lambda each: release_of(each) or (), default=_version_of(scope))


def _blocker(scope: OperationScope) -> str:
    """Why the snapshot cannot be restored any more. Objects may change between phases, and all servers drop their data
    for the one that restores."""
    source = source_of(scope)
    if isinstance(source, str):
        return source
    if source.machine not in ("", scope.run.leader):
        return f'snapshot "{scope.request["name"]}" is not on machine {scope.run.leader}, which restores it'
    return _leaving(scope)


def _leaving(scope: OperationScope) -> str:
    """Why servers that get no plan any more could serve the old data beside the restored; empty if none could.

    Without a connection, the old cluster is gone, and their deletion may wait for it forever.
    """
    if not scope.planning.agent_connected:
        return ""
    members = [entry for entry in scope.planning.entries if entry.roles.etcd and entry.plan.has_run_a_plan]
    leaving = [entry for entry in members if entry.is_deleting and not is_lost(entry.machine)]
    running = [entry.name for entry in leaving if not entry.annotations.get(PLAN_TASK, "").startswith(scope.run.id)]
    if len(running) < quorum(len(members)):
        return ""
    return f"server(s) {', '.join(sorted(running))} are being deleted, and serve the old data; wait until they are gone"


# --- phases -----------------------------------------------------------------------------------------------------------


def _servers(scope: OperationScope) -> list[PlanEntry]:
    """Servers that have begun or joined the cluster."""
    servers = [entry for entry in scope.machines if entry.roles.is_server and entry.plan.has_plan]
    return [entry for entry in servers if has_own_plan(entry)]


def _check(scope: OperationScope) -> Sequence[Batch]:
    source, leader = source_of(scope), scope.leader()
    if isinstance(source, str) or leader is None or leader not in _servers(scope):
        return []  # a new machine has nothing installed that could check it
    if source.file.in_s3 and leader.name in _unjoined(scope.planning):
        return []  # K3s and RKE2 list a bucket only while they run
    return [[Step(leader, CheckSnapshot(scope.run.mark, source.file))]]


def _stop(scope: OperationScope) -> Sequence[Batch]:
    nodes = _nodes(scope)
    return [[Step(entry, StopServices(scope.run.mark, nodes)) for entry in _servers(scope)]]


def _nodes(scope: OperationScope) -> Sequence[str]:
    """Names of the Nodes of all machines, also of those that have joined since the snapshot."""
    references = [(entry.machine.get("status") or {}).get("nodeRef") or {} for entry in scope.machines]
    return sorted({str(each["name"]) for each in references if each.get("name")})


def _elect(scope: OperationScope) -> Sequence[Write]:
    leader = scope.leader()
    return move_init_node(scope.planning.entries, leader) if leader is not None else ()


def _elect_missing(scope: OperationScope) -> Sequence[Write]:
    """Tasks of servers need an init node, and the last one may have been deleted during another restore."""
    leader = scope.leader()
    is_missing = not any(entry.is_init for entry in scope.planning.entries)
    return _elect(scope) if is_missing and leader is not None and leader.join_url else ()


def _restore(scope: OperationScope) -> Sequence[Batch]:
    source, leader = source_of(scope), scope.leader()
    if isinstance(source, str) or leader is None:
        return []
    return [[Step(leader, RestoreSnapshot(scope.run.mark, source.file, _nodes(scope), _accepted(scope)))]]


def _accepted(scope: OperationScope) -> str:
    """ID of the earlier restore whose data the cluster has, although its leader may not have started with it."""
    return str((operations.unfinished_restore(scope.planning.status) or {}).get("id") or "")


def _restart(scope: OperationScope) -> Sequence[Batch]:
    """Start the restored server, then the others one at a time: each adds a member. Workers come last.

    A server that does not start must not keep those behind it down.
    """
    leader = scope.leader()
    others = [entry for entry in _servers(scope) if leader is None or entry.name != leader.name]
    others.sort(key=lambda entry: (_is_stuck(scope, entry), entry.name))
    first = [[Step(leader, _commit(scope, leader))]] if leader is not None else []
    servers = first + [[Step(entry, _rejoin(scope, entry))] for entry in others]
    return [*servers, [Step(entry, Rejoin(scope.run.mark), is_optional=True) for entry in _workers(scope)]]


def _commit(scope: OperationScope, leader: PlanEntry) -> Rejoin:
    """A new server must delete the Nodes of lost ones at once.

    The cluster agent, whose Pods are bound to these Nodes, reports the address of the new server, which others join.
    Kubernetes does not evict Pods while most of the Nodes are not ready.
    """
    is_new = leader.roles.control_plane and not leader.join_url
    machines = _machines(scope) if is_new else ()
    return Rejoin(scope.run.mark, commits=True, nodes=_nodes(scope), machines=machines)


def _is_stuck(scope: OperationScope, entry: PlanEntry) -> bool:
    has_task = scope.run.is_own_phase(entry.annotations.get(PLAN_TASK, ""))
    return has_task and (entry.plan.failed or scope.is_silent(entry))


def _workers(scope: OperationScope) -> list[PlanEntry]:
    """All workers restart, at the same time as in Rancher; their pods keep running.

    A kubelet must not be newer than the API server, and registers a Node that the restored data lacks only when it
    starts. Only an operation may lower its version.
    """
    return [entry for entry in scope.machines if entry.roles.only_worker and entry.plan.has_plan]


def _delete_nodes(scope: OperationScope) -> Sequence[Batch]:
    leader = scope.leader()
    candidates = [entry for entry in _servers(scope) if entry.roles.control_plane]
    chosen = leader if leader in candidates else next(iter(candidates), None)
    return [[Step(chosen, DeleteStaleNodes(scope.run.mark, _machines(scope)))]] if chosen is not None else []


def _machines(scope: OperationScope) -> Sequence[str]:
    return tuple(sorted(entry.uid for entry in scope.machines))


def _start(scope: OperationScope) -> Sequence[Batch]:
    """Start the servers again, also those that have not begun or reported their stop or restore: that task must not run
    any more, and what it did is undone.

    Servers that an earlier restore has left stopped have the data of before it, or none. They join the restored ones.
    """
    unjoined, mark = _unjoined(scope.planning), scope.run.mark
    restored = (operations.unfinished_restore(scope.planning.status) or {}).get("leader", "")
    outside = [entry for entry in _servers(scope) if entry.name in unjoined and entry.name != restored]
    tasks = [(entry, StartServices(mark, _accepted(scope))) for entry in _servers(scope) if entry not in outside]
    first = [Step(entry, task, is_optional=True, supersedes=_is_stopped(scope, entry)) for entry, task in tasks]
    others = [[Step(entry, _rejoin(scope, entry), is_optional=True)] for entry in outside]
    return [first, *others]


def _is_stopped(scope: OperationScope, entry: PlanEntry) -> bool:
    """Whether its last task is the stop or the restore of this run. It may have completed without a report."""
    phases = (operations.SHUTDOWN_PHASE, operations.RESTORE_PHASE)
    return _phase_of(entry.annotations.get(PLAN_TASK, "")) in [f"{scope.run.id}/{each}" for each in phases]


def _restore_plans(scope: OperationScope) -> Sequence[Batch]:
    """Servers that have not undone the restore yet keep this task, which they run when they return.

    Their plan alone could start them with data that the other servers do not have.
    """
    return [[step for step in batch if not _has_to_start(scope, step.entry)] for batch in restore_plans(scope)]


def _has_to_start(scope: OperationScope, entry: PlanEntry) -> bool:
    is_abort = _phase_of(entry.annotations.get(PLAN_TASK, "")) == f"{scope.run.id}/{_ABORT}"
    return is_abort and entry.roles.is_server and entry.plan.is_moving


def _rejoin(scope: OperationScope, entry: PlanEntry) -> Rejoin:
    return Rejoin(scope.run.mark, drop_data=entry.roles.etcd, nodes=_nodes(scope))


def _not_joined(run: Run, scope: PlanScope) -> list[str]:
    """Servers that have not started since the data was restored, when the run gives up."""
    servers = [entry for entry in scope.active_entries() if entry.roles.is_server and has_own_plan(entry)]
    phase = f"{run.id}/{operations.REJOIN_PHASE}"
    started = [
        entry for entry in servers if entry.plan.is_done and _phase_of(entry.annotations.get(PLAN_TASK, "")) == phase
    ]
    return sorted(entry.name for entry in servers if entry not in started)


def _phase_of(mark: str) -> str:
    return mark.rpartition("/")[0]


def _save(scope: OperationScope) -> Sequence[Batch]:
    """Machines without a plan of a server have no data to save."""
    return save(scope) if members(scope) else []


@dataclass(frozen=True)
class Restore:
    """`etcdSnapshotRestore`."""

    kind: str = operations.RESTORE
    title: str = operations.TITLES[operations.RESTORE]
    end: str = FINISHED
    phases: Sequence[Phase] = (
        Phase(
            operations.CHECK_PHASE, _check, CHECK_TIMEOUT, prepare=_elect_missing, needs_leader=True, blocker=_blocker
        ),
        Phase(_SNAPSHOT, _save, SAVE_TIMEOUT, is_optional=True, record=record_snapshots, saves_inverse=True),
        Phase(
            operations.SHUTDOWN_PHASE,
            _stop,
            STOP_TIMEOUT,
            attempts=2,
            on_failure=_ABORT,
            needs_leader=True,
            blocker=_blocker,
        ),
        Phase(
            operations.RESTORE_PHASE,
            _restore,
            RESTORE_TIMEOUT,
            on_failure=_ABORT,
            needs_leader=True,
            blocker=_blocker,
        ),
        Phase(
            operations.REJOIN_PHASE,
            _restart,
            REJOIN_TIMEOUT,
            attempts=3,
            prepare=_elect,
            needs_leader=True,
            ends_without_leader=True,
        ),
        Phase("PostRestoreNodeCleanup", _delete_nodes, CLEAN_UP_TIMEOUT, attempts=CLEAN_UP_ATTEMPTS),
        Phase(_ABORT, _start, STOP_TIMEOUT, attempts=3, after_failure=True),
        Phase("RestartCluster", _restore_plans, RESTORE_PLAN_TIMEOUT),
    )

    def is_requested(self, scope: PlanScope) -> bool:
        return is_new_request(scope, self.kind)

    def preflight(self, scope: OperationScope) -> str:
        source = source_of(scope)
        if isinstance(source, str):
            return source
        if missing := missing_keys(scope.planning):
            return missing
        lost = sorted(entry.name for entry in _servers(scope) if _is_out_of_reach(scope, entry))
        if lost:
            return f"server(s) {', '.join(lost)} are not reachable; delete them first: they still have the old data"
        if leaving := _leaving(scope):
            return leaving
        if _leader(scope, source) is None:
            where = f"machine {source.machine}, which has the file," if source.machine else "an etcd machine"
            return f"{where} is not reachable or does not exist"
        return _spec_problem(scope, source.snapshot)

    def inverse(self, scope: OperationScope) -> Mapping[str, str]:
        return {"message": "a snapshot of the old data is taken first, which undoes the restore"}

    def leader(self, scope: OperationScope) -> str:
        source = source_of(scope)
        found = _leader(scope, source) if isinstance(source, Source) else None
        return found.name if found is not None else ""

    def status(self, run: Run, scope: PlanScope) -> Object:
        """Rancher has no phases for a snapshot before the restore, and for a restore that is aborted."""
        phase = {_SNAPSHOT: "Started", _ABORT: "RestartCluster"}.get(run.phase, run.phase)
        status: Object = {"etcdSnapshotRestorePhase": phase}
        if run.phase == operations.RESTORE_PHASE:
            status |= keys_for_restore(scope)
        if run.message and run.phase in ("RestartCluster", operations.FAILED) and _has_left_rejoin(run, scope):
            status[_UNJOINED] = _not_joined(run, scope)
        begins = run.phase == operations.REJOIN_PHASE and run.attempt == 1
        if begins:  # plans of another generation restart every machine
            status["configGeneration"] = int(scope.status.get("configGeneration") or 0) + 1
            status |= _restored_version(scope)
        return status


def _has_left_rejoin(run: Run, scope: PlanScope) -> bool:
    """Whether the phase in which servers start has just ended."""
    known = operations.active_run(scope.control_plane)
    return known is not None and known.id == run.id and known.phase == operations.REJOIN_PHASE


def _restored_version(scope: PlanScope) -> Object:
    """From now on, the cluster has the version of the snapshot."""
    applied, version = scope.status.get("appliedSpec") or {}, _version_of(scope)
    if mode_of(scope.status.get(operations.RESTORE)) == NONE or applied.get("kubernetesVersion") == version:
        return {}
    return {"appliedSpec": {**applied, "kubernetesVersion": version}, "rollback": {}}


RESTORE = Restore()
