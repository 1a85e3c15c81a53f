"""What a Machine's status tells: put together from what each step of the pass found out."""

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
from herder.api.writing import PROGRESS_PATIENCE, status_patch
from herder.controllers.capi.machine import bootstrap as bootstrap_step
from herder.controllers.capi.machine import infrastructure as infrastructure_step
from herder.controllers.capi.machine.bootstrap import Bootstrap
from herder.controllers.capi.machine.deletion import DeletionStep
from herder.controllers.capi.machine.infrastructure import Infrastructure
from herder.controllers.capi.machine.node import NodeReport, Sight, legacy_report, node_name, report
from herder.controllers.capi.machine.readiness import available, drain_began, legacy_ready, ready
from herder.controllers.capi.machine.scene import Scene, status_of
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
    """What the steps of one pass found out."""

    scene: Scene
    bootstrap: Bootstrap
    infrastructure: Infrastructure
    sight: Sight
    deletion: DeletionStep | None = None

    @property
    def provider_id(self) -> str:
        return str(self.scene.machine["spec"].get("providerID") or "")


def report_status(found: Findings, now: datetime) -> Decision:
    """The status write, if anything changed, and when time alone will change it again."""
    node = report(found.scene, found.sight, found.provider_id, now)
    conditions = _conditions(found, node, now)
    status = _status(found, now) | {"conditions": conditions.conditions}
    return Decision(
        writes=_written(found, {name: value for name, value in status.items() if value}),
        wait=_wait(found, node.waits),
        wake_at=conditions.wake_at,
    )


def report_paused(machine: Object, cluster: Object | None, now: datetime) -> tuple[Patch, ...]:
    conditions = _merged(machine, [paused_condition(cluster, machine)], now)
    return status_patch(MACHINE, machine, {**(machine.get("status") or {}), "conditions": conditions}, "it is paused")


# --- the fields ------------------------------------------------------------------------------------------------------


def _status(found: Findings, now: datetime) -> Object:
    scene, machine = found.scene, found.scene.machine
    before: Object = machine.get("status") or {}
    status: Object = {
        **before,
        "initialization": _initialization(found),
        "addresses": list(found.infrastructure.addresses) or before.get("addresses"),
        "failureDomain": found.infrastructure.actual_domain or before.get("failureDomain"),
        "nodeInfo": _node_info(found),
        "certificatesExpiryDate": _certificates_expiry(scene),
        "deletion": found.deletion.status if found.deletion else None,
        "deprecated": _deprecated(found, now),
        "observedGeneration": machine["metadata"].get("generation"),
    }
    if name := node_name(scene, found.sight) or (found.deletion.node if found.deletion else ""):
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
    """Whole, as the Machine's schema wants it; some servers leave out what is empty."""
    status: Object = found.sight.node["status"].get("nodeInfo", {}) if found.sight.node else {}
    return {**_EMPTY_NODE_INFO, **status} if status else status_of(found.scene.machine, "nodeInfo", {})


def _phase(found: Findings, status: Object) -> str:
    if found.scene.deleting:
        return "Deleting"
    if UPDATE_IN_PROGRESS in annotations_of(found.scene.machine):
        return "Updating"
    if status.get("nodeRef") and found.infrastructure.provisioned:
        return "Running"
    if found.provider_id:
        return "Provisioned"
    return "Provisioning" if found.bootstrap.created else "Pending"


def _certificates_expiry(scene: Scene) -> str | None:
    """Of a control plane's Machine: as its own annotation says, else that of its bootstrap object."""
    if CONTROL_PLANE not in labels_of(scene.machine):
        return None
    for obj in (scene.machine, scene.bootstrap.obj):
        written = annotations_of(obj).get(CERTIFICATES_EXPIRY) if obj else None
        if written:
            return _time(written)
    return None


def _time(written: str) -> str | None:
    """None where it is no time: an annotation is anybody's to write."""
    try:
        moment = datetime.fromisoformat(written)
    except ValueError:
        return None
    return timestamp(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _deprecated(found: Findings, now: datetime) -> Object:
    before: Object = status_of(found.scene.machine, "deprecated", {}).get("v1beta1") or {}
    own = [
        reported
        for reported in (
            found.bootstrap.legacy,
            found.infrastructure.legacy,
            legacy_report(found.scene, found.sight, found.provider_id),
            *(found.deletion.legacy if found.deletion else ()),
        )
        if reported is not None
    ]
    conditions = merged_legacy(before.get("conditions"), own, now)
    total = legacy_ready(found.scene, conditions, found.provider_id)
    if total is not None:
        conditions = merged_legacy(conditions, [total], now)
    block = {**before, **_failure(found), "conditions": conditions}
    return {"v1beta1": {name: value for name, value in block.items() if value}}


def _failure(found: Findings) -> Object:
    """Providers' last words, kept for those who still read them; they stop nothing."""
    status: Object = {}
    sources = (
        (found.scene.bootstrap.obj, found.bootstrap.failure),
        (found.scene.infrastructure.obj, found.infrastructure.failure),
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


# --- conditions ------------------------------------------------------------------------------------------------------


class _ConditionReport(NamedTuple):
    conditions: list[Condition]
    wake_at: datetime | None


def _conditions(found: Findings, node: NodeReport, now: datetime) -> _ConditionReport:
    """First what each step says for itself, then what that adds up to."""
    scene = found.scene
    updating = _updating(scene.machine)
    current = up_to_date(scene, updating, _node_info(found), now)
    conditions = _merged(
        scene.machine,
        (
            found.bootstrap.condition,
            found.infrastructure.condition,
            node.ready,
            node.healthy,
            updating,
            found.deletion.deleting if found.deletion else condition("Deleting", "False", "NotDeleting"),
            paused_condition(scene.cluster, scene.machine),
            *([current.condition] if current else ()),
        ),
        now,
    )
    readiness = ready(scene, conditions, _drain_began(found), now)
    conditions = merged(conditions, [_observed(scene.machine, readiness.condition)], now)
    ready_now = next(known for known in conditions if known["type"] == "Ready")
    availability = available(scene, ready_now, now)
    conditions = merged(conditions, [_observed(scene.machine, availability.condition)], now)
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


def _drain_began(found: Findings) -> str:
    if found.deletion and found.deletion.status.get("nodeDrainStartTime"):
        return str(found.deletion.status["nodeDrainStartTime"])
    return drain_began(found.scene)


# --- writing ---------------------------------------------------------------------------------------------------------


def _written(found: Findings, status: Object) -> tuple[Patch, ...]:
    machine = found.scene.machine
    awaited = _awaited_of_going if found.deletion else _awaited
    patience = PROGRESS_PATIENCE if awaited(machine) == awaited({"status": status}) else 0.0
    if found.deletion is not None:
        patience = min(patience, found.deletion.patience)
    return status_patch(MACHINE, machine, status, "tell how far it is", patience=patience)


def _awaited(machine: Object) -> tuple[Any, ...]:
    """What people and other controllers wait for; everything else is progress, and can wait a little itself."""
    legacy_block = status_of(machine, "deprecated", {}).get("v1beta1") or {}
    return (
        *_awaited_of_going(machine),
        status_of(machine, "nodeRef", None),
        *(is_false(machine, type_) for type_ in ("UpToDate", "NodeHealthy")),
        (find(machine, "InfrastructureReady") or {}).get("reason") == "ObjectDeleted",
        legacy_block.get("failureReason"),
    )


def _awaited_of_going(machine: Object) -> tuple[Any, ...]:
    """That its objects and its Node vanish is no news then; its deletion says itself what cannot wait."""
    return tuple(is_true(machine, type_) for type_ in ("Ready", "Available", "Paused"))


def _wait(found: Findings, node_waits: str) -> Wait | None:
    if found.deletion is not None:
        return None
    reasons = (found.bootstrap.waits, found.infrastructure.waits, node_waits)
    return next((Wait(reason) for reason in reasons if reason), None)
