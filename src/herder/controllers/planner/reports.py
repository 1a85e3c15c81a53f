"""What a pass makes known: on the control plane for the whole cluster, and on each Machine."""

from __future__ import annotations

from datetime import datetime

from herder.api.capi.conditions import Condition, condition, find, legacy, merged, merged_legacy
from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.machines.conditions import merged_with_updates
from herder.api.rke import cluster_spec
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.writing import PROGRESS_PATIENCE, status_patch
from herder.controllers.planner.entries import RECONCILED
from herder.controllers.planner.planning import Result, Scene, Standing
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Patch

READY, STABLE = "Ready", "Stable"
PROVISIONED, BOOTSTRAPPED = "Provisioned", "Bootstrapped"
ALWAYS_FALSE = ("ScalingUp", "ScalingDown", "RollingOut")  # Cluster API asks every control plane for them
_APPLIED = ("kubernetesVersion", "clusterName", "managementClusterName", "provisionGeneration", "upgradeStrategy")


# --- the control plane ----------------------------------------------------------------------------------------------


def report_control_plane(scene: Scene, result: Result) -> tuple[Patch, ...]:
    """People wait for the end and for errors; what is told on the way may wait for more of it."""
    before = scene.status
    status = _seen(scene.control_plane)
    if result.initialized is not None:
        steps = {**(before.get("initialization") or {}), "controlPlaneInitialized": result.initialized}
        status |= {"initialization": steps, "initialized": result.initialized}
    if not result.waiting and not result.error:
        status |= {"appliedSpec": _applied(scene.spec), "appliedDigest": cluster_spec.digest(scene.spec)}
    wanted = _conditions(scene, result)
    status["conditions"] = merged_with_updates(before.get("conditions"), wanted, scene.view.now)
    turned = result.initialized is not None or not result.waiting
    patience = 0.0 if turned or not find(scene.control_plane, READY) else PROGRESS_PATIENCE
    return status_patch(CONTROL_PLANE, scene.control_plane, status, "how far the machines are", patience=patience)


def report_error(control_plane: Object, error: str, now: datetime) -> tuple[Patch, ...]:
    """Of a spec that nothing can be planned from."""
    status = _seen(control_plane)
    conditions = [condition(type_, "False", "Error", error) for type_ in (READY, RECONCILED)]
    status["conditions"] = merged_with_updates(status.get("conditions"), conditions, now)
    return status_patch(CONTROL_PLANE, control_plane, status, "the spec is wrong")


def _seen(control_plane: Object) -> Object:
    """What is told is told of this state of the spec."""
    return {**(control_plane.get("status") or {}), "observedGeneration": control_plane["metadata"].get("generation", 0)}


def _conditions(scene: Scene, result: Result) -> list[Condition]:
    conditions = [condition(type_, "False", "") for type_ in ALWAYS_FALSE if find(scene.control_plane, type_) is None]
    if result.provisioned:
        conditions.append(condition(PROVISIONED, "True", ""))
    if result.bootstrapped:
        conditions.append(condition(BOOTSTRAPPED, "True", ""))
    if result.unstable:
        conditions.append(condition(STABLE, "False", ""))
    if result.error:
        return [*conditions, *(condition(type_, "False", "Error", result.error) for type_ in (READY, RECONCILED))]
    if result.waiting:
        changed = scene.status.get("appliedDigest") != cluster_spec.digest(scene.spec)
        types = (READY, RECONCILED) if changed else (READY,)
        return [*conditions, *(condition(type_, "Unknown", "Waiting", result.waiting) for type_ in types)]
    return [*conditions, *(condition(type_, "True", "") for type_ in (READY, STABLE, RECONCILED))]


def _applied(spec: Object) -> Object:
    """What can hold no secret: configuration, manifests and variables are the user's own words."""
    return {part: spec[part] for part in _APPLIED if spec.get(part) is not None}


def uninitialize(cluster: Object, now: datetime) -> tuple[Patch, ...]:
    """So that Cluster API lets new machines in as it does in a new cluster."""
    known = find(cluster, "ControlPlaneInitialized")
    if known is None or known.get("status") == "False":
        return ()
    message = "Waiting for control plane provider to indicate the control plane has been initialized"
    wanted = condition("ControlPlaneInitialized", "False", "NotInitialized", message)
    before = cluster.get("status") or {}
    status = {**before, "conditions": merged(before.get("conditions"), [wanted], now)}
    return status_patch(CLUSTER, cluster, status, "no machine is left that could answer")


# --- machines -------------------------------------------------------------------------------------------------------


def report_machine(standing: Standing, now: datetime) -> tuple[Patch, ...]:
    """Nothing while its infrastructure is not there: until then others say what it waits for."""
    machine = standing.entry.machine
    if not standing.entry.infrastructure_ready:
        return ()
    message = ", ".join(standing.details)
    said = ("Unknown", "Waiting", message) if message else ("True", RECONCILED, "")
    patience = PROGRESS_PATIENCE if message else 0.0
    return machine_condition(machine, RECONCILED, said, now, patience=patience)


def machine_condition(
    machine: Object, type_: str, said: tuple[str, str, str], now: datetime, *, patience: float = 0.0
) -> tuple[Patch, ...]:
    """In both lists, for as long as there are readers of the older one."""
    status_, reason, message = said
    known = find(machine, type_) or {}
    if (known.get("status"), known.get("reason"), known.get("message")) == said:
        return ()
    before = machine.get("status") or {}
    old = ((before.get("deprecated") or {}).get("v1beta1") or {}).get("conditions")
    severity = "Error" if status_ == "False" else ""
    older = merged_legacy(old, [legacy(type_, status_, reason, severity, message)], now)
    deprecated = before.get("deprecated") or {}
    status = {
        **before,
        "conditions": merged(before.get("conditions"), [condition(type_, status_, reason, message)], now),
        "deprecated": {**deprecated, "v1beta1": {**(deprecated.get("v1beta1") or {}), "conditions": older}},
    }
    return status_patch(MACHINE, machine, status, f"{type_} of a machine", patience=patience)
