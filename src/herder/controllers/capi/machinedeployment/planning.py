"""From a MachineDeployment and its MachineSets to what each set should be next."""

from __future__ import annotations

from dataclasses import dataclass

from herder.api.capi.kinds import MACHINE_DEPLOYMENT, MACHINE_SET
from herder.api.capi.names import DESIRED_REPLICAS, MAX_REPLICAS, REVISION, annotations_of, is_deleting
from herder.api.capi.rollout import (
    ON_DELETE,
    ROLLING_UPDATE,
    Limits,
    Plan,
    Share,
    limits_of,
    plan_on_delete,
    plan_resize,
    plan_rolling_update,
    strategy_of,
)
from herder.api.numbers import integer
from herder.api.writing import delete, ref
from herder.controllers.capi.machinedeployment.revisions import Revisions, next_revision
from herder.controllers.capi.machinedeployment.sets import (
    MANAGER,
    Identity,
    identity_of,
    new_identity,
    wanted_set,
)
from herder.controllers.capi.members import Members
from herder.controllers.capi.reports import counters
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Apply, Decision, Parallel, Patch
from herder.engine.runtime.view import View


@dataclass(frozen=True, slots=True)
class Rollout:
    view: View
    deployment: Object
    revisions: Revisions
    identity: Identity | None  # of the current set; None where there is none and none can be made

    @property
    def limits(self) -> Limits:
        return limits_of(self.deployment["spec"])

    @property
    def shares(self) -> tuple[Share | None, list[Share]]:
        """The current set's, which has nothing yet if it is about to be made, and the old ones'."""
        old = [_share(self.view, each) for each in self.revisions.old]
        if self.revisions.current:
            return _share(self.view, self.revisions.current), old
        return (Share(self.identity.name, 0) if self.identity else None), old


def rollout_of(view: View, deployment: Object, revisions: Revisions, *, may_create: bool) -> Rollout:
    if revisions.current:
        return Rollout(view, deployment, revisions, identity_of(revisions.current))
    identity = new_identity(view, deployment, revisions) if may_create else None
    return Rollout(view, deployment, revisions, identity)


def advance(rollout: Rollout) -> Decision:
    """The sets as they should be now; which of that changes anything is found out when it is carried out."""
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
        "tell the current revision",
    )
    known = annotations_of(rollout.deployment).get(REVISION)
    return Decision(writes=(Parallel((current, *applies)), *([annotate] if known != revision else [])))


def clean_up(rollout: Rollout, members: Members) -> Decision:
    """Old sets go when they are empty and all that is wanted is there, up to date and available."""
    wanted = rollout.limits.replicas
    if rollout.revisions.current is None or any(count != wanted for count in _arrived(members)):
        return Decision()
    empty = [each for each in rollout.revisions.old if _is_empty(rollout.view, each)]
    deletes = tuple(delete(MACHINE_SET, each, "an old MachineSet without Machines") for each in empty)
    return Decision(writes=(Parallel(deletes),) if deletes else ())


def _arrived(members: Members) -> tuple[int, int, int]:
    counts = counters(members)
    return counts["replicas"], counts["upToDateReplicas"], counts["availableReplicas"]


def _is_empty(view: View, machine_set: Object) -> bool:
    status, meta = machine_set.get("status") or {}, machine_set["metadata"]
    if is_deleting(machine_set) or machine_set["spec"].get("replicas") or status.get("replicas"):
        return False
    seen = status.get("observedGeneration", 0) >= meta.get("generation", 0)
    return bool(seen) and not Members(view, [machine_set]).total


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
    """Whether the deployment asks for another number of Machines than when its sets were sized last; that matters
    only while several have any."""
    sets = [*rollout.revisions.old, *([rollout.revisions.current] if rollout.revisions.current else [])]
    active = [each for each in sets if not is_deleting(each) and each["spec"].get("replicas")]
    sized_for = {annotations_of(each).get(DESIRED_REPLICAS) for each in active}
    return len(active) > 1 and bool(sized_for - {str(rollout.limits.replicas), None})


def _is_saturated(rollout: Rollout, new: Share | None) -> bool:
    current, wanted = rollout.revisions.current, rollout.limits.replicas
    if current is None or new is None:
        return False
    sized_for = annotations_of(current).get(DESIRED_REPLICAS)
    return new.spec == wanted and new.available == wanted and sized_for == str(wanted)


def _share(view: View, machine_set: Object) -> Share:
    """A set that is being deleted wants nothing any more, but its Machines count until they are gone."""
    meta, counts = machine_set["metadata"], counters(Members(view, [machine_set]))
    most = integer(annotations_of(machine_set).get(MAX_REPLICAS, ""), -1)
    return Share(
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
        made_for=rollout.revisions.made_for,
    )
    return Apply(MACHINE_SET, obj, reason, manager=MANAGER)
