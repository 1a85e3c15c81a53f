"""The last operations of a cluster: the time that each phase took, for estimates, and what undoes them."""

from __future__ import annotations

from datetime import datetime

from herder.api.capi.conditions import timestamp
from herder.api.rke.operations import RESTORE, Run
from herder.engine.meta.kinds import Object

MAX_ENTRIES = 10
_KEPT = ("id", "kind", "generation", "phase", "leader", "startedAt", "message", "timings", "inverse", "skipped")


def extended_history(status: Object, run: Run, now: datetime) -> list[Object]:
    """`status.operationHistory` with a run that has ended now.

    The newest restore that can be undone is kept however many runs have followed, such as scheduled snapshots.
    """
    ended = {name: value for name, value in run.to_status().items() if name in _KEPT}
    known = [*(status.get("operationHistory") or ()), ended | {"endedAt": timestamp(now)}]
    older, kept = known[:-MAX_ENTRIES], known[-MAX_ENTRIES:]
    undone = [] if any(map(_has_inverse, kept)) else [each for each in older if _has_inverse(each)][-1:]
    return [*undone, *kept[len(undone) :]]


def _has_inverse(entry: Object) -> bool:
    return entry.get("kind") == RESTORE and bool((entry.get("inverse") or {}).get("kind"))
