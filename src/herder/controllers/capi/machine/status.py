"""Status of a Machine, assembled from the results of the phases."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from herder.api.capi.conditions import (
    Condition,
    condition,
    find,
    is_false,
    is_true,
    merged,
    merged_legacy,
    paused_condition,
    timestamp,
)
from herder.api.capi.contract.fields import Failure
from herder.api.capi.kinds import MACHINE
from herder.api.capi.names import CERTIFICATES_EXPIRY, CONTROL_PLANE, annotations_of, labels_of
from herder.api.events import recorded
from herder.api.writes import PROGRESS_DEBOUNCE, status_patch
from herder.controllers.capi.machine import bootstrap as bootstrap_step
from herder.controllers.capi.machine import infrastructure as infrastructure_step
from herder.controllers.capi.machine.bootstrap import Bootstrap
from herder.controllers.capi.machine.deletion import DeletionStep
from herder.controllers.capi.machine.events import status_events
from herder.controllers.capi.machine.infrastructure import Infrastructure
from herder.controllers.capi.machine.node import NodeObservation, NodeReport, legacy_report, node_name, report
from herder.controllers.capi.machine.readiness import available, drain_start, legacy_ready, ready
from herder.controllers.capi.machine.scope import MachineScope, status_of
from herder.controllers.capi.machine.up_to_date import up_to_date
from herder.engine.meta.kinds import GroupVersionKind, Object
from herder.engine.runtime.decision import Decision, Patch, Wait

OWNED = frozenset(
    (
        *("Available", "Ready", "UpToDate", "BootstrapConfigReady", "InfrastructureReady", "NodeReady", "NodeHealthy"),
        *("Updating", "Deleting", "Paused"),
    )
)
LEGACY_OWNED = frozenset(
    (
        *("Ready", "BootstrapReady", "InfrastructureReady", "NodeHealthy", "DrainingSucceeded"),
        *("VolumeDetachSucceeded", "PreDrainDeleteHookSucceeded", "PreTerminateDeleteHookSucceeded"),
    )
)
UPDATE_IN_PROGRESS = "in-place-updates.internal.cluster.x-k8s.io/update-in-progress"

_EMPTY_NODE_INFO = dict.fromkeys(
    (
        *("machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion"),
        *("kubeletVersion", "kubeProxyVersion", "operatingSystem", "architecture"),
    ),
    "",
)


class Findings(NamedTuple):
    """Results of the phases of one pass."""

    scope: MachineScope
    bootstrap: Bootstrap
    infrastructure: Infrastructure
    observation: NodeObservation
    deletion: DeletionStep | None = None

    @property
    def provider_id(self) -> str:
        return str(self.scope.machine["spec"].get("providerID") or "")


def report_status(found: Findings, now: datetime) -> Decision:
    """Write the status if it changed, and wake up when time alone changes it."""
    node = report(found.scope, found.observation, found.provider_id, now)
    conditions = _conditions(found, node, now)
    status = _status(found, now) | {"conditions": conditions.conditions}
    return Decision(
        writes=_status_write(found, {name: value for name, value in status.items() if value}),
        wait=_wait(found, node.waits),
        wake_at=conditions.wake_at,
    )


def report_paused(machine: Object, cluster: Object | None, now: datetime) -> tuple[Patch, ...]:
    conditions = _merged(machine, [paused_condition(cluster, machine)], now)
    return status_patch(MACHINE, machine, {**(machine.get("status") or {}), "conditions": conditions}, "it is paused")


# --- fields ---------------------------------------------------------------------------------------------------------


def _status(found: Findings, now: datetime) -> Object:
    scope, machine = found.scope, found.scope.machine
    before: Object = machine.get("status") or {}
    status: Object = {
        **before,
        "initialization": _initialization(found),
        "addresses": list(found.infrastructure.addresses) or before.get("addresses"),
        "failureDomain": found.infrastructure.actual_domain or before.get("failureDomain"),
        "nodeInfo": _node_info(found),
        "certificatesExpiryDate": _certificates_expiry(scope),
        "deletion": found.deletion.status if found.deletion else None,
        "deprecated": _deprecated(found, now),
        "observedGeneration": machine["metadata"].get("generation"),
    }
    if name := node_name(scope, found.observation) or (found.deletion.node if found.deletion else ""):
        status["nodeRef"] = {"name": name}
    status["phase"] = _phase(found, status)
    if status["phase"] != before.get("phase"):
        status["lastUpdated"] = timestamp(now)
    return status


def _initialization(found: Findings) -> Object:
    flags = {
        bootstrap_step.CREATED: found.bootstrap.created,
        infrastructure_step.PROVISIONED: found.infrastructure.provisioned,
    }
    return {name: True for name, done in flags.items() if done}


def _node_info(found: Findings) -> Any:
    """Complete nodeInfo, as the Machine's schema requires; some servers omit empty fields."""
    status: Object = found.observation.node["status"].get("nodeInfo", {}) if found.observation.node else {}
    return {**_EMPTY_NODE_INFO, **status} if status else status_of(found.scope.machine, "nodeInfo", {})


def _phase(found: Findings, status: Object) -> str:
    if found.scope.deleting:
        return "Deleting"
    if UPDATE_IN_PROGRESS in annotations_of(found.scope.machine):
        return "Updating"
    if status.get("nodeRef") and found.infrastructure.provisioned:
        return "Running"
    if found.provider_id:
        return "Provisioned"
    return "Provisioning" if found.bootstrap.created else "Pending"


def _certificates_expiry(scope: MachineScope) -> str | None:
    """For control plane Machines: from the Machine's annotation, else from the bootstrap object's."""
    if CONTROL_PLANE not in labels_of(scope.machine):
        return None
    for obj in (scope.machine, scope.bootstrap.obj):
        written = annotations_of(obj).get(CERTIFICATES_EXPIRY) if obj else None
        if written:
            return _time(written)
    return None


def _time(written: str) -> str | None:
    """None if the annotation, which anyone can write, is not a valid time."""
    try:
        moment = datetime.fromisoformat(written)
    except ValueError:
        return None
    return timestamp(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _deprecated(found: Findings, now: datetime) -> Object:
    before: Object = status_of(found.scope.machine, "deprecated", {}).get("v1beta1") or {}
    own = [
        reported
        for reported in (
            found.bootstrap.legacy,
            found.infrastructure.legacy,
            legacy_report(found.scope, found.observation, found.provider_id),
            *(found.deletion.legacy if found.deletion else ()),
        )
        if reported is not None
    ]
    conditions = merged_legacy(before.get("conditions"), own, now)
    total = legacy_ready(found.scope, conditions, found.provider_id)
    if total is not None:
        conditions = merged_legacy(conditions, [total], now)
    block = {**before, **_failure(found), "conditions": conditions}
    return {"v1beta1": {name: value for name, value in block.items() if value}}


def _failure(found: Findings) -> Object:
    """Terminal failures of providers, reported for v1beta1 clients only."""
    status: Object = {}
    sources = (
        (found.scope.bootstrap.obj, found.bootstrap.failure),
        (found.scope.infrastructure.obj, found.infrastructure.failure),
    )
    for obj, failure in sources:
        status |= {"failureReason": failure.reason} if failure.reason else {}
        status |= {"failureMessage": _failure_message(obj, failure)} if failure.message else {}
    return status


def _failure_message(obj: Object | None, failure: Failure) -> str:
    if obj is None:
        return failure.message
    name = obj["metadata"]["name"]
    kind = GroupVersionKind.of(obj)
    return f'Failure detected from referenced resource {kind} with name "{name}": {failure.message}'


# --- conditions -----------------------------------------------------------------------------------------------------


class _ConditionReport(NamedTuple):
    conditions: list[Condition]
    wake_at: datetime | None


def _conditions(found: Findings, node: NodeReport, now: datetime) -> _ConditionReport:
    """Conditions of the phases first, then their summaries."""
    scope = found.scope
    updating = _updating(scope.machine)
    current = up_to_date(scope, updating, _node_info(found), now)
    conditions = _merged(
        scope.machine,
        (
            found.bootstrap.condition,
            found.infrastructure.condition,
            node.ready,
            node.healthy,
            updating,
            found.deletion.deleting if found.deletion else condition("Deleting", "False", "NotDeleting"),
            paused_condition(scope.cluster, scope.machine),
            *([current.condition] if current else ()),
        ),
        now,
    )
    readiness = ready(scope, conditions, _drain_start(found), now)
    conditions = merged(conditions, [_observed(scope.machine, readiness.condition)], now)
    ready_now = next(known for known in conditions if known["type"] == "Ready")
    availability = available(scope, ready_now, now)
    conditions = merged(conditions, [_observed(scope.machine, availability.condition)], now)
    wakes = (node.wake_at, current.wake_at if current else None, readiness.wake_at, availability.wake_at)
    return _ConditionReport(conditions, min((wake for wake in wakes if wake is not None), default=None))


def _merged(machine: Object, own: Iterable[Condition], now: datetime) -> list[Condition]:
    return merged(status_of(machine, "conditions", ()), [_observed(machine, each) for each in own], now)


def _observed(machine: Object, conditions: Condition) -> Condition:
    generation = machine["metadata"].get("generation")
    return {**conditions, "observedGeneration": generation} if generation else conditions


def _updating(machine: Object) -> Condition:
    if UPDATE_IN_PROGRESS in annotations_of(machine):
        return condition("Updating", "True", "InPlaceUpdating", "In-place update in progress")
    return condition("Updating", "False", "NotUpdating")


def _drain_start(found: Findings) -> str:
    if found.deletion and found.deletion.status.get("nodeDrainStartTime"):
        return str(found.deletion.status["nodeDrainStartTime"])
    return drain_start(found.scope)


# --- writing --------------------------------------------------------------------------------------------------------


def _status_write(found: Findings, status: Object) -> tuple[Patch, ...]:
    machine = found.scope.machine
    awaited = _awaited_while_deleting if found.deletion else _awaited
    debounce = PROGRESS_DEBOUNCE if awaited(machine) == awaited({"status": status}) else 0.0
    if found.deletion is not None:
        debounce = min(debounce, found.deletion.debounce)
    patches = status_patch(MACHINE, machine, status, "update the Machine status", debounce=debounce)
    return recorded(patches, status_events(machine, status))


def _awaited(machine: Object) -> tuple[Any, ...]:
    """Facts that users and other controllers wait for; other changes may be written with a delay."""
    legacy_block = status_of(machine, "deprecated", {}).get("v1beta1") or {}
    return (
        *_awaited_while_deleting(machine),
        status_of(machine, "nodeRef", None),
        *(is_false(machine, type_) for type_ in ("UpToDate", "NodeHealthy")),
        (find(machine, "InfrastructureReady") or {}).get("reason") == "ObjectDeleted",
        legacy_block.get("failureReason"),
    )


def _awaited_while_deleting(machine: Object) -> tuple[Any, ...]:
    """During deletion, missing objects and Nodes are expected; the deletion stages say what is urgent."""
    return tuple(is_true(machine, type_) for type_ in ("Ready", "Available", "Paused"))


def _wait(found: Findings, node_waits: str) -> Wait | None:
    if found.deletion is not None:
        return None
    reasons = (found.bootstrap.waits, found.infrastructure.waits, node_waits)
    return next((Wait(reason) for reason in reasons if reason), None)
