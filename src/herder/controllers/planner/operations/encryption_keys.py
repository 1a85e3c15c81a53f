"""Rotation of the keys that encrypt Secrets in etcd.

One server, the leader, changes the keys; after each of the three steps, all servers restart to load them. A server that
has not loaded a key cannot read the Secrets that it encrypts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from herder.api.rke import operations
from herder.api.rke.operations import DONE, Run
from herder.api.rke.strategy import is_lost
from herder.controllers.planner.distributions.tasks import EncryptSecrets, RestartServices
from herder.controllers.planner.operations.interface import Batch, OperationScope, Phase, Step, is_new_request
from herder.controllers.planner.operations.snapshot import RESTORE_PLAN_TIMEOUT, restore_plans
from herder.controllers.planner.rollout.machines import PlanEntry
from herder.controllers.planner.rollout.scope import PlanScope
from herder.engine.meta.kinds import Object

STEP_TIMEOUT, RESTART_TIMEOUT = timedelta(minutes=30), timedelta(minutes=60)
_LAST = "RestartCluster"


def _servers(scope: OperationScope) -> list[PlanEntry]:
    return [entry for entry in scope.machines if entry.roles.is_server and entry.plan.has_run_a_plan]


def _run(step: str, stage: str) -> Callable[[OperationScope], Sequence[Batch]]:
    def batches(scope: OperationScope) -> Sequence[Batch]:
        leader = scope.leader()
        return [[Step(leader, EncryptSecrets(scope.run.mark, step, stage))]] if leader is not None else []

    return batches


def _restart(scope: OperationScope) -> Sequence[Batch]:
    """One at a time: the init node, servers with etcd only, the leader, then the other servers."""

    def order(entry: PlanEntry) -> tuple[bool, bool, bool, str]:
        return not entry.is_init, not entry.roles.only_etcd, entry.name != scope.run.leader, entry.name

    return [[Step(entry, RestartServices(scope.run.mark))] for entry in sorted(_servers(scope), key=order)]


@dataclass(frozen=True)
class EncryptionKeys:
    """`rotateEncryptionKeys`."""

    kind: str = operations.ENCRYPTION_KEYS
    title: str = operations.TITLES[operations.ENCRYPTION_KEYS]
    end: str = DONE
    phases: Sequence[Phase] = (
        Phase("Prepare", _run("prepare", "prepare"), STEP_TIMEOUT),
        Phase("PostPrepareRestart", _restart, RESTART_TIMEOUT, attempts=3),
        Phase("Rotate", _run("rotate", "rotate"), STEP_TIMEOUT),
        Phase("PostRotateRestart", _restart, RESTART_TIMEOUT, attempts=3),
        Phase("Reencrypt", _run("reencrypt", "reencrypt_finished"), STEP_TIMEOUT),
        Phase("PostReencryptRestart", _restart, RESTART_TIMEOUT, attempts=3),
        Phase(_LAST, restore_plans, RESTORE_PLAN_TIMEOUT),
    )

    def is_requested(self, scope: PlanScope) -> bool:
        return is_new_request(scope, self.kind)

    def preflight(self, scope: OperationScope) -> str:
        lost = sorted(entry.name for entry in _servers(scope) if is_lost(entry.machine))
        if lost:
            return f"server(s) {', '.join(lost)} are not reachable; repair or delete them first: they need the new key"
        return "" if self.leader(scope) else "no control plane machine has joined the cluster"

    def inverse(self, scope: OperationScope) -> Mapping[str, str]:
        return {"message": "it cannot be undone; rotate again for another key"}

    def leader(self, scope: OperationScope) -> str:
        planes = [entry for entry in _servers(scope) if entry.roles.control_plane and entry.has_node]
        chosen = min(planes, key=lambda entry: (not entry.is_init, entry.name), default=None)
        return chosen.name if chosen is not None else ""

    def status(self, run: Run, scope: PlanScope) -> Object:
        phase = {_LAST: "PostReencryptRestart"}.get(run.phase, run.phase)
        return {
            "rotateEncryptionKeys": scope.spec.get(self.kind) or {},
            "rotateEncryptionKeysPhase": phase,
            "rotateEncryptionKeysLeader": run.leader,
        }


ENCRYPTION_KEYS = EncryptionKeys()
