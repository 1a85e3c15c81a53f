"""Rollout of a MachineDeployment: compute the next state of each of its MachineSets."""

from __future__ import annotations

from dataclasses import dataclass

from herder.api.capi.kinds import MACHINE_DEPLOYMENT, MACHINE_SET
from herder.api.capi.names import DESIRED_REPLICAS, MAX_REPLICAS, REVISION, annotations_of, is_deleting
from herder.api.capi.rollout import (
    ON_DELETE,
    ROLLING_UPDATE,
    Limits,
    Plan,
    SetScale,
    limits_of,
    plan_on_delete,
    plan_resize,
    plan_rolling_update,
    strategy_of,
)
from herder.api.events import normal, recording
from herder.api.numbers import parse_int64
from herder.api.writes import delete, ref
from herder.controllers.capi.machinedeployment.revisions import Revisions, next_revision
from herder.controllers.capi.machinedeployment.sets import (
    MANAGER,
    Identity,
    identity_of,
    new_identity,
    wanted_set,
)
from herder.controllers.capi.replica_status import counters
from herder.controllers.capi.set_members import SetMembers
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Apply, Decision, Delete, Event, Parallel, Patch
from herder.engine.runtime.view import View


@dataclass(frozen=True, slots=True)
class Rollout:
    """One rollout step: the deployment, its revisions, and the identity of the current set."""

    view: View
    deployment: Object
    revisions: Revisions
    identity: Identity | None  # of the current set; None if there is none and none can be created

    @property
    def limits(self) -> Limits:
        return limits_of(self.deployment["spec"])

    @property
    def shares(self) -> tuple[SetScale | None, list[SetScale]]:
        """Replica counts of the current set, zero if it is about to be created, and of the old sets."""
        old = [_share(self.view, each) for each in self.revisions.old]
        if self.revisions.current:
            return _share(self.view, self.revisions.current), old
        return (SetScale(self.identity.name, 0) if self.identity else None), old


def rollout_of(view: View, deployment: Object, revisions: Revisions, *, may_create: bool) -> Rollout:
    if revisions.current:
        return Rollout(view, deployment, revisions, identity_of(revisions.current))
    identity = new_identity(view, deployment, revisions) if may_create else None
    return Rollout(view, deployment, revisions, identity)


def advance(rollout: Rollout) -> Decision:
    """Apply the desired MachineSets; the runtime drops writes that change nothing."""
    plan = _plan(rollout)
    revision = str(next_revision(rollout.revisions))
    strategy = strategy_of(rollout.deployment["spec"])
    applies = [
        _apply(rollout, each, identity_of(each), plan, creates=strategy != ON_DELETE)
        for each in rollout.revisions.old
        if not is_deleting(each)
    ]
    if rollout.identity is None:
        return Decision(writes=(Parallel(tuple(applies)),) if applies else ())
    current = _apply(rollout, rollout.revisions.current, rollout.identity, plan, creates=True, revision=revision)
    annotate = Patch(
        ref(MACHINE_DEPLOYMENT, rollout.deployment),
        {"metadata": {"annotations": {REVISION: revision}}},
        "record the current revision",
    )
    known = annotations_of(rollout.deployment).get(REVISION)
    return Decision(writes=(Parallel((current, *applies)), *([annotate] if known != revision else [])))


def clean_up(rollout: Rollout, members: SetMembers) -> Decision:
    """Delete empty old sets once all desired Machines are up to date and available."""
    wanted = rollout.limits.replicas
    if rollout.revisions.current is None or any(count != wanted for count in _replica_counts(members)):
        return Decision()
    empty = [each for each in rollout.revisions.old if _is_empty(rollout.view, each)]
    deletes = tuple(deleted(rollout.deployment, each, "an old MachineSet without Machines") for each in empty)
    return Decision(writes=(Parallel(deletes),) if deletes else ())


def _replica_counts(members: SetMembers) -> tuple[int, int, int]:
    counts = counters(members)
    return counts["replicas"], counts["upToDateReplicas"], counts["availableReplicas"]


def _is_empty(view: View, machine_set: Object) -> bool:
    status, meta = machine_set.get("status") or {}, machine_set["metadata"]
    if is_deleting(machine_set) or machine_set["spec"].get("replicas") or status.get("replicas"):
        return False
    seen = status.get("observedGeneration", 0) >= meta.get("generation", 0)
    return bool(seen) and not SetMembers(view, [machine_set]).total


def _plan(rollout: Rollout) -> Plan:
    spec, (new, old) = rollout.deployment["spec"], rollout.shares
    rolling = strategy_of(spec) == ROLLING_UPDATE
    if spec.get("paused") or (rolling and _was_scaled(rollout)):
        saturated = _is_saturated(rollout, new)
        return plan_resize(rollout.limits, new, old, rolling=rolling, saturated=saturated)
    if new is None:
        return {}
    return plan_rolling_update(rollout.limits, new, old) if rolling else plan_on_delete(rollout.limits, new, old)


def _was_scaled(rollout: Rollout) -> bool:
    """Whether spec.replicas changed since the sets were sized, while more than one set has replicas."""
    sets = [*rollout.revisions.old, *([rollout.revisions.current] if rollout.revisions.current else [])]
    active = [each for each in sets if not is_deleting(each) and each["spec"].get("replicas")]
    sized_for = {annotations_of(each).get(DESIRED_REPLICAS) for each in active}
    return len(active) > 1 and bool(sized_for - {str(rollout.limits.replicas), None})


def _is_saturated(rollout: Rollout, new: SetScale | None) -> bool:
    current, wanted = rollout.revisions.current, rollout.limits.replicas
    if current is None or new is None:
        return False
    sized_for = annotations_of(current).get(DESIRED_REPLICAS)
    return new.spec == wanted and new.available == wanted and sized_for == str(wanted)


def _share(view: View, machine_set: Object) -> SetScale:
    """Replica counts of a set; one being deleted wants no replicas, but its Machines count until they are deleted."""
    meta, counts = machine_set["metadata"], counters(SetMembers(view, [machine_set]))
    most = parse_int64(annotations_of(machine_set).get(MAX_REPLICAS, ""), -1)
    return SetScale(
        meta["name"],
        0 if is_deleting(machine_set) else machine_set["spec"].get("replicas") or 0,
        counts["replicas"],
        counts["availableReplicas"],
        meta.get("creationTimestamp", ""),
        most if most >= 0 else None,
    )


def _apply(
    rollout: Rollout, existing: Object | None, identity: Identity, plan: Plan, *, creates: bool, revision: str = ""
) -> Apply:
    replicas = (existing["spec"].get("replicas") or 0) if existing else 0
    change = plan.get(identity.name)
    reason = change.reason if change else "it follows its MachineDeployment"
    obj = wanted_set(
        rollout.deployment,
        existing,
        identity,
        replicas=change.replicas if change else replicas,
        creates=creates,
        revision=revision,
        rollout_after=rollout.revisions.rollout_after,
    )
    scaled = _scale_event(rollout.deployment, existing, obj)
    return Apply(MACHINE_SET, obj, reason, manager=MANAGER, events=(scaled,) if scaled else ())


def _scale_event(deployment: Object, existing: Object | None, wanted: Object) -> Event | None:
    """Event about a new MachineSet or a changed number of replicas."""
    meta, replicas = wanted["metadata"], wanted["spec"]["replicas"]
    if existing is None:
        message = f"Created MachineSet {meta['namespace']}/{meta['name']} with {replicas} replicas"
        return normal(MACHINE_DEPLOYMENT, deployment, "SuccessfulCreate", message)
    before = existing["spec"].get("replicas") or 0
    if before == replicas:
        return None
    direction = "up" if replicas > before else "down"
    message = f"Scaled {direction} MachineSet {meta['name']}: {before} -> {replicas}"
    return normal(MACHINE_DEPLOYMENT, deployment, "SuccessfulScale", message)


def deleted(deployment: Object, machine_set: Object, reason: str) -> Delete:
    message = f'Deleted MachineSet "{machine_set["metadata"]["name"]}"'
    return recording(
        delete(MACHINE_SET, machine_set, reason), normal(MACHINE_DEPLOYMENT, deployment, "SuccessfulDelete", message)
    )
