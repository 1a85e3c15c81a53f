"""Guards of restores: a restored cluster must never serve beside the one that it replaces.

They read the stored operation and the tasks that machines have finished, and derive nothing from the planner.
"""

from __future__ import annotations

from collections.abc import Sequence

from herder.api.guards.plan_changes import PlanChange, is_member, machine_remains, plans_of
from herder.api.rke import names
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.rke.node.plan_secret import PlanSecret
from herder.api.rke.operations import (
    ABORT_PHASE,
    DROP_DATA,
    REJOIN_PHASE,
    RESTORE_PHASE,
    RESTORE_SNAPSHOT,
    SHUTDOWN_PHASE,
    STOP_SERVICES,
    Run,
    active_run,
    task_instructions,
    unfinished_restore,
)
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Refusal
from herder.engine.runtime.executor import Action
from herder.engine.runtime.view import View


def require_fenced_servers(change: PlanChange, view: View, before: Sequence[Action]) -> Refusal | None:
    """Require that the operation has stopped all other etcd members before its leader restores a snapshot.

    A member that the operation could not stop would serve the old data beside the restored data.
    """
    if not change.starts_run or RESTORE_SNAPSHOT not in task_instructions(change.plan):
        return None
    run = active_run(_control_plane(view, change))
    machine = _machine_name(change.before)
    if run is None or machine != run.leader:
        return change.refuse("require-fenced-servers", "denied; another machine restores the snapshot")
    others = [plan for plan in _plans(change, view, before) if is_member(plan) and machine_remains(view, plan)]
    running = sorted(_machine_name(plan) for plan in others if not _is_stopped_by(run, plan))
    if not running:
        return None
    message = f"denied; the operation has not stopped {', '.join(running)}, which would serve the old data"
    return change.refuse("require-fenced-servers", message)


def require_restored_server(change: PlanChange, view: View, before: Sequence[Action]) -> Refusal | None:
    """Require that a server drops its data only for another one that has restored a snapshot."""
    if not change.starts_run or DROP_DATA not in task_instructions(change.plan):
        return None
    control_plane = _control_plane(view, change)
    run = active_run(control_plane)
    others = [plan for plan in _plans(change, view, before) if machine_remains(view, plan)]
    if run is not None and any(_has_restored(run, control_plane, plan) for plan in others):
        return None
    message = "denied; it would drop its data, and no other machine remains that has restored a snapshot"
    return change.refuse("require-restored-server", message)


def _has_restored(run: Run, control_plane: Object | None, plan: PlanSecret) -> bool:
    """Whether the machine has finished the restore of this run. While that is aborted: whether the machine has started
    again with what an earlier run has restored.
    """
    leader, phases = run.leader, {RESTORE_PHASE, REJOIN_PHASE}
    if run.phase == ABORT_PHASE:
        earlier = unfinished_restore((control_plane or {}).get("status") or {}) or {}
        leader, phases = str(earlier.get("leader") or ""), {ABORT_PHASE}
    return bool(leader) and _machine_name(plan) == leader and plan.in_sync and _phase_of(run, plan) in phases


def _is_stopped_by(run: Run, plan: PlanSecret) -> bool:
    stops = STOP_SERVICES in task_instructions(plan.plan)
    return stops and plan.in_sync and _phase_of(run, plan) == SHUTDOWN_PHASE


def _phase_of(run: Run, plan: PlanSecret) -> str:
    """The phase of this run that the plan is a task of; empty if it is a task of another run, or of none."""
    run_id, _, rest = plan.annotations.get(names.PLAN_TASK, "").partition("/")
    return rest.rpartition("/")[0] if run_id == run.id else ""


def _plans(change: PlanChange, view: View, before: Sequence[Action]) -> list[PlanSecret]:
    """Plans of the other machines of the cluster."""
    plans = plans_of(view, change.namespace, change.cluster, before)
    return [plan for plan in plans if plan.name != change.before.name]


def _machine_name(plan: PlanSecret) -> str:
    return plan.labels.get(names.MACHINE_NAME, "")


def _control_plane(view: View, change: PlanChange) -> Object | None:
    return view.get(CONTROL_PLANE, change.cluster, change.namespace)
