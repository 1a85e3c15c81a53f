"""Report the operation in progress: the machines that it waits for, and whether it can still be aborted."""

from __future__ import annotations

from collections.abc import Sequence

from herder.api.capi.conditions import Condition, condition, find
from herder.api.capi.names import annotations_of
from herder.api.rke.names import ABORT_OPERATION
from herder.api.rke.operations import NO_RETURN, TITLES, Run, active_run, is_abortable
from herder.controllers.planner.rollout.scope import PlanScope
from herder.engine.meta.kinds import Object

ABORTABLE = "OperationAbortable"
"""Condition of the RKEControlPlane: whether the operation in progress is before its point of no return."""
MAX_MACHINES = 10


def report_operation(scope: PlanScope, status: Object, machines: Sequence[str]) -> list[Condition]:
    """Add the machines to the status, and return the condition."""
    run = active_run({"status": status})
    if run is None:
        known = find(scope.control_plane, ABORTABLE)
        return [condition(ABORTABLE, "False", "NoOperation", "no operation is in progress")] if known else []
    if machines:
        status["operation"] = {**status["operation"], "machines": [*machines[:MAX_MACHINES]]}
    return [_abortable(run, annotations_of(scope.control_plane).get(ABORT_OPERATION) == run.id)]


def _abortable(run: Run, requested: bool) -> Condition:
    title = f"{TITLES.get(run.kind, run.kind)}, phase {run.phase}"
    if is_abortable(run):
        message = f"{title}: to abort it, set annotation {ABORT_OPERATION} of the Cluster to {run.id}"
        return condition(ABORTABLE, "True", "BeforePointOfNoReturn", message)
    if run.message:
        return condition(ABORTABLE, "False", "Ending", f"{title}: the operation ends after: {run.message}")
    late = "; the request to abort it comes too late" if requested else ""
    return condition(ABORTABLE, "False", "PointOfNoReturn", f"{title}: {NO_RETURN.get(run.kind, '')}{late}")
