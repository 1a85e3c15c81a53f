"""The last operations of a cluster, with the time that each phase took: the basis of estimates."""

from __future__ import annotations

from datetime import datetime

from herder.api.capi.conditions import timestamp
from herder.api.rke.operations import Run
from herder.engine.meta.kinds import Object

MAX_ENTRIES = 10
_KEPT = ("id", "kind", "generation", "phase", "leader", "startedAt", "message", "timings")


def extended_history(status: Object, run: Run, now: datetime) -> list[Object]:
    """`status.operationHistory` with a run that has ended now."""
    ended = {name: value for name, value in run.to_status().items() if name in _KEPT}
    return [*(status.get("operationHistory") or ()), ended | {"endedAt": timestamp(now)}][-MAX_ENTRIES:]
