"""Encryption keys that a snapshot needs: servers load them for its restore."""

from __future__ import annotations

from herder.api.rke.etcd.encryption import KeyState, data_key, keys_secret
from herder.controllers.planner.plan.inputs import keys_of_snapshot
from herder.controllers.planner.rollout.scope import PlanScope
from herder.engine.meta.kinds import Object


def keys_for_restore(scope: PlanScope) -> Object:
    """The status in which servers also load the keys that the snapshot was encrypted with."""
    known = KeyState.of(scope.control_plane)
    return known.with_keys(_needed(scope, known)).to_status() if known is not None else {}


def missing_keys(scope: PlanScope) -> str:
    """Why no server could read the Secrets of the snapshot; empty if they can."""
    known = KeyState.of(scope.control_plane)
    missing = known.missing(_needed(scope, known)) if known is not None else []
    if not missing:
        return ""
    where = f"Secret {scope.view.namespace}/{keys_secret(scope.view.name)}"
    keys = ", ".join(map(data_key, missing))
    return f"the snapshot is encrypted with {keys}, which {where} no longer has; restore the Secret from a backup"


def _needed(scope: PlanScope, known: KeyState) -> set[int]:
    return keys_of_snapshot(scope.view, scope.spec, known.stored)
