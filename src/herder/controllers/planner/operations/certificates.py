"""Certificate rotation: one machine at a time, etcd first and workers last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from herder.api.rke import operations
from herder.api.rke.machines.strategy import is_lost
from herder.api.rke.operations import FINISHED, Run
from herder.controllers.planner.distributions.interface import Roles
from herder.controllers.planner.distributions.tasks import RotateCertificates
from herder.controllers.planner.operations.interface import (
    Batch,
    OperationScope,
    Phase,
    Step,
    is_new_request,
    withdrawals,
)
from herder.controllers.planner.operations.snapshots.creation import RESTORE_PLAN_TIMEOUT, restore_plans
from herder.controllers.planner.rollout.scope import PlanScope
from herder.engine.meta.kinds import Object

ROTATE_TIMEOUT = timedelta(minutes=60)
_TIERS: Sequence[Callable[[Roles], bool]] = (
    lambda roles: roles.only_etcd,
    lambda roles: roles.etcd and roles.control_plane,
    lambda roles: roles.only_control_plane,
    lambda roles: roles.only_worker,
)


def _rotate(scope: OperationScope) -> Sequence[Batch]:
    services = tuple(scope.request.get("services") or ())
    ordered = [entry for tier in _TIERS for entry in scope.machines if tier(entry.roles) and entry.plan.has_run_a_plan]
    remaining = [entry for entry in ordered if entry.name not in scope.run.skipped]
    return [withdrawals(scope), *([Step(entry, RotateCertificates(scope.run.mark, services))] for entry in remaining)]


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
