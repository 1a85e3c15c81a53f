"""`status.deprecated.v1beta1` of a Cluster."""

from __future__ import annotations

from herder.api.capi.conditions import Condition, find_legacy, legacy, legacy_mirror, legacy_summary, merged_legacy
from herder.api.capi.contract import fields
from herder.controllers.capi.cluster.scope import ClusterScope
from herder.controllers.capi.externals import External
from herder.engine.meta.kinds import Object

INITIALIZED = "ControlPlaneInitialized"


def deprecated(scope: ClusterScope) -> Object:
    known = scope.status("deprecated", {}).get("v1beta1") or {}
    wanted = _conditions(scope)
    ready = legacy_summary(wanted, ("ControlPlaneReady", "InfrastructureReady"))
    listed = merged_legacy(known.get("conditions"), [*wanted, *([ready] if ready else [])], scope.view.now)
    return {"v1beta1": {"conditions": listed} | _failure(scope)}


def _conditions(scope: ClusterScope) -> list[Condition]:
    reported = []
    if scope.infrastructure is not None:
        reported.append(
            _mirrored(scope, scope.infrastructure, "InfrastructureReady", scope.provisioned, "WaitingForInfrastructure")
        )
    elif scope.provisioned:
        reported.append(legacy("InfrastructureReady", "True"))
    if scope.control_plane is not None:
        reported.append(
            _mirrored(scope, scope.control_plane, "ControlPlaneReady", scope.initialized, "WaitingForControlPlane")
        )
    return [*reported, _initialized(scope)]


def _mirrored(scope: ClusterScope, external: External, type_: str, ready: bool, waiting: str) -> Condition:
    if scope.deleting:
        reason = "Deleted" if external.missing else "Deleting"
        return legacy_mirror(external.obj, type_, fallback=legacy(type_, "False", reason, "Info"))
    if ready and external.obj is not None:
        return legacy_mirror(external.obj, type_, fallback=legacy(type_, "True"))
    return legacy_mirror(external.obj, type_, fallback=legacy(type_, "False", waiting, "Info"))


def _initialized(scope: ClusterScope) -> Condition:
    """Keep the condition once it is True; compute it again if someone resets it, as in v1beta2."""
    known = find_legacy(scope.cluster, INITIALIZED)
    if known is not None and known["status"] == "True":
        return known
    if scope.initialized_now:
        return legacy(INITIALIZED, "True")
    if scope.control_plane is None:
        message = "Waiting for the first control plane machine to have its status.nodeRef set"
        return legacy(INITIALIZED, "False", "MissingNodeRef", "Info", message)
    message = "Waiting for control plane provider to indicate the control plane has been initialized"
    return legacy(INITIALIZED, "False", "WaitingForControlPlaneProviderInitialized", "Info", message)


def _failure(scope: ClusterScope) -> Object:
    """Terminal failure that a provider reports; the control plane's overrides the infrastructure's."""
    status: Object = {}
    for external in (scope.infrastructure, scope.control_plane):
        if external is None or external.obj is None or external.kind is None:
            continue
        failure = fields.failure(external.obj)
        if failure.reason:
            status["failureReason"] = failure.reason
        if failure.message:
            which = (
                f'{external.kind.api_version}, Kind={external.kind.kind} with name "{external.obj["metadata"]["name"]}"'
            )
            status["failureMessage"] = f"Failure detected from referenced resource {which}: {failure.message}"
    return status
