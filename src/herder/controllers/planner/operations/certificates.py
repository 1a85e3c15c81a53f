"""Certificate rotation: one machine at a time, etcd first and workers last.

The rotation of certificate authorities (CAs) has the same order, after one server, the leader, has replaced them. The
present CAs sign the new ones, and all earlier ones stay trusted until they expire. So machines, clients and Pods with
any earlier CA keep working, also if the operation ends in the middle; it can be requested again at any time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from herder.api.rke import operations
from herder.api.rke.machines.strategy import is_lost
from herder.api.rke.operations import FINISHED, REPORT_AUTHORITIES, ROTATE_AUTHORITIES, Run, request_in
from herder.api.rke.services import NO_AUTHORITY_ROTATION
from herder.controllers.planner.distributions.interface import Roles
from herder.controllers.planner.distributions.tasks import (
    DiscardAuthorities,
    PrepareAuthorities,
    RotateAuthorities,
    RotateCertificates,
    Task,
)
from herder.controllers.planner.operations.interface import (
    Batch,
    OperationScope,
    Phase,
    Step,
    is_new_request,
    withdrawals,
)
from herder.controllers.planner.operations.snapshots.creation import (
    NO_MEMBER,
    RESTORE_PLAN_TIMEOUT,
    SAVE_TIMEOUT,
    members,
    restore_plans,
    save,
)
from herder.controllers.planner.operations.snapshots.listing import record_snapshots
from herder.controllers.planner.rollout.machines import PlanEntry
from herder.controllers.planner.rollout.scope import PlanScope
from herder.engine.meta.kinds import Object

ROTATE_TIMEOUT = timedelta(minutes=60)
PREPARE_TIMEOUT, REPLACE_TIMEOUT = timedelta(minutes=10), timedelta(minutes=30)
_TIERS: Sequence[Callable[[Roles], bool]] = (
    lambda roles: roles.only_etcd,
    lambda roles: roles.etcd and roles.control_plane,
    lambda roles: roles.only_control_plane,
    lambda roles: roles.only_worker,
)


def _rotate(scope: OperationScope) -> Sequence[Batch]:
    task = RotateCertificates(scope.run.mark, tuple(scope.request.get("services") or ()))
    return [withdrawals(scope), *([Step(entry, task)] for entry in _ordered(scope))]


def _ordered(scope: OperationScope) -> list[PlanEntry]:
    ordered = [entry for tier in _TIERS for entry in scope.machines if tier(entry.roles) and entry.plan.has_run_a_plan]
    return [entry for entry in ordered if entry.name not in scope.run.skipped]


@dataclass(frozen=True)
class Certificates:
    """`rotateCertificates`."""

    kind: str = operations.CERTIFICATES
    title: str = operations.TITLES[operations.CERTIFICATES]
    end: str = FINISHED
    phases: Sequence[Phase] = (
        Phase("Rotate", _rotate, ROTATE_TIMEOUT, attempts=2, skips_workers=True),
        Phase("RestartCluster", restore_plans, RESTORE_PLAN_TIMEOUT),
    )

    def is_requested(self, scope: PlanScope) -> bool:
        """Rancher stores only the generation of a rotation that succeeded."""
        wanted = (scope.spec.get(self.kind) or {}).get("generation")
        return is_new_request(scope, self.kind) and wanted != scope.status.get("certificateRotationGeneration")

    def preflight(self, scope: OperationScope) -> str:
        lost = sorted(entry.name for entry in scope.members() if is_lost(entry.machine))
        return f"etcd machine(s) {', '.join(lost)} are not reachable; repair or delete them first" if lost else ""

    def inverse(self, scope: OperationScope) -> Mapping[str, str]:
        return {"message": "there is nothing to undo: the old certificates stay valid until they expire"}

    def leader(self, scope: OperationScope) -> str:
        return ""

    def status(self, run: Run, scope: PlanScope) -> Object:
        done = {"certificateRotationGeneration": run.generation} if run.phase == self.end else {}
        return {"rotateCertificates": scope.spec.get(self.kind) or {}, **done}


CERTIFICATES = Certificates()


# --- certificate authorities ------------------------------------------------------------------------------------------

_ABORT = operations.ABORT_PHASE
_REPORT = re.compile(rb"^certificate authorities ([0-9a-f]{64})$", re.MULTILINE)


def _servers(scope: OperationScope) -> list[PlanEntry]:
    return [entry for entry in scope.machines if entry.roles.is_server and entry.plan.has_run_a_plan]


def _prepare(scope: OperationScope) -> Sequence[Batch]:
    return _by_leader(scope, PrepareAuthorities(scope.run.mark))


def _replace(scope: OperationScope) -> Sequence[Batch]:
    return _by_leader(scope, RotateAuthorities(scope.run.mark))


def _discard(scope: OperationScope) -> Sequence[Batch]:
    return _by_leader(scope, DiscardAuthorities(scope.run.mark), is_optional=True)


def _by_leader(scope: OperationScope, task: Task, *, is_optional: bool = False) -> Sequence[Batch]:
    leader = scope.leader()
    return [[Step(leader, task, is_optional=is_optional)]] if leader is not None else []


def _follow(scope: OperationScope) -> Sequence[Batch]:
    """All machines but the leader, which has restarted already."""
    task = RotateCertificates(scope.run.mark, reports_authorities=True)
    remaining = [entry for entry in _ordered(scope) if entry.name != scope.run.leader]
    return [withdrawals(scope), *([Step(entry, task)] for entry in remaining)]


def _reported(entry: PlanEntry, instruction: str) -> Sequence[bytes]:
    return _REPORT.findall(entry.plan.outputs.get(instruction, b""))[-1:]


def _check_replaced(scope: OperationScope) -> str:
    """Every server must have the CAs of the leader."""
    leader = scope.leader()
    wanted = _reported(leader, ROTATE_AUTHORITIES) if leader is not None else ()
    if leader is None or not wanted:
        return f"machine {scope.run.leader}, which has replaced the CAs, does not report them"
    others = [entry for entry in _servers(scope) if entry is not leader]
    wrong = sorted(entry.name for entry in others if _reported(entry, REPORT_AUTHORITIES) != wanted)
    return f"server(s) {', '.join(wrong)} have not loaded the CAs of {leader.name}" if wrong else ""


@dataclass(frozen=True)
class Authorities:
    """`rotateCertificates` with `caCertificates`."""

    kind: str = operations.AUTHORITIES
    title: str = operations.TITLES[operations.AUTHORITIES]
    end: str = FINISHED
    phases: Sequence[Phase] = (
        Phase("Prepare", _prepare, PREPARE_TIMEOUT, attempts=2, on_failure=_ABORT, needs_leader=True),
        Phase("Snapshot", save, SAVE_TIMEOUT, attempts=3, on_failure=_ABORT, record=record_snapshots),
        Phase("Replace", _replace, REPLACE_TIMEOUT, attempts=3, on_failure=_ABORT, needs_leader=True),
        Phase("Rotate", _follow, ROTATE_TIMEOUT, attempts=3, skips_workers=True, check=_check_replaced),
        Phase(_ABORT, _discard, PREPARE_TIMEOUT, after_failure=True),
        Phase("RestartCluster", restore_plans, RESTORE_PLAN_TIMEOUT),
    )

    def is_requested(self, scope: PlanScope) -> bool:
        wanted = request_in(scope.spec, self.kind).get("generation")
        return is_new_request(scope, self.kind) and wanted != scope.status.get("certificateRotationGeneration")

    def preflight(self, scope: OperationScope) -> str:
        if reason := NO_AUTHORITY_ROTATION.get(scope.distribution.name):
            return reason
        lost = sorted(entry.name for entry in _servers(scope) if is_lost(entry.machine))
        if lost:
            return f"server(s) {', '.join(lost)} are not reachable; repair or delete them first: they need the new CAs"
        if not members(scope):
            return NO_MEMBER
        return "" if self.leader(scope) else "no control plane machine has joined the cluster"

    def inverse(self, scope: OperationScope) -> Mapping[str, str]:
        return {"message": "a restore of the snapshot that is taken first brings the old CAs back, with its data"}

    def leader(self, scope: OperationScope) -> str:
        planes = [entry for entry in _servers(scope) if entry.roles.control_plane and entry.has_node]
        chosen = min(planes, key=lambda entry: (not entry.is_init, entry.name), default=None)
        return chosen.name if chosen is not None else ""

    def status(self, run: Run, scope: PlanScope) -> Object:
        return {"certificateRotationGeneration": run.generation} if run.phase == self.end else {}


AUTHORITIES = Authorities()
