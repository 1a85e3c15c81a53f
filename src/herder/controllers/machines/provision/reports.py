"""What a machine's status says: conditions in the flat form of wrangler, and failures for good."""

from __future__ import annotations

from datetime import datetime

from herder.api.capi.conditions import condition, find
from herder.api.machines.conditions import merged_with_updates
from herder.api.writing import status_patch
from herder.controllers.machines.provision.scene import Scene
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import DONE, Decision

CREATE_JOB, DELETE_JOB, READY = "CreateJob", "DeleteJob", "Ready"
CREATE_ERROR, DELETE_ERROR = "CreateError", "DeleteError"
NOT_PREPARED = "NotPrepared"  # no Job can be made yet: somebody must do something first
_FAILURE = ("failureReason", "failureMessage")


def creating(scene: Scene, hindrance: str = "", **fields: str) -> Decision:
    return _report_status(scene, CREATE_JOB, "Unknown", "Creating", _with(f"creating {scene.told}", hindrance), fields)


def created(scene: Scene) -> Decision:
    return _report_status(scene, CREATE_JOB, "True", "Created", "", {})


def provisioned(scene: Scene) -> Decision:
    """To the core, once the machine has a name at its provider: until then there is nothing that a Node could match."""
    if not (scene.infra.get("spec") or {}).get("providerID"):
        return DONE
    after = {**scene.status, "initialization": {"provisioned": True}}
    return Decision(status_patch(scene.kind, scene.infra, after, "it has a provider ID"))


def not_created(scene: Scene, why: str) -> Decision:
    message = f"failed creating {scene.told}: {CREATE_ERROR}: {why}"
    return _report_status(scene, CREATE_JOB, "False", CREATE_ERROR, message, _failure(CREATE_ERROR, why))


def not_prepared(scene: Scene, problem: str, *, removes: bool) -> Decision:
    return _report_status(scene, DELETE_JOB if removes else CREATE_JOB, "False", NOT_PREPARED, problem, {})


def deleting(scene: Scene, hindrance: str = "", **fields: str) -> Decision:
    return _report_status(scene, DELETE_JOB, "Unknown", "Deleting", _with(f"deleting {scene.told}", hindrance), fields)


def deleted(scene: Scene) -> Decision:
    return _report_status(scene, DELETE_JOB, "True", "Deleted", "", {}, ready="False")


def not_deleted(scene: Scene, why: str) -> Decision:
    message = f"failed deleting {scene.told}: {DELETE_ERROR}: {why}"
    return _report_status(scene, DELETE_JOB, "False", DELETE_ERROR, message, _failure(DELETE_ERROR, why))


def is_created(infra: Object) -> bool:
    found = find(infra, CREATE_JOB)
    return found is not None and found["status"] == "True"


def has_failed(infra: Object) -> bool:
    """For good: its Job ended so."""
    found = find(infra, CREATE_JOB)
    return found is not None and found["status"] == "False" and found.get("reason") == CREATE_ERROR


def is_settled(infra: Object) -> bool:
    return is_created(infra) or has_failed(infra)


def is_under_way(infra: Object) -> bool:
    """A Job was started, and nobody has told yet how it ended."""
    found = find(infra, CREATE_JOB)
    return found is not None and found["status"] == "Unknown"


def failed_at(infra: Object) -> datetime:
    found = find(infra, CREATE_JOB) or {}
    return datetime.fromisoformat(found["lastTransitionTime"])


def _with(message: str, hindrance: str) -> str:
    return f"{message}: {hindrance}" if hindrance else message


def _failure(reason: str, message: str) -> Object:
    return {"failureReason": reason, "failureMessage": message}


def _report_status(
    scene: Scene, type_: str, status: str, reason: str, message: str, fields: Object, *, ready: str = ""
) -> Decision:
    """Ready is as the Job's own condition is; who deletes sees it under both names."""
    wanted = [condition(type_, status, reason, message), condition(READY, ready or status, reason, message)]
    before = {name: value for name, value in scene.status.items() if name not in _FAILURE}
    after = {**before, **fields, "conditions": merged_with_updates(before.get("conditions"), wanted, scene.view.now)}
    return Decision(status_patch(scene.kind, scene.infra, after, message or f"{type_} is {status}"))
