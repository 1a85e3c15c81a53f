"""Objects whose status shows an operation, as the planner would write it."""

from __future__ import annotations

from typing import Any

from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.rke.operations import RESTORE
from tests.support.builders import new_condition, new_object

STARTED = "2026-01-01T12:00:00Z"
ESCAPE = "\x1b[2J"


def run(kind: str, phase: str, generation: int = 1, **fields: Any) -> dict[str, Any]:
    return {"id": "x", "kind": kind, "phase": phase, "generation": generation, "startedAt": STARTED, **fields}


def control_plane(operation: dict[str, Any] | None = None, ready: str = "", spec: Any = None, **status: Any) -> Any:
    conditions = [new_condition("Ready", "False", message=ready)] if ready else []
    known = {"operation": operation} if operation else {}
    return new_object(CONTROL_PLANE, "meadow", spec=spec or {}, status={**known, **status, "conditions": conditions})


def provisioning_cluster(generation: int = 1, **config: Any) -> Any:
    meta = {"generation": generation}
    return new_object(PROVISIONING_CLUSTER, "meadow", metadata=meta, spec={"rkeConfig": config})


INVERSE = {"kind": RESTORE, "name": "old", "restoreRKEConfig": "none", "snapshotTime": STARTED}
UPGRADE = {"from": "v1.33.5+k3s1", "to": "v1.34.1+k3s1", "snapshot": "old", "snapshotTime": STARTED}
