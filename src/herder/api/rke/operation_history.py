"""The last operations of a cluster: the time that each phase took, for estimates, and what undoes them."""

from __future__ import annotations

from datetime import datetime

from herder.api.capi.conditions import timestamp
from herder.api.rke.operations import RESTORE, SHUTDOWN_PHASE, Run
from herder.engine.meta.kinds import Object

MAX_ENTRIES = 10
_KEPT = ("id", "kind", "generation", "phase", "leader", "startedAt", "message", "timings", "inverse", "skipped")


def extended_history(status: Object, run: Run, now: datetime) -> list[Object]:
    """`status.operationHistory` with a run that has ended now.

    The newest restore that can be undone, and the newest one that has replaced data, are kept however many runs have
    followed, such as scheduled snapshots: rights in the cluster are compared with the manager's after the latter.
    """
    ended = {name: value for name, value in run.to_status().items() if name in _KEPT}
    known = [*(status.get("operationHistory") or ()), ended | {"endedAt": timestamp(now)}]
    newest = {max((at for at, each in enumerate(known) if kept(each)), default=-1) for kept in _ALWAYS_KEPT} - {-1}
    others = [at for at in range(len(known)) if at not in newest]
    return [known[at] for at in sorted([*newest, *others[-(MAX_ENTRIES - len(newest)) :]])]


def _has_inverse(entry: Object) -> bool:
    return entry.get("kind") == RESTORE and bool((entry.get("inverse") or {}).get("kind"))


def _has_replaced_data(entry: Object) -> bool:
    return entry.get("kind") == RESTORE and SHUTDOWN_PHASE in (entry.get("timings") or {})


_ALWAYS_KEPT = (_has_inverse, _has_replaced_data)
"""The newest entry of each."""
