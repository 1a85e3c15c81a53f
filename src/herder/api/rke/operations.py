"""Operations of a cluster: the run that `status.operation` records, and what guards allow while it is in progress.

An operation is requested by a field of the spec and runs in phases. Its run is stored before it acts, so that any
process can continue it. Guards read the stored run, not the planner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import msgspec

from herder.api.capi.conditions import timestamp
from herder.api.numbers import INT64_MAX
from herder.api.rke.names import PLAN_TASK
from herder.api.rke.node.plan import Plan
from herder.api.rke.node.plan_secret import PlanSecret
from herder.api.times import parse_time
from herder.engine.meta.kinds import Object

SNAPSHOT, RESTORE = "etcdSnapshotCreate", "etcdSnapshotRestore"
UPGRADE_SNAPSHOT = "snapshotBeforeUpgrade"
"""A snapshot that the manager takes by itself before it changes the version. No field of the spec requests it."""
CERTIFICATES, ENCRYPTION_KEYS = "rotateCertificates", "rotateEncryptionKeys"
AUTHORITIES = "rotateCertificateAuthorities"
"""Requested by the field of CERTIFICATES, with `caCertificates`."""
AGENTS = "redeploySystemAgentGeneration"
"""The only request outside rkeConfig: a number instead of an object with a generation."""
KINDS = (SNAPSHOT, RESTORE, CERTIFICATES, AUTHORITIES, ENCRYPTION_KEYS, AGENTS)
"""Kinds of operations that users request: see `field_of`. An earlier one comes first."""
SCHEDULED_SNAPSHOT, DELETION = "etcdSnapshotSchedule", "etcdSnapshotDelete"
"""Kinds of operations that the manager starts by itself, in the background: the cluster stays ready."""
TITLES: Mapping[str, str] = {
    SNAPSHOT: "etcd snapshot",
    UPGRADE_SNAPSHOT: "snapshot before the upgrade",
    RESTORE: "etcd restore",
    CERTIFICATES: "certificate rotation",
    AUTHORITIES: "CA rotation",
    ENCRYPTION_KEYS: "encryption key rotation",
    AGENTS: "redeployment of node agents",
    SCHEDULED_SNAPSHOT: "scheduled etcd snapshot",
    DELETION: "deletion of etcd snapshots",
}
"""Names of the kinds in messages."""

CHECK_PHASE = "Started"
"""The phase in which a restore checks its snapshot; nothing has stopped yet."""
ABORT_PHASE = "Abort"
"""The phase after a failure: servers start again after a restore, or unused CAs are deleted. Other runs skip it."""
SHUTDOWN_PHASE, RESTORE_PHASE, REJOIN_PHASE = "Shutdown", "Restore", "InitialRestartCluster"
FINISHED, DONE, FAILED = "Finished", "Done", "Failed"
_ENDED = (FINISHED, DONE, FAILED)
_SHOWN = 3  # names of machines in a message

# Names of the instructions of tasks. Guards accept them only while their operation is in the phase that runs them.
SAVE_SNAPSHOT, DELETE_SNAPSHOTS = "etcd-snapshot-save", "etcd-snapshot-delete"
ROTATE_CERTIFICATES, RESTART_SERVICES = "rotate-certificates", "restart-services"
PREPARE_AUTHORITIES, ROTATE_AUTHORITIES = "prepare-certificate-authorities", "rotate-certificate-authorities"
REPORT_AUTHORITIES, DISCARD_AUTHORITIES = "report-certificate-authorities", "discard-certificate-authorities"
ENCRYPT_SECRETS = "secrets-encrypt"
CHECK_SNAPSHOT, RESTORE_SNAPSHOT = "etcd-snapshot-check", "etcd-snapshot-restore"
STOP_SERVICES, START_SERVICES = "stop-services", "start-services"
UNDO_RESTORE, COMMIT_RESTORE = "etcd-snapshot-restore-undo", "etcd-snapshot-restore-commit"
REDEPLOY_AGENT = "redeploy-node-agent"
DROP_DATA, DELETE_NODES = "drop-etcd-data", "delete-stale-nodes"
SNAPSHOT_METADATA = "/.snapshot-metadata.json"
"""End of the path of the file that describes a new snapshot. Only its task has it."""
RESERVED_NAMES = "/reserved-node-names.json"
"""End of the path of the file with the names of all Nodes. Only tasks of a restore have it."""


@dataclass(frozen=True)
class Run:
    """One run of an operation, as stored in `status.operation`."""

    id: str
    kind: str
    phase: str
    generation: int
    started_at: datetime
    deadline: datetime | None = None  # of the phase
    attempt: int = 1  # at the phase
    leader: str = ""  # name of the Machine that acts for the others
    message: str = ""  # why it failed
    retry_at: datetime | None = None  # when the attempt begins, if an earlier one has failed
    retry_reason: str = ""  # why the earlier attempt failed
    phase_started_at: datetime | None = None
    timings: Mapping[str, int] = field(default_factory=dict)  # seconds that finished phases took, by name
    inverse: Mapping[str, str] = field(default_factory=dict)
    """How it is undone: a request for a restore (`kind`, `name`, `restoreRKEConfig`, `snapshotTime`, `snapshotSHA256`),
    or a `message` that says why it cannot be undone or need not be."""
    skipped: Sequence[str] = ()
    """Names of workers without which it continues: they did not respond, or failed in each attempt."""
    suspended_at: datetime | None = None  # when the planner stopped driving it, as in a paused cluster
    resumed_at: datetime | None = None  # when it continued after that

    @property
    def is_active(self) -> bool:
        return not is_ended(self.phase)

    @property
    def is_in_background(self) -> bool:
        return self.kind in (SCHEDULED_SNAPSHOT, DELETION)

    @property
    def mark(self) -> str:
        """Identifies the tasks of this attempt; part of their plans, so that a retry is a new plan."""
        return f"{self.id}/{self.phase}/{self.attempt}"

    @property
    def skipped_message(self) -> str:
        """Which workers were skipped, and what to do; empty if none were."""
        if not self.skipped:
            return ""
        shown, rest = ", ".join(self.skipped[:_SHOWN]), len(self.skipped) - _SHOWN
        more = f" and {rest} more" if rest > 0 else ""
        return f"skipped worker(s) {shown}{more}: no response, or failed; request it again once they respond"

    def is_own_phase(self, mark: str) -> bool:
        """Whether a mark is of any attempt at the current phase."""
        return mark.rpartition("/")[0] == self.mark.rpartition("/")[0]

    def suspended(self, now: datetime) -> Run:
        return self if self.suspended_at is not None else replace(self, suspended_at=now)

    def resumed(self, now: datetime) -> Run:
        """The run after a suspension, which is not counted as time of the phase."""
        if self.suspended_at is None:
            return self
        begun, span = self.phase_started_at, max(now - self.suspended_at, timedelta(0))
        started = begun + span if begun is not None else None
        return replace(self, suspended_at=None, resumed_at=now, phase_started_at=started)

    def at(self, phase: str, now: datetime, deadline: datetime | None, **changes: object) -> Run:
        """The run in another phase, which begins now."""
        begun = self.phase_started_at or now
        timings = {**self.timings, self.phase: max(int((now - begun).total_seconds()), 0)}
        fields = {"phase_started_at": now, "timings": timings, "attempt": 1, "retry_at": None, "retry_reason": ""}
        return replace(self, phase=phase, deadline=deadline, **{**fields, **changes})  # type: ignore[arg-type]

    def to_status(self) -> Object:
        status = {
            "id": self.id,
            "kind": self.kind,
            "phase": self.phase,
            "generation": self.generation,
            "attempt": self.attempt,
            "leader": self.leader,
            "startedAt": timestamp(self.started_at),
            "deadline": timestamp(self.deadline) if self.deadline else "",
            "message": self.message,
            "retryAt": timestamp(self.retry_at) if self.retry_at else "",
            "retryReason": self.retry_reason,
            "phaseStartedAt": timestamp(self.phase_started_at) if self.phase_started_at else "",
            "timings": dict(self.timings),
            "inverse": dict(self.inverse),
            "skipped": [*self.skipped],
            "suspendedAt": timestamp(self.suspended_at) if self.suspended_at else "",
            "resumedAt": timestamp(self.resumed_at) if self.resumed_at else "",
        }
        return {name: value for name, value in status.items() if value not in ("", None, {}, [])}

    @staticmethod
    def of(control_plane: Object | None) -> Run | None:
        """The current run, or the last one."""
        stored = ((control_plane or {}).get("status") or {}).get("operation")
        started = parse_time(str((stored or {}).get("startedAt") or ""))
        if not stored or started is None:
            return None
        return Run(
            id=str(stored.get("id") or ""),
            kind=str(stored.get("kind") or ""),
            phase=str(stored.get("phase") or ""),
            generation=_number(stored.get("generation")),
            started_at=started,
            deadline=parse_time(str(stored.get("deadline") or "")),
            attempt=_number(stored.get("attempt")) or 1,
            leader=str(stored.get("leader") or ""),
            message=str(stored.get("message") or ""),
            retry_at=parse_time(str(stored.get("retryAt") or "")),
            retry_reason=str(stored.get("retryReason") or ""),
            phase_started_at=parse_time(str(stored.get("phaseStartedAt") or "")),
            timings={name: _number(value) for name, value in (stored.get("timings") or {}).items()},
            inverse=stored.get("inverse") or {},
            skipped=tuple(str(each) for each in stored.get("skipped") or ()),
            suspended_at=parse_time(str(stored.get("suspendedAt") or "")),
            resumed_at=parse_time(str(stored.get("resumedAt") or "")),
        )


def is_ended(phase: str) -> bool:
    return phase in _ENDED


def active_run(control_plane: Object | None) -> Run | None:
    found = Run.of(control_plane)
    return found if found is not None and found.is_active else None


def suspension(control_plane: Object, now: datetime) -> Object:
    """Fields of the status that record since when the operation in progress waits; empty if they do already."""
    run = active_run(control_plane)
    return {"operation": run.suspended(now).to_status()} if run is not None and run.suspended_at is None else {}


def is_restoring(control_plane: Object | None) -> bool:
    """Whether a restore runs: the Nodes of the cluster say nothing about its machines then."""
    run = active_run(control_plane)
    return run is not None and run.kind == RESTORE


def last_restore_end(control_plane: Object | None) -> datetime | None:
    """When the last restore ended that stopped servers. Their Nodes may be those of the snapshot for some time."""
    ended = ((control_plane or {}).get("status") or {}).get("operationHistory") or ()
    stopped = [each for each in ended if each.get("kind") == RESTORE and SHUTDOWN_PHASE in (each.get("timings") or {})]
    return parse_time(str(stopped[-1].get("endedAt") or "")) if stopped else None


def unfinished_restore(status: Object) -> Object | None:
    """The last restore, if it failed after the data was restored: servers that it stopped may still be down.

    A later one that failed before it stopped any server has changed nothing.
    """
    restores = [each for each in status.get("operationHistory") or () if each.get("kind") == RESTORE]
    restores = [
        each for each in restores if each.get("phase") != FAILED or SHUTDOWN_PHASE in (each.get("timings") or {})
    ]
    found: Object | None = restores[-1] if restores else None
    past_return = found is not None and REJOIN_PHASE in (found.get("timings") or {})
    return found if past_return and found is not None and found.get("phase") == FAILED else None


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value <= INT64_MAX else 0


# --- requests ---------------------------------------------------------------------------------------------------------


_BY_CERTIFICATES = (CERTIFICATES, AUTHORITIES)


def field_of(kind: str) -> str:
    """The field of the spec and of the status that requests operations of this kind."""
    return CERTIFICATES if kind == AUTHORITIES else kind


def request_in(fields: Object, kind: str) -> Object:
    """The request in the spec or status of a control plane; empty if there is none."""
    found = fields.get(field_of(kind))
    if kind in _BY_CERTIFICATES and bool((found or {}).get("caCertificates")) != (kind == AUTHORITIES):
        return {}
    return ({"generation": found} if found else {}) if isinstance(found, int) else found or {}


def stored_request(spec: Object, kind: str) -> Object:
    """The field with the request, as the status records it when the run starts."""
    field = field_of(kind)
    return {field: spec[field]} if spec.get(field) else {}


def request_of_cluster(cluster: Object | None, kind: str) -> Object:
    """The request in the spec of a provisioning Cluster; empty if there is none."""
    spec = (cluster or {}).get("spec") or {}
    return request_in(spec if kind == AGENTS else spec.get("rkeConfig") or {}, kind)


def set_request(cluster: Object, kind: str, request: Object) -> None:
    """Write a request into the spec of a provisioning Cluster."""
    if kind == AGENTS:
        cluster["spec"][kind] = request["generation"]
    else:
        request = {**request, "caCertificates": True} if kind == AUTHORITIES else request
        cluster["spec"]["rkeConfig"][field_of(kind)] = request


# --- permissions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Permission:
    """What the tasks of a phase may do that an ordinary plan may not."""

    instructions: frozenset[str]  # names of the instructions of its plans, besides the installer's
    stops_all_servers: bool = False  # quorum and concurrency do not count
    begins_cluster: bool = False  # a server without a join URL may become the init node
    lowers_version: bool = False


def _may(*instructions: str, **exceptions: bool) -> Permission:
    return Permission(frozenset(instructions), **exceptions)


PERMISSIONS: Mapping[tuple[str, str], Permission] = {
    (SNAPSHOT, "Started"): _may(SAVE_SNAPSHOT),
    (SNAPSHOT, "RestartCluster"): _may(),
    (SCHEDULED_SNAPSHOT, "Started"): _may(SAVE_SNAPSHOT),
    (SCHEDULED_SNAPSHOT, "RestartCluster"): _may(),
    (DELETION, "Delete"): _may(DELETE_SNAPSHOTS),
    (DELETION, "RestartCluster"): _may(),
    (UPGRADE_SNAPSHOT, "Started"): _may(SAVE_SNAPSHOT),
    (UPGRADE_SNAPSHOT, "RestartCluster"): _may(),
    (RESTORE, "Started"): _may(CHECK_SNAPSHOT),
    (RESTORE, "Snapshot"): _may(SAVE_SNAPSHOT),
    (RESTORE, SHUTDOWN_PHASE): _may(STOP_SERVICES, stops_all_servers=True),
    (RESTORE, RESTORE_PHASE): _may(RESTORE_SNAPSHOT, stops_all_servers=True, begins_cluster=True, lowers_version=True),
    (RESTORE, REJOIN_PHASE): _may(
        COMMIT_RESTORE, DROP_DATA, DELETE_NODES, stops_all_servers=True, begins_cluster=True, lowers_version=True
    ),
    (RESTORE, "PostRestoreNodeCleanup"): _may(DELETE_NODES),
    (RESTORE, ABORT_PHASE): _may(UNDO_RESTORE, START_SERVICES, DROP_DATA, stops_all_servers=True),
    (RESTORE, "RestartCluster"): _may(),
    (CERTIFICATES, "Rotate"): _may(ROTATE_CERTIFICATES, RESTART_SERVICES),
    (CERTIFICATES, "RestartCluster"): _may(),
    (AUTHORITIES, "Prepare"): _may(PREPARE_AUTHORITIES),
    (AUTHORITIES, "Snapshot"): _may(SAVE_SNAPSHOT),
    (AUTHORITIES, "Replace"): _may(ROTATE_AUTHORITIES),
    (AUTHORITIES, "Rotate"): _may(ROTATE_CERTIFICATES, REPORT_AUTHORITIES, RESTART_SERVICES),
    (AUTHORITIES, ABORT_PHASE): _may(DISCARD_AUTHORITIES),
    (AUTHORITIES, "RestartCluster"): _may(),
    (ENCRYPTION_KEYS, "Prepare"): _may(ENCRYPT_SECRETS, RESTART_SERVICES),
    (ENCRYPTION_KEYS, "PostPrepareRestart"): _may(RESTART_SERVICES),
    (ENCRYPTION_KEYS, "Rotate"): _may(ENCRYPT_SECRETS),
    (ENCRYPTION_KEYS, "PostRotateRestart"): _may(RESTART_SERVICES),
    (ENCRYPTION_KEYS, "Reencrypt"): _may(ENCRYPT_SECRETS),
    (ENCRYPTION_KEYS, "PostReencryptRestart"): _may(RESTART_SERVICES),
    (ENCRYPTION_KEYS, "RestartCluster"): _may(),
    (AGENTS, "Servers"): _may(REDEPLOY_AGENT),
    (AGENTS, "Workers"): _may(REDEPLOY_AGENT),
    (AGENTS, "RestartCluster"): _may(),
}
"""By kind and phase, in the order of the phases. A phase that is missing here writes no plan."""

ABORTED = "aborted on request"


def phases_of(kind: str) -> list[str]:
    """The phases of a run that succeeds."""
    return [phase for each, phase in PERMISSIONS if each == kind and phase != ABORT_PHASE]


ABORTABLE: Mapping[str, frozenset[str]] = {
    SNAPSHOT: frozenset({"Started"}),
    UPGRADE_SNAPSHOT: frozenset({"Started"}),
    RESTORE: frozenset({"Started", "Snapshot", SHUTDOWN_PHASE}),
    CERTIFICATES: frozenset({"Rotate"}),
    AUTHORITIES: frozenset({"Prepare", "Snapshot"}),
    ENCRYPTION_KEYS: frozenset(),
    AGENTS: frozenset({"Servers", "Workers"}),
    SCHEDULED_SNAPSHOT: frozenset({"Started"}),
    DELETION: frozenset({"Delete"}),
}
"""Phases before the point of no return, by kind."""
NO_RETURN: Mapping[str, str] = {
    SNAPSHOT: "the snapshots are saved, and machines get their plans back",
    UPGRADE_SNAPSHOT: "the snapshots are saved, and machines get their plans back",
    RESTORE: "the data of the cluster is being replaced, or servers start again after a failure",
    CERTIFICATES: "all certificates are new, and machines get their plans back",
    AUTHORITIES: "the cluster has new certificate authorities; machines that lack them would be left behind",
    ENCRYPTION_KEYS: "servers that do not all have the same keys could not read their Secrets",
    AGENTS: "all agents are redeployed, and machines get their plans back",
    SCHEDULED_SNAPSHOT: "the snapshots are saved, and machines get their plans back",
    DELETION: "the files are deleted, and machines get their plans back",
}
"""Why an operation cannot be aborted after its point of no return."""


def is_abortable(run: Run) -> bool:
    return run.phase in ABORTABLE.get(run.kind, ()) and not run.message


NO_PERMISSION = Permission(frozenset())
TASK_INSTRUCTIONS = frozenset(name for each in PERMISSIONS.values() for name in each.instructions)
_HARMLESS = frozenset(
    {
        SAVE_SNAPSHOT,
        DELETE_SNAPSHOTS,
        CHECK_SNAPSHOT,
        DELETE_NODES,
        ENCRYPT_SECRETS,
        REDEPLOY_AGENT,
        PREPARE_AUTHORITIES,
        REPORT_AUTHORITIES,
        DISCARD_AUTHORITIES,
    }
)
"""Instructions that neither stop nor restart anything of Kubernetes."""


def without_tasks(plan: Plan) -> Plan:
    """The plan without instructions and files of operations."""
    files = tuple(each for each in plan.files if not each.path.endswith((SNAPSHOT_METADATA, RESERVED_NAMES)))
    return _without(msgspec.structs.replace(plan, files=files), TASK_INSTRUCTIONS)


def without_harmless_tasks(plan: Plan) -> Plan:
    return _without(plan, _HARMLESS)


def _without(plan: Plan, names: frozenset[str]) -> Plan:
    kept = tuple(each for each in plan.instructions if each.name not in names)
    return msgspec.structs.replace(plan, instructions=kept) if len(kept) < len(plan.instructions) else plan


def starts_nothing(plan: Plan | None) -> bool:
    """Whether the plan only stops Kubernetes, or checks a snapshot."""
    names = {each.name for each in (plan.instructions if plan else ())}
    return bool(names) and names <= {STOP_SERVICES, CHECK_SNAPSHOT}


def task_instructions(plan: Plan | None) -> set[str]:
    """Names of the instructions of a plan that only an operation may run."""
    return {each.name for each in (plan.instructions if plan else ())} & TASK_INSTRUCTIONS


def permission_for(control_plane: Object | None, after: PlanSecret) -> Permission:
    """What a write of this plan may do, by the operation that is stored. A plan of no current task gets nothing."""
    run = active_run(control_plane)
    if run is None or after.annotations.get(PLAN_TASK) != run.mark:
        return NO_PERMISSION
    return PERMISSIONS.get((run.kind, run.phase), NO_PERMISSION)
