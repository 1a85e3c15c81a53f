"""Plans: never one that could harm a cluster, whatever the planner computes.

Never two machines that begin a cluster, never a lower version or a skipped one, never etcd below its quorum, never
more machines down than the strategy allows, never one that is paused or goes, never while it is somebody else's turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from herder.api.capi.kinds import CLUSTER
from herder.api.capi.names import annotations_of, is_deleting, is_paused
from herder.api.guards.plan_acts import (
    Asked,
    Chosen,
    Trait,
    asked,
    count_among,
    in_drain,
    is_text,
    machine_of,
    plans_among,
    plans_of,
    stays,
)
from herder.api.moments import moment
from herder.api.rke import names
from herder.api.rke import plan_secret as secrets
from herder.api.rke.distributions import OLDEST_KUBELET, release_in, release_of, skips
from herder.api.rke.kinds import BEACON, CONTROL_PLANE
from herder.api.rke.plan import Plan
from herder.api.rke.plan_secret import PlanSecret
from herder.api.rke.strategy import UNLIMITED, BadConcurrency, is_lost, limit_of, quorum
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Patch, Refusal
from herder.engine.runtime.executor import Act
from herder.engine.runtime.view import View

COMING_UP = timedelta(minutes=5)
"""After that long what was restarted by a plan should be well."""
_RESTORED = ("", "Finished", "Failed")  # phases in which no restore is under way


# --- how a plan is written ------------------------------------------------------------------------------------------


def plan_and_state_go_together(change: Asked, view: View, _before: Sequence[Act]) -> Refusal | None:
    """An agent that finds another plan under an old state runs nothing and reports it as done."""
    if not change.writes_plan:
        return None
    act = change.act
    data = (act.patch.get("data") or {}) if isinstance(act, Patch) else {}
    whole = is_text(data.get(secrets.STATE), secrets.PENDING) and data.get(secrets.PROBE_STATUSES, "kept") is None
    if whole and isinstance(act, Patch) and act.resource_version:
        return None
    message = "is not written: state and probes must change with it, and nobody may have written in between"
    return change.refuse("plan-and-state-go-together", message)


def only_in_turn(change: Asked, view: View, before: Sequence[Act]) -> Refusal | None:
    if not change.begins:
        return None
    beacon = view.get(BEACON, change.cluster, change.namespace)
    owner = str(((beacon or {}).get("status") or {}).get("owner") or "")
    taken = any(isinstance(other, Patch) and other.ref.kind == BEACON for other in before)
    if beacon is None or (owner not in ("", names.PLANNER) and not taken):
        message = f"is not written: it is the turn of {owner}" if owner else "is not written: there is no Beacon"
        return change.refuse("only-in-turn", message)
    return None


def no_plan_where_it_is_paused(change: Asked, view: View, _before: Sequence[Act]) -> Refusal | None:
    if not change.begins:
        return None
    machine = machine_of(view, change.before)
    cluster = view.get(CLUSTER, change.cluster, change.namespace)
    control_plane = view.get(CONTROL_PLANE, change.cluster, change.namespace)
    paused = [is_paused(cluster, obj) for obj in (control_plane, machine) if obj is not None]
    return change.refuse("no-plan-where-it-is-paused", "is not written: it is paused") if any(paused) else None


def no_plan_for_what_goes(change: Asked, view: View, _before: Sequence[Act]) -> Refusal | None:
    if not change.writes_plan or stays(view, change.before):
        return None
    return change.refuse("no-plan-for-what-goes", "is not written: the Machine is gone, or is going")


# --- who begins a cluster -------------------------------------------------------------------------------------------


def never_two_init_nodes(change: Asked, view: View, before: Sequence[Act]) -> Refusal | None:
    if not change.after.is_init or change.before.is_init:
        return None
    others = [
        plan for plan in plans_of(view, change.namespace, change.cluster, before) if plan.name != change.before.name
    ]
    for other in others:
        if other.is_init:
            message = f"does not begin the cluster: {other.labels.get(names.MACHINE_NAME)} does"
            return change.refuse("never-two-init-nodes", message)
        if _was_told_to_begin(other) and stays(view, other) and not change.before.annotations.get(names.JOIN_URL):
            message = f"does not begin the cluster: {other.labels.get(names.MACHINE_NAME)} was told to, and may have"
            return change.refuse("never-two-init-nodes", f"{message}; delete its Machine first")
    if _has_begun(view, change, others) and not change.before.annotations.get(names.JOIN_URL):
        message = "does not begin the cluster: there is one already, and this machine is not in it"
        return change.refuse("never-two-init-nodes", message)
    return None


def no_server_that_joins_nobody(change: Asked, view: View, _before: Sequence[Act]) -> Refusal | None:
    """A server that is told to join nobody begins a cluster of its own: so its plan must say whom, not its marks
    alone."""
    if not change.writes_plan or change.after.is_init:
        return None
    joins = change.after.annotations.get(names.JOINED_TO, "")
    is_server = change.after.is_etcd or change.after.is_control_plane
    if joins and not (is_server and not _names(change.plan, joins)):
        return None
    message = f"does not say that it joins {joins}" if joins else "joins nobody, and does not begin the cluster"
    return change.refuse("no-server-that-joins-nobody", f"is not written: it {message}")


def _names(plan: Plan | None, url: str) -> bool:
    """One that runs nothing begins nothing either."""
    host = (urlsplit(url).hostname or url).encode()
    return plan is not None and (not plan.instructions or any(host in file.decoded.lower() for file in plan.files))


def _was_told_to_begin(plan: PlanSecret) -> bool:
    return plan.is_etcd and plan.has_plan and not plan.annotations.get(names.JOINED_TO)


def _has_begun(view: View, change: Asked, plans: Sequence[PlanSecret]) -> bool:
    control_plane = view.get(CONTROL_PLANE, change.cluster, change.namespace) or {}
    endpoint = (control_plane.get("spec") or {}).get("controlPlaneEndpoint") or {}
    return bool(endpoint.get("host")) or any(plan.annotations.get(names.JOIN_URL) for plan in plans)


# --- versions -------------------------------------------------------------------------------------------------------


def never_a_downgrade(change: Asked, view: View, _before: Sequence[Act]) -> Refusal | None:
    """But for a restore: what a newer version has written an older one may not be able to read."""
    if not change.writes_plan or change.plan is None:
        return None
    control_plane = view.get(CONTROL_PLANE, change.cluster, change.namespace) or {}
    if _is_restoring(control_plane):
        return None
    wanted = release_in(change.plan)
    known = [found for plan in (change.before.plan, change.before.applied_plan) if (found := release_in(plan))]
    if wanted is None or not known or wanted >= max(known):
        return None
    return change.refuse("never-a-downgrade", f"is not written: {wanted} is lower than {max(known)}, which it had")


def never_a_skipped_minor(change: Asked, view: View, _before: Sequence[Act]) -> Refusal | None:
    """By what the machine last applied and what its Node runs; except in a restore, which replaces all stored data."""
    control_plane = view.get(CONTROL_PLANE, change.cluster, change.namespace) or {}
    if not change.writes_plan or _is_restoring(control_plane) or (wanted := release_in(change.plan)) is None:
        return None
    machine = machine_of(view, change.before) or {}
    kubelet = ((machine.get("status") or {}).get("nodeInfo") or {}).get("kubeletVersion")
    known = [found for found in (release_in(change.before.applied_plan), release_of(str(kubelet or ""))) if found]
    is_server = change.before.is_etcd or change.before.is_control_plane
    asked = str((control_plane.get("spec") or {}).get("kubernetesVersion") or "")
    version = asked if release_of(asked) == wanted else str(wanted)
    step = 1 if is_server else OLDEST_KUBELET
    if not known or not (reason := skips(min(known), version, annotations_of(control_plane), step)):
        return None
    return change.refuse("never-a-skipped-minor", f"is not written: {reason}")


def _is_restoring(control_plane: Object) -> bool:
    return ((control_plane.get("status") or {}).get("etcdSnapshotRestorePhase") or "") not in _RESTORED


# --- how many are down ----------------------------------------------------------------------------------------------


def never_below_quorum(change: Asked, view: View, before: Sequence[Act]) -> Refusal | None:
    """A member is disturbed when the others keep the quorum without it. Where they cannot, all the others must be well;
    one that is not well itself may be helped, but nobody else may be moving meanwhile. One whose plan failed may well
    serve on, and is disturbed as any other."""
    if not change.disturbs or not is_member(change.before):
        return None
    servers = plans_among(view, change, before, lambda trait: trait.is_etcd)
    others = [plan for plan in servers if plan.name != change.before.name and _counts(view, plan)]
    well = sum(plan.serves and not _is_next(view, plan) and not is_lost(machine_of(view, plan)) for plan in others)
    moving = sum(plan.is_moving or _is_next(view, plan) for plan in others)
    needed = quorum(len(others) + 1)
    if well == len(others) or well >= needed or (not change.before.healthy and not moving):
        return None
    message = f"is not written: of {len(others) + 1} etcd members {well} would be left, and {needed} must be"
    return change.refuse("never-below-quorum", message)


def _is_next(view: View, plan: PlanSecret) -> bool:
    """One that is drained is about to be disturbed. One that goes gets no plan any more, and serves until then."""
    return in_drain(plan) and stays(view, plan)


def _counts(view: View, plan: PlanSecret) -> bool:
    """One that goes and will not serve again is lost in any case: the others are not kept from leaving it behind."""
    machine = machine_of(view, plan)
    if machine is None or not is_member(plan):
        return False
    goes_unwell = is_deleting(machine) and plan.is_broken and not plan.serves
    return not goes_unwell or _comes_up(view, plan, machine)


def _comes_up(view: View, plan: PlanSecret, machine: Object) -> bool:
    """It was just told to do something, and did it or failed: what runs there has yet to say that it is well."""
    if plan.probes_passed or is_lost(machine):
        return False
    asked_at = moment(plan.annotations.get(names.PLAN_UPDATED))
    return asked_at is not None and view.now < asked_at + COMING_UP


def never_more_down_than_allowed(change: Asked, view: View, before: Sequence[Act]) -> Refusal | None:
    """Those that are broken count, but not against one that is broken itself. One that is drained has been let through
    when its drain began: from then on it is down."""
    own = Trait.of(view, change.before)
    pool = next(((field, belongs) for field, belongs in _POOLS if belongs(own)), None)
    if not (change.disturbs or change.begins_drain) or in_drain(change.before) or pool is None:
        return None
    field, belongs = pool
    control_plane = view.get(CONTROL_PLANE, change.cluster, change.namespace) or {}
    strategy: Object = (control_plane.get("spec") or {}).get("upgradeStrategy") or {}
    size = count_among(view, change, lambda trait: belongs(trait) and trait.stays)
    limit = _limit(strategy.get(field), size)
    if limit == UNLIMITED or (down := _down(change, view, before, belongs)) < limit:
        return None
    message = f"is not written: {down} of {size} machines are down, and upgradeStrategy.{field} allows {limit}"
    return change.refuse("never-more-down-than-allowed", message)


def _down(change: Asked, view: View, before: Sequence[Act], belongs: Chosen) -> int:
    away = plans_among(view, change, before, lambda trait: belongs(trait) and trait.stays and trait.is_away)
    others = [plan for plan in away if plan.name != change.before.name]
    return sum(plan.is_moving or in_drain(plan) for plan in others) if change.before.is_broken else len(others)


def _limit(concurrency: Any, members: int) -> int:
    try:
        return limit_of(concurrency, members)
    except BadConcurrency:
        return 1


def _is_worker(trait: Trait) -> bool:
    return trait.is_worker and not trait.is_etcd and not trait.is_control_plane


_POOLS: tuple[tuple[str, Chosen], ...] = (
    ("controlPlaneConcurrency", lambda trait: trait.is_control_plane and not trait.is_etcd),
    ("workerConcurrency", lambda trait: _is_worker(trait) and not trait.is_windows),
    ("workerConcurrency", lambda trait: _is_worker(trait) and trait.is_windows),
)


CHECKS = (
    plan_and_state_go_together,
    only_in_turn,
    no_plan_where_it_is_paused,
    no_plan_for_what_goes,
    never_two_init_nodes,
    no_server_that_joins_nobody,
    never_a_downgrade,
    never_a_skipped_minor,
    never_below_quorum,
    never_more_down_than_allowed,
)


def plans_do_no_harm(act: Act, view: View, before: Sequence[Act]) -> Refusal | None:
    """All of them, in this order, for an act that touches a plan Secret."""
    change = asked(act, view)
    if change is None:
        return None
    return next((refusal for check in CHECKS if (refusal := check(change, view, before)) is not None), None)


# --- what is counted ------------------------------------------------------------------------------------------------


def is_member(plan: PlanSecret) -> bool:
    """Of etcd: it has run a plan, or others could join it."""
    return plan.is_etcd and (plan.has_run_a_plan or bool(plan.annotations.get(names.JOIN_URL)))


def cluster_goes(view: View, namespace: str, cluster: str) -> bool:
    objects = [view.get(kind, cluster, namespace) for kind in (CLUSTER, CONTROL_PLANE)]
    return any(obj is None or is_deleting(obj) for obj in objects)
