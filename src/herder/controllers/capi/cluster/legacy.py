"""The Cluster's status as v1beta1 had it."""

from __future__ import annotations

from herder.api.capi.conditions import Condition, find_legacy, legacy, legacy_mirror, legacy_summary, merged_legacy
from herder.api.capi.contract import fields
from herder.controllers.capi.cluster.scene import Scene
from herder.controllers.capi.externals import External
from herder.engine.meta.kinds import Object

INITIALIZED = "ControlPlaneInitialized"


def deprecated(scene: Scene) -> Object:
    known = scene.status("deprecated", {}).get("v1beta1") or {}
    wanted = _conditions(scene)
    ready = legacy_summary(wanted, ("ControlPlaneReady", "InfrastructureReady"))
    listed = merged_legacy(known.get("conditions"), [*wanted, *([ready] if ready else [])], scene.view.now)
    return {"v1beta1": {"conditions": listed} | _failure(scene)}


def _conditions(scene: Scene) -> list[Condition]:
    made = []
    if scene.infrastructure is not None:
        made.append(
            _mirrored(scene, scene.infrastructure, "InfrastructureReady", scene.provisioned, "WaitingForInfrastructure")
        )
    elif scene.provisioned:
        made.append(legacy("InfrastructureReady", "True"))
    if scene.control_plane is not None:
        made.append(
            _mirrored(scene, scene.control_plane, "ControlPlaneReady", scene.initialized, "WaitingForControlPlane")
        )
    return [*made, _initialized(scene)]


def _mirrored(scene: Scene, external: External, type_: str, ready: bool, waiting: str) -> Condition:
    if scene.deleting:
        reason = "Deleted" if external.missing else "Deleting"
        return legacy_mirror(external.obj, type_, fallback=legacy(type_, "False", reason, "Info"))
    if ready and external.obj is not None:
        return legacy_mirror(external.obj, type_, fallback=legacy(type_, "True"))
    return legacy_mirror(external.obj, type_, fallback=legacy(type_, "False", waiting, "Info"))


def _initialized(scene: Scene) -> Condition:
    """Found out anew if somebody set it back, as in the newer list."""
    known = find_legacy(scene.cluster, INITIALIZED)
    if known is not None and known["status"] == "True":
        return known
    if scene.initialized_now:
        return legacy(INITIALIZED, "True")
    if scene.control_plane is None:
        message = "Waiting for the first control plane machine to have its status.nodeRef set"
        return legacy(INITIALIZED, "False", "MissingNodeRef", "Info", message)
    message = "Waiting for control plane provider to indicate the control plane has been initialized"
    return legacy(INITIALIZED, "False", "WaitingForControlPlaneProviderInitialized", "Info", message)


def _failure(scene: Scene) -> Object:
    """What a provider calls terminal; the control plane's word counts for more."""
    status: Object = {}
    for external in (scene.infrastructure, scene.control_plane):
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
