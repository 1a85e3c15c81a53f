"""Report the result of a planner pass: status of the RKEControlPlane, conditions of the Machines."""

from __future__ import annotations

from datetime import datetime

from herder.api.capi.conditions import Condition, condition, find, legacy, merged, merged_legacy
from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.events import recorded, warning
from herder.api.machines.conditions import merged_with_updates
from herder.api.rke import cluster_spec
from herder.api.rke.etcd.restore import extended_approvals, extended_history
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.writes import PROGRESS_DEBOUNCE, status_patch
from herder.controllers.planner.rollout.agent_versions import report_agents
from herder.controllers.planner.rollout.certificate_expiry import check_certificates
from herder.controllers.planner.rollout.events import certificate_events, rollout_events
from herder.controllers.planner.rollout.machines import RECONCILED
from herder.controllers.planner.rollout.operation_status import report_operation
from herder.controllers.planner.rollout.scope import MachineStatus, PlanScope, Result, earliest
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Patch

READY, STABLE = "Ready", "Stable"
PROVISIONED, BOOTSTRAPPED = "Provisioned", "Bootstrapped"
ALWAYS_FALSE = ("ScalingUp", "ScalingDown", "RollingOut")  # required by Cluster API's control plane contract
_APPLIED = ("kubernetesVersion", "clusterName", "managementClusterName", "provisionGeneration", "upgradeStrategy")


# --- RKEControlPlane --------------------------------------------------------------------------------------------------


def report_control_plane(scope: PlanScope, result: Result) -> tuple[Patch, ...]:
    """Report completion and errors at once; debounce progress."""
    before = scope.status
    status = _with_observed_generation(scope.control_plane)
    if result.initialized is not None:
        steps = {**(before.get("initialization") or {}), "controlPlaneInitialized": result.initialized}
        status |= {"initialization": steps, "initialized": result.initialized}
    if not result.waiting and not result.error:
        status |= {"appliedSpec": _applied_spec(scope.spec), "appliedDigest": cluster_spec.digest(scope.spec)}
    status |= result.status
    if (history := extended_history(scope.control_plane)) is not None:
        status["specHistory"] = history
    if (approved := extended_approvals(scope.control_plane)) is not None:
        status["approvedObjects"] = approved
    operation = report_operation(scope, status, result.waiting_machines)
    certificates = check_certificates(scope)
    result.wake_at = earliest(result.wake_at, certificates.wake_at)
    wanted = [*_conditions(scope, result), *operation, *certificates.conditions, *report_agents(scope)]
    status["conditions"] = merged_with_updates(before.get("conditions"), wanted, scope.view.now)
    urgent = result.initialized is not None or bool(result.status) or not result.waiting
    debounce = 0.0 if urgent or not find(scope.control_plane, READY) else PROGRESS_DEBOUNCE
    patches = status_patch(CONTROL_PLANE, scope.control_plane, status, "rollout progress", debounce=debounce)
    return recorded(
        patches, (*result.events, *rollout_events(scope, result), *certificate_events(scope, certificates.conditions))
    )


def report_error(control_plane: Object, error: str, now: datetime) -> tuple[Patch, ...]:
    """Report a spec that cannot be planned at all."""
    status = _with_observed_generation(control_plane)
    conditions = [condition(type_, "False", "Error", error) for type_ in (READY, RECONCILED)]
    status["conditions"] = merged_with_updates(status.get("conditions"), conditions, now)
    is_news = (find(control_plane, READY) or {}).get("message") != error
    events = (warning(CONTROL_PLANE, control_plane, "PlanningFailed", error),) if is_news else ()
    return recorded(status_patch(CONTROL_PLANE, control_plane, status, "the spec is invalid"), events)


def _with_observed_generation(control_plane: Object) -> Object:
    """The status, observed for the current generation of the spec."""
    return {**(control_plane.get("status") or {}), "observedGeneration": control_plane["metadata"].get("generation", 0)}


def _conditions(scope: PlanScope, result: Result) -> list[Condition]:
    conditions = [condition(type_, "False", "") for type_ in ALWAYS_FALSE if find(scope.control_plane, type_) is None]
    if result.provisioned:
        conditions.append(condition(PROVISIONED, "True", ""))
    if result.bootstrapped:
        conditions.append(condition(BOOTSTRAPPED, "True", ""))
    if result.unstable:
        conditions.append(condition(STABLE, "False", ""))
    if result.error:
        return [*conditions, *(condition(type_, "False", "Error", result.error) for type_ in (READY, RECONCILED))]
    if result.waiting:
        changed = scope.status.get("appliedDigest") != cluster_spec.digest(scope.spec)
        if result.in_background and not changed:
            return conditions
        types = (READY, RECONCILED) if changed else (READY,)
        return [*conditions, *(condition(type_, "Unknown", "Waiting", result.waiting) for type_ in types)]
    return [*conditions, *(condition(type_, "True", "") for type_ in (READY, STABLE, RECONCILED))]


def _applied_spec(spec: Object) -> Object:
    """The parts of the spec that cannot contain secrets; configuration, manifests and variables can."""
    return {part: spec[part] for part in _APPLIED if spec.get(part) is not None}


def uninitialize(cluster: Object, now: datetime) -> tuple[Patch, ...]:
    """Reset ControlPlaneInitialized, so that Cluster API treats new machines as in a new cluster."""
    known = find(cluster, "ControlPlaneInitialized")
    if known is None or known.get("status") == "False":
        return ()
    message = "Waiting for control plane provider to indicate the control plane has been initialized"
    wanted = condition("ControlPlaneInitialized", "False", "NotInitialized", message)
    before = cluster.get("status") or {}
    status = {**before, "conditions": merged(before.get("conditions"), [wanted], now)}
    return status_patch(CLUSTER, cluster, status, "no control plane machine is left")


# --- Machines ---------------------------------------------------------------------------------------------------------


def report_machine(machine_status: MachineStatus, now: datetime) -> tuple[Patch, ...]:
    """Set the Reconciled condition, once the infrastructure is ready: until then others report what is missing."""
    machine = machine_status.entry.machine
    if not machine_status.entry.infrastructure_ready:
        return ()
    message = ", ".join(machine_status.details)
    wanted_condition = ("Unknown", "Waiting", message) if message else ("True", RECONCILED, "")
    debounce = PROGRESS_DEBOUNCE if message else 0.0
    return machine_condition(machine, RECONCILED, wanted_condition, now, debounce=debounce)


def machine_condition(
    machine: Object, type_: str, wanted_condition: tuple[str, str, str], now: datetime, *, debounce: float = 0.0
) -> tuple[Patch, ...]:
    """Set a condition in both lists: clients of v1beta1 read the deprecated one."""
    status_, reason, message = wanted_condition
    known = find(machine, type_) or {}
    if (known.get("status"), known.get("reason"), known.get("message")) == wanted_condition:
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
    return status_patch(MACHINE, machine, status, f"{type_} of a machine", debounce=debounce)
