"""Guards of plans, whatever the planner computes.

They deny a second init node, downgrades and skipped minor versions, losing etcd quorum, exceeding the upgrade
concurrency, plans for paused or deleted machines, tasks of operations that are not in progress, older node agents, and
plans while another controller owns the Beacon.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from herder.api.capi.kinds import CLUSTER
from herder.api.capi.names import annotations_of, is_deleting, is_paused
from herder.api.guards.agents import deny_agent_downgrade, limit_agent_redeployment
from herder.api.guards.plan_changes import (
    PlanChange,
    PlanTraits,
    TraitFilter,
    count_among,
    in_drain,
    is_member,
    is_text,
    machine_of,
    machine_remains,
    plan_change,
    plans_among,
    plans_of,
)
from herder.api.guards.restores import require_fenced_servers, require_restored_server
from herder.api.rke import names
from herder.api.rke.distributions import MAX_KUBELET_SKEW, Release, release_in, release_of, skip_error
from herder.api.rke.etcd.restore import restores_spec
from herder.api.rke.kinds import BEACON, CONTROL_PLANE
from herder.api.rke.machines.strategy import UNLIMITED, BadConcurrency, is_lost, limit_of, quorum
from herder.api.rke.node import plan_secret as secrets
from herder.api.rke.node.plan import Plan
from herder.api.rke.node.plan_secret import PlanSecret
from herder.api.rke.operations import (
    NO_PERMISSION,
    PERMISSIONS,
    RESTORE,
    Permission,
    active_run,
    permission_for,
    starts_nothing,
    task_instructions,
)
from herder.api.times import parse_time
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Patch, Refusal
from herder.engine.runtime.executor import Action
from herder.engine.runtime.view import View

STARTUP_TIME = timedelta(minutes=5)
"""Time within which services restarted by a plan should become healthy."""


# --- writing a plan -------------------------------------------------------------------------------------------------


def write_plan_with_state(change: PlanChange, view: View, _before: Sequence[Action]) -> Refusal | None:
    """Require the state and probe statuses to be reset with a new plan: an agent that finds a new plan with an old
    state does nothing and reports it as done.
    """
    if not change.writes_plan:
        return None
    act = change.act
    data = (act.patch.get("data") or {}) if isinstance(act, Patch) else {}
    is_complete = is_text(data.get(secrets.STATE), secrets.PENDING) and data.get(secrets.PROBE_STATUSES, "kept") is None
    if is_complete and isinstance(act, Patch) and act.resource_version:
        return None
    message = "denied; state and probe statuses must be reset with it, under a resourceVersion"
    return change.refuse("write-plan-with-state", message)


def require_beacon_ownership(change: PlanChange, view: View, before: Sequence[Action]) -> Refusal | None:
    if not change.starts_run:
        return None
    beacon = view.get(BEACON, change.cluster, change.namespace)
    owner = str(((beacon or {}).get("status") or {}).get("owner") or "")
    taken = any(isinstance(other, Patch) and other.ref.kind == BEACON for other in before)
    if beacon is None or (owner not in ("", names.PLANNER) and not taken):
        message = f"denied; {owner} owns the Beacon" if owner else "denied; the cluster has no Beacon"
        return change.refuse("require-beacon-ownership", message)
    return None


def deny_plan_while_paused(change: PlanChange, view: View, _before: Sequence[Action]) -> Refusal | None:
    if not change.starts_run:
        return None
    machine = machine_of(view, change.before)
    cluster = view.get(CLUSTER, change.cluster, change.namespace)
    control_plane = view.get(CONTROL_PLANE, change.cluster, change.namespace)
    paused = [is_paused(cluster, obj) for obj in (control_plane, machine) if obj is not None]
    return change.refuse("deny-plan-while-paused", "denied; cluster or Machine is paused") if any(paused) else None


def deny_plan_for_deleting_machine(change: PlanChange, view: View, _before: Sequence[Action]) -> Refusal | None:
    if not change.writes_plan or machine_remains(view, change.before):
        return None
    return change.refuse("deny-plan-for-deleting-machine", "denied; the Machine is deleted or being deleted")


def require_operation(change: PlanChange, view: View, _before: Sequence[Action]) -> Refusal | None:
    """Require a stored operation whose current phase runs the tasks of the plan."""
    tasks = task_instructions(change.plan) if change.starts_run else set()
    if not tasks or tasks <= _permission(view, change).instructions:
        return None
    return change.refuse("require-operation", f"denied; no operation in progress runs {', '.join(sorted(tasks))}")


def _permission(view: View, change: PlanChange) -> Permission:
    return permission_for(view.get(CONTROL_PLANE, change.cluster, change.namespace), change.after)


# --- init node ------------------------------------------------------------------------------------------------------


def deny_second_init_node(change: PlanChange, view: View, before: Sequence[Action]) -> Refusal | None:
    if not change.after.is_init or change.before.is_init:
        return None
    begins_again = _is_restoring_on(view, change)
    others = [
        plan for plan in plans_of(view, change.namespace, change.cluster, before) if plan.name != change.before.name
    ]
    for other in others:
        if other.is_init:
            message = f"denied as init node; {other.labels.get(names.MACHINE_NAME)} is the init node"
            return change.refuse("deny-second-init-node", message)
        if (
            _may_have_initialized(other)
            and machine_remains(view, other)
            and not change.before.annotations.get(names.JOIN_URL)
            and not begins_again
        ):
            message = f"denied as init node; {other.labels.get(names.MACHINE_NAME)} may have initialized the cluster"
            return change.refuse("deny-second-init-node", f"{message}; delete its Machine first")
    may_begin = bool(change.before.annotations.get(names.JOIN_URL)) or begins_again
    if _is_initialized(view, change, others) and not may_begin:
        message = "denied as init node; the cluster is initialized, and this machine is not a member"
        return change.refuse("deny-second-init-node", message)
    return None


def require_join_server(change: PlanChange, view: View, _before: Sequence[Action]) -> Refusal | None:
    """Require the plan of a server to name the server it joins: otherwise it would start a cluster of its own.

    A former init node that a restore has stopped joins no server yet. It can be stopped again.
    """
    if not change.writes_plan or change.after.is_init or _is_restoring_on(view, change) or starts_nothing(change.plan):
        return None
    joins = change.after.annotations.get(names.JOINED_TO, "")
    is_server = change.after.is_etcd or change.after.is_control_plane
    if joins and not (is_server and not _names_server(change.plan, joins)):
        return None
    message = f"it does not join {joins}" if joins else "it joins no server and is not the init node"
    return change.refuse("require-join-server", f"denied; {message}")


def _is_restoring_on(view: View, change: PlanChange) -> bool:
    """Whether the stored operation restores a snapshot on this machine, which begins the cluster again."""
    run = active_run(view.get(CONTROL_PLANE, change.cluster, change.namespace))
    if run is None or run.leader != change.before.labels.get(names.MACHINE_NAME):
        return False
    return PERMISSIONS.get((run.kind, run.phase), NO_PERMISSION).begins_cluster


def _names_server(plan: Plan | None, url: str) -> bool:
    """Whether the plan contains the host it joins; a plan without instructions starts nothing."""
    host = (urlsplit(url).hostname or url).encode()
    return plan is not None and (not plan.instructions or any(host in file.decoded.lower() for file in plan.files))


def _may_have_initialized(plan: PlanSecret) -> bool:
    return plan.is_etcd and plan.has_plan and not plan.annotations.get(names.JOINED_TO)


def _is_initialized(view: View, change: PlanChange, plans: Sequence[PlanSecret]) -> bool:
    control_plane = view.get(CONTROL_PLANE, change.cluster, change.namespace) or {}
    endpoint = (control_plane.get("spec") or {}).get("controlPlaneEndpoint") or {}
    return bool(endpoint.get("host")) or any(plan.annotations.get(names.JOIN_URL) for plan in plans)


# --- versions -------------------------------------------------------------------------------------------------------


def deny_downgrade(change: PlanChange, view: View, _before: Sequence[Action]) -> Refusal | None:
    """Deny a lower version, except in a restore: an older version may not be able to read what a newer one stored.

    The plans of a manager that was restored from a backup can be older than what the kubelet reports.
    """
    if not change.writes_plan or (wanted := release_in(change.plan)) is None or _is_restored(view, change, wanted):
        return None
    reason = lowered_version(change.before, machine_of(view, change.before), wanted)
    return change.refuse("deny-downgrade", f"denied; {reason}") if reason else None


def lowered_version(before: PlanSecret, machine: Object | None, wanted: Release) -> str:
    """Return which version the machine has, if it is higher than this one, or if that is not known yet."""
    kubelet = _kubelet_release(machine)
    if kubelet is None and before.newer_applied:
        return "the machine has applied a newer plan, and the version of its Node is not known yet"
    known = [found for plan in (before.plan, before.applied_plan) if (found := release_in(plan))]
    known += [kubelet] if kubelet else []
    return f"{wanted} is lower than the current {max(known)}" if known and wanted < max(known) else ""


def _is_restored(view: View, change: PlanChange, wanted: Release) -> bool:
    """Whether the stored operation restores data of exactly this version, together with the version."""
    control_plane = view.get(CONTROL_PLANE, change.cluster, change.namespace)
    spec, status = ((control_plane or {}).get(part) or {} for part in ("spec", "status"))
    restores = _permission(view, change).lowers_version and restores_spec(status.get(RESTORE))
    return restores and release_of(str(spec.get("kubernetesVersion") or "")) == wanted


def deny_minor_version_skip(change: PlanChange, view: View, _before: Sequence[Action]) -> Refusal | None:
    """Compare with the last applied plan and the kubelet; exempt is a restore, which replaces all stored data."""
    if not change.writes_plan or (wanted := release_in(change.plan)) is None:
        return None
    if _is_restored(view, change, wanted):
        return None
    control_plane = view.get(CONTROL_PLANE, change.cluster, change.namespace) or {}
    reason = skipped_minors(change.before, machine_of(view, change.before) or {}, control_plane, wanted)
    return change.refuse("deny-minor-version-skip", f"denied; {reason}") if reason else None


def version_refusal(act: Action, view: View) -> Refusal | None:
    """Return why a plan is refused for what its machine reports: the version of its Node, or a newer plan.

    Others must not wait for a worker whose plan is refused: a worker reports what it likes.
    """
    change = plan_change(act, view)
    if change is None:
        return None
    return deny_downgrade(change, view, ()) or deny_minor_version_skip(change, view, ())


def skipped_minors(before: PlanSecret, machine: Object, control_plane: Object, wanted: Release) -> str:
    """Return which versions the machine must run first; "" if it may skip to this one."""
    known = [found for found in (release_in(before.applied_plan), _kubelet_release(machine)) if found]
    plan_change = str((control_plane.get("spec") or {}).get("kubernetesVersion") or "")
    version = plan_change if release_of(plan_change) == wanted else str(wanted)
    step = 1 if before.is_etcd or before.is_control_plane else MAX_KUBELET_SKEW
    return skip_error(min(known), version, annotations_of(control_plane), step) if known else ""


def _kubelet_release(machine: Object | None) -> Release | None:
    """Return the version that the Node of a Machine reports."""
    node_info = ((machine or {}).get("status") or {}).get("nodeInfo") or {}
    return release_of(str(node_info.get("kubeletVersion") or ""))


# --- disruption -----------------------------------------------------------------------------------------------------


def keep_etcd_quorum_on_disruption(change: PlanChange, view: View, before: Sequence[Action]) -> Refusal | None:
    """Deny disrupting an etcd member unless the others keep quorum.

    If they cannot, all the others must be healthy. An unhealthy member may be repaired if no other plan is in flight. A
    member whose plan failed may still serve, and counts as any other.
    """
    if not change.is_disruptive or not is_member(change.before) or _permission(view, change).stops_all_servers:
        return None
    servers = plans_among(view, change, before, lambda trait: trait.is_etcd)
    others = [plan for plan in servers if plan.name != change.before.name and _counts(view, plan)]
    healthy = sum(
        plan.serves and not _is_draining(view, plan) and not is_lost(machine_of(view, plan)) for plan in others
    )
    in_flight = sum(plan.is_moving or _is_draining(view, plan) for plan in others)
    needed = quorum(len(others) + 1)
    if healthy == len(others) or healthy >= needed or (not change.before.healthy and not in_flight):
        return None
    message = f"denied; {healthy} of {len(others) + 1} etcd members would remain, quorum needs {needed}"
    return change.refuse("keep-etcd-quorum-on-disruption", message)


def _is_draining(view: View, plan: PlanSecret) -> bool:
    """Whether it is about to be disrupted: it is drained, and its Machine is not being deleted."""
    return in_drain(plan) and machine_remains(view, plan)


def _counts(view: View, plan: PlanSecret) -> bool:
    """Whether it counts as a member: not if it is being deleted and will not serve again, since it is lost
    in any case.
    """
    machine = machine_of(view, plan)
    if machine is None or not is_member(plan):
        return False
    is_deleted_broken = is_deleting(machine) and plan.is_broken and not plan.serves
    return not is_deleted_broken or _is_starting(view, plan, machine)


def _is_starting(view: View, plan: PlanSecret, machine: Object) -> bool:
    """Whether a plan just ran and its probes have not passed yet."""
    if plan.probes_passed or is_lost(machine):
        return False
    issued_at = parse_time(plan.annotations.get(names.PLAN_UPDATED))
    return issued_at is not None and view.now < issued_at + STARTUP_TIME


def limit_upgrade_concurrency(change: PlanChange, view: View, before: Sequence[Action]) -> Refusal | None:
    """Limit the number of machines that are down.

    Broken machines count, except for the repair of a broken one. A machine in drain was admitted when its drain
    started, and counts as down from then on.
    """
    own = PlanTraits.of(view, change.before)
    pool = next(((field, belongs) for field, belongs in _POOLS if belongs(own)), None)
    if not (change.is_disruptive or change.starts_drain) or in_drain(change.before) or pool is None:
        return None
    if _permission(view, change).stops_all_servers:
        return None
    field, belongs = pool
    control_plane = view.get(CONTROL_PLANE, change.cluster, change.namespace) or {}
    strategy: Object = (control_plane.get("spec") or {}).get("upgradeStrategy") or {}
    size = count_among(view, change, lambda trait: belongs(trait) and trait.machine_remains)
    limit = _limit(strategy.get(field), size)
    if limit == UNLIMITED or (down := _down(change, view, before, belongs)) < limit:
        return None
    message = f"denied; {down} of {size} machines are down, upgradeStrategy.{field} allows {limit}"
    return change.refuse("limit-upgrade-concurrency", message)


def _down(change: PlanChange, view: View, before: Sequence[Action], belongs: TraitFilter) -> int:
    down_plans = plans_among(
        view, change, before, lambda trait: belongs(trait) and trait.machine_remains and trait.is_down
    )
    skipped = _skipped(view, change)
    others = [
        plan
        for plan in down_plans
        if plan.name != change.before.name and plan.labels.get(names.MACHINE_NAME) not in skipped
    ]
    return sum(plan.is_moving or in_drain(plan) for plan in others) if change.before.is_broken else len(others)


def _skipped(view: View, change: PlanChange) -> Sequence[str]:
    """Workers without which the operation of this task continues; none for other plans."""
    run = active_run(view.get(CONTROL_PLANE, change.cluster, change.namespace))
    return run.skipped if run is not None and task_instructions(change.plan) else ()


def _limit(concurrency: Any, members: int) -> int:
    try:
        return limit_of(concurrency, members)
    except BadConcurrency:
        return 1


def _is_worker(trait: PlanTraits) -> bool:
    return trait.is_worker and not trait.is_etcd and not trait.is_control_plane


_POOLS: tuple[tuple[str, TraitFilter], ...] = (
    ("controlPlaneConcurrency", lambda trait: trait.is_control_plane and not trait.is_etcd),
    ("workerConcurrency", lambda trait: _is_worker(trait) and not trait.is_windows),
    ("workerConcurrency", lambda trait: _is_worker(trait) and trait.is_windows),
)


CHECKS = (
    write_plan_with_state,
    require_beacon_ownership,
    deny_plan_while_paused,
    deny_plan_for_deleting_machine,
    require_operation,
    require_fenced_servers,
    require_restored_server,
    deny_second_init_node,
    require_join_server,
    deny_downgrade,
    deny_minor_version_skip,
    keep_etcd_quorum_on_disruption,
    limit_upgrade_concurrency,
    deny_agent_downgrade,
    limit_agent_redeployment,
)


def check_plan_write(act: Action, view: View, before: Sequence[Action]) -> Refusal | None:
    """Run all checks, in this order, on a write of a plan Secret."""
    change = plan_change(act, view)
    if change is None:
        return None
    return next((refusal for check in CHECKS if (refusal := check(change, view, before)) is not None), None)


# --- helpers --------------------------------------------------------------------------------------------------------


def cluster_is_deleting(view: View, namespace: str, cluster: str) -> bool:
    objects = [view.get(kind, cluster, namespace) for kind in (CLUSTER, CONTROL_PLANE)]
    return any(obj is None or is_deleting(obj) for obj in objects)
