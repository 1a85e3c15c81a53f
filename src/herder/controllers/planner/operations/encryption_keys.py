"""Rotation of the keys that encrypt Secrets in etcd.

One server, the leader, changes the keys; after each of the three steps, all servers restart to load them. A server that
has not loaded a key cannot read the Secrets that it encrypts. K3s and RKE2 have commands for each step; elsewhere the
manager owns the keys, and writes them into plans.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from herder.api.capi.kinds import SECRET, SECRET_METADATA
from herder.api.rke import operations
from herder.api.rke.etcd.encryption import BEFORE, KeyState, data_key, keys_secret, needed_by
from herder.api.rke.machines.strategy import is_lost
from herder.api.rke.operations import DONE, Run
from herder.api.rke.operations import RESTART_SERVICES as RESTART
from herder.api.writes import ref
from herder.controllers.planner.distributions.tasks import EncryptSecrets, RestartServices
from herder.controllers.planner.operations.interface import Batch, OperationScope, Phase, Step, is_new_request
from herder.controllers.planner.operations.snapshots.creation import RESTORE_PLAN_TIMEOUT, restore_plans
from herder.controllers.planner.operations.snapshots.listing import snapshots_in
from herder.controllers.planner.rollout.machines import PlanEntry
from herder.controllers.planner.rollout.scope import PlanScope
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Patch, Write

STEP_TIMEOUT, RESTART_TIMEOUT = timedelta(minutes=30), timedelta(minutes=60)
_LAST = "RestartCluster"


def _servers(scope: OperationScope) -> list[PlanEntry]:
    return [entry for entry in scope.machines if entry.roles.is_server and entry.plan.has_run_a_plan]


def _run(step: str) -> Callable[[OperationScope], Sequence[Batch]]:
    def batches(scope: OperationScope) -> Sequence[Batch]:
        leader = scope.leader()
        return [[Step(leader, EncryptSecrets(scope.run.mark, step))]] if leader is not None else []

    return batches


def _prepare(scope: OperationScope) -> Sequence[Batch]:
    """K3s and RKE2 refuse every step while servers have different keys, as after a rotation that was interrupted.

    So another attempt restarts all servers first. Each loads what was stored last; the leader goes on from there.
    """
    leader = scope.leader()
    if leader is None or scope.run.attempt == 1 or scope.distribution.manages_keys:
        return _run("prepare")(scope)
    followers = [batch for batch in _restart(scope) if batch[0].entry is not leader]
    return [*followers, [Step(leader, EncryptSecrets(scope.run.mark, "prepare", restarts=True))]]


def _restart(scope: OperationScope) -> Sequence[Batch]:
    """One at a time: the init node, servers with etcd only, the leader, then the other servers."""

    def order(entry: PlanEntry) -> tuple[bool, bool, bool, str]:
        return not entry.is_init, not entry.roles.only_etcd, entry.name != scope.run.leader, entry.name

    return [[Step(entry, RestartServices(scope.run.mark))] for entry in sorted(_servers(scope), key=order)]


# --- keys of the manager ----------------------------------------------------------------------------------------------


def _key_state(run: Run, scope: PlanScope) -> Object:
    """Which keys servers load in this phase. It is stored with the phase, before a task writes them."""
    if not scope.distribution.manages_keys:
        return {}
    known = KeyState.of(scope.control_plane) or KeyState((BEFORE,), ())
    match run.phase:
        case "Prepare":
            return known.prepared(run.id).to_status()
        case "Rotate":
            return known.rotated().to_status()
        case "PostReencryptRestart":
            return known.reduced(_needed(scope, known)).to_status()
        case "RestartCluster" if not run.message:
            return known.pruned(_needed(scope, known)).to_status()
    return {}


def _needed(scope: PlanScope, known: KeyState) -> set[int]:
    return needed_by(snapshots_in(scope.view), known.stored)


def _delete_keys(scope: OperationScope) -> Sequence[Write]:
    """Delete the keys that the status does not list anymore: it must never list one that the Secret does not have."""
    view, known = scope.planning.view, KeyState.of(scope.planning.control_plane)
    secret = view.get(SECRET_METADATA, keys_secret(view.name))
    if known is None or secret is None or not scope.distribution.manages_keys:
        return ()
    gone = [each for each in range(1, known.newest) if each not in (*known.loaded, *known.stored)]
    if not gone:
        return ()
    patch = {"data": dict.fromkeys(map(data_key, gone))}
    return [Patch(ref(SECRET, secret), patch, "no server and no snapshot needs these keys")]


_REPORT = re.compile(rb"^encryption configuration ([0-9a-f]{64})$", re.MULTILINE)


def _check_loaded(scope: OperationScope) -> str:
    """Every server must report the configuration of the others: it could not read what they encrypt."""
    if not scope.distribution.manages_keys:
        return ""  # K3s and RKE2 compare the servers themselves, and refuse the next step
    reported = {entry.name: _REPORT.findall(entry.plan.outputs.get(RESTART, b""))[-1:] for entry in _servers(scope)}
    leader = reported.get(scope.run.leader) or []
    other = sorted(name for name, hashes in reported.items() if not hashes or hashes != leader)
    return f"server(s) {', '.join(other)} have not loaded the configuration of {scope.run.leader}" if other else ""


@dataclass(frozen=True)
class EncryptionKeys:
    """`rotateEncryptionKeys`."""

    kind: str = operations.ENCRYPTION_KEYS
    title: str = operations.TITLES[operations.ENCRYPTION_KEYS]
    end: str = DONE
    phases: Sequence[Phase] = (
        Phase("Prepare", _prepare, RESTART_TIMEOUT, attempts=3),
        Phase("PostPrepareRestart", _restart, RESTART_TIMEOUT, attempts=3, check=_check_loaded),
        Phase("Rotate", _run("rotate"), STEP_TIMEOUT, attempts=2),
        Phase("PostRotateRestart", _restart, RESTART_TIMEOUT, attempts=3, check=_check_loaded),
        Phase("Reencrypt", _run("reencrypt"), STEP_TIMEOUT, attempts=2),
        Phase("PostReencryptRestart", _restart, RESTART_TIMEOUT, attempts=3, check=_check_loaded),
        Phase(_LAST, restore_plans, RESTORE_PLAN_TIMEOUT, record=_delete_keys),
    )

    def is_requested(self, scope: PlanScope) -> bool:
        return is_new_request(scope, self.kind)

    def preflight(self, scope: OperationScope) -> str:
        lost = sorted(entry.name for entry in _servers(scope) if is_lost(entry.machine))
        if lost:
            return f"server(s) {', '.join(lost)} are not reachable; repair or delete them first: they need the new key"
        if problem := scope.distribution.keys_problem(scope.planning.spec):
            return problem
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
            **_key_state(run, scope),
        }


ENCRYPTION_KEYS = EncryptionKeys()
