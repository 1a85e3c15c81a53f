"""Remediate unhealthy Machines of a MachineSet, limited by maxInFlight, Machines without a Node first."""

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
from herder.api.capi.kinds import MACHINE
from herder.api.capi.names import DEPLOYMENT_NAME, REMEDIATE_MACHINE, annotations_of, is_deleting, labels_of
from herder.api.capi.rollout import ON_DELETE, scaled, strategy_of
from herder.api.events import recording, warning
from herder.api.writes import status_patch
from herder.controllers.capi.machineset.deletion import deleted
from herder.controllers.capi.machineset.preflight import failed_checks
from herder.controllers.capi.machineset.scope import MachineSetScope
from herder.controllers.capi.set_members import (
    UNHEALTHY,
    SetMembers,
    awaits_owner_remediation,
    moment,
    owned_where,
    sets_of,
)
from herder.engine.control.cache import Change
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision, Delete, Parallel, Patch, Write

REMEDIATED = "OwnerRemediated"
DELETING_REASON = "MachineDeleting"

RECOVERED = "set-recovered"
IN_FLIGHT = "set-remediation-in-flight"

UNLIMITED = sys.maxsize


def remediate(scope: MachineSetScope) -> Decision:
    actions = _parallel(
        [patch for machine in scope.members.listed(RECOVERED) for patch in _clear_remediation(scope, machine)]
    )
    if scope.of_deployment and scope.deployment is None:
        return actions
    if not scope.current_revision:
        return actions + _report_pending_removal(scope)
    broken = sorted(_broken(_remediated_members(scope)), key=_urgency)
    if not broken:
        return actions
    allowed = max(_limit(scope) - _in_flight(scope), 0)
    actions += _report_remediation(scope, broken[allowed:], "RemediationDeferred", _too_many(scope))
    return actions + _replace(scope, broken[:allowed])


def _report_pending_removal(scope: MachineSetScope) -> Decision:
    """Report that a rolling update replaces the Machine anyway.

    With strategy OnDelete, the current MachineSet remediates Machines of old sets instead.
    """
    if _only_users_delete(scope):
        return Decision()
    pending = "Machine won't be remediated because it is pending removal due to rollout"
    return _report_remediation(scope, _broken(scope.members), "CannotBeRemediated", pending)


def _remediated_members(scope: MachineSetScope) -> SetMembers:
    """The Machines whose remediation this MachineSet decides.

    With OnDelete the current set creates the replacements of old Machines, so it decides for all sets: independent
    decisions of several sets could exceed maxInFlight together.
    """
    return _members_of_all_sets(scope) if _only_users_delete(scope) else scope.members


def _only_users_delete(scope: MachineSetScope) -> bool:
    return scope.deployment is not None and strategy_of(scope.deployment["spec"]) == ON_DELETE


def _members_of_all_sets(scope: MachineSetScope) -> SetMembers:
    assert scope.deployment is not None
    return SetMembers(scope.view, sets_of(scope.view, scope.deployment))


def _broken(members: SetMembers) -> list[Object]:
    return [
        machine
        for machine in members.listed(UNHEALTHY)
        if awaits_owner_remediation(machine) and not is_deleting(machine)
    ]


def _replace(scope: MachineSetScope, machines: list[Object]) -> Decision:
    failed = failed_checks(scope, "Machine remediation") if machines else []
    if failed:
        waiting = legacy(REMEDIATED, "False", "WaitingForRemediation", "Warning", "; ".join(failed))
        message = "\n".join(f"* {message}" for message in failed)
        return _report_remediation(scope, machines, "RemediationDeferred", message, waiting)
    # The condition is written before the deletion, so that deleting Machines count as remediations in flight.
    reported = _report_remediation(scope, machines, DELETING_REASON, "Machine is deleting", legacy(REMEDIATED, "True"))
    return reported + _parallel([_remediated(scope, machine) for machine in machines])


def _remediated(scope: MachineSetScope, machine: Object) -> Delete:
    message = f"Machine {machine['metadata']['name']} is unhealthy; MachineSet {scope.name} replaces it"
    return recording(
        deleted(scope.machine_set, machine, "the Machine is unhealthy and is replaced"),
        warning(MACHINE, machine, "MachineRemediated", message),
    )


def _limit(scope: MachineSetScope) -> int:
    maximum = _max_in_flight(scope)
    if scope.deployment is None or maximum is None:
        return UNLIMITED
    replicas = scope.deployment["spec"].get("replicas", 1)
    return scaled(maximum, replicas, round_up=True, field="spec.remediation.maxInFlight")


def _max_in_flight(scope: MachineSetScope) -> int | str | None:
    spec = scope.deployment["spec"] if scope.deployment else {}
    maximum: int | str | None = (spec.get("remediation") or {}).get("maxInFlight")
    return maximum


def _in_flight(scope: MachineSetScope) -> int:
    """Remediations in flight in all sets of the deployment, as maxInFlight applies to the deployment."""
    return (_members_of_all_sets(scope) if scope.deployment else scope.members).count(IN_FLIGHT)


def _urgency(machine: Object) -> tuple[bool, float, str]:
    """Sort key: Machines that a user marked first, then the newest, which are most likely not in service yet."""
    created = moment(machine["metadata"]["creationTimestamp"]).timestamp()
    return REMEDIATE_MACHINE not in annotations_of(machine), -created, machine["metadata"]["name"]


def _too_many(scope: MachineSetScope) -> str:
    limit = f"(spec.strategy.remediation.maxInFlight is {_max_in_flight(scope)})"
    return f"Waiting because there are already too many remediations in progress {limit}"


# --- conditions of the Machines -------------------------------------------------------------------------------------


def _report_remediation(
    scope: MachineSetScope, machines: Iterable[Object], reason: str, message: str, older: Condition | None = None
) -> Decision:
    wanted = condition(REMEDIATED, "False", reason, message)
    patches = [
        patch
        for machine in machines
        for patch in _conditions(scope, machine, [wanted], [older] if older else [], f"remediation: {reason}")
    ]
    return _parallel(patches)


def _clear_remediation(scope: MachineSetScope, machine: Object) -> tuple[Patch, ...]:
    return _conditions(scope, machine, [], [], "the Machine is healthy again", drop=(REMEDIATED,))


def _conditions(
    scope: MachineSetScope,
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


def _parallel(writes: Sequence[Write]) -> Decision:
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


def remediation_changed(change: Change) -> bool:
    """Whether a Machine starts or stops waiting for remediation."""
    return _with_status(change.old) != _with_status(change.new)


def _with_status(machine: Object | None) -> tuple[bool, Condition | None] | None:
    condition = find(machine, REMEDIATED)
    return (is_deleting(machine), condition) if machine is not None and condition is not None else None


def by_deployment(obj: Object) -> Iterable[str]:
    """Indexer: the deployment of a MachineSet; also maps a Machine to the sets of its deployment."""
    name = labels_of(obj).get(DEPLOYMENT_NAME)
    return [f"{obj['metadata']['namespace']}/{name}"] if name else ()


INDEXES = {RECOVERED: owned_where(_has_recovered), IN_FLIGHT: owned_where(_is_in_flight)}
