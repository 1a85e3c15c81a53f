"""Replacing Machines that a health check found broken: so many at a time, those that never came up first."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from herder.api.capi.conditions import (
    Condition,
    condition,
    find,
    find_legacy,
    is_true,
    legacy,
    merged,
    merged_legacy,
)
from herder.api.capi.kinds import MACHINE, MACHINE_SET
from herder.api.capi.names import DEPLOYMENT_NAME, REMEDIATE_MACHINE, annotations_of, is_deleting, labels_of
from herder.api.capi.rollout import ON_DELETE, scaled, strategy_of
from herder.api.writing import delete, status_patch
from herder.controllers.capi.machineset.preflight import failed_checks
from herder.controllers.capi.machineset.scope import Scope
from herder.controllers.capi.members import UNHEALTHY, Members, moment, only, to_be_remediated
from herder.engine.control.cache import Change
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision, Parallel, Patch, Write

REMEDIATED = "OwnerRemediated"
DELETING_REASON = "MachineDeleting"

RECOVERED = "set-recovered"
IN_FLIGHT = "set-remediation-in-flight"

UNLIMITED = sys.maxsize


def remediate(scope: Scope) -> Decision:
    acts = _together([patch for machine in scope.members.listed(RECOVERED) for patch in _forgive(scope, machine)])
    if scope.of_deployment and scope.deployment is None:
        return acts
    if not scope.current_revision:
        return acts + _leave(scope)
    broken = sorted(_broken(_in_charge_of(scope)), key=_urgency)
    if not broken:
        return acts
    allowed = max(_limit(scope) - _in_flight(scope), 0)
    acts += _report_remediation(scope, broken[allowed:], "RemediationDeferred", _too_many(scope))
    return acts + _replace(scope, broken[:allowed])


def _leave(scope: Scope) -> Decision:
    """A rolling update removes old Machines anyway. Where only users do, the current MachineSet sees to them."""
    if _only_users_delete(scope):
        return Decision()
    pending = "Machine won't be remediated because it is pending removal due to rollout"
    return _report_remediation(scope, _broken(scope.members), "CannotBeRemediated", pending)


def _in_charge_of(scope: Scope) -> Members:
    """The current MachineSet makes the replacements of old Machines, so it decides on them as well: were it left to
    their own sets, several would begin at once, each not knowing of the others, and exceed what may be in flight."""
    return _of_all_sets(scope) if _only_users_delete(scope) else scope.members


def _only_users_delete(scope: Scope) -> bool:
    return scope.deployment is not None and strategy_of(scope.deployment["spec"]) == ON_DELETE


def _of_all_sets(scope: Scope) -> Members:
    assert scope.deployment is not None
    return Members(scope.view, scope.view.owned(MACHINE_SET, scope.deployment["metadata"]["uid"]))


def _broken(members: Members) -> list[Object]:
    return [machine for machine in members.listed(UNHEALTHY) if to_be_remediated(machine) and not is_deleting(machine)]


def _replace(scope: Scope, machines: list[Object]) -> Decision:
    failed = failed_checks(scope, "Machine remediation") if machines else []
    if failed:
        waiting = legacy(REMEDIATED, "False", "WaitingForRemediation", "Warning", "; ".join(failed))
        message = "\n".join(f"* {message}" for message in failed)
        return _report_remediation(scope, machines, "RemediationDeferred", message, waiting)
    # Told before the deletion: so that Machines which are going can be counted as being remediated.
    reported = _report_remediation(scope, machines, DELETING_REASON, "Machine is deleting", legacy(REMEDIATED, "True"))
    return reported + _together([delete(MACHINE, machine, "it is unhealthy, and replaced") for machine in machines])


def _limit(scope: Scope) -> int:
    maximum = _max_in_flight(scope)
    if scope.deployment is None or maximum is None:
        return UNLIMITED
    replicas = scope.deployment["spec"].get("replicas", 1)
    return scaled(maximum, replicas, round_up=True, field="spec.remediation.maxInFlight")


def _max_in_flight(scope: Scope) -> int | str | None:
    spec = scope.deployment["spec"] if scope.deployment else {}
    maximum: int | str | None = (spec.get("remediation") or {}).get("maxInFlight")
    return maximum


def _in_flight(scope: Scope) -> int:
    """In all sets of the deployment: the limit is the deployment's."""
    return (_of_all_sets(scope) if scope.deployment else scope.members).count(IN_FLIGHT)


def _urgency(machine: Object) -> tuple[bool, float, str]:
    """Users' wishes first, then the newest: those that fail to come up serve nobody yet."""
    created = moment(machine["metadata"]["creationTimestamp"]).timestamp()
    return REMEDIATE_MACHINE not in annotations_of(machine), -created, machine["metadata"]["name"]


def _too_many(scope: Scope) -> str:
    limit = f"(spec.strategy.remediation.maxInFlight is {_max_in_flight(scope)})"
    return f"Waiting because there are already too many remediations in progress {limit}"


# --- on the Machines ------------------------------------------------------------------------------------------------


def _report_remediation(
    scope: Scope, machines: Iterable[Object], reason: str, message: str, older: Condition | None = None
) -> Decision:
    wanted = condition(REMEDIATED, "False", reason, message)
    patches = [
        patch
        for machine in machines
        for patch in _conditions(scope, machine, [wanted], [older] if older else [], f"remediation: {reason}")
    ]
    return _together(patches)


def _forgive(scope: Scope, machine: Object) -> tuple[Patch, ...]:
    return _conditions(scope, machine, [], [], "it is healthy again", drop=(REMEDIATED,))


def _conditions(
    scope: Scope,
    machine: Object,
    wanted: list[Condition],
    older: list[Condition],
    reason: str,
    drop: tuple[str, ...] = (),
) -> tuple[Patch, ...]:
    now, status = scope.view.now, machine.get("status") or {}
    changed: Object = {**status, "conditions": merged(status.get("conditions"), wanted, now, drop=drop)}
    deprecated = status.get("deprecated") or {}
    v1beta1 = deprecated.get("v1beta1") or {}
    if older or (drop and find_legacy(machine, REMEDIATED)):
        legacies = merged_legacy(v1beta1.get("conditions"), older, now, drop=drop)
        changed["deprecated"] = {**deprecated, "v1beta1": {**v1beta1, "conditions": legacies}}
    return status_patch(MACHINE, machine, changed, reason)


def _together(writes: Sequence[Write]) -> Decision:
    return Decision(writes=(Parallel(tuple(writes)),) if writes else ())


# --- indexes --------------------------------------------------------------------------------------------------------


def _has_recovered(machine: Object) -> bool:
    if is_deleting(machine):
        return False
    reported, legacy_condition = find(machine, REMEDIATED), find_legacy(machine, REMEDIATED)
    healthy, healthy_legacy = is_true(machine, "HealthCheckSucceeded"), find_legacy(machine, "HealthCheckSucceeded")
    return (healthy and reported is not None and reported["status"] == "False") or bool(
        healthy_legacy
        and healthy_legacy["status"] == "True"
        and legacy_condition is not None
        and legacy_condition["status"] == "False"
    )


def _is_in_flight(machine: Object) -> bool:
    status = find(machine, REMEDIATED) or {}
    return is_deleting(machine) and (status.get("status"), status.get("reason")) == ("False", DELETING_REASON)


def turned(change: Change) -> bool:
    """Whether a Machine is to be remediated that was not, or is no more."""
    return _told_of(change.old) != _told_of(change.new)


def _told_of(machine: Object | None) -> tuple[bool, Condition | None] | None:
    condition = find(machine, REMEDIATED)
    return (is_deleting(machine), condition) if machine is not None and condition is not None else None


def deployment_of(obj: Object) -> Iterable[str]:
    """By which a Machine finds all sets of its deployment."""
    name = labels_of(obj).get(DEPLOYMENT_NAME)
    return [f"{obj['metadata']['namespace']}/{name}"] if name else ()


INDEXES = {RECOVERED: only(_has_recovered), IN_FLIGHT: only(_is_in_flight)}
